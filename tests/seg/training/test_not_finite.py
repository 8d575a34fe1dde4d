"""NaN stops a training before the optimiser's step, says where it came from, and leaves the last good checkpoint."""

import dataclasses
import math

import pytest
import torch
from support import cases, contents
from support.processes import together
from support.training_steps import MODEL, fresh, micro_batch

import seg.train
import seg.training.loop
from dem_apps.errors import NotFiniteError
from dem_apps.runtime.checkpoint import load_checkpoint
from seg.config import TrainConfig
from seg.training.step import training_step


def plant_weight(state, _micro_batches):
    with torch.no_grad():
        state.model.main_head.branches[0].weight[0, 0, 0, 0] = math.nan


def plant_source_image(_state, micro_batches):
    micro_batches[0].source["image"][1, 0, 3, 3] = math.inf


def plant_gradient(state, _micro_batches):
    state.model.main_head.branches[0].weight.register_hook(lambda gradient: gradient * math.nan)


@cases(
    ("minent", plant_weight, "source/cross_entropy_main"),
    ("advent", plant_source_image, "source/cross_entropy_aux"),
    ("minent", plant_gradient, "the gradient"),
)
def test_training_stops_with_one_sentence(
    method, plant, losses, tiny_flags, tmp_path, monkeypatch, run_here
):
    run = tmp_path / "run"
    flags = [
        *tiny_flags,
        "--eval-every",
        "1",
        "--maps",
        "0",
        "--method",
        method,
        "--discriminator.channels",
        "4",
    ]
    flags += ["--validation-part", "0,0.25"]
    saved = {}

    genuine = seg.training.loop.training_step

    def spoilt(state, micro_batches):
        if state.step == 2:
            saved.update(contents(run / "checkpoints"), names=[*micro_batches[0].source["name"]])
            plant(state, micro_batches)
        return genuine(state, micro_batches)

    monkeypatch.setattr(seg.training.loop, "training_step", spoilt)
    (sentence,) = run_here(seg.train.main, *flags, "--run-dir", run, status=1).err.splitlines()
    assert sentence.startswith("error: step 3: no finite number for ")
    assert losses in sentence
    names = saved.pop("names")
    assert all(name in sentence for name in names)
    assert (
        f"the checkpoint {run}/checkpoints/last of step 2 is from before, and --resume continues from it"
        in sentence
    )
    assert contents(run / "checkpoints") == saved
    state = load_checkpoint(run / "checkpoints", "last")
    assert state["step"] == 2
    assert all(value.isfinite().all() for value in state["model"].values())


def test_all_processes_stop_and_name_their_images(tmp_path):
    def work(rank):
        # shared batch statistics would carry the NaN to every process
        training = fresh(
            TrainConfig(loss="adadem", model=dataclasses.replace(MODEL, batch_norm="frozen"))
        )
        batch = micro_batch(rank, images=1)
        batch.target["name"] = [f"target-{rank}.png"]
        training_step(training, [batch])
        before = {name: value.clone() for name, value in training.model.named_parameters()}
        if rank == 1:
            batch.target["image"][0, 0, 0, 0] = math.nan
        with pytest.raises(NotFiniteError) as stopped:
            training_step(training, [batch])
        assert all(
            torch.equal(before[name], value) for name, value in training.model.named_parameters()
        )
        return str(stopped.value)

    for rank, sentence in enumerate(together(work, tmp_path)):
        assert sentence.startswith("step 2: no finite number for ")
        assert f"target-{rank}.png" in sentence
