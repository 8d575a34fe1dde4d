"""Command-line arguments: spellings of flags, and the files of ``--config``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from dem_apps.errors import one_of
from dem_apps.runtime.documents import Document, Settings, parsed_yaml

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


def flags(settings: Settings) -> tuple[str, ...]:
    """Settings as flags, each with its value in one argument; mappings and lists as JSON.

    >>> flags({"env": "CartPole-v1", "eval_freq": 500, "hyperparameters": {"n_steps": 64}, "source.root": "--GTA5"})
    ('--env=CartPole-v1', '--eval-freq=500', '--hyperparameters={"n_steps": 64}', '--source.root=--GTA5')
    """
    return tuple(
        f"{flag(str(name))}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in settings.items()
    )


def marked(config_class: type, name: str) -> dict[str, Any]:
    """The settings for which :func:`dem_apps.runtime.settings.option` was given ``name``, and what was given."""
    return {
        key: field.metadata[name]
        for key, field, _ in fields_of(config_class)
        if field.metadata.get(name)
    }


def needed_flags(config_class: type) -> str:
    """The flags that the command needs, each with a value: ``--run RUN``."""
    values = marked(config_class, "value")
    return " ".join(
        f"{flag(key)} {values.get(key, key.upper()).partition(' ')[0]}"
        for key in marked(config_class, "needed")
    )


def line_only(config_class: type) -> dict[str, str]:
    """Settings of the command line alone: the key of each, and its flag without dashes."""
    return {"config": "config", **marked(config_class, "flag_only")}


def text_value(text: str, hint: Any, name: str) -> Any:
    """Read the text of a flag, as a list where it has commas.

    A mapping or a key of one is read as YAML.

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
    kinds = [get_origin(part) for part in (hint, *get_args(hint))]
    # "null" and "own" are no lists where another type is allowed
    word = kinds[0] is not list and text.isalpha()
    if list not in kinds or word or text.startswith("["):
        return text
    return [item.strip() for item in text.split(",") if item.strip()]


def set_nested(mapping: Document, key: str, value: Any) -> None:
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


def config_file(value: str) -> Path:
    """The file of ``--config``: a path, or the name of one that comes with the package."""
    path = found(value)
    if path.exists() or path.suffix:
        return path
    shipped = {file.stem: file for file in sorted(CONFIGS.glob("*/*.yaml"))}
    return shipped[one_of("settings", value, list(shipped))]


def found(value: str) -> Path:
    """Return the file of that path.

    Where there is none here, and the path begins with ``configs/``, it is the shipped file.
    """
    path, in_package = Path(value), CONFIGS.parent / value
    shipped = path.parts[:1] == (CONFIGS.name,) and in_package.is_file()
    return in_package if shipped and not path.exists() else path
