"""The pages taken apart: code blocks, command lines, links and the files that they name. The tests beside it load this.

Conventions that the pages keep:

- a block ``python`` is run, all blocks of a page in order and in one namespace, unless the line before it is an HTML
  comment ``<!-- not run: why -->``;
- a block ``sh`` is run as well, by the slow test, in the same empty folder; a block without a language shows commands
  that take too long or need data, and is only parsed;
- a file of this repository is named from its root, ``seg/train.py``, and a name in it as ``seg/train.py::train``.
"""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
FOLDERS = ("dem_apps", "seg", "rl", "tests", "benchmarks", "configs", "docs")

_OURS = re.compile(r"-m (?:seg|rl|dem_apps)\b")
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: ``line`` is that of its first line of text, ``not_run`` why it is left out, or None."""

    language: str
    line: int
    text: str
    not_run: str | None


@dataclass(frozen=True)
class Command:
    """A command line of one of our modules, where it stands and what follows the module's name."""

    where: str
    module: str
    arguments: tuple[str, ...]


def named(path: Path) -> str:
    """A file as it is called from the repository's root."""
    return str(path.relative_to(ROOT))


def blocks(text: str) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    opened: tuple[str, int, str | None] | None = None
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.startswith("```"):
            continue
        if opened is None:
            reason = re.fullmatch(r"<!-- not run: (.+) -->", lines[number - 2]) if number > 1 else None
            opened = line[3:].strip(), number + 1, reason.group(1) if reason else None
        else:
            language, first, not_run = opened
            found.append(Block(language, first, "\n".join(lines[first - 1 : number - 1]) + "\n", not_run))
            opened = None
    return found


def prose(text: str) -> str:
    """A page without its fenced blocks, line for line."""
    return re.sub(r"^```.*?^```", lambda match: "\n" * match.group().count("\n"), text, flags=re.S | re.M)


def page_commands(page: Path) -> list[Command]:
    """Our command lines of a page, in its blocks of shell and in its prose."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in blocks(text):
        if block.language in ("", "sh"):
            found += _commands_of_lines(block.text.splitlines(), named(page), block.line)
    for number, line in enumerate(prose(text).splitlines(), start=1):
        for match in _INLINE.finditer(line):
            found += _commands(match.group(1), f"{named(page)}:{number}")
    return found


def header_commands(config: Path) -> list[Command]:
    """Our command lines in the comments of a YAML file: lines that are a command, and backquoted ones."""
    found: list[Command] = []
    lines = [line[1:].strip() if line.startswith("#") else "" for line in config.read_text().splitlines()]
    for number, line in enumerate(lines, start=1):
        if not line.startswith("python "):
            for match in _INLINE.finditer(line):
                found += _commands(match.group(1), f"{named(config)}:{number}")
    commands = [line if line.startswith("python ") or _continues(lines, i) else "" for i, line in enumerate(lines)]
    return found + _commands_of_lines(commands, named(config), 1)


def mentions(text: str) -> int:
    """How often a text names one of our commands, however it is written."""
    return len(_OURS.findall(text))


def links(text: str) -> list[str]:
    """Targets of links and images that are not on another host."""
    return [target for target in _LINK.findall(prose(text)) if "://" not in target]


def anchors(text: str) -> set[str]:
    """What a link can point at within a page: its headings, as they become names on the web."""
    headings = re.findall(r"^#+ (.+)$", prose(text), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def named_files(text: str) -> list[str]:
    """Backquoted files of this repository, with ``::name`` where one is given."""
    pattern = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]*\w\.\w+(?:::[\w.]+)?")
    return [name for name in _INLINE.findall(prose(text)) if pattern.fullmatch(name)]


def named_objects(text: str) -> list[str]:
    """Backquoted dotted names of our packages, such as ``seg.step.training_step``."""
    pattern = re.compile(r"(?:dem_apps|seg|rl)(?:\.\w+)+")
    return [name for name in (match.removesuffix("()") for match in _INLINE.findall(prose(text)))
            if pattern.fullmatch(name)]  # fmt: skip


def tree_files(text: str) -> list[str]:
    """The files of a tree such as the README's: names in lines below the line of their folder."""
    found: list[str] = []
    for block in blocks(text):
        folder = ""
        for line in block.text.splitlines() if block.language == "" else ():
            if match := re.match(r"(\w+/)\s", line):
                folder = match.group(1)
            elif folder and line.startswith("  "):
                found += [folder + name for name in re.findall(r"\b\w+\.(?:py|cpp)\b", line)]
                found += [folder + name for name in re.findall(r"^  (\w+/)", line)]
            # "the commands seg.train, …"
            for module in re.findall(r"\b((?:dem_apps|seg|rl)\.\w+)\b(?!\.)", line):
                path = module.replace(".", "/")
                found.append(path if (ROOT / path).is_dir() else f"{path}.py")
    return found


def defined(file: Path) -> set[str]:
    """Names that a module defines at its top, and ``Class.method``."""
    names: set[str] = set()
    body = ast.parse(file.read_text(encoding="utf-8")).body
    # a package that imports its public names when they are asked for has them under `if TYPE_CHECKING`
    for node in [*body, *(inner for outer in body if isinstance(outer, ast.If) for inner in outer.body)]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.ImportFrom) and file.name == "__init__.py":
            names |= {alias.name for alias in node.names}
    return names


def is_object(name: str) -> bool:
    """Whether a dotted name is a module of ours, or something that such a module defines."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        module = ROOT.joinpath(*parts[:count])
        file = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
        if file.is_file():
            return count == len(parts) or ".".join(parts[count:]) in defined(file)
    return False


def _continues(lines: list[str], index: int) -> bool:
    return index > 0 and lines[index - 1].endswith("\\")


def _commands_of_lines(lines: list[str], where: str, first: int) -> list[Command]:
    """Commands of consecutive lines, of which one that ends in a backslash goes on in the next."""
    found: list[Command] = []
    start, joined = first, ""
    for number, line in enumerate(lines, start=first):
        start = number if not joined else start
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            found += _commands(joined, f"{where}:{start}")
            joined = ""
    return found


def _commands(line: str, where: str) -> list[Command]:
    if not _OURS.search(line):
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    found: list[Command] = []
    simple: list[str] = []
    for token in [*lexer, ";"]:
        if " " in token:  # a command in quotes, such as that of `sbatch --wrap`
            found += _commands(token, where)
        if token and not set(token) <= set("();<>|&"):
            simple.append(token.removesuffix("…"))
            continue
        for place in range(len(simple) - 1):
            if _OURS.fullmatch(f"-m {simple[place + 1].split('.')[0]}") and simple[place] == "-m":
                arguments = tuple(argument for argument in simple[place + 2 :] if argument)
                found.append(Command(where, simple[place + 1], arguments))
                break
        simple = []
    return found
