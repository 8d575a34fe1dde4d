"""Files: JSON and YAML as plain values; files and folders that appear whole and never replace what a user made."""

from __future__ import annotations

import functools
import json
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, disk_error, first_words


def read_text(file: Path) -> str:
    """The content of a text file in UTF-8; an InputError where it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{file}: cannot be read (no such file)") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read ({first_words(error)})") from error


def read_json(file: Path) -> Any:
    """The value in a JSON file; an InputError where it cannot be read or is not JSON."""
    return parsed_json(read_text(file), str(file))


def parsed_json(text: str, where: str) -> Any:
    """The value of a JSON text; ``where`` names it in errors."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({first_words(error)})") from error


def read_yaml(file: Path) -> Any:
    """The value in a YAML file, plain values alone; an InputError where it cannot be read or is not YAML."""
    return parsed_yaml(read_text(file), str(file))


def parsed_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; ``where`` names it in errors."""
    import yaml  # here, for the objectives and the hook run with torch and numpy alone

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value]
            if twice := [key for place, key in enumerate(keys) if key in keys[:place]]:  # of which YAML keeps the last
                raise yaml.MarkedYAMLError(problem=f"the key '{twice[0]}' is there twice", problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    # PyYAML raises most of these for an impossible number, date or key
    except (yaml.YAMLError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InputError(f"{where}: not valid YAML: {first_words(error, 300)}") from error


def required(document: Any, where: str, /, **kinds: type | tuple[type, ...]) -> dict[str, Any]:
    """The mapping, else an InputError that names the first key missing or of another type; a bool is no int."""
    if not isinstance(document, dict):
        raise InputError(f"{where}: expected a mapping, found {type(document).__name__}")
    for key, kind in kinds.items():
        if key not in document:
            raise InputError(f"{where}: holds no '{key}'")
        value = document[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{where}: '{key}' is of the wrong type ({type(value).__name__})")
    return document


@contextmanager
def whole_file(path: Path, flag: str | None = None) -> Iterator[Path]:
    """A temporary path that becomes ``path`` in one step, not after an error; with ``flag``, ``path`` must be new."""
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp{path.suffix}")
    try:
        yield temporary
        _flush(temporary)
        if flag is not None:
            claim(path, flag)
        os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        intact = "the file that was there is intact" if path.exists() else "nothing was overwritten"
        raise disk_error(error, path, intact) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes, flag: str | None = None) -> None:
    """Replace ``path`` by ``content``: readers see the old file or the new one, whole. ``flag`` as of whole_file."""
    with whole_file(path, flag) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, document: Any, flag: str | None = None) -> None:
    """Write ``document`` for people to read, as :func:`write_atomically` does."""
    write_atomically(path, (json.dumps(document, indent=2) + "\n").encode(), flag)


def claim(path: Path, flag: str) -> None:
    """Make an empty file that did not exist, else an InputError; of several processes that try, one succeeds."""
    try:
        path.open("x").close()
    except FileExistsError as error:
        raise InputError(f"{flag}: {path} exists already and is never overwritten; give another name") from error


@contextmanager
def new_folder(path: Path, flag: str) -> Iterator[Path]:
    """An empty folder that becomes ``path`` at the end, not after an error; an InputError where ``path`` is used."""
    refuse_used_folder(path, flag)
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.rglob("*"):
            _flush(file)
        refuse_used_folder(path, flag)
        os.replace(temporary, path)
        _flush(path.parent)
    except OSError as error:
        raise disk_error(error, path, "nothing was overwritten") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def refuse_used_file(path: Path, flag: str, suffix: str | None = None) -> None:
    """An InputError that names ``flag`` unless ``path`` is new, in a folder that exists, and ends in ``suffix``."""
    if suffix is not None and path.suffix != suffix:
        raise InputError(f"{flag}: expected a file ending in {suffix}, got {path}")
    if path.exists() or path.is_symlink():
        raise InputError(f"{flag}: {path} exists already and is never overwritten; give another file")
    if not path.parent.is_dir():
        raise InputError(f"{flag}: the folder {path.parent} does not exist")


def refuse_used_folder(path: Path, flag: str) -> None:
    """An InputError that names ``flag`` unless ``path`` is new or an empty folder."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{flag}: {path} holds files already, which are never overwritten; give a new or empty folder")


def new_run_dir(*parts: str) -> Path:
    """Make ``runs/<parts>-<date>-<time>`` below the current folder, with ``-2``, ``-3``, … where it exists."""
    first = Path("runs") / "-".join([*parts, time.strftime("%Y%m%d-%H%M%S")])
    path, number = first, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = first.with_name(f"{first.name}-{number}")


def cache_dir() -> Path:
    """Where files that can be made again are kept: ``$DEM_APPS_CACHE``, else ``dem-apps`` in the user's cache."""
    own = os.environ.get("DEM_APPS_CACHE")
    try:
        return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dem-apps"
    except RuntimeError:  # a user without a home, as in a container
        return _cache_of_this_process()


@functools.cache
def _cache_of_this_process() -> Path:
    return Path(tempfile.mkdtemp(prefix="dem-apps-"))


def _flush(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
