"""Trained networks: opening them by SPEC, what is known of them, and writing them back."""
