"""The kinds of folders that two commands may meet in, and what has to be true of each afterwards."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from kill_commands import write_trained
from PIL import Image

from dem_apps.errors import InputError
from dem_apps.jobs.executor import LocalExecutor
from dem_apps.jobs.job import Job
from dem_apps.jobs.study import StudyFolder
from dem_apps.report.text_tables import write_csv
from dem_apps.runtime.checkpoint import load_checkpoint, write_atomically
from dem_apps.runtime.new_files import write_new
from dem_apps.runtime.new_folder import new_folder
from dem_apps.runtime.run_claim import new_run_dir
from dem_apps.runtime.run_folder import RunFolder, checkpoint_to_resume, read_metrics
from seg.adaptation.work import Work
from seg.data.cache import ResizedCopies
from seg.data.datasets import Sample
from seg.data.labels import CITYSCAPES_CLASSES
from seg.demo.demo_pair import write_demo_pair
from seg.export import ExportConfig, export
from seg.maps.label_ids import PredictionWriter

Verdict = list[str]


@dataclass(frozen=True)
class Kind:
    """What is done twice at once.

    Args:
        prepare: makes what there is before; gets the folder of the pair.
        attempt: of one process; gets the folder and its number, 0 or 1.
        verdict: gets the folder and whether each process ended well; returns what is wrong.
    """

    prepare: Callable[[Path], object]
    attempt: Callable[[Path, int], object]
    verdict: Callable[[Path, list[bool]], Verdict]


def _one(done: list[bool]) -> Verdict:
    return [] if done.count(True) == 1 else [f"{done.count(True)} of two had it"]


def _both(done: list[bool]) -> Verdict:
    return [] if all(done) else ["one was refused"]


def _no_leftovers(folder: Path) -> Verdict:
    return [f"left: {path.name}" for path in folder.rglob("*.tmp")]


# -- runs -------------------------------------------------------------------------------------------------------


def _new_run(folder: Path, who: int) -> None:
    run = RunFolder.create(folder / "run", {"who": who}, who, "cpu")
    _go_on(run, who, range(1, 4))


def _go_on(run: RunFolder, who: int, steps: range) -> None:
    try:
        for step in steps:
            run.log(step, who=who)
        run.save_checkpoint(
            "last", {"step": steps[-1], "who": who, "weights": torch.full((50,), float(who))}, steps[-1]
        )
        run.write_json("eval.json", {"who": who})
    finally:
        run.close()


def _whole_run(folder: Path, done: list[bool]) -> Verdict:
    wrong, run = _one(done) + _no_leftovers(folder), folder / "run"
    who = done.index(True) if True in done else 0
    state = load_checkpoint(run / "checkpoints", "last")
    authors = {state["who"], float(state["weights"][0]), json.loads((run / "eval.json").read_text())["who"]}
    lines = read_metrics(run)
    authors |= {line["who"] for line in lines if line["step"] > state.get("before", 0)}
    if authors != {who}:
        wrong.append(f"by {sorted(authors)}, and {who} had it")
    if [line["step"] for line in lines] != list(range(1, state["step"] + 1)):
        wrong.append(f"steps {[line['step'] for line in lines]}")
    return wrong


def _started_run(folder: Path) -> None:
    _go_on(RunFolder.create(folder / "run", {}, 0, "cpu"), 7, range(1, 4))


def _resumed_run(folder: Path, who: int) -> None:
    state = checkpoint_to_resume(folder / "run", 3)
    assert state is not None
    if state["step"] != 3:
        raise InputError("the other one has finished it already")
    run = RunFolder.resume(folder / "run", state["step"])
    try:
        for step in range(4, 7):
            run.log(step, who=who)
        state = {"step": 6, "who": who, "weights": torch.full((50,), float(who)), "before": 3}
        run.save_checkpoint("last", state, 6)
        run.write_json("eval.json", {"who": who})
    finally:
        run.close()


def _unnamed_run(folder: Path, who: int) -> None:
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    _go_on(RunFolder.create(new_run_dir("seg", "x"), {"who": who}, who, "cpu"), who, range(1, 3))


def _two_runs(folder: Path, done: list[bool]) -> Verdict:
    runs = list((folder / "runs").iterdir())
    whole = [len(read_metrics(run)) == 2 and len({line["who"] for line in read_metrics(run)}) == 1 for run in runs]
    return _both(done) + ([] if whole == [True, True] else [f"{len(runs)} folders, whole: {whole}"])


def _written_and_read(folder: Path, who: int) -> None:
    checkpoints = folder / "run" / "checkpoints"
    if who == 0:
        run = RunFolder.resume(folder / "run", 3)
        for step in range(4, 12):
            run.log(step, who=0)
            run.save_checkpoint("last", {"step": step, "weights": torch.full((50,), float(step))}, step)
        run.close()
    else:
        for _ in range(12):
            state = load_checkpoint(checkpoints, "last")
            if "who" not in state and float(state["weights"][0]) != state["step"]:
                raise AssertionError("tensors of one step, values of another")
            read_metrics(folder / "run")


# -- what is never overwritten ----------------------------------------------------------------------------------


def _trained(folder: Path) -> None:
    for who in (0, 1):
        write_trained(folder / f"run{who}", seed=who)
    (folder / "images").mkdir()
    for name in ("a", "b"):
        Image.fromarray(np.zeros((16, 32, 3), np.uint8)).save(folder / "images" / f"{name}.png")


def _exported(folder: Path, who: int) -> None:
    run, images, out = (str(folder / name) for name in (f"run{who}", "images", "out"))
    export(ExportConfig(run=[run], images=images, out=out, device="cpu"))


def _one_export(folder: Path, done: list[bool]) -> Verdict:
    names = {path.name for path in (folder / "out").iterdir()}
    kinds = {f"{name}_{kind}.png" for name in "ab" for kind in ("prediction", "overlay", "entropy", "panel")}
    return _one(done) + (
        [] if names == kinds | {"entropy.csv", "entropy_per_class.csv"} else [f"holds {sorted(names)}"]
    )


def _made_whole(folder: Path, who: int) -> None:
    with new_folder(folder / "model", "--out") as made:
        for name in ("config.json", "weights"):
            (made / name).write_text(str(who))


def _one_whole(folder: Path, done: list[bool]) -> Verdict:
    said = [(folder / "model" / name).read_text() for name in ("config.json", "weights")]
    return _one(done) + _no_leftovers(folder) + ([] if said == [str(done.index(True))] * 2 else [f"holds {said}"])


def _predicted(folder: Path, who: int) -> None:
    writer = PredictionWriter(folder / "out", CITYSCAPES_CLASSES)
    for index in range(4):
        logits = torch.zeros(len(CITYSCAPES_CLASSES), 4, 4)
        logits[who] = 1
        writer(index, Sample(f"{index}.png", np.zeros((4, 4, 3), np.uint8), None), logits)


def _one_prediction(folder: Path, done: list[bool]) -> Verdict:
    ids = {int(np.asarray(Image.open(path))[0, 0]) for path in (folder / "out").glob("*.png")}
    if done == [False, False]:  # each had written a file that the other one came to
        return []
    return _one(done) + ([] if len(ids) == 1 else [f"predictions of {len(ids)} networks"])


def _scored(folder: Path, who: int) -> None:
    file = folder / "scores.json"
    if file.exists():
        raise InputError(f"--out: {file} exists")
    write_new(file, json.dumps({"who": who, "text": "x" * 10_000}).encode(), "--out")


def _one_author(folder: Path, done: list[bool]) -> Verdict:
    who = json.loads((folder / "scores.json").read_text())["who"]
    return _one(done) + _no_leftovers(folder) + ([] if done[who] else ["replaced by the one that was refused"])


def _adapted(folder: Path, who: int) -> None:
    work = Work(folder / "out", {"lr": 0.1}, ["a", "b"])
    try:
        for image in ("a", "b"):
            work.add_row("before", {"image": image, "entropy": 0.5, "pixels": [who]})
        work.save({"step": 2, "who": who}, 2)
        work.finish({"who": [row["pixels"][0] for row in work.rows("before").values()]})
    finally:
        work.close()


def _one_adaptation(folder: Path, done: list[bool]) -> Verdict:
    result = json.loads((folder / "out" / "adapt.json").read_text())
    mixed = [] if set(result["who"]) == {done.index(True) if True in done else 0} else [f"by {result['who']}"]
    left = [path.name for path in (folder / "out").iterdir() if path.name not in ("adapt.json", "work")]
    return _one(done) + mixed + [f"left: {name}" for name in left]


# -- what is shared ---------------------------------------------------------------------------------------------


def _reported(folder: Path, who: int) -> None:
    for _ in range(3):
        write_csv(folder / "runs.csv", [{"who": who, "line": line} for line in range(300 + who)])
        write_atomically(folder / "table.md", (f"{who}\n" * 5000).encode(), shared=True)


def _whole_report(folder: Path, done: list[bool]) -> Verdict:
    lines = (folder / "runs.csv").read_text().splitlines()[1:]
    table = (folder / "table.md").read_text().split()
    whole = len({line[0] for line in lines}) == 1 and len(lines) == 300 + int(lines[0][0])
    return _both(done) + _no_leftovers(folder) + ([] if whole and len(set(table)) == 1 else ["a report is mixed"])


def _claimed(folder: Path, who: int) -> None:
    executor, job = LocalExecutor({}), Job("x", "seg.train", (), folder / "grid" / "seed0", 3, "miou")
    for _ in range(6):
        claim = executor.claim(job.lock)
        if claim is None:
            job.failure()
            continue
        inside = folder / "inside"
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails where two are in here
        job.note_failure(f"now {who}")
        job.note_failure(None)
        inside.unlink()
        claim.release()


def _study(settings: Callable[[int], dict[str, int]]) -> Callable[[Path, int], object]:
    return lambda folder, who: StudyFolder(folder / "study", settings(who)).trials()


def _copied(folder: Path, who: int) -> None:
    os.environ["DEM_APPS_CACHE"] = str(folder / "cache")
    original, pixels = folder / "data" / "image.png", np.full((40, 60, 3), 9, np.uint8)
    copies = ResizedCopies(folder / "data", "folders", None)
    for _ in range(4):
        copies.write(original, pixels, original.stat())
        read = copies.read(original)
        if read is None or (read != 9).any():
            raise AssertionError("a copy that was written cannot be read")


def _original(folder: Path) -> None:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "image.png").write_bytes(b"x")


def _drawn(folder: Path, _who: int = 0, seed: int = 1) -> None:
    pair = write_demo_pair(folder / "demo", seed=seed, size=(64, 32), source_train=1, target_train=1, target_val=1)
    if len(list(pair.source_root.rglob("*.png"))) != 2:
        raise AssertionError("a picture is missing")


def _make(folder: Path) -> None:
    folder.mkdir(parents=True)


KINDS: dict[str, Kind] = {
    "new run": Kind(lambda _: None, _new_run, _whole_run),
    "new run, empty": Kind(lambda folder: _make(folder / "run"), _new_run, _whole_run),
    "resumed run": Kind(_started_run, _resumed_run, _whole_run),
    "unnamed run": Kind(lambda _: None, _unnamed_run, _two_runs),
    "read while written": Kind(_started_run, _written_and_read, lambda _, done: _both(done)),
    "export": Kind(_trained, _exported, _one_export),
    "export, empty": Kind(lambda folder: [_trained(folder), _make(folder / "out")], _exported, _one_export),
    "model folder": Kind(lambda _: None, _made_whole, _one_whole),
    "predictions": Kind(lambda _: None, _predicted, _one_prediction),
    "scores": Kind(_make, _scored, _one_author),
    "adaptation": Kind(lambda _: None, _adapted, _one_adaptation),
    "report": Kind(_make, _reported, _whole_report),
    "cell of a grid": Kind(lambda _: None, _claimed, lambda _, done: _both(done)),
    "study": Kind(lambda _: None, _study(lambda _: {"a": 1}), lambda _, done: _both(done)),
    "study, other": Kind(lambda _: None, _study(lambda who: {"a": who}), lambda _, done: _one(done)),
    "resized copies": Kind(_original, _copied, lambda _, done: _both(done)),
    "demo pair": Kind(lambda _: None, _drawn, lambda _, done: _both(done)),
    "demo pair, outdated": Kind(lambda folder: _drawn(folder, seed=2), _drawn, lambda _, done: _both(done)),
}
