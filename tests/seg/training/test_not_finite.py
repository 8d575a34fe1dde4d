"""NaN stops a training before the optimiser's step, says where it came from, and leaves the last good checkpoint."""

import math

import pytest
import torch
from support import not_finite_worker as worker
from support.same_state import contents

import seg.train
import seg.training.loop
from dem_apps.runtime.checkpoint import load_checkpoint


def plant_weight(state, _micro_batches):
    with torch.no_grad():
        state.model.main_head.branches[0].weight[0, 0, 0, 0] = math.nan


def plant_source_image(_state, micro_batches):
    micro_batches[0].source["image"][1, 0, 3, 3] = math.inf


def plant_gradient(state, _micro_batches):
    state.model.main_head.branches[0].weight.register_hook(lambda gradient: gradient * math.nan)


@pytest.mark.parametrize(
    ("method", "plant", "losses"),
    [
        ("minent", plant_weight, "source/cross_entropy_main"),
        ("advent", plant_source_image, "source/cross_entropy_aux"),
        ("minent", plant_gradient, "the gradient (nan)"),
    ],
)
def test_training_stops_with_one_sentence(method, plant, losses, tiny_flags, tmp_path, monkeypatch, run_here):
    run = tmp_path / "run"
    flags = [*tiny_flags, "--eval-every", "1", "--maps", "0", "--method", method, "--discriminator.channels", "4"]
    saved = {}

    genuine = seg.training.loop.training_step

    def spoilt(state, micro_batches):
        if state.step == 2:
            saved.update(contents(run / "checkpoints"), names=[*micro_batches[0].source["name"]])
            plant(state, micro_batches)
        return genuine(state, micro_batches)

    monkeypatch.setattr(seg.training.loop, "training_step", spoilt)
    done = run_here(seg.train.main, *flags, "--run-dir", str(run))
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith("error: step 3: no finite number for ")
    assert losses in sentence
    names = saved.pop("names")
    assert all(name in sentence for name in names)
    assert f"the checkpoint {run}/checkpoints/last of step 2 is from before, and --resume continues from it" in sentence
    assert contents(run / "checkpoints") == saved
    state = load_checkpoint(run / "checkpoints", "last")
    assert state["step"] == 2
    assert all(value.isfinite().all() for value in state["model"].values())


def test_all_processes_stop_and_name_the_image_of_the_one(tmp_path):
    other = torch.multiprocessing.spawn(worker.run, (str(tmp_path), 1), join=False)
    try:
        worker.run(0, str(tmp_path), 0)
    finally:
        other.join()
    for rank in range(2):
        same, sentence = (tmp_path / f"{rank}.txt").read_text().splitlines()
        assert same == "True", "the weights are those from before the step"
        assert sentence.startswith("step 2: no finite number for ")
        assert "with the images target-1.png; training has stopped" in sentence
