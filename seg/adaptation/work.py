"""What an adaptation needs to go on after a kill: its settings, what is predicted, and where learning stands.

All of it lies in ``work/`` below the folder that is written to, and is gone when the adaptation is finished.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_checkpoint, make_folder, save_checkpoint, write_atomically
from dem_apps.runtime.file_lock import FileLock
from dem_apps.runtime.processes import ONE_PROCESS, Processes
from dem_apps.runtime.run_claim import locked, refuse_ways_out
from dem_apps.runtime.safe_io import parsed_json, read_json, read_text
from dem_apps.runtime.validate import flag

#: Written last: a folder that has it is finished.
RESULT = "adapt.json"
_WORK, _SETTINGS, _STATE = "work", "settings.json", "state"


class Work:
    """An adaptation that is under way.

    Args:
        out: the folder that is written to.
        settings: by field; another call with the same ones continues.
        images: paths of the images, in order; they must be the same as well.
        processes: that adapt together; each writes rows of its own, and all call this and :meth:`close`.

    Attributes:
        resumed: whether there was something to continue.

    Raises:
        InputError: the folder is used by something else, by a finished adaptation, by one with other settings, or by
            another process.
    """

    def __init__(
        self, out: Path, settings: dict[str, Any], images: list[str], processes: Processes = ONE_PROCESS
    ) -> None:
        self.out, self.folder = out, out / _WORK
        self._processes, self._place = processes, {image: index for index, image in enumerate(images)}
        self._lock: FileLock | None = None
        self.resumed = self._begun(settings, images) if processes.first else False
        self.resumed = processes.gathered(self.resumed)[0]

    def _begun(self, settings: dict[str, Any], images: list[str]) -> bool:
        """Take the folder; whether there was something to continue."""
        out, file = self.out, self.folder / _SETTINGS
        _refuse_used(out, file)
        make_folder(out)
        make_folder(self.folder)
        self._lock = locked(self.folder)
        # as they come back from the file: without tuples
        wanted = json.loads(json.dumps({"settings": settings, "images": images}))
        resumed = file.is_file()
        try:
            _refuse_used(out, file)  # whoever had the lock before may have finished meanwhile
            if resumed:
                refuse_ways_out(out)
                _refuse_other(out, read_json(file), wanted)
                _mend(out, self.folder)
            else:
                write_atomically(file, json.dumps(wanted).encode())
        except BaseException:
            self._lock.release()
            raise
        return resumed

    def rows(self, stage: str) -> dict[str, dict[str, Any]]:
        """What was said of each image in a stage, by its path; of an image that came twice the last.

        Raises:
            InputError: a line that no adaptation writes.
        """
        rows: dict[str, dict[str, Any]] = {}
        files = sorted(self.folder.glob(f"{stage}.jsonl")) + sorted(self.folder.glob(f"{stage}.*.jsonl"))
        for file in files:
            for line in read_text(file).splitlines():
                row = parsed_json(line, str(file))
                if not _is_row(row) or row["image"] not in self._place:
                    raise InputError(f"--out: {file} holds lines that are none of this command; give a new folder")
                rows[row["image"]] = row
        if len(files) < 2:
            return rows
        return dict(sorted(rows.items(), key=lambda item: self._place[item[0]]))

    def add_row(self, stage: str, row: dict[str, Any]) -> None:
        """Say it; what the row is about is on the disk already."""
        # a file for each process: a shared disk joins no lines that several machines append
        own = "" if self._processes.first else f".{self._processes.rank}"
        with open(self.folder / f"{stage}{own}.jsonl", "a", encoding="utf-8") as opened:
            opened.write(json.dumps(row) + "\n")

    def state(self) -> dict[str, Any] | None:
        """What :meth:`save` kept last."""
        if not (self.folder / f"{_STATE}.json").is_file():
            return None
        return load_checkpoint(self.folder, _STATE)

    def save(self, state: dict[str, Any], step: int) -> None:
        """Keep where learning stands, in one step."""
        save_checkpoint(self.folder, _STATE, state, tag=f"{step:08d}")

    def finish(self, result: dict[str, Any]) -> None:
        """Write the result and forget how it came about."""
        write_atomically(self.out / RESULT, (json.dumps(result, indent=2) + "\n").encode())
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let another process continue."""
        if self._lock is not None:
            self._lock.release()


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and isinstance(row.get("image"), str)
        and isinstance(row.get("entropy"), (int, float))
        and _are_counts(row.get("pixels"))
        and ("confusion" not in row or (isinstance(row["confusion"], list) and all(map(_are_counts, row["confusion"]))))
    )


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _refuse_used(out: Path, settings: Path) -> None:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not out.is_dir():
        raise InputError(f"--out: {out} is a file; give a new folder")
    if (out / RESULT).exists():
        shutil.rmtree(settings.parent, ignore_errors=True)  # of one that was killed in its last moment
        raise InputError(f"--out: {out} holds a finished adaptation, which is never overwritten; give a new folder")
    begun = [entry.name for entry in out.iterdir()] == [_WORK]
    if not settings.is_file() and not begun:
        raise InputError(f"--out: {out} holds files already, which are never overwritten; give a new or empty folder")


def _refuse_other(out: Path, found: Any, wanted: dict[str, Any]) -> None:
    if not isinstance(found, dict) or not isinstance(found.get("settings"), dict):
        raise InputError(f"--out: {out / _WORK / _SETTINGS} is none of this command; give a new folder")
    for key, value in wanted["settings"].items():
        before = found["settings"].get(key)
        if before != value:
            raise InputError(
                f"{flag(key)}: the adaptation in {out} was started with {before!r}, not {value!r}; the same command "
                "continues it, and another one needs a new --out"
            )
    if found.get("images") != wanted["images"]:
        raise InputError(
            f"--images: they are not those that the adaptation in {out} was started with; put them back, or give a new "
            "--out"
        )


def _mend(out: Path, folder: Path) -> None:
    """Take away what a kill has left: files that were being written, and a line that it cut."""
    for file in out.rglob("*.tmp"):
        file.unlink(missing_ok=True)
    for file in folder.glob("*.jsonl"):
        content = file.read_bytes()
        if not content.endswith(b"\n"):
            write_atomically(file, content[: content.rfind(b"\n") + 1])
