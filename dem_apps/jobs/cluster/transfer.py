"""A run folder as one archive, of a training that has ended or is still running, and back into its place.

What makes a folder resumable comes last: tensors before the JSON that names them, ``eval.json``, which says that a run
is finished, at the very end. So a copy that is cut short is an earlier state of the run, and never a wrong one.
"""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path, PurePosixPath

#: Not of the run: whoever writes to a folder locks its own file, and a half-written one is nobody's.
_LEFT_OUT = ("run.lock",)
_FINISHED = "eval.json"
_TRIES = 5


def pack(folder: Path, archive: Path) -> None:
    """Write the archive of a folder; one that is not there is an empty one.

    A checkpoint that is replaced meanwhile takes its tensors with it, so the copy is made again.
    """
    for left in reversed(range(_TRIES)):
        pointers = _pointers(folder)
        whole = _packed(folder, archive, pointers)
        if (whole and _pointers(folder) == pointers) or not left:
            return


def unpack(archive: Path, folder: Path) -> None:
    """Put each file into its place at once, in the order of the archive, and remove what the archive does not have.

    Raises:
        ValueError: a name in it leads out of the folder.
    """
    kept: set[str] = set()
    with tarfile.open(archive) as files:
        for member in files:
            content = files.extractfile(member)
            name = PurePosixPath(member.name)
            if content is None or name.is_absolute() or ".." in name.parts:
                raise ValueError(f"{member.name}: not a file of a run folder")
            if kept and member.name == _FINISHED:
                _remove_others(folder, {*kept, _FINISHED})
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.with_name(f"{place.name}.tmp")
            temporary.unlink(missing_ok=True)  # it may be a link that somebody put there
            with open(temporary, "xb") as file:
                while part := content.read(1 << 20):
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, place)
            kept.add(member.name)
    if kept:
        _remove_others(folder, kept)


def _packed(folder: Path, archive: Path, pointers: dict[str, bytes]) -> bool:
    """Whether every file was still there when its turn came."""
    whole = True
    last = [name for name in (_FINISHED,) if (folder / name).is_file()]
    with tarfile.open(archive, "w", dereference=True) as files:
        for name in sorted(_names(folder) - set(pointers) - set(last)):
            try:
                files.add(folder / name, name, recursive=False)
            except FileNotFoundError:
                whole = False
        for name, content in pointers.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            files.addfile(member, io.BytesIO(content))
        for name in last:
            files.add(folder / name, name)
    return whole


def _pointers(folder: Path) -> dict[str, bytes]:
    """The JSON halves of the checkpoints, by name: each says which tensors belong to it."""
    found = sorted(folder.glob("checkpoints/*.json"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def _names(folder: Path) -> set[str]:
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return {name for name in files if name not in _LEFT_OUT and not name.endswith(".tmp")}


def _remove_others(folder: Path, kept: set[str]) -> None:
    for name in _names(folder) - kept:
        (folder / name).unlink(missing_ok=True)
