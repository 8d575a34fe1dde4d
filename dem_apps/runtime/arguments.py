"""Command-line arguments: spellings of flags, lists, switches, and the files that ``--config`` names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

_PACKAGE = Path(__file__).resolve().parent.parent
#: The settings files that come with the package: a link to the repository's ``configs``, which a clone may lack.
CONFIGS = _PACKAGE / "configs" if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent / "configs"


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
    path = Path(value)
    if not path.exists() and path.parts[:1] == (CONFIGS.name,) and ".." not in path.parts:
        ours = CONFIGS.joinpath(*path.parts[1:])
        if ours.is_file():
            return ours
    return path
