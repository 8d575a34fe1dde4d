"""Values of settings: made of what a flag or a file says, and checked."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import sys
import types
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from dem_apps.errors import InputError, one_of, shown
from dem_apps.runtime.arguments import fields_of, flag, needed_flags
from dem_apps.runtime.documents import is_a, parsed_yaml

_BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "at_least": (operator.ge, "{} or more"),
    "at_most": (operator.le, "{} at most"),
    "above": (operator.gt, "more than {}"),
    "below": (operator.lt, "less than {}"),
}


def converted(given: Any, hint: Any) -> Any:
    """The value of an annotation that a flag's text, or a value of a file, stands for; what fits none stays as it is.

    >>> converted("0.75,1", list[float]), converted("2024,a", list[str]), converted("1e-3", str | None)
    ([0.75, 1.0], ['2024', 'a'], '1e-3')
    """
    parts = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    kinds = {get_origin(part) or part for part in parts}
    if isinstance(given, str):
        word = bool(kinds & {str, Literal})
        if list[str] in parts and not given.startswith("["):
            # a folder may be called 2024
            return [name for each in given.split(",") if (name := each.strip())]
        # which may come without brackets
        several = list in kinds and not (word and given.isalpha())
        if word and not several and float not in kinds:
            return None if given == "null" and types.NoneType in kinds else given
        try:
            value = parsed_yaml(
                f"[{given}]" if several and given != "null" and given[:1] != "[" else given, ""
            )
        except InputError:
            value = [given] if several else given  # no list of numbers is a text
        given = given if word and isinstance(value, str) else value
    if float in kinds or list[float] in parts:
        with suppress(OverflowError):
            return (
                [_floating(item) for item in given] if isinstance(given, list) else _floating(given)
            )
    return given


def _floating(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def check_settings(settings: Any, name: Callable[[str], str] = flag) -> None:
    """Check every value of a dataclass of options against its type, choices and range; pathlib's paths become text.

    ``name`` gives a dotted key's name in errors. Raises InputError: the first wrong value, or one that is missing.
    """
    missing: list[str] = []
    for key, field, hint in fields_of(type(settings)):
        *above, last = key.split(".")
        owner = functools.reduce(getattr, above, settings)
        value, choices = getattr(owner, last), choices_of(field, hint)
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
            object.__setattr__(owner, last, value)  # settings are frozen
        if (value is None or not choices) and not is_a(value, hint):
            raise InputError(f"{name(key)}: expected {_described(hint)}, got {shown(value)}")
        if dataclasses.is_dataclass(hint):
            continue
        items = value if isinstance(value, list) else [value]
        wrong = [item for item in items if choices and item is not None and item not in choices]
        if field.metadata.get("needed") and not value:
            missing.append(key)
        elif "" in items:  # as a path it would be the current folder
            raise InputError(
                f"{name(key)}: is empty; leave the setting out where its default is meant"
            )
        elif wrong:
            one_of(name(key), wrong[0], choices)
        elif problem := out_of_range(items, **field.metadata.get("range", {})):
            raise InputError(f"{name(key)}: {problem}")
    if missing:
        raise InputError(
            f"{name(missing[0])}: is missing; needed: {' '.join(needed_flags(type(settings)))}"
        )


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
        # nor does a larger int fit
        if isinstance(number, (int, float)) and not abs(number) <= sys.float_info.max:
            return f"expected a finite number, got {shown(number)}"
        for name, bound in bounds.items():
            fits, expected = _BOUNDS[name]
            if isinstance(number, (int, float)) and bound is not None and not fits(number, bound):
                return f"expected {expected.format(bound)}, got {number}"
    return None


def choices_of(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    """The names that a setting may have: those of its ``Literal``, else those of a table; none allows any."""
    literals = [get_args(part) for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    return literals[0] if literals else field.metadata.get("choices", ())


def _described(hint: Any) -> str:
    """An annotation in words: ``list of int or null``."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_described, get_args(hint)))
    if get_origin(hint) is list:
        return f"list of {_described(get_args(hint)[0])}"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return {type(None): "null", dict: "mapping"}.get(get_origin(hint) or hint) or hint.__name__
