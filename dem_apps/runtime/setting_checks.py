"""Checks of settings: type, choices and range."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from dem_apps.errors import InputError, one_of, shown
from dem_apps.runtime.arguments import fields_of, flag, marked, needed_flags
from dem_apps.runtime.documents import is_a

#: The relation of a number to the bound of that name.
_BOUNDS = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "above": operator.gt,
    "below": operator.lt,
}


def check_settings(settings: Any) -> None:
    """Check every value of a dataclass of options against its type, choices and range; pathlib's paths become text.

    Args:
        settings: the dataclass.

    Raises:
        InputError: the first wrong value, or one that is missing.
    """
    for key, field, hint in fields_of(type(settings)):
        above, _, last = key.rpartition(".")
        owner = operator.attrgetter(above)(settings) if above else settings
        if isinstance(value := getattr(owner, last), os.PathLike):
            value = os.fspath(value)
            object.__setattr__(owner, last, value)  # settings are frozen
        if field.metadata.get("needed") and not value:
            raise InputError(f"{flag(key)}: is missing; needed: {needed_flags(type(settings))}")
        _check(flag(key), value, field, hint)


def _check(name: str, value: Any, field: dataclasses.Field[Any], hint: Any) -> None:
    """Check one setting, which ``name`` names in errors."""
    choices = choices_of(field, hint)
    if (value is None or not choices) and not is_a(value, hint):
        raise InputError(f"{name}: expected {inspect.formatannotation(hint)}, got {shown(value)}")
    items = value if isinstance(value, (list, tuple)) else [value]
    if "" in items:  # as a path it would be the current folder
        raise InputError(f"{name}: is empty; leave the setting out where its default is meant")
    for item in items if choices and value is not None else ():
        one_of(name, item, choices)
    if problem := out_of_range(items, **field.metadata.get("range", {})):
        raise InputError(f"{name}: {problem}")


def check_paths(config: Any) -> None:
    """Refuse, before a command begins, a path of a field with ``exists`` where there is nothing."""
    for key in marked(type(config), "exists"):
        value = operator.attrgetter(key)(config)
        for path in value if isinstance(value, list) else [value]:
            if path and not Path(path).exists():
                raise InputError(f"{flag(key)}: {path} does not exist")


def out_of_range(items: Iterable[Any], **bounds: float) -> str | None:
    """The fault, as half a sentence, of the first number that is not finite or beyond one of ``_BOUNDS``."""
    for number in items:
        if not isinstance(number, (int, float)):
            continue
        if not abs(number) <= sys.float_info.max:
            return f"expected a finite number, got {shown(number)}"
        for name, bound in bounds.items():
            if not _BOUNDS[name](number, bound):
                return f"expected {name.replace('_', ' ')} {bound}, got {number}"
    return None


def choices_of(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    """Return the names that a setting may have, from its ``Literal`` or else from a table.

    Without names the setting may have any.
    """
    for part in (hint, *get_args(hint)):
        if get_origin(part) is Literal:
            return get_args(part)
    return tuple(field.metadata.get("choices", ()))
