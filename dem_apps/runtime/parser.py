"""The parser of a command, by jsonargparse over a dataclass of options, and how ``--help`` reads."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import shutil
import textwrap
from collections.abc import Sequence
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, _loaders_dumpers

from dem_apps.runtime.arguments import fields_of, flag, needed_flags
from dem_apps.runtime.documents import PlainValues
from dem_apps.runtime.setting_checks import choices_of, converted

#: Wider lines are hard to read, however wide the terminal is.
_WIDEST = 118
#: Placeholders of values in the help, by type.
_KINDS = {int: "N", float: "X"}


def build_parser(
    config_class: type, prog: str, example: str = "", config_help: str = "", description: str | None = None,
    common: Sequence[str] = (),
) -> ArgumentParser:  # fmt: skip
    """A flag for every setting; the arguments are those of :func:`dem_apps.runtime.settings.parse_config`."""
    number = sum(not dataclasses.is_dataclass(hint) for *_, hint in fields_of(config_class))
    more = f"--help all lists all {number} settings.\n\n" if common else ""
    parser = ArgumentParser(
        prog=prog,
        usage=f"{' '.join((prog, *(needed_flags(config_class) or ['[--config FILE]'])))} [--FLAG VALUE ...]",
        description=inspect.cleandoc(description or config_class.__doc__ or ""),
        epilog=f"{more}{CommandHelp.EXAMPLE}{example}",
        formatter_class=CommandHelp,
        print_config=None,  # every run saves its resolved settings
        exit_on_error=False,
        allow_abbrev=False,  # --los is a mistake, not --loss
    )
    _loaders_dumpers.yaml_default_loader = PlainValues  # type: ignore[assignment]  # of mappings; its own reads 1:30 as 90
    parser.add_argument("--config", type=str, help=config_help, metavar="FILE")
    _add_fields(parser, config_class(), "settings", common)
    return parser


def _add_fields(parser: ArgumentParser, defaults: Any, heading: str, common: Sequence[str], prefix: str = "") -> None:
    """A flag per field of the dataclass instance, whose values are the defaults."""
    hints, group = get_type_hints(type(defaults)), None
    for field in dataclasses.fields(defaults):
        default, key = getattr(defaults, field.name), f"{prefix}{field.name}"
        own_heading = field.metadata.get("group")
        if dataclasses.is_dataclass(default):
            _add_fields(parser, default, own_heading or field.name, common, f"{key}.")
            continue
        if group is None or own_heading:
            group = parser.add_argument_group(own_heading or heading)
        hint, value = hints[field.name], field.metadata["value"]
        text = _help_line(field.metadata["help"], default, field.metadata["needed"])
        group.add_argument(
            flag(f"{prefix}{field.metadata['flag_only'] or field.name}"),
            dest=key,
            type=hint if get_origin(hint) is dict else partial(converted, hint=hint),
            default=default,
            help=text if not common or key in common else argparse.SUPPRESS,
            metavar=_metavar(hint, default, choices_of(field, hint), field.name) if value is None else value,
        )


class CommandHelp(argparse.HelpFormatter):
    """A formatter for argparse and jsonargparse: paragraphs stay apart, and the example is one line to be copied."""

    EXAMPLE = "example: "

    def __init__(self, prog: str, *_: Any, **__: Any) -> None:
        width = min(shutil.get_terminal_size().columns - 2, _WIDEST)
        super().__init__(prog, max_help_position=max(24, width // 3), width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part if part.startswith(self.EXAMPLE) else super(CommandHelp, self)._fill_text(part, width, indent)
            for part in text.split("\n\n")
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        # a flag or a file name is not broken at its hyphens
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _metavar(hint: Any, default: Any, choices: Sequence[str], name: str) -> str:
    """The placeholder behind a flag: its choices, the kind of number, or its own name; nothing for a switch."""
    if choices:
        return "{" + ",".join(choices) + "}"
    if get_origin(hint) is dict:
        return name.upper()
    kinds = {kind for kind in (hint, *get_args(hint)) if get_origin(kind) is None}
    if bool in kinds:
        return "" if default is False else "{true,false}"
    kind = next((_KINDS[kind] for kind in _KINDS if kind in kinds), name.upper())
    return f"{kind},{kind}" if get_origin(hint) is list and kind in _KINDS.values() else kind


def _help_line(text: str, default: Any, needed: bool) -> str:
    """The text with its default, or that it is needed; where nothing is the default, the text says what that means."""
    remark = "needed"
    if not needed:
        nothing = default is None or default is False or default in ("", [], {})
        remark = "" if nothing else f"default: {default if isinstance(default, str) else json.dumps(default)}"
    # argparse reads % as the beginning of a placeholder
    return (f"{text} ({remark})" if remark else text).replace("%", "%%")
