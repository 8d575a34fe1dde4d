"""Runs read back: statistics, figures, videos."""
