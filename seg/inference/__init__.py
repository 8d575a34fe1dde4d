"""Prediction from Python: ``from seg import load``."""
