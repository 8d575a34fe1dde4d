"""Formats that trained networks come in, one file each; the table of them is in :mod:`seg.models.trained`."""
