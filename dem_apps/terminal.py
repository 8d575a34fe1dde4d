"""Printing to terminals and files that cannot show every character."""

from __future__ import annotations

import codecs
import io
import sys

_HANDLER = "dem_apps.spelled"
_SPELLED = {"±": "+-", "…": "...", "−": "-", "–": "-", "×": "x", "→": "->"}


def print_anything() -> None:
    """From now on a character that stdout or stderr has no code for is spelled, or a question mark, and no error."""
    codecs.register_error(_HANDLER, _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _spelled(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(_SPELLED.get(character, "?") for character in lost), error.end
