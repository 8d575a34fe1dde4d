"""Settings of a command: a frozen dataclass; its defaults < a YAML file < flags.

A field is declared with :func:`option`; one that is a dataclass becomes a group of dotted flags (``--source.root``).
jsonargparse converts values by their annotations; :mod:`dem_apps.runtime.setting_checks` checks them.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser

from dem_apps.errors import InputError, nearest, passed_on, shown
from dem_apps.runtime.arguments import (
    config_file,
    fields_of,
    flag,
    line_only,
    marked,
    needed_flags,
    set_nested,
    text_value,
)
from dem_apps.runtime.documents import Document, Settings, read_yaml
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.setting_checks import check_settings, choices_of

Config = TypeVar("Config")
#: The largest seed that numpy takes.
LARGEST_SEED = (1 << 32) - 1
#: Placeholders of values in the help, by type.
_KINDS = {int: "N", float: "X"}


def option(
    default: Any,
    help: str,
    choices: Iterable[str] = (),
    *,
    value: str | None = None,
    group: str | None = None,
    flag_only: str | None = None,
    needed: bool = False,
    exists: bool = False,
    of_machine: bool = False,
    code: str | None = None,
    keys: Iterable[str] = (),
    **bounds: float,
) -> Any:
    """A dataclass field with its line of help.

    Args:
        default: its value; where it is None or empty, ``help`` says what that means.
        help: what it is.
        choices: the names that it, or each of a list, may have, out of a table; those without one are a ``Literal``.
        value: what stands for the value in the help, such as ``DIR``; by default its choices, its kind or its name.
        group: heading in the help for this field and those that follow, up to the next heading.
        flag_only: the flag, without its dashes, of what runs code and so is taken from the command line alone.
        needed: the command cannot do without it; ``default`` is empty, and stands for a flag that was not given.
        exists: a path or each of a list of them, has to exist: :func:`check_paths`.
        of_machine: a resumed run may have another, as another machine does.
        code: for what may be a ``MODULE:NAME``, which imports the module: the flag to name one in, its own or another.
        keys: of a mapping, those that are suggested where a flag was meant as one of them.
        bounds: the range of a number, or of each of a list: ``at_least``, ``at_most``, ``above``, ``below``.
    """
    metadata = {
        "help": help,
        "choices": tuple(choices),
        "value": value,
        "range": bounds,
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
    examples: str,
    argv: Sequence[str] | None = None,
    config_help: str = "YAML file with any of the settings below, as keys with underscores; flags win over it",
    description: str | None = None,
    in_file: Settings | None = None,
) -> Config:
    """Read a command's settings from ``--config FILE`` and flags; a file cannot set what runs code.

    With ``--resume`` the settings are those of the run in ``--run-dir``, and one that is given again must be the same.
    ``--help`` lists the class's ``COMMON`` settings, ``--help all`` all.

    Args:
        config_class: the dataclass of the settings.
        prog: how the command is called.
        examples: full command lines for the help, one a line.
        argv: the arguments; by default those of the process.
        config_help: help of ``--config``.
        description: beginning of the help; by default the class's docstring.
        in_file: settings by dotted keys from another file.

    Returns:
        The settings.

    Raises:
        InputError: an unknown key, a wrong value, or a file that cannot be read.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    paragraphs = inspect.cleandoc(description or config_class.__doc__ or "").split("\n\n")
    parser = _parser(
        config_class,
        prog=prog,
        description="\n\n".join(map(textwrap.fill, paragraphs)),
        epilog="examples:\n" + textwrap.indent(examples, "  "),
        common=() if "all" in arguments else getattr(config_class, "COMMON", ()),
    )
    parser.add_argument("--config", help=config_help, metavar="FILE", action="append")
    line = _read_line(parser, arguments, config_class)
    files = line.pop("config", [])
    settings = Document()
    with passed_on("--config", InputError) if files else nullcontext():
        for document in (in_file or {}, *map(_document, files)):
            settings = merged(settings, _known(document, config_class))
            _refuse_code(config_class, settings, line)
    settings = merged(settings, line)
    config = _made(config_class, settings)
    return _resumed(config, line, settings) if getattr(config, "resume", False) else config


