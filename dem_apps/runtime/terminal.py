"""Printing to terminals and files that cannot show every character, and text that must not steer them."""

from __future__ import annotations

import codecs
import io
import re
import sys

from rich.console import Console

from dem_apps.errors import printable

_HANDLER = "dem_apps.spelled"
_SPELLED = {"±": "+-", "…": "...", "−": "-", "–": "-", "×": "x", "→": "->"}
#: C0 and C1 controls without the white space that a longer text may hold, what turns the direction of writing, and
#: halves of characters, which have no UTF-8.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def print_anything() -> None:
    """From now on a character that stdout or stderr has no code for is spelled or an escape, and no error."""
    codecs.register_error(_HANDLER, _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def control_character(text: str) -> str | None:
    r"""The first character that no name, path or setting may hold, as an escape; None where there is none.

    Tabs and ends of lines are allowed: an expression in a YAML file may have several lines.
    """
    found = _CONTROL.search(text)
    return None if found is None else printable(found.group())


def console() -> Console:
    """Of the standard output, where ``[red]`` and ``:car:`` in a name are that name and nothing else."""
    return Console(markup=False, emoji=False)


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_SPELLED.get(one) or one.encode("unicode_escape").decode() for one in lost), error.end
