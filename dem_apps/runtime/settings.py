"""Typed configuration: a frozen dataclass per command; its defaults < a YAML file < command line flags.

A field is declared with :func:`option`, which holds its one line of help. A field that is itself a dataclass
becomes a group of dotted flags (``--source.root``). Parsing is jsonargparse's; this module only builds the
parser from the dataclass and rewrites its complaints into one sentence with the nearest known name.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import yaml
from jsonargparse import ArgumentParser, Namespace

from dem_apps.errors import InputError, first_words, nearest, nearest_path
from dem_apps.runtime.arguments import config_files, normalise, recipes, search_flags, without_options_of_others
from dem_apps.runtime.command_help import EXAMPLE, CommandHelp, help_line, value_name
from dem_apps.runtime.files import parsed_yaml, read_text
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.validate import (
    check_document,
    check_settings,
    choices_of,
    described,
    fields_of,
    flag,
    needed_flags,
    not_among,
    without_choices,
)

Config = TypeVar("Config")
#: The largest seed that numpy takes.
LARGEST_SEED = (1 << 32) - 1
#: With more unknown keys than this at once nobody has mistyped them.
_OF_ANOTHER_COMMAND = 4
TrainingConfig = TypeVar("TrainingConfig")


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
    flag_only: bool = False,
    flag: str | None = None,
    of: str | None = None,
    needed: bool = False,
) -> Any:
    """A dataclass field with its line of help.

    Args:
        default: its value; where it is None or empty, ``help`` says what that means.
        help: what it is.
        choices: the names that it, or each of a list, may have, out of a table; those without one are a ``Literal``.
        at_least: a number, or each of a list, has to be this or more.
        at_most: likewise, or less.
        above: likewise, more than this.
        below: likewise, less than this.
        value: what stands for the value in the help, such as ``DIR``; by default its choices, its kind or its name.
        group: heading in the help for this field and those that follow, up to the next heading.
        flag_only: for what nobody else may decide: neither a YAML file nor a resumed run's folder, which may come from
            somebody else, can change it.
        flag: the flag without its dashes, where the field cannot have that name (``import``).
        of: the field beside it whose choice it is an option of: what a YAML file says of it is for the file's choice,
            and not for one that a flag makes in its place. Its default is None.
        needed: the command cannot do without it; ``default`` is empty, and stands for a flag that was not given.
    """
    metadata = {
        "help": help, "choices": tuple(choices), "value": value,
        "range": {"at_least": at_least, "at_most": at_most, "above": above, "below": below}, "group": group,
        "flag_only": flag_only, "flag": flag, "of": of, "needed": needed,
    }  # fmt: skip
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
) -> Config:
    """Read a command's configuration from ``--config FILE`` and flags.

    Args:
        config_class: a dataclass whose fields come from :func:`option` or are such dataclasses themselves.
        prog: how the command is called, for the help text (``python -m seg.train``).
        example: one full command line, shown at the end of the help.
        argv: the arguments; those of the process when None.
        config_help: the help line of ``--config``.
        description: what the command does; None takes the dataclass's docstring.

    Raises:
        InputError: an unknown key, a value of the wrong type, an unreadable or malicious file.

    With ``--resume`` the settings are those of the run folder in ``--run-dir``. A setting that is given again
    must be the same: a run that changes its settings half-way could not be repeated.
    """
    parser = _build_parser(config_class, prog, example, config_help, description)
    arguments = normalise(sys.argv[1:] if argv is None else argv, config_class)
    documents = [_checked_file(file, config_class) for file in config_files(arguments)]
    arguments = without_options_of_others(arguments, documents, config_class)
    try:
        namespace = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(_one_sentence(str(error), parser, config_class)) from error
    # a value that the parser takes for YAML may be anything, too: the errors of its reader have no common class
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError) as error:
        raise InputError(f"the arguments cannot be read ({first_words(error, 200)})") from error
    config = _built(config_class, {key: value for key, value in namespace.as_dict().items() if key != "config"})
    check_settings(config)
    if getattr(config, "resume", False):
        config = _resumed(config, parser.parse_args(arguments, defaults=False))
    return config


def parse_search(
    search_class: type[Config],
    train_class: type[TrainingConfig],
    module: str,
    train_module: str,
    example: str,
    argv: Sequence[str] | None = None,
) -> tuple[Config, TrainingConfig, list[str]]:
    """Read the settings of a search over trainings: the search's own, the trainings', and the flags that made these.

    ``--config FILE`` and ``--train.FLAG`` are of the training, everything else of the search.

    Args:
        search_class: the search's settings.
        train_class: the trainings' settings.
        module: of the search, ``seg.tune``.
        train_module: of the training, ``seg.train``.
        example: see :func:`parse_config`.
        argv: likewise.

    Raises:
        InputError: as of :func:`parse_config`, or a flag of the training without its prefix.
    """
    own, train_flags = search_flags(sys.argv[1:] if argv is None else argv, search_class, train_class, train_module)
    # --config goes to the training, and is named in the search's help all the same
    search = parse_config(search_class, f"python -m {module}", example, own, f"YAML file of {train_module}")
    return search, parse_config(train_class, f"python -m {train_module}", example, train_flags), train_flags


def to_dict(config: Any) -> dict[str, Any]:
    """The resolved configuration as plain YAML-able values."""
    return dataclasses.asdict(config)


def from_dict(config_class: type[Config], values: dict[str, Any], where: str) -> Config:
    """Rebuild a configuration that :func:`to_dict` made, such as a run folder's ``config.yaml``.

    Raises:
        InputError: a key that the dataclass does not have, a value that is no mapping where one is due, or one that
            is not of its field's type.
    """
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected a mapping of keys, found {type(values).__name__}")
    hints = get_type_hints(config_class)
    unknown = [str(key) for key in values if key not in hints]
    if len(unknown) > _OF_ANOTHER_COMMAND:
        raise InputError(
            f"{where}: holds settings of another command ({', '.join(unknown[:3])}, …), and a run of "
            f"{config_class.__module__.partition('.')[0]}.train is expected"
        )
    for key, value in values.items():
        if key not in hints:
            raise InputError(f"{where}: unknown key '{key}'{nearest(key, hints)}")
        if dataclasses.is_dataclass(hints[key]):
            from_dict(hints[key], value, f"{where}, {key}")
    config = _built(config_class, values)
    check_settings(config, lambda key: f"{where}, {key}")
    return config


def _built(config_class: type[Config], values: dict[str, Any]) -> Config:
    """The dataclass, nested ones included, of values that are not checked yet."""
    hints = get_type_hints(config_class)
    return config_class(
        **{key: _built(hints[key], value) if dataclasses.is_dataclass(hints[key]) else value
           for key, value in values.items()}
    )  # fmt: skip


def _build_parser(
    config_class: type, prog: str, example: str, config_help: str, description: str | None
) -> ArgumentParser:
    parser = ArgumentParser(
        prog=prog,
        usage=f"{' '.join((prog, *(needed_flags(config_class) or ['[--config FILE]'])))} [--FLAG VALUE ...]",
        description=inspect.cleandoc(description or config_class.__doc__ or ""),
        epilog=f"{EXAMPLE}{example}",
        formatter_class=CommandHelp,
        print_config=None,  # every run saves its resolved settings
        exit_on_error=False,
        allow_abbrev=False,  # --los is a mistake, not --loss
    )
    parser.add_argument("--config", action="config", help=config_help, metavar="FILE")
    _add_fields(parser, config_class(), "settings")
    return parser


def _add_fields(parser: ArgumentParser, defaults: Any, heading: str, prefix: str = "") -> None:
    """A flag per field of the dataclass instance, whose values are the defaults."""
    hints = get_type_hints(type(defaults))
    group = None
    for field in dataclasses.fields(defaults):
        default = getattr(defaults, field.name)
        own_heading = field.metadata.get("group")
        if dataclasses.is_dataclass(default):
            _add_fields(parser, default, own_heading or field.name, prefix=f"{prefix}{field.name}.")
            continue
        if group is None or own_heading:
            group = parser.add_argument_group(own_heading or heading)
        hint, value = hints[field.name], field.metadata["value"]
        kind = without_choices(hint)
        group.add_argument(
            flag(f"{prefix}{field.metadata['flag'] or field.name}"),
            dest=f"{prefix}{field.name}",
            type=kind,
            default=default,
            help=help_line(field.metadata["help"], default, field.metadata["needed"]),
            metavar=value_name(kind, default, choices_of(field, hint), field.name) if value is None else value,
        )


def _checked_file(name: str, config_class: type) -> Any:
    """A YAML file of settings, read for its keys, and to keep from the parser what would blow it up."""
    try:
        document = parsed_yaml(read_text(Path(name)), "")
    except InputError as error:
        known = recipes(config_class)
        has = f"; the recipes by name: {', '.join(known)}{nearest(name, known)}" if known and "." not in name else ""
        raise InputError(f"--config: {str(error).removeprefix(': ')}{has}") from error
    check_document(document, config_class, "--config")
    return document


def _resumed(config: Any, given: Namespace) -> Any:
    if config.run_dir is None:
        raise InputError("--resume: needs --run-dir, the folder of the run to continue")
    run_dir = Path(config.run_dir)
    saved = from_dict(type(config), read_config(run_dir), str(run_dir / "config.yaml"))
    mine = {name: getattr(config, name) for name in flag_only(type(config))}
    now, before = dotted(to_dict(config)), dotted(to_dict(saved))
    for key in dotted(given.as_dict()):
        if key not in ("config", "resume", "run_dir", *mine) and before.get(key) != now.get(key):
            raise InputError(
                f"{flag(key)}: the run in {run_dir} was started with {before.get(key)!r}, not {now.get(key)!r}; "
                "a resumed run keeps its settings"
            )
    return dataclasses.replace(saved, resume=True, run_dir=config.run_dir, **mine)


def flag_only(config_class: type) -> dict[str, str]:
    """Settings that only a command line may change: the name of the field, and that of its flag as a key of YAML."""
    fields = [field for field in dataclasses.fields(config_class) if field.metadata.get("flag_only")]
    return {field.name: field.metadata["flag"] or field.name for field in fields}


def dotted(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with one dotted key for each value; an empty mapping is a value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, Mapping) and value
        flat.update(dotted(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return flat


def _one_sentence(message: str, parser: ArgumentParser, config_class: type) -> str:
    """Rewrite jsonargparse's message so that it names the flag and the nearest known one."""
    message = " ".join(message.split())
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    unknown_flag = re.match(r"unrecognized arguments: (\S+)", message)
    if unknown_flag:
        name = unknown_flag.group(1).partition("=")[0]
        if not name.startswith("-"):
            such_as = "".join(f", such as {needed}" for needed in needed_flags(config_class)[:1])
            return f"unknown argument '{name}'; a value stands behind its flag{such_as}, and --help lists them"
        return f"unknown argument '{name}'{nearest_path(name, flags)}"
    wrong_value = re.match(r'(?:Parser key "|argument --)([^":]+)"?: (.*)', message)
    if wrong_value:
        key, problem = wrong_value.group(1), wrong_value.group(2)
        return f"{flag(key)}: {_wrong_value(key, problem, config_class)}"
    return message


def _wrong_value(key: str, problem: str, config_class: type) -> str:
    several = re.match(r"Does not validate against any of the Union subtypes .* Given value: ?(.*)", problem)
    single = re.match(r"Expected a <class '(\w+)'>\. Got value: ?(.*)", problem)
    if several is None and single is None:
        return problem
    expected, value = ("", several.group(1)) if several else single.groups()  # type: ignore[union-attr]
    for name, field, hint in fields_of(config_class):
        if name == key and (choices := choices_of(field, hint)):
            return not_among(value, choices)
        if name == key and several:
            expected = described(hint)
    return f"expected {expected}, got '{value}'"
