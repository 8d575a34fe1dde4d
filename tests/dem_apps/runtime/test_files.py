"""Files are read as plain values, appear whole, and never replace what a user made."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dem_apps.errors import InputError
from dem_apps.runtime import files
from dem_apps.runtime.files import (
    claim,
    new_folder,
    new_run_dir,
    parsed_json,
    parsed_yaml,
    read_json,
    read_yaml,
    write_atomically,
)

TAGS = ["!!python/object/apply:os.system ", "!!int ", "!!timestamp ", "!!bool ", "!!binary ", "!!map ", "<<: "]
PIECES = st.sampled_from([*TAGS, *"{}[]:-&*'\"\t\n=?", ": ", "- ", "&a ", "*a ", "1:1", "0x_"])


@given(st.one_of(st.text(), st.lists(st.one_of(PIECES, st.text(max_size=3))).map("".join)))
@example("[" * 100_000)
def test_any_text_is_plain_values_or_one_sentence(text: str) -> None:
    for parse in (parsed_yaml, parsed_json):
        try:
            parse(text, "a.file")
        except InputError as error:
            sentence = str(error)
        else:
            continue
        assert sentence.startswith("a.file: not valid ")
        assert "\n" not in sentence


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for read in (read_json, read_yaml):
        with pytest.raises(InputError, match=r"none: cannot be read \(no such file\)$"):
            read(tmp_path / "none")
    (tmp_path / "latin").write_bytes(b"\xe9")
    with pytest.raises(InputError, match=r"latin: cannot be read \('utf-8' codec"):
        read_yaml(tmp_path / "latin")
    with pytest.raises(InputError, match="a: not valid YAML: the key 'b' is there twice"):
        parsed_yaml("a: {b: 1, b: 2}", "a")
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"a": [1, None]}))
    assert read_yaml(tmp_path / "a.yaml") == {"a": [1, None]}


def test_a_file_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a"
    write_atomically(file, b"old")
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="no space left on the disk while writing; the file that was there is intact"):
        write_atomically(file, b"newer")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_new_file_and_a_claim_never_overwrite(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"mine", "--out")
    for again in (lambda: write_atomically(tmp_path / "a", b"x", "--out"), lambda: claim(tmp_path / "a", "--out")):
        with pytest.raises(InputError, match=r"--out: .*a exists already and is never overwritten"):
            again()
    assert (tmp_path / "a").read_bytes() == b"mine"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "new", "--out") as inside:
        (inside / "sub").mkdir()
        (inside / "sub" / "a").write_text("a")
        assert not (tmp_path / "deep" / "new").exists()
    assert (tmp_path / "deep" / "new" / "sub" / "a").read_text() == "a"
    with (
        pytest.raises(InputError, match=r"holds files already, which are never overwritten"),
        new_folder(tmp_path / "deep" / "new", "--out"),
    ):
        pass
    with pytest.raises(KeyError), new_folder(tmp_path / "other", "--out") as inside:  # noqa: PT012
        (inside / "a").write_text("a")
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_a_folder_that_is_filled_meanwhile_stays(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds files already"), new_folder(tmp_path / "new", "--out") as inside:  # noqa: PT012
        (inside / "ours").write_text("")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "theirs").write_text("")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["theirs"]


def test_a_user_without_a_home_has_a_cache_for_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")  # as Path.home() in a container

    for name in ("DEM_APPS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(files.Path, "home", nowhere)
    assert files.cache_dir().is_dir()
    assert files.cache_dir() == files.cache_dir()
    files.cache_dir().rmdir()
    files._cache_of_this_process.cache_clear()


def test_two_runs_of_one_second_get_two_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(files.time, "strftime", lambda _: "now")
    assert [new_run_dir("seg", "a").name for _ in range(3)] == ["seg-a-now", "seg-a-now-2", "seg-a-now-3"]
