"""Settings of a command: a frozen dataclass; its defaults < a YAML file < flags.

A field is declared with :func:`option`; one that is a dataclass becomes a group of dotted flags (``--source.root``).
jsonargparse reads flags and documents; :mod:`dem_apps.runtime.setting_checks` makes their values and checks them.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser, Namespace, _loaders_dumpers

from dem_apps.errors import InputError, nearest, refused, shown
from dem_apps.runtime.arguments import (
    fields_of,
    flag,
    line_only,
    mapping_keys,
    needed_flags,
    normalise,
    of_machine,
    set_nested,
    shipped_with,
)
from dem_apps.runtime.documents import LARGEST_YAML, UNREADABLE, PlainValues, parsed_yaml
from dem_apps.runtime.files import read_text
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.setting_checks import check_settings, choices_of, converted

Config = TypeVar("Config")
#: The largest seed that numpy takes.
LARGEST_SEED = (1 << 32) - 1
#: Wider lines are hard to read, however wide the terminal is.
_WIDEST = 118
#: Placeholders of values in the help, by type.
_KINDS = {int: "N", float: "X"}


def option(
    default: Any,
    help: str,
    choices: Iterable[str] = (),
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    above: float | None = None,
    below: float | None = None,
    value: str | None = None,
    group: str | None = None,
    flag_only: str | None = None,
    needed: bool = False,
    exists: bool = False,
    of_machine: bool = False,
    code: str | None = None,
    keys: Iterable[str] = (),
) -> Any:
    """A dataclass field with its line of help.

    Args:
        default: its value; where it is None or empty, ``help`` says what that means.
        help: what it is.
        choices: the names that it, or each of a list, may have, out of a table; those without one are a ``Literal``.
        at_least, at_most, above, below: the range of a number, or of each of a list.
        value: what stands for the value in the help, such as ``DIR``; by default its choices, its kind or its name.
        group: heading in the help for this field and those that follow, up to the next heading.
        flag_only: the flag, without its dashes, of what runs code and so is taken from the command line alone.
        needed: the command cannot do without it; ``default`` is empty, and stands for a flag that was not given.
        exists: a path or each of a list of them, has to exist: :func:`check_paths`.
        of_machine: a resumed run may have another, as another machine does.
        code: for what may be a ``MODULE:NAME``, which imports the module: the flag to name one in, its own or another.
        keys: of a mapping, those that are suggested where a flag was meant as one of them.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "value": value,
        "range": {"at_least": at_least, "at_most": at_most, "above": above, "below": below},
        "group": group,
        "flag_only": flag_only,
        "needed": needed,
        "exists": exists,
        "of_machine": of_machine,
        "code": code,
        "keys": tuple(keys),
    }
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: type(default)(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(make: Callable[[], Any], group: str) -> Any:
    """A field that is a dataclass of options itself, with the heading of its dotted flags in the help."""
    return dataclasses.field(default_factory=make, metadata={"group": group})


def parse_config(
    config_class: type[Config],
    prog: str,
    example: str,
    argv: Sequence[str] | None = None,
    config_help: str = "YAML file with any of the settings below, as keys with underscores; flags win over it",
    description: str | None = None,
    in_file: Mapping[str, Any] | None = None,
) -> Config:
    """Read a command's configuration from ``--config FILE`` and flags; a file cannot set what runs code.

    With ``--resume`` the settings are those of the run in ``--run-dir``, and one that is given again must be the same.
    ``--help`` lists the class's ``COMMON`` settings, ``--help all`` all. ``prog`` is how the command is called,
    ``example`` a full command line, ``description`` by default the class's docstring; ``in_file`` are settings by
    dotted keys from another file. Raises InputError: an unknown key, a wrong type, an unreadable file.
    """
    arguments, files, nested = normalise(sys.argv[1:] if argv is None else argv, config_class)
    common = (
        () if "all" in (sys.argv if argv is None else argv) else getattr(config_class, "COMMON", ())
    )
    parser = build_parser(config_class, prog, example, config_help, description, common)
    line = _read(parser.parse_args, arguments)
    documents = [
        ("", in_file or {}),
        *(("--config: ", _document(file, config_class)) for file in files),
    ]
    before: Namespace | None = None
    settings = dict[str, Any]()
    for where, document in documents:
        settings = merged(settings, _known(document, config_class, where, flag))
        before = _read(parser.parse_object, settings)
        _refuse_code(config_class, before, line, where)
    for name, key, text in nested:
        settings[name] = dict(settings.get(name) or {})
        set_nested(settings[name], key, converted(text, Any))
    if nested:
        before = _read(parser.parse_object, settings)
    given = _read(parser.parse_args, arguments, before)
    config = _checked(
        config_class, _read(parser.parse_args, arguments, before, defaults=True), flag
    )
    return _resumed(config, line, given) if getattr(config, "resume", False) else config


def from_dict(
    config_class: type[Config],
    values: dict[str, Any],
    where: str,
    line: Mapping[str, Any] | Namespace | None = None,
) -> Config:
    """Rebuild a configuration that ``dataclasses.asdict`` made; an InputError for an unknown key or a wrong value.

    Of settings that run code it has the defaults; see :func:`option`. ``line`` is what the command line names.
    """
    parser = build_parser(config_class, where)

    def name(key: str) -> str:
        return f"{where}, {key}"

    read = _read(
        parser.parse_object, _known(values, config_class, f"{where}: ", name), defaults=True
    )
    for key in line_only(config_class):
        read.pop(key, None)
    _refuse_code(config_class, read, line or {}, f"{where}, ")
    return _checked(config_class, read, name)


def _refuse_code(
    config_class: type,
    of_file: Mapping[str, Any] | Namespace,
    line: Mapping[str, Any] | Namespace,
    where: str,
) -> None:
    """Refuse values out of a file that would run code, or name a second file, and are not on the command ``line``.

    A ``MODULE:NAME`` may stand there if the line holds the same, or names the module.
    """
    only = line_only(config_class)
    for key, name in only.items():
        if (value := of_file.get(key)) is not None and key not in line:
            raise InputError(
                f"{where}{key}: can only be given on the command line, as {flag(name)} {value}"
            )
    named = {name: str(line.get(key) or "").split(",") for key, name in only.items()}
    for key, field, _ in fields_of(config_class):
        value, by = str(of_file.get(key)), field.metadata.get("code")
        module, colon, _ = value.rpartition(":")
        if by is None or not colon or value == line.get(key):
            continue
        if not any(f"{each}.".startswith(f"{module}.") for each in named.get(by, [])):
            wanted = f"{flag(by)} {value if by == key else module}"
            raise InputError(
                f"{where}{key}: {value} stands in a file, which cannot have the code of {module} run; if it is yours, "
                f"add {wanted}"
            )


def _known(
    document: Mapping[str, Any], config_class: type, where: str, name: Callable[[str], str]
) -> dict[str, Any]:
    """The settings of a document by dotted keys; an InputError for a key that is none."""
    hints = {key: hint for key, _, hint in fields_of(config_class)}
    only = [name.replace("-", "_") for name in line_only(config_class).values()]
    settings = {
        str(key).replace("-", "_"): value for key, value in dotted(document, config_class).items()
    }
    for key, value in settings.items():
        if dataclasses.is_dataclass(hints.get(key)):
            raise InputError(f"{name(key)}: expected a mapping of keys, got {shown(value)}")
        if key not in (*hints, *only) and get_origin(hints.get(key.partition(".")[0])) is not dict:
            raise InputError(
                f"{where}unknown key '{key}'{nearest(key, [*hints, *mapping_keys(config_class)])}"
            )
    return settings


def dotted(
    values: Mapping[str, Any], config_class: type | None = None, prefix: str = ""
) -> dict[str, Any]:
    """Nested settings by dotted keys; an empty mapping is a value, of ``config_class`` each that is no dataclass."""
    hints = get_type_hints(config_class) if config_class else {}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and (
            dataclasses.is_dataclass(hints.get(key)) if config_class else value
        )
        flat |= (
            dotted(value, hints.get(key), f"{prefix}{key}.")
            if nested
            else {f"{prefix}{key}": value}
        )
    return flat


def merged(settings: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted keys, of which the ``later`` win; those that are mappings are merged by key."""
    earlier = {key: value for key, value in settings.items() if isinstance(value, Mapping)}
    both = {
        key: {**earlier[key], **later[key]}
        for key in earlier
        if isinstance(later.get(key), Mapping)
    }
    return {**settings, **later, **both}


def _read(
    parse: Callable[..., Namespace], given: Any, before: Any = None, defaults: bool = False
) -> Namespace:
    """Arguments or a document of known names, parsed by jsonargparse."""
    with refused(str, argparse.ArgumentError, *UNREADABLE):
        return parse(given, before, defaults=defaults)


def _checked(config_class: type[Config], values: Namespace, name: Callable[[str], str]) -> Config:
    """The dataclass of parsed values, each in its range."""
    config: Config = _built(
        config_class, {k: v for k, v in values.as_dict().items() if k != "config"}
    )
    check_settings(config, name)
    return config


def _built(config_class: type, values: Mapping[str, Any]) -> Any:
    """The dataclass, nested ones included."""
    hints = get_type_hints(config_class)
    nested = {
        key: _built(hints[key], values[key])
        for key in values
        if dataclasses.is_dataclass(hints[key])
    }
    return config_class(**{**values, **nested})


def _document(file: Path, config_class: type) -> dict[str, Any]:
    """The settings in a YAML file, of which there must be any."""
    try:
        document = parsed_yaml(read_text(file, most=LARGEST_YAML), "")
    except InputError as error:
        known = shipped_with(config_class)
        named = bool(known) and not file.suffix
        has = (
            f"; those that come with it: {', '.join(known)}{nearest(file.name, known)}"
            if named
            else ""
        )
        raise InputError(f"--config: {str(error).removeprefix(': ')}{has}") from error
    if not isinstance(document, dict) or not document:
        raise InputError(
            "--config: expected a mapping of keys, such as 'max_steps: 100', and at least one"
        )
    return document


def _resumed(config: Any, line: Namespace, given: Namespace) -> Any:
    if config.run_dir is None:
        raise InputError("--resume: needs --run-dir, the folder of the run to continue")
    run_dir, only = Path(config.run_dir), line_only(type(config))
    document, where = read_config(run_dir), str(run_dir / "config.yaml")
    saved = from_dict(type(config), document, where, line)
    _refuse_code(type(config), document, line, f"{where}, ")
    mine = {name: getattr(config, name) for name in only if name != "config"}
    now, before = dotted(dataclasses.asdict(config)), dotted(dataclasses.asdict(saved))
    mine |= {name: getattr(config, name) for name in of_machine(type(config)) if name in given}
    for key in dotted(given.as_dict()):
        if key not in ("config", "resume", "run_dir", *mine) and before.get(key) != now.get(key):
            raise InputError(
                f"{flag(key)}: the run in {run_dir} was started with {before.get(key)!r}, not {now.get(key)!r}; "
                f"a resumed run keeps its settings{getattr(config, 'INSTEAD_OF_RESUMING', '').format(run_dir)}"
            )
    return dataclasses.replace(saved, resume=True, run_dir=config.run_dir, **mine)


def build_parser(
    config_class: type,
    prog: str,
    example: str = "",
    config_help: str = "",
    description: str | None = None,
    common: Sequence[str] = (),
) -> ArgumentParser:
    """A flag for every setting; the arguments are those of :func:`parse_config`."""
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
    defaults, only, group = (
        config_class(),
        line_only(config_class),
        parser.add_argument_group("settings"),
    )
    for key, field, hint in fields_of(config_class):
        heading, nested = field.metadata.get("group"), dataclasses.is_dataclass(hint)
        if heading or nested:
            group = parser.add_argument_group(heading or field.name)
        if nested:
            continue
        default = attrgetter(key)(defaults)
        text = _help_line(field.metadata["help"], default, field.metadata["needed"])
        group.add_argument(
            flag(only.get(key, key)),
            dest=key,
            default=default,
            type=hint if get_origin(hint) is dict else partial(converted, hint=hint),
            help=text if not common or key in common else argparse.SUPPRESS,
            metavar=field.metadata["value"]
            or _metavar(hint, default, choices_of(field, hint), field.name),
        )
    return parser


class CommandHelp(argparse.HelpFormatter):
    """A formatter for argparse and jsonargparse: paragraphs stay apart, and the example is one line to be copied."""

    EXAMPLE = "example: "

    def __init__(self, prog: str, *_: Any, **__: Any) -> None:
        width = min(shutil.get_terminal_size().columns - 2, _WIDEST)
        super().__init__(prog, max_help_position=max(24, width // 3), width=width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            part
            if part.startswith(self.EXAMPLE)
            else super(CommandHelp, self)._fill_text(part, width, indent)
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
        remark = (
            ""
            if nothing
            else f"default: {default if isinstance(default, str) else json.dumps(default)}"
        )
    # argparse reads % as the beginning of a placeholder
    return (f"{text} ({remark})" if remark else text).replace("%", "%%")
