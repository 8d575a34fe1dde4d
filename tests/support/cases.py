"""A table of cases, a row each."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest


def cases(*rows: tuple[Any, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once with each row as its first arguments."""

    def repeated(test: Callable[..., None]) -> Callable[..., None]:
        names = [*inspect.signature(test).parameters][: len(rows[0])]
        return pytest.mark.parametrize(names, rows)(test)

    return repeated
