"""Commands that are killed, at a moment or at every write, are started again and end as unbroken ones."""

from __future__ import annotations

import fnmatch
import json
import multiprocessing
import os
import random
import runpy
import shutil
import signal
import sys
import time
import traceback
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import same
from support.report_runs import rl_run, seg_run
from support.untrained_run import write_run

from dem_apps.jobs.executor import Job
from dem_apps.runtime.checkpoint import load_checkpoint
from seg.data.settings import TargetDataConfig
from seg.data.street.demo_pair import write_demo_pair
from seg.models.settings import ModelConfig
from seg.trained import advent_weights

#: Python's audit events of what changes a folder, whatever library does it.
_CHANGES = (
    "os.rename",
    "os.link",
    "os.symlink",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
)


def command(module: str, *arguments: str) -> Callable[[], None]:
    """What ``python -m MODULE ARGUMENTS`` does."""

    def run() -> None:
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)

    return run


def writes(
    work: Callable[[], None], folder: Path, stop_at: int | None = None
) -> tuple[int, list[str]]:
    """Status of a process that does the work in ``folder``, and its writes below it.

    It is killed before number ``stop_at`` of these: a file opened to be written, renamed, linked, removed or flushed.
    """
    journal = folder.with_name(f"{folder.name}.writes")
    child = os.fork()
    if child == 0:
        try:
            _work(work, folder, journal, stop_at)
        finally:
            os._exit(99)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, journal.read_text().splitlines()


