"""Files and folders that must not have been there: what counts is the moment of the write."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dem_apps.runtime.new_files import place

from dem_apps.errors import InputError, NotWritten
from dem_apps.runtime.files import claim, write_atomically, write_new


@pytest.fixture(params=["links", "no links"])
def _file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no links":

        def refuse(*_: Any) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("_file_system")
def test_what_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    write_new(file, b"first", "--out")
    with pytest.raises(InputError, match=r"^--out: .*scores\.json exists already and is never overwritten; give"):
        write_new(file, b"second", "--out")
    with pytest.raises(InputError, match="exists already"):
        claim(file, "--out")
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    with pytest.raises(InputError, match="exists already"):
        place(other, file, "--out")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"scores.json": b"first", "other": b"mine"}


@pytest.mark.usefixtures("_file_system")
@pytest.mark.parametrize("way", ["claim", "write_new"])
def test_of_many_at_once_one_has_it(way: str, tmp_path: Path) -> None:
    def attempt(number: int) -> bool:
        try:
            if way == "claim":
                claim(tmp_path / "file", "--out")
            else:
                own = tmp_path / f"{number}.own"
                own.write_bytes(b"%d" % number)
                place(own, tmp_path / "file", "--out")
        except InputError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        had = list(pool.map(attempt, range(64)))
    assert had.count(True) == 1
    assert way == "claim" or (tmp_path / "file").read_bytes() == b"%d" % had.index(True)


def test_a_link_of_that_name_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for attempt in (lambda: claim(tmp_path / "link", "--out"), lambda: write_new(tmp_path / "link", b"x", "--out")):
        with pytest.raises(InputError, match="exists already"):
            attempt()
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes) -> None:
        path.write_bytes(content[:1])
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("dem_apps.runtime.new_files.write_bytes", full)
    with pytest.raises(NotWritten, match="no space left on the disk while writing; nothing was overwritten"):
        write_new(tmp_path / "file", b"content", "--out")
    assert list(tmp_path.iterdir()) == []


def test_shared_files_have_a_temporary_file_of_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two reports of one grid at once: with one name between them, one would rename what the other is writing."""
    names: list[str] = []
    real = os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: (names.append(Path(source).name), real(source, target)))
    # the number of a process tells none apart that are in two containers, or on two machines
    for content in (b"x", b"y"):
        write_atomically(tmp_path / "table.md", content, shared=True)
    assert len(set(names)) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    write_new(tmp_path / ("n" * 255), b"x", "--out")
    write_atomically(tmp_path / ("m" * 255), b"x", shared=True)
    assert sorted(len(path.name) for path in tmp_path.iterdir()) == [255, 255]
