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
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentParser, Namespace

from dem_apps.errors import InputError, nearest
from dem_apps.runtime.command_help import EXAMPLE, CommandHelp, help_line, value_name
from dem_apps.runtime.run_folder import read_config
from dem_apps.runtime.safe_io import MOST_YAML, parsed_yaml, read_text
from dem_apps.runtime.validate import check_document, check_settings, described

Config = TypeVar("Config")
TrainingConfig = TypeVar("TrainingConfig")


def option(
    default: Any,
    help: str,
    choices: Iterable[str] = (),
    *,
    value: str | None = None,
    group: str | None = None,
    flag_only: bool = False,
    flag: str | None = None,
) -> Any:
    """A dataclass field with its line of help.

    Args:
        default: its value; where it is None or empty, ``help`` says what that means.
        help: what it is.
        choices: the names that it may have; none allows any.
        value: what stands for the value in the help, such as ``DIR``; by default its choices, its kind or its name.
        group: heading in the help for this field and those that follow, up to the next heading.
        flag_only: for what nobody else may decide: neither a YAML file nor a resumed run's folder, which may come from
            somebody else, can change it.
        flag: the flag without its dashes, where the field cannot have that name (``import``).
    """
    metadata = {
        "help": help, "choices": tuple(choices), "value": value, "group": group, "flag_only": flag_only, "flag": flag,
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
    arguments = _normalise(sys.argv[1:] if argv is None else argv, config_class)
    for file in _config_files(arguments):
        _check_file(file, config_class)
    try:
        namespace = parser.parse_args(arguments)
    except argparse.ArgumentError as error:
        raise InputError(_one_sentence(str(error), parser, config_class)) from error
    # a value that the parser takes for YAML may be anything, too: the errors of its reader have no common class
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"the arguments cannot be read ({reason[:200]})") from error
    config = _instantiate(config_class, namespace)
    check_settings(config, lambda key: f"--{key.replace('_', '-')}")
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
    own, train_flags = _search_flags(sys.argv[1:] if argv is None else argv, search_class, train_class, train_module)
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
    known = {field.name for field in dataclasses.fields(config_class)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise InputError(f"{where}: unknown key '{key}'{nearest(key, known)}")
    nested = {
        key: from_dict(hints[key], value, f"{where}, {key}") if dataclasses.is_dataclass(hints[key]) else value
        for key, value in values.items()
    }
    config = config_class(**nested)
    check_settings(config, lambda key: f"{where}, {key}")
    return config


def _build_parser(
    config_class: type, prog: str, example: str, config_help: str, description: str | None
) -> ArgumentParser:
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog} [--config FILE] [--FLAG VALUE ...]",
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
        choices, value = field.metadata["choices"], field.metadata["value"]
        group.add_argument(
            "--" + f"{prefix}{field.metadata['flag'] or field.name}".replace("_", "-"),
            dest=f"{prefix}{field.name}",
            type=Literal[choices] if choices else hints[field.name],
            default=default,
            help=help_line(field.metadata["help"], default),
            metavar=value_name(hints[field.name], default, choices, field.name) if value is None else value,
        )


def _normalise(arguments: Sequence[str], config_class: type) -> list[str]:
    """Flags as the parser knows them.

    ``--max_steps`` is ``--max-steps`` (YAML keys are written with underscores), ``--resume`` alone is
    ``--resume=true``, and ``--resume DIR`` is short for ``--run-dir DIR --resume``. Lists may come without brackets.
    """
    hints = get_type_hints(config_class)
    switches = _flags_of(config_class, lambda hint: hint is bool)
    mappings = {name.replace("_", "-") for name, hint in hints.items() if get_origin(hint) is dict}
    # whose values may come without brackets: --scales 0.75,1.0
    lists = _flags_of(config_class, lambda hint: any(get_origin(part) is list for part in (hint, *get_args(hint))))
    normal: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if not argument.startswith("--"):
            normal.append(argument)
            continue
        name, equals, value = argument.partition("=")
        field, dot, key = name[2:].partition(".")
        field = field.replace("_", "-")
        # the keys of a mapping are not ours to spell: --hyperparameters.n_steps
        name = f"--{field}{dot}{key if field in mappings else key.replace('_', '-')}"
        if name in switches and not equals:
            following = rest[0] if rest and not rest[0].startswith("-") else None
            if following in ("true", "false"):
                value = rest.pop(0)
            elif following is not None and name == "--resume":
                normal.append(f"--run-dir={rest.pop(0)}")
            normal.append(f"{name}={value or 'true'}")
        elif name in lists and (equals or rest):
            value = value if equals else rest.pop(0)
            normal.append(f"{name}={value if value == 'null' or value.startswith('[') else f'[{value}]'}")
        else:
            normal.append(name + equals + value)
    return normal


def _config_files(arguments: Sequence[str]) -> list[str]:
    """What ``--config`` names, as often as it is given."""
    files: list[str] = []
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == "--config":
            files += [value] if equals else arguments[position + 1 : position + 2]
    return files