def _work(work: Callable[[], None], folder: Path, journal: Path, stop_at: int | None) -> None:
    os.chdir(folder)
    parent, root = os.getpid(), str(folder.resolve())
    seen = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    output = os.open(
        folder.with_name(f"{folder.name}.output"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    )
    os.dup2(output, 1)
    os.dup2(output, 2)
    count = 0

    def written(what: str, name: Any) -> None:
        nonlocal count
        path = (
            os.path.abspath(os.fsdecode(name))
            if isinstance(name, (str, bytes, os.PathLike))
            else ""
        )
        if os.getpid() != parent or not path.startswith(f"{root}/"):
            return
        if count == stop_at:
            os.kill(parent, signal.SIGKILL)
        count += 1
        os.write(seen, f"{what} {os.path.relpath(path, root)}\n".encode())

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if (
            event == "open" and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        ) or event in _CHANGES:
            written(event, given[0])

    flush = os.fsync
    sys.stdout = sys.stderr = open(output, "w", buffering=1)  # noqa: SIM115
    sys.addaudithook(hook)
    os.fsync = lambda descriptor: (
        written("flush", os.readlink(f"/proc/self/fd/{descriptor}")) or flush(descriptor)
    )
    try:
        work()
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    except Exception:
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    os._exit(code)


#: A teacher, all that is drawn per sample, and statistics that are re-estimated for each checkpoint.
SEG = [
    "seg.train",
    "--loss",
    "adadem",
    "--max-steps",
    "12",
    "--eval-every",
    "3",
    "--log-every",
    "1",
    "--maps",
    "0",
    "--batch-size",
    "1",
    "--source.size",
    "32,16",
    "--target.size",
    "32,16",
    "--model.output-stride",
    "16",
    "--model.encoder=resnet18",
    "--method",
    "self-training",
    "--self-training.mask-ratio",
    "0.5",
    "--source.style",
    "fourier",
    "--source.rare-class-temperature",
    "0.01",
    "--target.labelled-part",
    "0.4",
    "--batch-norm-after",
    "target",
]
RL = [
    "rl.train",
    "--loss",
    "adadem",
    "--env",
    "MiniGrid-Empty-Random-5x5-v0",
    "--timesteps",
    "4096",
    "--eval-freq",
    "1000",
    "--eval-episodes",
    "1",
    "--hyperparameters.n_steps",
    "64",
    "--hyperparameters.n_envs",
    "2",
    "--hyperparameters.learning_rate",
    "lin_1.0e-3",
]


def start(flags, run, *more):
    """The command in a process that is forked, so that it need not import torch again."""
    process = multiprocessing.get_context("fork").Process(
        target=command(*flags, "--run-dir", str(run), *more)
    )
    process.start()
    return process


@pytest.mark.parametrize("flags", [SEG, RL], ids=["seg", "rl"])
def test_a_killed_training_goes_on_to_the_same_numbers(flags, tmp_path, capfd):
    if flags is SEG:
        pair = write_demo_pair(
            tmp_path / "pair", size=(96, 48), source_train=4, target_train=3, target_val=2
        )
        flags = [
            *flags,
            "--source.root",
            str(pair / "gta5"),
            "--target.root",
            str(pair / "cityscapes"),
        ]
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    first, alone = start(flags, killed), start(flags, whole)
    deadline = time.monotonic() + 120
    while not (killed / "checkpoints" / "last.pt").exists():
        assert first.is_alive(), capfd.readouterr().err
        assert time.monotonic() < deadline
        time.sleep(0.005)
    time.sleep(random.random() * 0.5)
    first.kill()
    first.join()
    resumed = start(flags, killed, "--resume")
    for process in (alone, resumed):
        process.join()
        assert process.exitcode == 0, capfd.readouterr().err
    for file in ("metrics.jsonl", "eval.json"):
        assert (killed / file).read_bytes() == (whole / file).read_bytes()
    for name in ("last", "best"):
        assert same(*(load_checkpoint(run / "checkpoints", name) for run in (killed, whole)))


#: What is another in every run: times, the machine's state, and logs of what was started.
OTHERWISE = ("environment.json", "events.out.tfevents.*", "*.lock", "*.log", "training.log")
SMALL = ["--source.size=32,16", "--target.size=32,16", "--model.encoder=resnet18", "--batch-size=1"]


@dataclass(frozen=True)
class Writer:
    """A command with flags in which ``{NAME}`` is an input."""

    module: str
    flags: tuple[str, ...]
    resumes: bool = False
    #: the run folder that each of its trainings leaves, which are not what is tested here
    job: str | None = None
    otherwise: tuple[str, ...] = field(default=())


WRITERS = {
    "seg.train": Writer(
        "seg.train",
        (
            "--loss=adadem",
            "--max-steps=2",
            "--eval-every=1",
            "--maps=1",
            "--source.root={pair}/gta5",
            "--target.root={pair}/cityscapes",
            *SMALL,
            "--run-dir=run",
        ),
        resumes=True,
    ),
    "seg.evaluate": Writer(
        "seg.evaluate", ("--run={seg}", "--save-predictions=predictions", "--out=scores.json")
    ),
    "seg.export": Writer(
        "seg.export",
        (
            "--run={seg}",
            "--images={images}",
            "--out=out",
            "--raw=npz",
            "--pre-labels",
        ),
    ),
    "seg.export_model": Writer("seg.export_model", ("--run={seg}", "--out=out")),
    "seg.adapt": Writer(
        "seg.adapt", ("--model={seg}", "--images={images}", "--out=out", "--size=32,32")
    ),
    "seg.benchmark": Writer("seg.benchmark", ("--config={grid}", "--folder=grid"), job="seg_done"),
    "seg.tune": Writer(
        "seg.tune",
        (
            "--train.source.root={pair}/gta5",
            "--train.target.root={pair}/cityscapes",
            "--trials=2",
            "--share=0.5",
            "--study-dir=study",
        ),
        job="seg_done",
        otherwise=("journal.log",),
    ),
    "rl.train": Writer(
        "rl.train",
        (
            "--env=CartPole-v1",
            "--timesteps=128",
            "--eval-freq=64",
            "--eval-episodes=1",
            "--final-episodes=1",
            "--hyperparameters.n_steps=32",
            "--hyperparameters.n_envs=2",
            "--video",
            "--run-dir=run",
        ),
        resumes=True,
    ),
    "seg.convert": Writer("seg.convert", ("--advent={advent}", "--run-dir=run")),
    "rl.evaluate": Writer(
        "rl.evaluate", ("--run={rl}", "--episodes=1", "--out=scores.json", "--video=a.gif")
    ),
    "rl.export": Writer("rl.export", ("--run={rl}", "--out=a.zip")),
    "rl.plots": Writer("rl.plots", ("{rl_done}", "--out=plots")),
    "rl.benchmark": Writer("rl.benchmark", ("--config={rl_grid}", "--folder=grid"), job="rl_done"),
    "rl.tune": Writer(
        "rl.tune",
        ("--train.loss=adadem", "--trials=2", "--seeds=1", "--final-seeds=1", "--study-dir=study"),
        job="rl_done",
        otherwise=("journal.log",),
    ),
    "dem_apps.report": Writer("dem_apps.report", ("{rl_done}", "--out=page.html")),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What the commands read, which no command writes to."""
    root = tmp_path_factory.mktemp("inputs")
    pair = write_demo_pair(
        root / "pair", size=(32, 16), source_train=2, target_train=2, target_val=2
    )
    (root / "images").mkdir()
    for index in range(2):
        pixels = np.random.default_rng(index).integers(0, 255, (32, 32, 3), np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{index}.png")
    target = TargetDataConfig(root=str(pair / "cityscapes"), size=[32, 16])
    write_run(root / "seg", 0, target=target, model=ModelConfig(encoder="resnet18"))
    seg_run(root / "seg_done")
    torch.save({"layer6.bias": torch.zeros(2)}, root / "advent")
    rl_run(root / "rl_done", 0.5, "adadem", 0, "CartPole-v1")
    (root / "grid").write_text(
        "arms: {a: {method: minent, loss: entropy, max_steps: 20}}\nseeds: [0]\n"
    )
    (root / "rl_grid").write_text(
        "envs: {CartPole-v1: {timesteps: 20}}\narms: {a: {ent_coef: 0.1}}\nseeds: [0]\n"
    )
    flags = [flag for flag in WRITERS["rl.train"].flags if flag not in ("--video", "--run-dir=run")]
    normalised = "--hyperparameters.normalize=true"
    (root / "rl_folder").mkdir()
    assert (
        writes(command("rl.train", *flags, normalised, "--run-dir=../rl"), root / "rl_folder")[0]
        == 0
    )
    return {file.name: file for file in root.iterdir()}


def content(folder: Path, writer: Writer) -> dict[str, Any]:
    """Every file that an equal run has an equal one of; of SB3's zip, which holds times, the names and weights.

    Of a checkpoint the values: a pickle names a text that is one object in two places once, and of two objects twice.
    """
    other = (*OTHERWISE, *writer.otherwise)

    def read(file: Path) -> Any:
        if file.suffix == ".pt":
            return values(torch.load(file, weights_only=True))
        if file.suffix != ".zip":
            return file.read_bytes()
        with zipfile.ZipFile(file) as archive:
            return {
                name: archive.read(name) if name.endswith(".pth") else None
                for name in archive.namelist()
            }

    return {
        str(file.relative_to(folder)): read(file)
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not any(fnmatch.fnmatch(file.name, pattern) for pattern in other)
    }


def values(kept: Any) -> Any:
    """Of a checkpoint, by which two can be compared: tensors as their type and bytes, numbers as their text."""
    if isinstance(kept, dict):
        return {key: values(value) for key, value in kept.items()}
    if isinstance(kept, (list, tuple)):
        return [values(value) for value in kept]
    return (
        (str(kept.dtype), kept.numpy().tobytes()) if isinstance(kept, torch.Tensor) else repr(kept)
    )


def work_of(writer: Writer, inputs: dict[str, Path], folder: Path) -> Callable[[], None]:
    flags = [flag.format_map(inputs) for flag in writer.flags]
    if writer.resumes and (folder / "run" / "config.yaml").is_file():
        flags = ["--run-dir=run", "--resume"]
    run = command(writer.module, *flags)

    def work() -> None:
        torch.set_num_threads(1)
        advent_weights.from_advent = lambda *_: {"main_head.bias": torch.zeros(2)}  # type: ignore[assignment]  # small
        if writer.job is not None:
            Job.command = lambda job: ["cp", "-r", str(inputs[str(writer.job)]), str(job.run)]  # type: ignore[method-assign]
        run()

    return work


SLOW = [pytest.param(name, marks=[pytest.mark.slow] * (name != "rl.export")) for name in WRITERS]


@pytest.mark.parametrize("name", SLOW)
def test_a_command_killed_at_any_write_ends_as_an_unbroken_one(name, inputs, tmp_path):
    writer, folder = WRITERS[name], tmp_path / "work"
    output = folder.with_name("work.output")
    folder.mkdir()
    status, every = writes(work_of(writer, inputs, folder), folder)
    assert status == 0, output.read_text()
    whole = content(folder, writer)
    assert whole
    for stop_at in range(len(every)):
        shutil.rmtree(folder)
        folder.mkdir()
        status, done = writes(work_of(writer, inputs, folder), folder, stop_at)
        assert status == -9 or len(done) <= stop_at
        status, _ = writes(work_of(writer, inputs, folder), folder)
        where = f"killed before write {stop_at} of {len(every)}, {every[stop_at]}"
        # what was killed after its last file had its name is refused, as any second start
        said = output.read_text()
        assert status == 0 or (status == 2 and "never overwritten" in said), f"{where}: {said}"
        ended = content(folder, writer)
        different = [file for file in {*whole, *ended} if whole.get(file) != ended.get(file)]
        assert not different, f"{where}: {different}"
    print(json.dumps({name: len(every)}))
