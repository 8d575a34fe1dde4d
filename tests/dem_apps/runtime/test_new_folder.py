"""A folder that is there whole or not at all, and never in the place of somebody's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dem_apps.errors import InputError
from dem_apps.runtime.files import new_folder


@pytest.mark.parametrize("before", ["nothing", "an empty folder"])
def test_it_appears_whole(before: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    if before != "nothing":
        path.mkdir()
    with new_folder(path, "--out") as folder:
        (folder / "config.json").write_text("{}")
        assert not (path / "config.json").exists()
    assert [file.name for file in path.iterdir()] == ["config.json"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("other", ["a folder", "a file", "a link"])
def test_what_came_there_meanwhile_stays(other: str, tmp_path: Path) -> None:
    """Two exports at once: both had looked, and the second ended in a trace of the rename."""
    path, theirs = tmp_path / "model", tmp_path / "theirs"
    theirs.mkdir()

    def write() -> None:
        with new_folder(path, "--out") as folder:
            (folder / "config.json").write_text("ours")
            if other == "a folder":
                path.mkdir()
                (path / "config.json").write_text("theirs")
            elif other == "a file":
                path.write_text("theirs")
            else:
                path.symlink_to(theirs)

    with pytest.raises(InputError, match=r"^--out: .*model holds files already, which are never overwritten; give a"):
        write()
    if other != "a link":
        assert (path / "config.json" if other == "a folder" else path).read_text() == "theirs"
    assert list(theirs.iterdir()) == []
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "theirs"]
