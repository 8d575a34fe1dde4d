"""Documents: JSON and YAML as plain values within limits, and the check of their types."""

from __future__ import annotations

import json
import math
import re
import types
from collections import Counter
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from dem_apps.errors import InputError, first_words, passed_on, refused
from dem_apps.runtime.files import read_text

Shape = TypeVar("Shape")
#: Characters of a YAML text with what its aliases stand for, and levels of a JSON document, at most.
LARGEST_YAML, DEEPEST = 1_000_000, 100
#: Errors of PyYAML and jsonargparse for a value that cannot be read; they have no common class.
UNREADABLE = (
    yaml.YAMLError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
#: Without the base 60 of YAML 1.1, which reads 1:30 as 90, and with 1e-3, which it reads as text.
_YAML_INT = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-f_]+|0[0-7_]*|[1-9][0-9_]*)$", re.I)
_YAML_FLOAT = re.compile(
    r"[-+]?(\d[\d_]*\.[\d_]*(e[-+]?\d+)?|\d[\d_]*e[-+]?\d+|\.\d[\d_]*(e[-+]?\d+)?|\.inf|\.nan)$",
    re.I | re.A,
)


def read_json(file: Path, inside: Path | None = None) -> Any:
    """The value in a JSON file; an InputError where it cannot be read or is not JSON."""
    return parsed_json(read_text(file, inside), str(file))


def parsed_json(text: str, where: str) -> Any:
    """The value of a JSON text, with None for NaN, which JSON has not; ``where`` names it in errors."""
    with refused(lambda why: f"{where}: not valid JSON ({why})", ValueError, RecursionError):
        document = json.loads(
            text, parse_int=_whole_number, parse_float=_finite, parse_constant=lambda _: None
        )
    level, depth = [document], 0
    while level:
        level = [
            item
            for each in level
            if isinstance(each, (dict, list))
            for item in (each.values() if isinstance(each, dict) else each)
        ]
        depth += 1
        if depth > DEEPEST + 1:
            raise InputError(f"{where}: not valid JSON (nested more than {DEEPEST} times)")
    return document


def read_yaml(file: Path, inside: Path | None = None) -> Any:
    """The value in a YAML file, plain values alone; an InputError where it cannot be read or is not YAML."""
    return parsed_yaml(read_text(file, inside, LARGEST_YAML), str(file))


def parsed_yaml(text: str, where: str) -> Any:
    """The value of a YAML text, which ``where`` names in errors; ``1e-3`` is a number, ``1:30`` and a date are text."""
    with passed_on(f"{where}: not valid YAML", *UNREADABLE):
        return yaml.load(text, PlainValues)


class PlainValues(yaml.SafeLoader):
    """PyYAML's safe loader with this module's numbers and limits; reads every YAML."""

    yaml_implicit_resolvers = {  # noqa: RUF012 (of PyYAML's class)
        first: [
            (tag, form)
            for tag, form in forms
            if tag.rpartition(":")[2] not in ("int", "float", "timestamp")
        ]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_document(self, node: yaml.Node) -> Any:
        """The value, with its aliases of a bounded length."""
        if _characters(node, {}) > LARGEST_YAML:
            raise yaml.YAMLError(f"with its aliases it has more than {LARGEST_YAML:,} characters")
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping in which no key is there twice."""
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        # of which YAML keeps the last
        if twice := [key for key, times in keys.items() if times > 1]:
            raise yaml.MarkedYAMLError(
                problem=f"the key '{twice[0]}' is there twice", problem_mark=node.start_mark
            )
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """A whole number of 64 bits."""
        try:
            return _whole_number(super().construct_yaml_int(node))
        except ValueError as error:
            raise yaml.YAMLError(str(error)) from error


PlainValues.add_constructor("tag:yaml.org,2002:int", PlainValues.construct_yaml_int)
PlainValues.add_implicit_resolver("tag:yaml.org,2002:int", _YAML_INT, list("-+0123456789"))
PlainValues.add_implicit_resolver("tag:yaml.org,2002:float", _YAML_FLOAT, list("-+.0123456789"))


def _characters(node: Any, counted: dict[int, int]) -> int:
    """The length of a YAML node, with what its aliases stand for; of one that holds itself, too much."""
    if id(node) not in counted:
        counted[id(node)] = LARGEST_YAML + 1
        parts = node.value if isinstance(node.value, list) else ()
        items = [item for part in parts for item in (part if isinstance(part, tuple) else (part,))]
        counted[id(node)] = (
            sum(_characters(item, counted) for item in items) + 1 if items else len(node.value) + 1
        )
    return counted[id(node)]


def _whole_number(digits: str | int) -> int:
    """A whole number that 64 bits hold: no library takes more."""
    value = int(digits)
    if not -(2**63) <= value < 2**63:
        raise ValueError("a whole number beyond 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{first_words(ValueError(text), 20)}: beyond 64 bits")
    return value


def is_a(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotation's type, its items too: a whole number is a float, and a tuple a list."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Any:
        return True
    if kind in (Union, types.UnionType):
        return any(is_a(value, part) for part in parts)
    if kind is Literal:
        return any(value == part for part in parts)
    if kind in (list, tuple):
        return isinstance(value, (list, tuple)) and all(
            is_a(item, part) for item in value for part in parts[:1]
        )
    if kind is dict and parts:
        return isinstance(value, dict) and all(is_a(each, parts[1]) for each in value.values())
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return not isinstance(kind, type) or isinstance(value, kind)


def required(document: Any, where: str, /, **kinds: Any) -> dict[str, Any]:
    """The mapping, else an InputError that names the first key missing or of another type than its annotation."""
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a mapping, found {type(document).__name__}")
    for key, kind in kinds.items():
        if key not in document:
            raise InputError(f"{where}: holds no '{key}'")
        if not is_a(document[key], kind):
            raise InputError(
                f"{where}: '{key}' is of the wrong type ({type(document[key]).__name__})"
            )
    return document


def shaped(kind: type[Shape], document: Any, where: str) -> Shape:
    """The dataclass that a JSON document describes, with nested ones; an InputError for another key or type."""
    hints, found = get_type_hints(kind), dict(required(document, where))
    for key, value in found.items():
        of_items = [
            each
            for each in get_args(hints.get(key))
            if is_dataclass(each) and isinstance(each, type)
        ]
        if isinstance(value, list) and of_items:
            value = [
                shaped(of_items[0], item, f"{where}, {key}[{place}]")
                for place, item in enumerate(value)
            ]
        found[key] = tuple(value) if isinstance(value, list) else value
    required(found, where, **{key: hints.get(key, Any) for key in found})
    with passed_on(where):  # of Python: a key that is missing, or is none
        return kind(**found)
