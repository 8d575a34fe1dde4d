"""The built-in pair of street worlds."""
