"""From a command to the equation in few hops, as docs/method.md says: each file imports the next."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest
from support.pages import ROOT, defined

PAGE = ROOT / "docs" / "method.md"
#: rl.train has one more: its arguments are read before anything imports torch.
MOST_HOPS = {"seg.train": 3, "rl.train": 4}
#: Where equations are: the paper's as pure functions, and every objective's own file.
EQUATIONS = ("dem_apps/entropy.py", "dem_apps/objectives/")


def chain(command: str) -> list[str]:
    """The files of a command's row, ``FILE`` or ``FILE::NAME``, from the command's own on."""
    section = PAGE.read_text(encoding="utf-8").partition("## From a command to an equation")[2]
    row = next(line for line in section.splitlines() if line.startswith(f"| `python -m {command}`"))
    return re.findall(r"`([\w/]+\.py(?:::\w+)?)`", row)


def imported(file: Path) -> set[str]:
    """Modules that a file imports, and those that a package's ``__init__`` takes such a name from."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            package = ROOT.joinpath(*node.module.split("."), "__init__.py")
            if package.is_file() and package != file:
                modules |= imported(package)
    return modules


def leads_to(file: Path, following: Path) -> bool:
    return ".".join(following.relative_to(ROOT).with_suffix("").parts) in imported(file)


@pytest.mark.parametrize("command", ["seg.train", "rl.train"])
def test_the_hops_are_there(command: str) -> None:
    stops = chain(command)
    assert stops[0].startswith(command.replace(".", "/") + ".py")
    assert stops[-1].startswith(EQUATIONS)
    assert 0 < len(stops) - 1 <= MOST_HOPS[command]
    files = [ROOT / stop.partition("::")[0] for stop in stops]
    for stop, file in zip(stops, files, strict=True):
        name = stop.partition("::")[2]
        assert not name or name in defined(file), f"{stop}: no such name"
    for file, following in pairwise(files):
        assert leads_to(file, following), f"{file.relative_to(ROOT)} does not import {following.relative_to(ROOT)}"


def test_a_missing_hop_is_noticed() -> None:
    assert not leads_to(ROOT / "seg/train.py", ROOT / "dem_apps/fused/kernel.py")
    assert not leads_to(ROOT / "rl/train.py", ROOT / "rl/hook/policy.py")
