"""The examples in docstrings run, and what a user imports has one."""

import doctest
import re
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("dem_apps", "seg", "rl")
    for path in sorted((ROOT / package).rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name, capsys):
    failed, tried = doctest.testmod(import_module(name))
    assert tried > 0, f"{name}: its examples are in no docstring"
    assert failed == 0, capsys.readouterr().out


def test_what_a_user_imports_is_in_the_reference_with_an_example():
    text = (ROOT / "docs" / "api.rst").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\.\. auto\w+:: (\S+)$", text, flags=re.M))
    assert {f"{each}.{name}" for each in ("dem_apps", "seg", "rl") for name in import_module(each).__all__} <= listed
    for name in listed - {"dem_apps.OBJECTIVE_NAMES"}:
        assert ">>> " in (resolve_name(name).__doc__ or ""), name
