"""Checks of settings beyond their types, and jsonargparse's complaints as one sentence."""

from __future__ import annotations

import dataclasses
import functools
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from jsonargparse import ArgumentParser

from dem_apps.errors import InputError, nearest_path, one_of, shown
from dem_apps.runtime.arguments import fields_of, flag
from dem_apps.runtime.documents import is_a

_BOUNDS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "at_least": (operator.ge, "{} or more"), "at_most": (operator.le, "{} at most"),
    "above": (operator.gt, "more than {}"), "below": (operator.lt, "less than {}"),
}  # fmt: skip


def check_settings(settings: Any, name: Callable[[str], str] = flag) -> None:
    """Check every value of a dataclass of options, nested ones included, against its type, its choices and its range.

    ``name`` gives a dotted key's name in errors, by default its flag. A path of pathlib becomes text, as in a file of
    settings. Raises InputError: the first wrong value or need.
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
            raise InputError(f"{name(key)}: is empty; leave the setting out where its default is meant")
        elif wrong:
            one_of(name(key), wrong[0], choices)
        elif problem := out_of_range(items, **field.metadata.get("range", {})):
            raise InputError(f"{name(key)}: {problem}")
    if missing:
        raise InputError(f"{name(missing[0])}: is missing; needed: {' '.join(needed_flags(type(settings)))}")


def check_paths(config: Any) -> None:
    """Refuse, before a command begins, a path of a field with ``exists`` where there is nothing."""
    for key, field, _ in fields_of(type(config)):
        if field.metadata.get("exists"):
            value = operator.attrgetter(key)(config)
            for path in value if isinstance(value, list) else [value]:
                if path and not Path(path).exists():
                    raise InputError(f"{flag(key)}: {path}: no such file or folder")


def out_of_range(items: Iterable[Any], **bounds: float | None) -> str | None:
    """What is wrong, as half a sentence, with the first number that is not finite or beyond one of ``_BOUNDS``."""
    for number in items:
        if isinstance(number, (int, float)) and not abs(number) <= sys.float_info.max:  # nor does a larger int fit
            return f"expected a finite number, got {shown(number)}"
        for name, bound in bounds.items():
            fits, expected = _BOUNDS[name]
            if isinstance(number, (int, float)) and bound is not None and not fits(number, bound):
                return f"expected {expected.format(bound)}, got {number}"
    return None


def one_sentence(
    message: str, config_class: type, where: str, name: Callable[[str], str], parser: ArgumentParser
) -> str:
    """Jsonargparse's message with the flag or key and the nearest known one; an InputError for a wrong choice."""
    message = " ".join(message.split())
    if unknown := re.match(r"unrecognized arguments: (\S+)", message):
        given = unknown[1].partition("=")[0]
        if not given.startswith("-"):
            such_as = "".join(f", such as {needed}" for needed in needed_flags(config_class)[:1])
            return f"unknown argument '{given}'; a value stands behind its flag{such_as}, and --help lists them"
        flags = [each for action in parser._actions for each in action.option_strings if each.startswith("--")]
        return f"unknown argument '{given}'{nearest_path(given, flags)}"
    if unknown := re.match(r"(?:Option|Group key) '([^']+)' is not accepted", message):
        keys = [key for key, *_ in fields_of(config_class)]
        return f"{where}: unknown key '{unknown[1]}'{nearest_path(unknown[1], keys)}"
    wrong = re.match(r'(?:Parser key "|argument --)([^":]+)"?: (.*)', message)
    if wrong is None:
        return message
    value = re.match(
        r"(?:Does not validate against any of the Union .* Given|Expected a .*\. Got) value: ?(.*)", wrong[2]
    )
    if value is None:
        return f"{name(wrong[1])}: {wrong[2]}"
    field, hint = next((field, hint) for key, field, hint in fields_of(config_class) if key == wrong[1])
    if (choices := choices_of(field, hint)) and value[1] != "None":
        one_of(name(wrong[1]), value[1], choices)
    given = "null" if value[1] == "None" else repr(value[1].removeprefix("['").removesuffix("']"))
    form = field.metadata.get("value") or ""
    return f"{name(wrong[1])}: expected {f'{form}, a ' if ',' in form else ''}{_described(hint)}, got {given}"


def choices_of(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    """The names that a setting may have: those of its ``Literal``, else those of a table; none allows any."""
    literals = [get_args(part) for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    return literals[0] if literals else field.metadata.get("choices", ())


def needed_flags(config_class: type) -> list[str]:
    """The flags that the command cannot do without, each with a value: ``--run RUN``."""
    return [
        f"{flag(key)} {(field.metadata['value'] or field.name.upper()).partition(' ')[0]}"
        for key, field, _ in fields_of(config_class)
        if field.metadata.get("needed")
    ]


def _described(hint: Any) -> str:
    """An annotation in words: ``list of int or null``."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(map(_described, get_args(hint)))
    if get_origin(hint) is list:
        return f"list of {_described(get_args(hint)[0])}"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(get_args(hint))}"
    return {type(None): "null", dict: "mapping"}.get(get_origin(hint) or hint) or hint.__name__
