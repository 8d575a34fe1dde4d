"""Mistakes of a user: each is one sentence."""

from collections.abc import Callable
from typing import Any

import pytest

from dem_apps.errors import InputError


def refuses(sentence: str, call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """The call raises an InputError of one line in which the regular expression is found; returns that line."""
    with pytest.raises(InputError, match=sentence) as refused:
        call(*given, **named)
    assert "\n" not in str(refused.value)
    return str(refused.value)
