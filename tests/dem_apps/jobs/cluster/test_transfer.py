"""A run that comes home is the run, and one that was copied while it went on can be resumed."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from dem_apps.jobs.cluster import transfer
from dem_apps.jobs.cluster.node import Home
from dem_apps.jobs.cluster.transfer import pack, unpack


def a_run(folder: Path, step: int, finished: bool = False) -> Path:
    """Files as a run has them; those of the step before are gone."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    for old in folder.glob("checkpoints/*.safetensors"):
        old.unlink()
    (folder / "checkpoints" / f"last.{step}.safetensors").write_bytes(bytes([step]) * 5000)
    (folder / "checkpoints" / "last.json").write_text(f"last.{step}.safetensors")
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {n}}}\n' for n in range(step + 1)))
    (folder / "run.lock").touch()
    (folder / "half.tmp").touch()
    if finished:
        (folder / "eval.json").write_text("{}")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_comes_into_its_place_over_what_was_there(tmp_path: Path) -> None:
    there, here = a_run(tmp_path / "there", 7, finished=True), a_run(tmp_path / "here", 3)
    pack(there, tmp_path / "archive")
    unpack(tmp_path / "archive", here)
    assert files(here) == files(there)  # and nothing of step 3
    with tarfile.open(tmp_path / "archive") as archive:
        names = archive.getnames()
    assert names[-2:] == ["checkpoints/last.json", "eval.json"]
    assert "run.lock" not in names
    assert "half.tmp" not in names


def test_a_folder_that_is_not_there_is_an_empty_archive(tmp_path: Path) -> None:
    pack(tmp_path / "nothing", tmp_path / "archive")
    unpack(tmp_path / "archive", tmp_path / "here")
    assert not (tmp_path / "here").exists()


def test_a_copy_that_was_cut_short_keeps_the_state_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(a_run(tmp_path / "there", 7), tmp_path / "archive")
    here, before = a_run(tmp_path / "here", 3), transfer.os.replace

    def cut(source: Path, target: Path) -> None:
        if target.name == "last.json":
            raise KeyboardInterrupt
        before(source, target)

    monkeypatch.setattr(transfer.os, "replace", cut)
    with pytest.raises(KeyboardInterrupt):
        unpack(tmp_path / "archive", here)
    pointer = (here / "checkpoints" / "last.json").read_text()
    assert pointer == "last.3.safetensors"
    assert (here / "checkpoints" / pointer).read_bytes() == bytes([3]) * 5000


def test_a_checkpoint_that_is_replaced_meanwhile_is_copied_with_its_own_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, add = a_run(tmp_path / "there", 3), tarfile.TarFile.add
    steps = iter((4, 5))

    def add_later(self: tarfile.TarFile, *arguments: object, **options: object) -> None:
        if (step := next(steps, None)) is not None:
            a_run(run, step)
        add(self, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tarfile.TarFile, "add", add_later)
    pack(run, tmp_path / "archive")
    unpack(tmp_path / "archive", tmp_path / "here")
    pointer = (tmp_path / "here" / "checkpoints" / "last.json").read_text()
    assert (tmp_path / "here" / "checkpoints" / pointer).is_file()


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    pack(a_run(tmp_path / "there", 3), tmp_path / "archive")
    (tmp_path / "bashrc").write_text("mine")
    (tmp_path / "here").mkdir()
    for name in ("metrics.jsonl", "metrics.jsonl.tmp"):
        (tmp_path / "here" / name).symlink_to(tmp_path / "bashrc")
    unpack(tmp_path / "archive", tmp_path / "here")
    (tmp_path / "run.log").symlink_to(tmp_path / "bashrc")
    with pytest.raises(OSError, match="symbolic links"):
        Home().log(str(tmp_path / "run"), b"$ command")
    assert (tmp_path / "bashrc").read_text() == "mine"
    assert files(tmp_path / "here")["metrics.jsonl"] == files(tmp_path / "there")["metrics.jsonl"]


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_nothing_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(ValueError, match="outside: not a file of a run folder"):
        unpack(tmp_path / "archive", tmp_path / "here")
