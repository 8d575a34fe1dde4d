"""Scores of predictions, with labels and without, and which checkpoint is kept."""