def _read_line(
    parser: argparse.ArgumentParser, arguments: Sequence[str], config_class: type
) -> Document:
    """The values of the command line by dotted keys, those of mappings (``train.model.depth``) too.

    ``--max_steps`` is ``--max-steps``, a switch may stand alone, and ``--resume DIR`` is ``--run-dir DIR --resume``.
    """
    hints = {key: hint for key, _, hint in fields_of(config_class)}
    spelled = list[str]()
    for argument in arguments:
        name, equals, value = argument.partition("=")
        mapping = name.partition(".")[0].lstrip("-").replace("-", "_")
        if "." in name and get_origin(hints.get(mapping)) is dict:
            parser.add_argument(name, dest=name.lstrip("-"))
        elif name.startswith("--"):
            name = flag(name[2:])
        spelled.append(f"{name}{equals}{value}")
    read, unknown = parser.parse_known_args(spelled)
    if unknown:
        inner = [f"--{key}" for key in _known_keys(config_class) if key not in hints]
        _refuse_unknown(unknown[0], [*parser._option_string_actions, *inner])
    line = vars(read)
    if line.get("resume", "true") not in ("true", "false"):
        line |= {"run_dir": line["resume"], "resume": "true"}
    for key in line.keys() - {"config"}:
        line[key] = text_value(line[key], hints.get(key), flag(key))
    return line


def _refuse_unknown(argument: str, known: Sequence[str]) -> NoReturn:
    """Name the nearest known flag; that of a group is its first setting's, as for ``--source GTA5``."""
    name = argument.partition("=")[0]
    first = [each for each in known if each.startswith(f"{name}.")][:1]
    close = nearest(name, first or known) or "; values follow a flag, see --help"
    raise InputError(f"unknown argument '{name}'{close}")


def from_dict(
    config_class: type[Config],
    values: Document,
    where: str,
    line: Settings | None = None,
) -> Config:
    """Rebuild settings that ``dataclasses.asdict`` made; those that run code have their defaults.

    Args:
        config_class: the dataclass of the settings.
        values: its nested values.
        where: names the values in errors.
        line: what the command line names, by dotted keys.

    Returns:
        The settings.

    Raises:
        InputError: an unknown key, a wrong value, or one that would run code.
    """
    with passed_on(where, InputError):
        settings = _known(values, config_class)
        for key in line_only(config_class):
            settings.pop(key, None)
        _refuse_code(config_class, settings, line or {})
        return _made(config_class, settings)


def _refuse_code(config_class: type, in_file: Settings, line: Settings) -> None:
    """Refuse values out of a file that would run code, or name a second file, and are not on the command ``line``.

    A ``MODULE:NAME`` may stand there if the line holds the same, or names the module.
    """
    modules = dict[str, list[str]]()
    for key, name in line_only(config_class).items():
        if in_file.get(key) is not None and key not in line:
            raise InputError(
                f"{key}: can only be given on the command line, as {flag(name)} {in_file[key]}"
            )
        modules[name] = str(line.get(key, "")).split(",")
    for key, by in marked(config_class, "code").items():
        value = str(in_file.get(key))
        module, colon, _ = value.rpartition(":")
        allowed = value == line.get(key) or module in modules.get(by, ())
        if colon and not allowed:
            wanted = f"{flag(by)} {value if by == key else module}"
            raise InputError(
                f"{key}: {value} is set in a file, and a file may not run the code of {module}; if the module is "
                f"yours, add {wanted}"
            )


