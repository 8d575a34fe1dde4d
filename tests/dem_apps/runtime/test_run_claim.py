"""Two commands at once: whatever they do between a check and an act, one of them has the folder."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dem_apps.errors import InputError
from dem_apps.runtime import run_claim, run_folder
from dem_apps.runtime.files import new_run_dir
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.run_reader import read_config, read_metrics

FORK = multiprocessing.get_context("fork")


def at_once(work: Callable[[int], str], processes: int = 2) -> list[str]:
    """What each process returned, all of which start together."""
    barrier, answers = FORK.Barrier(processes), FORK.Queue()

    def start(number: int) -> None:
        barrier.wait()
        answers.put((number, work(number)))

    started = [FORK.Process(target=start, args=(number,)) for number in range(processes)]
    for process in started:
        process.start()
    said = dict(answers.get(timeout=60) for _ in started)
    for process in started:
        process.join()
    return [said[number] for number in range(processes)]


def slow(module: Any, name: str, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[], float]) -> None:
    """Delay a function of a module, before and after it does its work."""
    function = getattr(module, name)

    def delayed(*arguments: Any, **more: Any) -> Any:
        time.sleep(seconds())
        result = function(*arguments, **more)
        time.sleep(seconds())
        return result

    monkeypatch.setattr(module, name, delayed)


@pytest.mark.parametrize("place", ["environment", "refuse_used", "make_folder", "locked", "write_atomically", "none"])
def test_of_two_new_runs_in_one_folder_one_is_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``environment`` asks git, which may take its time."""
    if place != "none":
        slow(run_folder, place, monkeypatch, lambda: 0.01 * (os.getpid() % 4))
    for pair in range(6):
        path = tmp_path / f"{pair}"

        def run(number: int, path: Path = path) -> str:
            try:
                folder = RunFolder.create(path, {"number": number}, number, "cpu")
            except InputError as error:
                return str(error)
            folder.log(1, loss=float(number))
            time.sleep(0.05)
            folder.close()
            return "ran"

        said = at_once(run)
        assert said.count("ran") == 1, said
        winner = said.index("ran")
        refusal = said[1 - winner]
        assert "another process is writing to this run" in refusal or "holds another run" in refusal
        assert read_config(path) == {"number": winner}
        assert read_metrics(path) == [{"step": 1, "loss": float(winner)}]


def test_a_run_that_came_and_went_between_the_look_and_the_lock_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = run_folder.locked

    def meanwhile(path: Path) -> Any:
        monkeypatch.setattr(run_folder, "locked", genuine)
        RunFolder.create(path, {"number": 0}, 0, "cpu").close()
        return genuine(path)

    monkeypatch.setattr(run_folder, "locked", meanwhile)
    with pytest.raises(InputError, match="holds another run"):
        RunFolder.create(tmp_path / "run", {"number": 1}, 1, "cpu")
    assert read_config(tmp_path / "run") == {"number": 0}


def test_a_folder_of_others_gets_no_lock_file(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(InputError, match="holds other files"):
        RunFolder.create(tmp_path, {}, 0, "cpu")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_refused_start_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook's second try, after the first met a full disk or anything else."""

    def fails(*_: Any) -> None:
        raise RuntimeError("anything")

    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "environment", fails)
        with pytest.raises(RuntimeError):
            RunFolder.create(tmp_path, {}, 0, "cpu")
    assert at_once(lambda _: RunFolder.create(tmp_path, {}, 0, "cpu").close() or "ran", 1) == ["ran"]


def test_a_run_that_another_process_took_further_is_not_continued_from_before(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {}, 0, "cpu")
    run.save_checkpoint("last", {"step": 3}, 3)
    run.save_checkpoint("last", {"step": 6}, 6)  # after a second command has read step 3
    run.log(6, loss=0.5)
    run.close()
    for read in (3, None):
        with pytest.raises(InputError, match=r"has gone on with this run since .* was read; run the command again$"):
            RunFolder.resume(run.path, read)
    assert [line["step"] for line in read_metrics(run.path)] == [6]
    RunFolder.resume(run.path, 6).close()


def test_starts_of_the_same_second_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_claim.time, "strftime", lambda _: "20300101-120000")
    made = at_once(lambda _: str(new_run_dir("seg", "minent", "adadem", "0")), 12)
    assert len(set(made)) == 12
    assert "runs/seg-minent-adadem-0-20300101-120000" in made
    assert sorted(made) == sorted(str(path) for path in Path("runs").iterdir())


def test_a_place_where_no_folder_can_be_made_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").write_text("a file")
    with pytest.raises(InputError, match=r"^runs/seg-.*: cannot be made \(File exists\); name the folder yourself$"):
        new_run_dir("seg")


@pytest.mark.parametrize(
    "name",
    ["environment.json~", "my environment.json", "environment.json.tmp2", "config.yaml.tmp.bak", "run.lock.old",
     "checkpoints/last.json", "environment.json/notes", "run.lock/notes"],
)  # fmt: skip
def test_what_only_looks_like_a_leftover_is_somebodys(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("years")
    with pytest.raises(InputError, match="holds other files"):
        RunFolder.create(tmp_path, {}, 0, "cpu")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [tmp_path / name]
    assert (tmp_path / name).read_text() == "years"


@pytest.mark.parametrize("name", ["run.lock", "environment.json", "metrics_info.json", "config.yaml.tmp"])
def test_a_new_run_follows_no_link(name: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="holds other files"):
        RunFolder.create(tmp_path / "run", {}, 0, "cpu")
    assert not (tmp_path / "outside").exists()
