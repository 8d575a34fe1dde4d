"""Command-line arguments: spellings of flags, and the files of ``--config``."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from dem_apps.errors import one_of
from dem_apps.runtime.documents import parsed_yaml

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
    needed = [
        (key, field.metadata["value"] or field.name.upper())
        for key, field, _ in fields_of(config_class)
        if field.metadata.get("needed")
    ]
    return [f"{flag(key)} {value.partition(' ')[0]}" for key, value in needed]


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
    return {"config": "config", **{key: name for key, name in only.items() if name}}


def of_machine(config_class: type) -> list[str]:
    """Settings that another machine may have otherwise for the same training."""
    return [key for key, field, _ in fields_of(config_class) if field.metadata.get("of_machine")]


def text_value(text: str, hint: Any, name: str) -> Any:
    """What the text of a flag stands for: a list where it has commas, a mapping or a key of one as YAML.

    Args:
        text: what was given.
        hint: the setting's annotation; None for a key of a mapping.
        name: the flag, which an error names.

    Returns:
        A value that jsonargparse converts by the annotation.

    Raises:
        InputError: a mapping is no YAML.
    """
    if hint is None or get_origin(hint) is dict:
        return parsed_yaml(text, name)
    several = [part for part in (hint, *get_args(hint)) if get_origin(part) is list]
    # "null" and "own" are no lists where another type is allowed
    word = several != [hint] and text.isalpha()
    if not several or word or text.startswith("["):
        return text
    return [item for each in text.split(",") if (item := each.strip())]


def set_nested(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key where the mapping has it: as one key with dots, or in mappings within mappings.

    >>> settings = {"model": {"name": "fpn"}, "source.size": None}
    >>> set_nested(settings, "model.depth", 3)
    >>> set_nested(settings, "source.size", 64)
    >>> settings
    {'model': {'name': 'fpn', 'depth': 3}, 'source.size': 64}
    """
    first, dot, rest = key.partition(".")
    if not dot or key in mapping:
        mapping[key] = value
    else:
        mapping[first] = dict(mapping.get(first) or {})
        set_nested(mapping[first], rest, value)


def shipped_with(config_class: type) -> dict[str, Path]:
    """The files of settings that come with a command's application, by name."""
    module = config_class.__module__
    # a command that was started by ``python -m`` and has its settings in its own file
    if module == "__main__":
        module = getattr(sys.modules[module].__spec__, "name", module)
    application = module.partition(".")[0]
    return {file.stem: file for file in sorted((CONFIGS / application).glob("*.yaml"))}


def config_file(value: str, config_class: type) -> Path:
    """The file of ``--config``: a path, or the name of one that comes with the application."""
    file, shipped = Path(value), shipped_with(config_class)
    if file.exists() or file.suffix or not shipped:
        return found(value)
    return shipped[one_of("--config", value, list(shipped))]


def found(value: str) -> Path:
    """The file of that path; where there is none here, and it begins with ``configs/``, the one that was shipped."""
    path, ours = Path(value), CONFIGS.parent / value
    shipped = path.parts[:1] == (CONFIGS.name,) and ".." not in path.parts and ours.is_file()
    return ours if shipped and not path.exists() else path
