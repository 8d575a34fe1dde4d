"""The pages taken apart: code blocks, command lines, tables, links and anchors.

Notebooks are read as pages, their code as blocks. A block ``python`` is run, all blocks of a page in order and in one
namespace, and a block ``sh`` by the slow test, unless the line before it is ``<!-- not run: why -->``. Other command
lines are only parsed. A file of this repository is named from its root, ``seg/train.py``, and a name in it as
``seg/train.py::train``.
"""

import importlib
import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
#: What reads the command line, by the name it has in the commands' modules.
READERS = ("parse_config", "parse_search", "_options")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``line`` is that of its first line of text."""

    language: str
    line: int
    text: str
    run: bool


@dataclass(frozen=True)
class Command:
    """A command line of one of our modules: its file, the module and the arguments."""

    where: str
    module: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A Markdown table: its headings, and the cells of every row."""

    headings: tuple[str, ...]
    rows: list[list[str]]

    def by_key(self, keys: Sequence[str]) -> dict[tuple[str, ...], dict[str, str]]:
        """The rows as heading → cell, by their cells in the columns ``keys``; without keys by their place.

        As in a table that groups its rows, an empty cell stands for the one above it, but not in the last key.
        """
        found: dict[tuple[str, ...], dict[str, str]] = {}
        above: list[str] = []
        for place, cells in enumerate(self.rows, start=1):
            row = dict(zip(self.headings, cells, strict=True))
            names = [row[key] for key in keys] or [f"row {place}"]
            names[:-1] = [
                name or group for name, group in zip(names[:-1], above or names, strict=False)
            ]
            assert tuple(names) not in found, f"two rows are called {names}"
            found[tuple(names)] = row
            above = names
        return found


def named(path: Path) -> str:
    """The path from the repository's root."""
    return str(path.relative_to(ROOT))


def text_of(file: Path) -> str:
    """A file's text, of a notebook as a page in Markdown."""
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".ipynb":
        return text
    cells = [("".join(cell["source"]), cell["cell_type"]) for cell in json.loads(text)["cells"]]
    return (
        "\n\n".join(
            source if kind == "markdown" else f"```python\n{source}\n```" for source, kind in cells
        )
        + "\n"
    )


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    found = re.finditer(r"^(<!-- not run: .+ -->\n)?```(\w*)\n(.*?)^```$", text, flags=re.S | re.M)
    return [
        Block(match[2], text[: match.start(3)].count("\n") + 1, match[3], not match[1])
        for match in found
    ]


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)


def tables(text: str) -> list[Table]:
    """The Markdown tables of a page."""
    found = re.finditer(r"^(\|.*)\n\|[-:| ]+\n((?:\|.*\n?)+)", prose(text), flags=re.M)
    return [
        Table(tuple(_cells(match[1])), [_cells(line) for line in match[2].splitlines()])
        for match in found
    ]


def _cells(line: str) -> list[str]:
    """The cells of a line of a table as a reader sees them, without links and emphasis."""
    cells = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return [_plain(cell) for cell in cells]


def _plain(cell: str) -> str:
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
    shown = re.sub(r"[`\\*]", "", shown)
    return " ".join(shown.replace("−", "-").split())


def numbers(cell: str) -> list[float]:
    """The numbers within a cell, in their order; digits of names such as ``CIFAR-10`` and ``DoorKey-5x5`` are none."""
    found = re.findall(
        r"(?<![^\W_])(?<![.-])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?=x?\b)(?!\.\d)", cell
    )
    return [float(each.replace(",", "")) for each in found]


def commands(file: Path) -> list[Command]:
    """The command lines ``python -m seg.train …`` of a page or of the comments of a YAML file."""
    text = re.sub(r"\\\n#?\s*", " ", text_of(file))
    found: list[Command] = []
    for match in re.finditer(r"-m (?:-- )?((?:seg|rl|dem_apps)\.\w+)([^`\n]*)", text):
        arguments: list[str] = []
        for word in shlex.split(match[2], comments=True):
            if word.rstrip(";&|)") != word:
                break
            arguments += [word] if word != "…" else []
        found.append(Command(named(file), match[1], tuple(arguments)))
    return found


def links(text: str) -> list[str]:
    """Targets of links and images that are not on another host."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)) if "://" not in target]


def anchors(text: str) -> list[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.+)$", prose(text), flags=re.M)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def in_backquotes(text: str, pattern: str) -> list[str]:
    """The backquoted words of a page that match."""
    return [word for word in re.findall(r"`([^`\n]+)`", prose(text)) if re.fullmatch(pattern, word)]


class Parsed(Exception):
    """Raised in place of what a command would do with its settings."""


def reads_its_command_line(command: Command, monkeypatch: pytest.MonkeyPatch, folder: Path) -> bool:
    """Whether a command gets so far that it has its settings, or shows its help; what it would do is left out.

    ``folder`` stands for a reader's own images; a reader's settings files are left out, those in configs must exist.
    """
    name, arguments = command.module, list(command.arguments)
    for place in reversed(range(len(arguments) - 1)):
        if arguments[place] in ("--images", "--labels", "--source"):
            arguments[place + 1] = str(folder)
        if arguments[place] == "--config" and not arguments[place + 1].startswith("configs/"):
            del arguments[place : place + 2]
    home = "seg.check" if name == "seg.data" else name  # which it runs
    module = importlib.import_module(
        f"{home}.__main__" if (ROOT / home.replace(".", "/")).is_dir() else home
    )
    for reader in READERS:
        if hasattr(module, reader):
            monkeypatch.setattr(module, reader, _stopping(getattr(module, reader)))
    monkeypatch.setattr("dem_apps.report.page.write_report", _stopping(lambda *_: None))
    # a reader's network
    monkeypatch.setattr("seg.trained.settings.check_spec", lambda spec, flag: spec)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    try:
        (module.main if hasattr(module, "main") else module._main)()
    except Parsed:
        return True
    except SystemExit as ended:
        return "--help" in arguments and not ended.code
    return False


def _stopping(reader: Any) -> Any:
    def read(*arguments: Any, **options: Any) -> Any:
        config = reader(*arguments, **options)
        if hasattr(config, "check"):
            config.check()
        raise Parsed

    return read


def explained(section: str) -> set[str]:
    """The keys that docs/metrics.md describes in a section: those that its list items begin with."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    (part,) = re.findall(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, flags=re.S | re.M)
    found = [
        name
        for row in re.findall(r"^- (`.+?`): ", part, flags=re.M)
        for name in re.findall(r"`([^`]+)`", row)
    ]
    assert len(found) == len(set(found)), "a key is described twice"
    return set(found)


def keys_of(document: dict[str, Any], *opened: str) -> set[str]:
    """The keys of a JSON document; those of the mappings named in ``opened`` as ``mapping.key``."""
    within = {f"{name}.{key}" for name in opened for key in document[name]}
    return (set(document) - set(opened)) | within
