"""A table of cases, a row each."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest


def cases(*rows: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once with each row, a tuple or a single value, as its first arguments."""
    tuples = [row if isinstance(row, tuple) else (row,) for row in rows]

    def repeated(test: Callable[..., None]) -> Callable[..., None]:
        names = [*inspect.signature(test).parameters][: len(tuples[0])]
        return pytest.mark.parametrize(names, tuples)(test)

    return repeated
