"""Adaptation methods."""
