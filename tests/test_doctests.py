"""The examples in docstrings run, and the functions that a user imports have one."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("dem_apps", "seg", "rl")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0, f"{name}: its examples are in no docstring"
    assert failed == 0, capsys.readouterr().out


def test_what_a_user_imports_has_an_example() -> None:
    for package in ("dem_apps", "seg", "rl"):
        module = importlib.import_module(package)
        for name in module.__all__:
            documented = getattr(module, name)
            if callable(documented):
                assert ">>> " in (documented.__doc__ or ""), f"{package}.{name}"
