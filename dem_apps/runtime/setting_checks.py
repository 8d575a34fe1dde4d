"""Checks of settings: type, choices and range."""

from __future__ import annotations

import dataclasses
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from dem_apps.errors import InputError, one_of, shown
from dem_apps.runtime.arguments import fields_of, flag, needed_flags
from dem_apps.runtime.documents import is_a

_BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "at_least": (operator.ge, "{} or more"),
    "at_most": (operator.le, "{} at most"),
    "above": (operator.gt, "more than {}"),
    "below": (operator.lt, "less than {}"),
}


def check_settings(settings: Any, name: Callable[[str], str] = flag) -> None:
    """Check every value of a dataclass of options against its type, choices and range; pathlib's paths become text.

    Args:
        settings: the dataclass.
        name: gives the name of a dotted key in errors.

    Raises:
        InputError: the first wrong value, or one that is missing.
    """
    missing: list[str] = []
    for key, field, hint in fields_of(type(settings)):
        above, _, last = key.rpartition(".")
        owner = operator.attrgetter(above)(settings) if above else settings
        if isinstance(value := getattr(owner, last), os.PathLike):
            value = os.fspath(value)
            object.__setattr__(owner, last, value)  # settings are frozen
        if field.metadata.get("needed") and not value:
            missing.append(key)
        else:
            _check(name(key), value, field, hint)
    if missing:
        needed = " ".join(needed_flags(type(settings)))
        raise InputError(f"{name(missing[0])}: is missing; needed: {needed}")


def _check(name: str, value: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    """Check one setting, which ``name`` names in errors."""
    choices = choices_of(field, hint)
    if (value is None or not choices) and not is_a(value, hint):
        raise InputError(f"{name}: expected {_described(hint)}, got {shown(value)}")
    items = value if isinstance(value, (list, tuple)) else [value]
    if "" in items:  # as a path it would be the current folder
        raise InputError(f"{name}: is empty; leave the setting out where its default is meant")
    for item in items if choices and value is not None else ():
        one_of(name, item, choices)
    if problem := out_of_range(items, **field.metadata.get("range", {})):
        raise InputError(f"{name}: {problem}")


def check_paths(config: Any) -> None:
    """Refuse, before a command begins, a path of a field with ``exists`` where there is nothing."""
    for key, field, _ in fields_of(type(config)):
        if field.metadata.get("exists"):
            value = operator.attrgetter(key)(config)
            for path in value if isinstance(value, list) else [value]:
                if path and not Path(path).exists():
                    raise InputError(f"{flag(key)}: {path}: no such file or folder")


def out_of_range(items: Iterable[Any], **bounds: float | None) -> str | None:
    """The fault, as half a sentence, of the first number that is not finite or beyond one of ``_BOUNDS``."""
    for number in items:
        if not isinstance(number, (int, float)):
            continue
        if not abs(number) <= sys.float_info.max:
            return f"expected a finite number, got {shown(number)}"
        for name, bound in bounds.items():
            fits, expected = _BOUNDS[name]
            if bound is not None and not fits(number, bound):
                return f"expected {expected.format(bound)}, got {number}"
    return None


def choices_of(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    """The names that a setting may have: those of its ``Literal``, else those of a table; none allows any."""
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Literal:
            return get_args(part)
    return field.metadata.get("choices", ())


def _described(hint: Any) -> str:
    """An annotation in words: ``list of int or null``."""
    kind = get_origin(hint) or hint
    if kind in (Union, types.UnionType):
        return " or ".join(map(_described, get_args(hint)))
    if kind is list:
        return f"list of {_described(get_args(hint)[0])}"
    if dataclasses.is_dataclass(kind):
        return "a mapping of keys"
    words = {types.NoneType: "null", dict: "mapping"}
    return words.get(kind, getattr(kind, "__name__", str(kind)))
