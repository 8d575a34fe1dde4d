"""Documents: JSON and YAML as plain values, and the check of their types."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from dem_apps.errors import InputError, passed_on
from dem_apps.runtime.files import read_text

Shape = TypeVar("Shape")
#: A mapping of JSON or YAML, with plain values.
Document = dict[str, Any]
#: Settings, nested or by dotted keys, that are only read.
Settings = Mapping[str, Any]
#: Types that a value may have, for annotations that take more than their own type.
_TAKEN: dict[Any, Any] = {
    Any: object,
    float: (int, float),
    list: (list, tuple),
    tuple: (list, tuple),
}


class PlainValues(yaml.SafeLoader):
    """PyYAML's safe loader, for which ``1e-3`` is a number, too."""


PlainValues.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?\d+(\.\d*)?e[-+]?\d+$", re.IGNORECASE | re.ASCII),
    list("-+0123456789"),
)


def read_json(file: Path, inside: Path | None = None) -> Any:
    """Read a JSON file.

    Args:
        file: the file, which is opened if it is a regular one.
        inside: the folder that it has to lie in, with links followed.

    Returns:
        The value, with None for NaN.

    Raises:
        InputError: the file cannot be read, or is not JSON.
    """
    return parsed_json(read_text(file, inside), str(file))


def parsed_json(text: str, where: str) -> Any:
    """The value of a JSON text, with None for NaN; an InputError that begins with ``where`` if it is not JSON."""
    with passed_on(f"{where}: is not valid JSON", ValueError, RecursionError):
        return json.loads(text, parse_constant=lambda _: None)


def read_yaml(file: Path, inside: Path | None = None) -> Any:
    """Read a YAML file as plain values, running no code.

    Arguments and errors are the same as in :func:`read_json`.
    """
    return parsed_yaml(read_text(file, inside), str(file))


def parsed_yaml(text: str, where: str) -> Any:
    """The plain value of a YAML text; an InputError that begins with ``where`` if it is not YAML."""
    # PyYAML lets errors of Python's constructors through
    with passed_on(f"{where}: is not valid YAML"):
        return yaml.load(text, PlainValues)


def is_a(value: Any, hint: Any) -> bool:
    """Check that a value, with its items, has the type that the annotation ``hint`` names.

    A whole number also counts as a float, and a tuple as a list.
    """
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        return any(is_a(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    a_switch = (type(value), kind) in ((bool, int), (bool, float))
    if a_switch or not isinstance(value, _TAKEN.get(kind, kind)):
        return False
    if isinstance(value, dict):
        parts, value = parts[1:], value.values()
    return all(is_a(item, part) for part in parts[:1] for item in value)


def required(document: Any, where: str, /, **kinds: Any) -> Document:
    """Check the keys of a document.

    Args:
        document: what was read.
        where: beginning of an error's sentence, such as the file's name.
        **kinds: the annotation of each key that is needed.

    Returns:
        The document.

    Raises:
        InputError: it is no mapping, or a key is missing or of another type.
    """
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a mapping, found {type(document).__name__}")
    for key, kind in kinds.items():
        if key not in document:
            raise InputError(f"{where}: the key '{key}' is missing")
        if not is_a(document[key], kind):
            wrong = type(document[key]).__name__
            raise InputError(f"{where}: '{key}' is of the wrong type ({wrong})")
    return document


def shaped(kind: type[Shape], document: Any, where: str) -> Shape:
    """Make a dataclass of a JSON document.

    Args:
        kind: the dataclass; a field may be a tuple of dataclasses.
        document: the document, a mapping of the fields.
        where: beginning of an error's sentence, such as the file's name.

    Returns:
        The dataclass.

    Raises:
        InputError: a key is missing, unknown or of another type.
    """
    hints, fields = get_type_hints(kind), dict(required(document, where))
    for key, value in fields.items():
        if isinstance(value, list):
            parts = get_args(hints.get(key))
            if parts and isinstance(parts[0], type) and is_dataclass(parts[0]):
                value = [shaped(parts[0], item, f"{where}, {key}") for item in value]
            fields[key] = tuple(value)
    required(fields, where, **{key: hints.get(key, Any) for key in fields})
    with passed_on(where):  # Python names a key that is missing or unknown
        return kind(**fields)
