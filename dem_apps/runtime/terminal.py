"""Printing to terminals and files that cannot show every character."""

from __future__ import annotations

import io
import sys

from rich.console import Console


def print_anything() -> None:
    """From now on a character that stdout or stderr has no code for is printed as an escape, and is no error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def console() -> Console:
    """Of the standard output, where ``[red]`` and ``:car:`` in a name are that name and nothing else."""
    return Console(markup=False, emoji=False)