def _check_file(name: str, config_class: type) -> None:
    """Read a YAML file of settings for its keys, and to keep from the parser what would blow it up."""
    file = Path(name)
    try:
        if not file.exists():
            raise InputError(f"--config: File does not exist: {name}")
    except OSError as error:
        raise InputError(f"--config: {name} cannot be read ({error.strerror})") from error
    try:
        document = parsed_yaml(read_text(file, MOST_YAML), "")
    except InputError as error:
        raise InputError(f"--config: {str(error).removeprefix(': ')}") from error
    check_document(document, config_class, "--config")


def _flags_of(config_class: type, wanted: Callable[[Any], bool], prefix: str = "--") -> set[str]:
    """The flags, dotted ones as well, whose type is ``wanted``."""
    flags: set[str] = set()
    for name, hint in get_type_hints(config_class).items():
        flag = f"{prefix}{name.replace('_', '-')}"
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            flags |= _flags_of(hint, wanted, f"{flag}.")
        elif wanted(hint):
            flags.add(flag)
    return flags


def _search_flags(
    arguments: Sequence[str], search_class: type, train_class: type, train_module: str
) -> tuple[list[str], list[str]]:
    """A search's own flags, and those of its trainings without their prefix."""
    own: list[str] = []
    train: list[str] = []
    misplaced = set(get_type_hints(train_class)) - set(get_type_hints(search_class))
    to = own
    for argument in arguments:
        if argument.startswith("--"):
            name = argument.partition("=")[0]
            to = train if name == "--config" or name.startswith("--train.") else own
            if to is own and name[2:].partition(".")[0].replace("-", "_") in misplaced:
                raise InputError(f"{name}: a flag of {train_module}; write --train.{name[2:]}")
            argument = "--" + argument[2:].removeprefix("train.")
        to.append(argument)
    return own, train


def _resumed(config: Any, given: Namespace) -> Any:
    if config.run_dir is None:
        raise InputError("--resume: needs --run-dir, the folder of the run to continue")
    run_dir = Path(config.run_dir)
    saved = from_dict(type(config), read_config(run_dir), str(run_dir / "config.yaml"))
    mine = {name: getattr(config, name) for name in flag_only(type(config))}
    now, before = _flat(to_dict(config)), _flat(to_dict(saved))
    for key in _flat(given.as_dict()):
        if key not in ("config", "resume", "run_dir", *mine) and before.get(key) != now.get(key):
            raise InputError(
                f"--{key.replace('_', '-')}: the run in {run_dir} was started with {before.get(key)!r}, "
                f"not {now.get(key)!r}; a resumed run keeps its settings"
            )
    return dataclasses.replace(saved, resume=True, run_dir=config.run_dir, **mine)


def flag_only(config_class: type) -> dict[str, str]:
    """Settings that only a command line may change: the name of the field, and that of its flag as a key of YAML."""
    fields = [field for field in dataclasses.fields(config_class) if field.metadata.get("flag_only")]
    return {field.name: field.metadata["flag"] or field.name for field in fields}


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        nested = isinstance(value, dict) and value
        flat.update(_flat(value, f"{prefix}{key}.") if nested else {f"{prefix}{key}": value})
    return flat


def _one_sentence(message: str, parser: ArgumentParser, config_class: type) -> str:
    """Rewrite jsonargparse's message so that it names the flag and the nearest known one."""
    message = " ".join(message.split())
    flags = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    unknown_flag = re.match(r"unrecognized arguments: (\S+)", message)
    if unknown_flag:
        name = unknown_flag.group(1).partition("=")[0]
        return f"unknown argument '{name}'{nearest(name, flags)}"
    wrong_value = re.match(r'(?:Parser key "|argument --)([^":]+)"?: (.*)', message)
    if wrong_value:
        key, problem = wrong_value.group(1), wrong_value.group(2)
        return f"--{key.replace('_', '-')}: {_wrong_value(key, problem, config_class)}"
    return message


def _wrong_value(key: str, problem: str, config_class: type) -> str:
    choice = re.match(r"Expected a typing\.Literal\[(.*)\]\. Got value: (.*)", problem)
    if choice:
        known = re.findall(r"'([^']*)'", choice.group(1))
        return f"'{choice.group(2)}' is not one of {', '.join(known)}{nearest(choice.group(2), known)}"
    several = re.match(r"Does not validate against any of the Union subtypes .* Given value: ?(.*)", problem)
    if several:
        hint: Any = config_class
        for name in key.split("."):
            hint = get_type_hints(hint)[name]
        return f"expected {described(hint)}, got '{several.group(1)}'"
    return re.sub(r"Expected a <class '(\w+)'>\. Got value: ?(.*)", r"expected \1, got '\2'", problem)


def _instantiate(config_class: type[Config], namespace: Namespace) -> Config:
    hints = get_type_hints(config_class)
    values = {}
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        value = namespace[field.name]
        values[field.name] = _instantiate(hints[field.name], value) if isinstance(value, Namespace) else value
    return config_class(**values)
