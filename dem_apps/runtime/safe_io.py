"""YAML and JSON from anywhere, read without trust: nothing in a file is run, grows without bound or nests without end.

What is read are plain values. A file that is too long, too deep, twice as clever as it should be (a YAML alias that
unfolds into millions of values, a tag that asks for a Python object, a key that is there twice) or simply broken is one
sentence.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Hashable
from pathlib import Path
from typing import IO, Any

import yaml

from dem_apps.errors import InputError

#: Bytes of a file. Settings are a few kilobytes; a checkpoint's JSON holds every action of the running episodes.
MOST_YAML, MOST_JSON = 1 << 20, 64 << 20
#: Values of a YAML file, every alias counted as often as it is used, and how deep files may nest.
_MOST_VALUES, _DEEPEST = 100_000, 64
_TOO_DEEP = f"{{}}: nests deeper than {_DEEPEST} levels, which no file of this kind does"
#: Characters of one YAML value: PyYAML needs quadratic time for a number in base 60 (``1:1:1:…``).
_LONGEST = 10_000
_BASE: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_text(file: Path, most: int = MOST_JSON, errors: str = "strict") -> str:
    """The content of a text file; with ``errors="replace"`` of one that need not be UTF-8 throughout.

    Raises:
        InputError: no regular file (a pipe would block, a device never end), more than ``most`` bytes, not UTF-8.
    """
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{file}: is no regular file, so it is not read")
        with open(file, "rb") as opened:
            content = opened.read(most + 1)
    except FileNotFoundError as error:
        raise InputError(f"{file}: cannot be read (no such file)") from error
    except (OSError, ValueError) as error:  # a ValueError for a path with a NUL byte
        raise InputError(f"{file}: cannot be read ({first_words(error)})") from error
    if len(content) > most:
        raise InputError(f"{file}: longer than {most:,} bytes, which no file of this kind is")
    try:
        return content.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is no text in UTF-8 ({error.reason} at byte {error.start:,})") from error


def opened_to_append(file: Path) -> IO[bytes]:
    """A file, made if missing, to be locked or written to at its end; never through a link that somebody put there.

    Raises:
        InputError: it is a link.
        OSError: it cannot be opened.
    """
    try:
        number = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise InputError(f"{file}: is a link, through which nothing is written; remove it") from error
        raise
    return os.fdopen(number, "ab")


def read_json(file: Path) -> Any:
    """The value in a JSON file.

    Raises:
        InputError: a file that cannot be read, broken JSON, or JSON that nests too deep.
    """
    return parsed_json(read_text(file), str(file))


def parsed_json(text: str, where: str) -> Any:
    """The value of a JSON text; ``where`` names it in errors.

    Raises:
        InputError: see :func:`read_json`.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise InputError(_TOO_DEEP.format(where)) from error
    except ValueError as error:  # broken, or a number of thousands of digits
        raise InputError(f"{where}: not valid JSON ({first_words(error)})") from error
    if _is_deep(value):
        raise InputError(_TOO_DEEP.format(where))
    return value


def read_yaml(file: Path) -> Any:
    """The value in a YAML file: text, numbers, truth values, null, dates, lists and mappings, and nothing else.

    Raises:
        InputError: a file that cannot be read, broken YAML, a tag that asks for an object, a key that is given twice,
            or more values, or deeper ones, than any file of ours has.
    """
    return parsed_yaml(read_text(file, MOST_YAML), str(file))


def parsed_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; ``where`` names it in errors.

    Raises:
        InputError: see :func:`read_yaml`.
    """
    try:
        _check_unfolded(text, where)
        return yaml.load(text, _Loader)  # _Loader is a SafeLoader
    except InputError:
        raise
    # YAML raises its own errors, a ValueError for an impossible date or number, and others for values that clash
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError) as error:
        if "exceeded maximum nesting depth" in str(error):  # libyaml's own limit, met in looking ahead before any event
            raise InputError(_TOO_DEEP.format(where)) from error
        raise InputError(f"{where}: not valid YAML: {first_words(error, 300)}") from error


def _check_unfolded(text: str, where: str) -> None:
    """Count values and depth from the stream of events, before anything is made of them."""
    sizes: dict[str, int] = {}
    open_anchors: list[str | None] = []
    counts = [0]
    for event in yaml.parse(text, _BASE):
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in open_anchors:
                raise InputError(f"{where}: the alias *{event.anchor} lies within itself")
            counts[-1] += sizes.get(event.anchor or "", 1)
        elif isinstance(event, yaml.ScalarEvent):
            counts[-1] += 1
            sizes[event.anchor or ""] = 1
            if len(event.value) > _LONGEST:
                raise InputError(f"{where}: holds a value of more than {_LONGEST:,} characters")
        elif isinstance(event, yaml.CollectionStartEvent):
            open_anchors.append(event.anchor)
            counts.append(1)
        elif isinstance(event, yaml.CollectionEndEvent):
            size = counts.pop()
            sizes[open_anchors.pop() or ""] = size
            counts[-1] += size
        if len(counts) > _DEEPEST:
            raise InputError(_TOO_DEEP.format(where))
        if counts[-1] > _MOST_VALUES:
            raise InputError(f"{where}: unfolds into more than {_MOST_VALUES:,} values, which no such file does")


class _Loader(_BASE):  # type: ignore[misc]  # one of two classes
    """A safe loader that refuses a key that is given twice, where others silently take the last, and huge numbers."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key '{key.value}' is given twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_yaml_int(self, node: Any) -> int:
        value: int = super().construct_yaml_int(node)
        if abs(value) >= 1 << 64:
            raise yaml.constructor.ConstructorError(None, None, "a number of more than 64 bits", node.start_mark)
        return value


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ())
        ]
        if not level:
            return False
    return True


def first_words(error: BaseException, most: int = 120) -> str:
    """What somebody else's error says, on one line and short; its class where it says nothing."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else " ".join(str(error).split())
    text = text or type(error).__name__
    return text if len(text) <= most else text[:most] + "…"
