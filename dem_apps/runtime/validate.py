"""Whether a value is of a setting's declared type: what a YAML file or a stranger's run folder may get wrong.

jsonargparse checks the types of flags and could check saved settings (``parse_object``). It would take the text '3' for
a number, and what it says of null or of a union is a page about types; NaN, numbers that no C code takes, control
characters and keys that almost exist are no matter to it. So everything is checked here, whatever it came from.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import reprlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.terminal import control_character

#: Whole numbers have to fit into what C code takes them as.
_LARGEST = 1 << 63
_UNIONS = (Union, types.UnionType)


def fields_of(config_class: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Dotted key, field and annotation of every setting, and of every group before what is in it."""
    hints = get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        hint = hints[field.name]
        yield f"{prefix}{field.name}", field, hint
        if dataclasses.is_dataclass(hint):
            yield from fields_of(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]


def flag(key: str) -> str:
    """``--source.crop-size`` of the key ``source.crop_size``."""
    return f"--{key.replace('_', '-')}"


def needed_flags(config_class: type) -> list[str]:
    """The flags that the command cannot do without, each with a value: ``--run RUN``."""
    return [
        f"{flag(key)} {(field.metadata['value'] or field.name.upper()).partition(' ')[0]}"
        for key, field, _ in fields_of(config_class)
        if field.metadata.get("needed")
    ]


def choices_of(field: dataclasses.Field[Any], hint: Any) -> tuple[str, ...]:
    """The names that a setting may have: those of its ``Literal``, else those of a table; none allows any."""
    literals = [get_args(part) for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
    return literals[0] if literals else field.metadata.get("choices", ())


def without_choices(hint: Any) -> Any:
    """An annotation with ``str`` for each ``Literal``: the names are checked apart, to say the nearest one."""
    if get_origin(hint) is Literal:
        return str
    if get_origin(hint) in _UNIONS:
        return functools.reduce(operator.or_, map(without_choices, get_args(hint)))
    return hint


def check_settings(settings: Any, name: Callable[[str], str] = flag) -> None:
    """Check every value of a dataclass, nested ones included, against its annotation, its choices and its range.

    Args:
        settings: an instance of a dataclass whose fields come from :func:`dem_apps.runtime.settings.option`.
        name: how a dotted key is called in errors; by default as its flag, ``--source.root``.

    Raises:
        InputError: the first value of another type, that is not finite, holds a control character, is an empty text, is
            not among the choices or out of range; else the first that is needed and missing.
    """
    missing: list[str] = []
    for key, field, hint in fields_of(type(settings)):
        if dataclasses.is_dataclass(hint):
            continue
        value, choices = operator.attrgetter(key)(settings), choices_of(field, hint)
        items = value if isinstance(value, list) else [value]
        problem = _problem(value, without_choices(hint)) or out_of_range(items, **field.metadata.get("range", {}))
        if field.metadata.get("needed") and not value:
            missing.append(key)
        elif problem is None and "" in items:  # as a path it would be the current folder
            problem = "is empty; leave the setting out where its default is meant"
        wrong = [item for item in items if choices and item is not None and item not in choices]
        if problem is None and wrong:
            problem = not_among(wrong[0], choices)
        if problem is not None:
            raise InputError(f"{name(key)}: {problem}")
    if missing:
        raise InputError(f"{name(missing[0])}: is missing; needed: {' '.join(needed_flags(type(settings)))}")


def not_among(value: str, choices: tuple[str, ...]) -> str:
    """What to say of a name that is not among the choices."""
    return f"'{value}' is not one of {', '.join(choices)}{nearest(value, choices)}"


def described(hint: Any) -> str:
    """An annotation in words: ``list of int or null``."""
    if get_origin(hint) in _UNIONS:
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


def out_of_range(
    items: Iterable[Any],
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
) -> str | None:
    """What is wrong, as half a sentence, with the first number beyond its bounds; text and null have none."""
    for number in items:
        if isinstance(number, (int, float)):
            if at_least is not None and number < at_least:
                return f"expected {at_least} or more, got {number}"
            if at_most is not None and number > at_most:
                return f"expected {at_most} at most, got {number}"
            if above is not None and number <= above:
                return f"expected more than {above}, got {number}"
            if below is not None and number >= below:
                return f"expected less than {below}, got {number}"
    return None


def _fits(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True  # _inside() tells plain values from others
    origin = get_origin(hint)
    if origin in _UNIONS:
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
        return None if value is None else f"expected a plain value, got {type(value).__name__}"
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
    _check_keys(document, "", {key: (field, hint) for key, field, hint in fields_of(config_class)}, where)


def _check_keys(mapping: dict[Any, Any], prefix: str, known: dict[str, tuple[Any, Any]], where: str) -> None:
    for key, value in mapping.items():
        first, dot, rest = str(key).partition(".")
        name = f"{prefix}{first}"
        field, hint = known.get(name, (None, None))
        group = dataclasses.is_dataclass(hint)
        if not isinstance(key, str) or field is None or (dot and not (group or get_origin(hint) is dict)):
            raise InputError(f"{where}: unknown key '{prefix}{key}'{nearest(f'{prefix}{key}', known)}")
        if group:
            inner = {rest: value} if dot else value
            if not isinstance(inner, dict):
                raise InputError(f"{where}: {name}: expected a mapping of keys, got {shown(inner)}")
            _check_keys(inner, f"{name}.", known, where)
        elif field.metadata.get("flag_only") and value != field.default:
            only = flag(field.metadata.get("flag") or name)
            raise InputError(f"{where}: {name}: can only be given on the command line, as {only}")
