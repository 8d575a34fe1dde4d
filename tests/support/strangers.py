"""What the tests of files from strangers do to them: a pickle that runs a command, and anything put anywhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dem_apps.runtime.command import run_command


class Payload:
    """What a malicious pickle does when it is opened: it makes the file ``marker``."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


def refused(main: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which a command ends."""
    with pytest.raises(SystemExit) as left:
        run_command(main)
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    return str(line)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a nested state, long lists and the inner ones of large mappings thinned out."""
    yield path
    if isinstance(value, dict):
        keys = list(value)
        for key in keys if len(keys) < 30 else keys[:3] + keys[-3:]:
            yield from places(value[key], (*path, key))
    elif isinstance(value, (list, tuple)):
        for index in range(min(len(value), 3)):
            yield from places(value[index], (*path, index))


def replaced(value: Any, path: tuple[Any, ...], by: Any) -> Any:
    """A copy with another value at a place; ``KeyError`` takes it out."""
    if not path:
        return by
    inner = replaced(value[path[0]], path[1:], by)
    if isinstance(value, dict):
        changed = {**value, path[0]: inner}
        if len(path) == 1 and by is KeyError:
            del changed[path[0]]
        return changed
    items = [*value[: path[0]], inner, *value[path[0] + 1 :]]
    return tuple(items) if isinstance(value, tuple) else items
