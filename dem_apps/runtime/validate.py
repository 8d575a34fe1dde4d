"""Whether a value is of a setting's declared type: what a YAML file or a stranger's run folder may get wrong."""

from __future__ import annotations

import dataclasses
import math
import reprlib
import types
from collections.abc import Callable
from typing import Any, Union, get_args, get_origin, get_type_hints

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.terminal import control_character

#: Whole numbers have to fit into what C code takes them as.
_LARGEST = 1 << 63


def check_settings(settings: Any, name: Callable[[str], str], prefix: str = "") -> None:
    """Check every value of a dataclass, nested ones included, against its annotation and its choices.

    Args:
        settings: an instance of a dataclass whose fields come from :func:`dem_apps.runtime.settings.option`.
        name: how a dotted key is called in errors, such as ``--source.root``.
        prefix: the key of ``settings`` itself, with a dot.

    Raises:
        InputError: the first value of another type, of a number that is none (NaN, infinite), with a control character
            in a text, or that is not among the choices.
    """
    hints = get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, key = getattr(settings, field.name), f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hints[field.name]):
            check_settings(value, name, f"{key}.")
            continue
        problem = _problem(value, hints[field.name])
        if problem is not None:
            raise InputError(f"{name(key)}: {problem}")
        choices = field.metadata.get("choices")
        if choices and value is not None and value not in choices:
            raise InputError(f"{name(key)}: '{value}' is not one of {', '.join(choices)}{nearest(value, choices)}")


def described(hint: Any) -> str:
    """An annotation in words: ``list of int or null``."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(described(part) for part in get_args(hint))
    if get_origin(hint) is list:
        return f"list of {described(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return "mapping"
    return {type(None): "null", Any: "plain value"}.get(hint) or hint.__name__


def shown(value: Any) -> str:
    """A value in an error: short, and ``null`` for what YAML calls so."""
    return "null" if value is None else f"'{value}'" if isinstance(value, str) else reprlib.repr(value)


def _problem(value: Any, hint: Any) -> str | None:
    """What is wrong with a value as half a sentence, or None."""
    if not _fits(value, hint):
        return f"expected {described(hint)}, got {shown(value)}"
    return _inside(value, finite=hint is not Any and float in (hint, *get_args(hint)))


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True  # _inside() tells plain values from others
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is list:
        return isinstance(value, list) and all(_fits(item, get_args(hint)[0]) for item in value)
    if origin is dict:
        key_hint, item_hint = get_args(hint)
        return isinstance(value, dict) and all(
            _fits(key, key_hint) and _fits(item, item_hint) for key, item in value.items()
        )
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def _inside(value: Any, finite: bool) -> str | None:
    """What is wrong somewhere inside a value of the right type."""
    if isinstance(value, str):
        control = control_character(value)
        return None if control is None else f"holds the control character {control}, which no setting may"
    if isinstance(value, float):
        return f"expected a finite number, got {value}" if finite and not math.isfinite(value) else None
    if isinstance(value, int):
        return None if abs(value) < _LARGEST else "is a number of more than 64 bits"
    if isinstance(value, dict):
        parts: list[Any] = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    else:
        fits = value is None
        return None if fits else f"expected a plain value, got {type(value).__name__}"
    problems = (_inside(part, finite) for part in parts)
    return next((problem for problem in problems if problem is not None), None)


def check_document(document: Any, config_class: type, where: str) -> None:
    """Check the keys of a YAML file of settings before anything is made of them; the values are for the parser.

    Args:
        document: what the file holds.
        config_class: the dataclass of the settings. A key may be dotted: ``source.root`` is ``source: {root: …}``.
        where: how the file is called in errors.

    Raises:
        InputError: no mapping, or an empty one; an unknown key, whatever stands behind it; no mapping where one is due;
            a setting that may only be given on the command line.
    """
    if not isinstance(document, dict) or not document:
        raise InputError(f"{where}: expected a mapping of keys, such as 'max_steps: 100', and at least one")
    _check_keys(document, config_class, where, "", _dotted(config_class, ""))


def _check_keys(mapping: dict[Any, Any], config_class: type, where: str, prefix: str, known: list[str]) -> None:
    hints = get_type_hints(config_class)
    fields = {field.name: field for field in dataclasses.fields(config_class)}
    for key, value in mapping.items():
        first, dot, rest = str(key).partition(".")
        name = f"{prefix}{first}"
        group = dataclasses.is_dataclass(hints.get(first))
        if not isinstance(key, str) or first not in hints or (dot and not (group or get_origin(hints[first]) is dict)):
            raise InputError(f"{where}: unknown key '{prefix}{key}'{nearest(f'{prefix}{key}', known)}")
        if group:
            inner = {rest: value} if dot else value
            if not isinstance(inner, dict):
                raise InputError(f"{where}: {name}: expected a mapping of keys, got {shown(inner)}")
            _check_keys(inner, hints[first], where, f"{name}.", known)
        elif fields[first].metadata.get("flag_only") and value != fields[first].default:
            raise InputError(f"{where}: {name}: can only be given on the command line, as --{name.replace('_', '-')}")


def _dotted(config_class: type, prefix: str) -> list[str]:
    keys: list[str] = []
    for name, hint in get_type_hints(config_class).items():
        keys.append(f"{prefix}{name}")
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            keys += _dotted(hint, f"{prefix}{name}.")
    return keys
