"""Checks of single options, with a sentence that says what would be right."""

from __future__ import annotations

from collections.abc import Iterable

from dem_apps.errors import InputError, nearest

#: How a loss is reduced over elements: those under which a learning rate means the same at every number of them.
REDUCTIONS = ("mean", "balanced")


def number(option: str, value: float, least: float, most: float = float("inf")) -> float:
    """An option that is a number within bounds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        wanted = f"of at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
        raise InputError(f"{option}: expected a number {wanted}, got {value!r}")
    return float(value)


def number_or_none(option: str, value: float | None, least: float, most: float = float("inf")) -> float | None:
    """An option that is a number within bounds, or None for its default."""
    return None if value is None else number(option, value, least, most)


def one_of(option: str, value: str, known: Iterable[str]) -> str:
    """An option that is one of a few words."""
    if value not in known:
        raise InputError(f"{option}: '{value}' is not one of {', '.join(known)}{nearest(value, known)}")
    return value
