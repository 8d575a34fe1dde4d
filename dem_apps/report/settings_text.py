"""Settings as a page shows them: dotted keys and texts of bounded length, whatever a run's files hold."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

_MOST_ROWS, _DEEPEST, _LONGEST, _MOST_PARTS = 1000, 8, 400, 24
_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxlist, _brief.maxdict = 4, _MOST_PARTS, _MOST_PARTS
_brief.maxstring = _brief.maxother = _LONGEST


def flat(document: Mapping[str, Any]) -> dict[str, str]:
    """Nested settings as dotted keys and short texts, at most 1000 of them."""
    return {key: shown(value) for key, value in islice(_leaves(document, "", 0), _MOST_ROWS)}


def shown(value: Any) -> str:
    """A setting as people read it, of bounded length."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else value[:_LONGEST] + "…"
    if isinstance(value, float):
        return f"{value:g}"
    if (
        isinstance(value, (list, tuple))
        and len(value) <= _MOST_PARTS
        and all(isinstance(v, (str, int, float)) for v in value)
    ):
        return ", ".join(shown(part) for part in value) or "none"
    return _brief.repr(value)


def _leaves(document: Mapping[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping) and value and depth < _DEEPEST:
            yield from _leaves(value, f"{prefix}{key}.", depth + 1)
        else:
            yield f"{prefix}{key}", value
