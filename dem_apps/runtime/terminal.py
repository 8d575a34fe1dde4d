"""Printing to a terminal with rich."""

from __future__ import annotations

from rich.console import Console


def console() -> Console:
    """Of the standard output, where ``[red]`` and ``:car:`` in a name are that name and nothing else."""
    return Console(markup=False, emoji=False)
