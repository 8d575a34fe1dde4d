"""Printing to a terminal with rich."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from dem_apps.errors import printable_lines


class _Console(Console):
    """Escapes what it is given, and writes colours of its own."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable_lines(text), **options)


def console(**options: Any) -> Console:
    """Of the standard output, where ``[red]`` and ``:car:`` in a name are that name and nothing else."""
    return _Console(file=getattr(sys.stdout, "stream", None), markup=False, emoji=False, **options)
