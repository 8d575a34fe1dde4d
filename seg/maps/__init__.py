"""Entropy maps, and the pictures of a predicted image."""
