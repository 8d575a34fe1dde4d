"""Entropy maps and tables."""
