"""How ``--help`` reads: groups by topic, the kind of each value and its default once, and one example that works."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Sequence
from typing import Any, get_args, get_origin

import yaml

EXAMPLE = "example: "
#: Wider lines are hard to read, however wide the terminal is.
_WIDEST = 118
#: What stands for a value whose option names nothing better.
_KINDS = {int: "N", float: "X"}


class CommandHelp(argparse.HelpFormatter):
    """A formatter for argparse and jsonargparse: paragraphs stay apart, and the example can be copied as it stands."""

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


def value_name(hint: Any, default: Any, choices: Sequence[str], name: str) -> str:
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
    if not paragraph.startswith(EXAMPLE):
        return textwrap.fill(" ".join(paragraph.split()), width, initial_indent=indent, subsequent_indent=indent)
    # a flag stays on one line with its value
    joined = re.sub(r"(--\S+) (?!--)", "\\1\xa0", paragraph)
    lines = textwrap.wrap(
        joined, width - 2, initial_indent=indent, subsequent_indent=f"{indent}    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return " \\\n".join(lines).replace("\xa0", " ")