def _known(document: Settings, config_class: type) -> Document:
    """The settings of a document by dotted keys; an InputError for a key that is none."""
    hints = {key: hint for key, _, hint in fields_of(config_class)}
    names = {name.replace("-", "_"): key for key, name in line_only(config_class).items()}
    settings = Document()
    for key, value in dotted(document, config_class).items():
        key = str(key).replace("-", "_")
        key = names.get(key, key)
        hint = hints.get(key)
        if dataclasses.is_dataclass(hint):
            raise InputError(f"{key}: expected a mapping of keys, got {shown(value)}")
        if not hint and key != "config":
            raise InputError(f"unknown key '{key}'{nearest(key, _known_keys(config_class))}")
        settings[key] = value
    return settings


def _known_keys(config_class: type) -> list[str]:
    """The dotted keys of all settings, and those that mappings usually have: ``hyperparameters.n_steps``."""
    inner = marked(config_class, "keys").items()
    keys = [key for key, *_ in fields_of(config_class)]
    return [*keys, *(f"{key}.{name}" for key, names in inner for name in names)]


def dotted(values: Settings, config_class: type | None = None, prefix: str = "") -> Document:
    """Nested settings by dotted keys.

    An empty mapping is a value; with a ``config_class``, so is each that is no dataclass there.
    """
    hints = get_type_hints(config_class) if config_class else {}
    flat: Document = {}
    for key, value in values.items():
        nested = dataclasses.is_dataclass(hints.get(key)) if config_class else value
        if nested and isinstance(value, Mapping):
            flat |= dotted(value, hints.get(key), f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def merged(settings: Settings, later: Settings) -> Document:
    """Settings by dotted keys, of which the ``later`` win; those that are mappings are merged by key."""
    both = dict(settings)
    for key, value in later.items():
        earlier = both.get(key)
        if isinstance(value, Mapping) and isinstance(earlier, Mapping):
            value = {**earlier, **value}
        both[key] = value
    return both


def _made(config_class: type[Config], settings: Document) -> Config:
    """The dataclass of values by dotted keys, converted by their annotations and checked."""
    parser = ArgumentParser(exit_on_error=False)
    for key, _, hint in fields_of(config_class):
        if not dataclasses.is_dataclass(hint):
            parser.add_argument(flag(key), dest=key, type=hint)
    nested = Document()
    for key in sorted(settings):  # a mapping before its own keys, such as train.model.depth
        set_nested(nested, key, settings[key])
    for key, value in dotted(nested, config_class).items():
        # what fits no type is named by the check below
        with suppress(
            argparse.ArgumentError, ArithmeticError, RecursionError, TypeError, ValueError
        ):
            made = parser.parse_object({key: copy.deepcopy(value)}, defaults=False)
            set_nested(nested, key, made[key])
    config: Config = _changed(config_class(), nested)
    check_settings(config)
    return config


def _changed(settings: Any, values: Settings) -> Any:
    """A dataclass with other values, nested ones included."""
    changes = Document()
    for key, value in values.items():
        old = getattr(settings, key)
        changes[key] = _changed(old, value) if dataclasses.is_dataclass(old) else value
    return dataclasses.replace(settings, **changes)


def _document(value: str) -> Document:
    """The settings in the file of ``--config``, of which there must be any."""
    file = config_file(value)
    document = read_yaml(file)
    if not isinstance(document, dict) or not document:
        raise InputError(f"{file}: expected keys with values, such as 'max_steps: 100'")
    return document


def _resumed(config: Any, line: Settings, named: Settings) -> Any:
    """The settings of the run in ``config.run_dir``; an InputError where one that is ``named`` again differs."""
    if config.run_dir is None:
        raise InputError("--resume: needs --run-dir, the folder of the run to continue")
    run_dir, kind = Path(config.run_dir), type(config)
    document, where = read_config(run_dir), str(run_dir / "config.yaml")
    saved = from_dict(kind, document, where, line)
    with passed_on(where, InputError):
        _refuse_code(kind, document, line)
    free = {"resume", "run_dir", *line_only(kind), *marked(kind, "of_machine")}
    again = _as_recorded(config, saved, set(named) - free)
    now, before = dotted(dataclasses.asdict(again)), dotted(dataclasses.asdict(saved))
    for key in dotted(named):
        # None leaves the choice to the run, which then has recorded another value
        if key not in free and now.get(key) not in (None, before.get(key)):
            instead = getattr(config, "INSTEAD_OF_RESUMING", "").format(run_dir)
            raise InputError(
                f"{flag(key)}: the run in {run_dir} was started with {before.get(key)!r}, not {now[key]!r}; "
                f"a resumed run keeps its settings{instead}"
            )
    return dataclasses.replace(saved, **{key: getattr(config, key) for key in free & set(named)})


def _as_recorded(config: Any, saved: Any, keys: set[str]) -> Any:
    """Return a run's settings with these of a command, resolved as the run has recorded them."""
    given = Document()
    for key, value in dotted(dataclasses.asdict(config), type(config)).items():
        if key in keys:
            set_nested(given, key, value)
    again = _changed(saved, given)
    return again.resolved() if hasattr(again, "resolved") else again


class Parser(argparse.ArgumentParser):
    """A parser of which a wrong argument is an InputError."""

    def error(self, message: str) -> NoReturn:
        """Raise the InputError."""
        raise InputError(message.removeprefix("argument "))


def _parser(config_class: type, common: Sequence[str], **about: Any) -> argparse.ArgumentParser:
    """A flag for every setting; the help lists the ``common`` ones, or all where there are none of these."""
    needed = needed_flags(config_class) or "[--config FILE]"
    if common:
        about["epilog"] = f"--help all lists all settings.\n\n{about['epilog']}"
    parser = Parser(
        usage=f"{about['prog']} {needed} [--FLAG VALUE ...]",
        formatter_class=_CommandHelp,
        argument_default=argparse.SUPPRESS,
        conflict_handler="resolve",  # a key of a mapping may be given twice
        allow_abbrev=False,  # --los is a mistake, not --loss
        **about,
    )
    defaults, only = config_class(), line_only(config_class)
    group = parser.add_argument_group("settings")
    for key, field, hint in fields_of(config_class):
        if heading := field.metadata.get("group"):
            group = parser.add_argument_group(heading)
        if dataclasses.is_dataclass(hint):
            continue
        default = attrgetter(key)(defaults)
        text = _help_line(field.metadata["help"], default, field.metadata["needed"])
        switch: Document = {"nargs": "?", "const": "true"} if hint in (bool, bool | None) else {}
        group.add_argument(
            flag(only.get(key, key)),
            dest=key,
            help=text if not common or key in common else argparse.SUPPRESS,
            metavar=_metavar(field, hint, default),
            **switch,
        )
    return parser


class _CommandHelp(argparse.RawDescriptionHelpFormatter):
    """A formatter for which a switch has no brackets, although it may have a value."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return str(action.metavar)


def _metavar(field: dataclasses.Field[Any], hint: Any, default: Any) -> str:
    """Return the placeholder behind a flag.

    It shows the choices, the kind of number, or the flag's own name; nothing for a switch.
    """
    if field.metadata["value"]:
        return str(field.metadata["value"])
    if choices := choices_of(field, hint):
        return "{" + ",".join(choices) + "}"
    parts = (hint, *get_args(hint))
    if bool in parts:
        return "" if default is False else "{true,false}"
    for kind, letter in _KINDS.items():
        if kind in parts:
            return f"{letter},{letter}" if get_origin(hint) is list else letter
    return field.name.upper()


def _help_line(text: str, default: Any, needed: bool) -> str:
    """The text with its default, or that it is needed; where nothing is the default, the text says what that means."""
    if needed:
        text = f"{text} (needed)"
    elif default or (default == 0 and default is not False):
        shown_default = default if isinstance(default, str) else json.dumps(default)
        text = f"{text} (default: {shown_default})"
    return text.replace("%", "%%")  # argparse reads % as the beginning of a placeholder
