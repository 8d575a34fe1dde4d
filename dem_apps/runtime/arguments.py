"""Command-line arguments: spellings of flags, and the files of ``--config``."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from dem_apps.errors import InputError, nearest

_PACKAGE = Path(__file__).resolve().parent.parent
#: The settings files that come with the package: a link to the repository's ``configs``, which a clone may lack.
CONFIGS = _PACKAGE / "configs" if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent / "configs"


def fields_of(
    config_class: type, prefix: str = ""
) -> Iterator[tuple[str, dataclasses.Field[Any], Any]]:
    """Dotted key, field and annotation of every setting, and of every group before what is in it."""
    hints = get_type_hints(config_class)
    for field in dataclasses.fields(config_class):
        hint = hints[field.name]
        yield f"{prefix}{field.name}", field, hint
        if is_dataclass(hint):
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


def needed_flags(config_class: type) -> list[str]:
    """The flags that the command needs, each with a value: ``--run RUN``."""
    return [
        f"{flag(key)} {(field.metadata['value'] or field.name.upper()).partition(' ')[0]}"
        for key, field, _ in fields_of(config_class)
        if field.metadata.get("needed")
    ]


def mapping_keys(config_class: type) -> list[str]:
    """The dotted keys that a mapping usually has, of every mapping: ``hyperparameters.n_steps``."""
    return [
        f"{key}.{name}"
        for key, field, _ in fields_of(config_class)
        for name in field.metadata.get("keys", ())
    ]


def line_only(config_class: type) -> dict[str, str]:
    """Settings of the command line alone: the key of each, and its flag without dashes."""
    only = {key: field.metadata.get("flag_only") for key, field, _ in fields_of(config_class)}
    return {"config": "config", **{key: name for key, name in only.items() if name is not None}}


def of_machine(config_class: type) -> list[str]:
    """Settings that another machine may have otherwise for the same training."""
    return [key for key, field, _ in fields_of(config_class) if field.metadata.get("of_machine")]


#: A flag of a key within a mapping within a mapping, ``--train.model.depth``: the setting, the key and the text.
NestedFlag = tuple[str, str, str]


def normalise(
    arguments: Sequence[str], config_class: type
) -> tuple[list[str], list[Path], list[NestedFlag]]:
    """Arguments as ``--name=value``, the files of ``--config``, and flags of nested keys.

    Raises InputError for an unknown flag.

    ``--max_steps`` is ``--max-steps``, a switch may stand alone, ``--resume DIR`` is ``--run-dir DIR --resume``, and
    ``--config NAME`` may be a file of the application.
    """
    if {"-h", "--help"} & set(arguments):
        return ["--help"], [], []
    only = line_only(config_class)
    hints = {
        flag(only.get(key, key)): hint
        for key, _, hint in fields_of(config_class)
        if not is_dataclass(hint)
    }
    normal, files, rest = list[str](), list[Path](), list(arguments)
    nested = list[NestedFlag]()
    while rest:
        given, equals, value = rest.pop(0).partition("=")
        if not given.startswith("--"):
            such_as = "".join(f", such as {needed}" for needed in needed_flags(config_class)[:1])
            raise InputError(
                f"unknown argument '{given}'; a value stands behind its flag{such_as}, and --help lists them"
            )
        field, dot, key = given[2:].partition(".")
        # the keys of a mapping are not ours to spell: --hyperparameters.n_steps
        name = (
            f"{flag(field)}{dot}{key}"
            if get_origin(hints.get(flag(field))) is dict
            else flag(given[2:])
        )
        if name != "--config" and hints.keys().isdisjoint({name, flag(field) if dot else name}):
            keys = [f"--{key}" for key in mapping_keys(config_class)]
            raise InputError(
                f"unknown argument '{given}'{nearest(given, [*hints, *keys, '--config', '--help'])}"
            )
        if not equals and hints.get(name) in (bool, bool | None):
            value = rest.pop(0) if rest and not rest[0].startswith("-") else "true"
            if name == "--resume" and value not in ("true", "false"):
                normal.append(f"--run-dir={value}")
                value = "true"
        elif not equals:
            if not rest or rest[0].startswith("--"):
                raise InputError(f"{name}: expected one argument")
            value = rest.pop(0)
        if name == "--config":
            named = None if Path(value).exists() else shipped_with(config_class).get(value)
            files.append(named or found(value))
        elif name not in hints and "." in key:
            nested.append((field.replace("-", "_"), key, value))
        else:
            normal.append(f"{name}={value}")
    return normal, files, nested


def set_nested(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key where the mapping has it: as one key with dots, or in mappings within mappings.

    >>> settings = {"model": {"name": "fpn"}, "source.size": None}
    >>> set_nested(settings, "model.depth", 3)
    >>> set_nested(settings, "source.root", "GTA5")
    >>> settings
    {'model': {'name': 'fpn', 'depth': 3}, 'source.size': None, 'source.root': 'GTA5'}
    """
    first, dot, rest = key.partition(".")
    has_dots = any(each.startswith(f"{first}.") for each in mapping)
    if not dot or has_dots:
        mapping[key] = value
        return
    below = mapping.get(first)
    mapping[first] = dict(below) if isinstance(below, Mapping) else {}
    set_nested(mapping[first], rest, value)


def shipped_with(config_class: type) -> dict[str, Path]:
    """The files of settings that come with a command's application, by name."""
    module = config_class.__module__
    # a command that was started by ``python -m`` and has its settings in its own file
    if module == "__main__":
        module = getattr(sys.modules[module].__spec__, "name", module)
    application = module.partition(".")[0]
    return {file.stem: file for file in sorted((CONFIGS / application).glob("*.yaml"))}


def found(value: str) -> Path:
    """The file of that path; where there is none here, and it begins with ``configs/``, the one that was shipped."""
    path, ours = Path(value), CONFIGS.parent / value
    shipped = path.parts[:1] == (CONFIGS.name,) and ".." not in path.parts and ours.is_file()
    return ours if shipped and not path.exists() else path
