"""Command-line arguments: spellings of flags and values, the files of ``--config``, and how ``--help`` reads."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import yaml

_PACKAGE = Path(__file__).resolve().parent.parent
#: The settings files that come with the package: a link to the repository's ``configs``, which a clone may lack.
CONFIGS = _PACKAGE / "configs" if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent / "configs"
#: Wider lines are hard to read, however wide the terminal is.
_WIDEST = 118
#: What stands for a value whose option names nothing better.
_KINDS = {int: "N", float: "X"}


def fields_of(config_class: type, prefix: str = "") -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Dotted key, field and annotation of every setting, and of every group before what is in it."""
    hints = get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        hint = hints[field.name]
        yield f"{prefix}{field.name}", field, hint
        if dataclasses.is_dataclass(hint):
            yield from fields_of(hint, f"{prefix}{field.name}.")  # type: ignore[arg-type]


def flag(key: str) -> str:
    """``--source.crop-size`` of the key ``source.crop_size``."""
    return f"--{key.replace('_', '-')}"


def flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings as flags, each with its value in one argument; mappings and lists as JSON.

    >>> flags({"env": "CartPole-v1", "eval_freq": 500, "hyperparameters": {"n_steps": 64}, "source.root": "--GTA5"})
    ('--env=CartPole-v1', '--eval-freq=500', '--hyperparameters={"n_steps": 64}', '--source.root=--GTA5')
    """
    return tuple(
        f"{flag(str(name))}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in settings.items()
    )


def normalise(arguments: Sequence[str], config_class: type) -> tuple[list[str], list[Path]]:
    """Flags in the form that the parser takes, and the files of ``--config``.

    ``--max_steps`` is ``--max-steps``, a switch alone is ``=true``, ``--resume DIR`` is ``--run-dir DIR --resume``, and
    lists may come without brackets. ``--config NAME`` may be a file that comes with the application.
    """
    hints = {flag(key): hint for key, _, hint in fields_of(config_class)}
    switches = {name for name, hint in hints.items() if hint in (bool, bool | None)}
    mappings = {name for name, hint in hints.items() if get_origin(hint) is dict}
    # whose values may come without brackets: --scales 0.75,1.0
    lists = {name for name, hint in hints.items() if any(get_origin(part) is list for part in (hint, *get_args(hint)))}
    files: list[Path] = []
    normal: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            normal.append(argument)
            continue
        name, equals, value = argument.partition("=")
        field, dot, key = name.partition(".")
        field = flag(field[2:])
        # the keys of a mapping are not ours to spell: --hyperparameters.n_steps
        name = f"{field}{dot}{key if field in mappings else key.replace('_', '-')}"
        if name == "--config" and (equals or rest):
            value = value if equals else rest.pop(0)
            named = None if Path(value).exists() else shipped_with(config_class).get(value)
            files.append(named or found(value))
        elif name in switches and not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("-") else "true"
            if name == "--resume" and value not in ("true", "false"):
                normal.append(f"--run-dir={value}")
                value = "true"
            normal.append(f"{name}={value}")
        elif name in lists and (equals or rest):
            value = value if equals else rest.pop(0)
            word = value.isalpha() and get_origin(hints[name]) is not list and str in get_args(hints[name])
            normal.append(f"{name}={value if word or value == 'null' or value.startswith('[') else f'[{value}]'}")
        else:
            normal.append(name + equals + value)
    return normal, files


def shipped_with(config_class: type) -> dict[str, Path]:
    """The files of settings that come with a command's application, by name."""
    application = config_class.__module__.partition(".")[0]
    return {file.stem: file for file in sorted((CONFIGS / application).glob("*.yaml"))}


def found(value: str) -> Path:
    """The file of that path; where there is none here, and it begins with ``configs/``, the one that was shipped."""
    path, ours = Path(value), CONFIGS.parent / value
    shipped = path.parts[:1] == (CONFIGS.name,) and ".." not in path.parts and ours.is_file()
    return ours if shipped and not path.exists() else path


class CommandHelp(argparse.HelpFormatter):
    """A formatter for argparse and jsonargparse: paragraphs stay apart, and the example can be copied as it stands."""

    EXAMPLE = "example: "

    def __init__(self, prog: str, *_: Any, **__: Any) -> None:
        width = min(shutil.get_terminal_size().columns - 2, _WIDEST)
        super().__init__(prog, max_help_position=max(24, width // 3), width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(_filled(paragraph, width, indent) for paragraph in text.split("\n\n"))

    def _split_lines(self, text: str, width: int) -> list[str]:
        # a flag or a file name is not broken at its hyphens
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        # jsonargparse adds --flag+ to every list, which appends to it
        flags = [flag for flag in action.option_strings if not flag.endswith("+")]
        return " ".join(filter(None, (", ".join(flags), self._format_args(action, action.dest.upper()))))


def metavar(hint: Any, default: Any, choices: Sequence[str], name: str) -> str:
    """What stands behind a flag: its choices, the kind of number, or its own name; nothing for a switch."""
    if choices:
        return "{" + ",".join(choices) + "}"
    if get_origin(hint) is dict:
        return name.upper()
    kinds = {kind for kind in (hint, *get_args(hint)) if get_origin(kind) is None}
    if bool in kinds:
        return "" if default is False else "{true,false}"
    kind = next((_KINDS[kind] for kind in _KINDS if kind in kinds), name.upper())
    return f"{kind},{kind}" if get_origin(hint) is list and kind in _KINDS.values() else kind


def help_line(text: str, default: Any, needed: bool = False) -> str:
    """The text with its default, or that it is needed; where nothing is the default, the text says what that means."""
    remark = "needed" if needed else f"default: {shown}" if (shown := _in_words(default)) else ""
    # argparse reads % as the beginning of a placeholder
    return (f"{text} ({remark})" if remark else text).replace("%", "%%")


def _in_words(default: Any) -> str:
    if default is None or default is False or default in ([], {}):
        return ""
    if isinstance(default, bool):
        return "true"
    if isinstance(default, float):
        return f"{default:g}"
    if isinstance(default, list) and not any(isinstance(part, (list, dict)) for part in default):
        return ",".join(_in_words(part) for part in default)
    if isinstance(default, (list, dict)):
        return yaml.safe_dump(default, default_flow_style=True, width=1000).strip()
    return str(default)


def _filled(paragraph: str, width: int, indent: str) -> str:
    if not paragraph.startswith(CommandHelp.EXAMPLE):
        return textwrap.fill(" ".join(paragraph.split()), width, initial_indent=indent, subsequent_indent=indent)
    # a flag stays on one line with its value
    joined = re.sub(r"(--\S+) (?!--)", "\\1\xa0", paragraph)
    lines = textwrap.wrap(
        joined, width - 2, initial_indent=indent, subsequent_indent=f"{indent}    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return " \\\n".join(lines).replace("\xa0", " ")
