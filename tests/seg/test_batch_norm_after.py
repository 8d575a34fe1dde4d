"""--batch-norm-after through training and scores, and the default of --model.batch-norm."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from support.pictures import noise, save
from support.same_state import same

import seg.adapt
import seg.export
from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.run_reader import read_metrics
from seg.data.domains import open_pair
from seg.inference.adaptive_batch_norm import re_estimated
from seg.train import train
from seg.trained.run_network import open_run
from seg.trained.trained_network import RE_ESTIMATED_ON

STATISTICS = ("running_mean", "running_var")


@pytest.fixture(scope="module")
def runs(tiny_config, tmp_path_factory):
    """The same training without and with."""
    folder = tmp_path_factory.mktemp("runs")
    model = dataclasses.replace(tiny_config.model, batch_norm="target")
    config = dataclasses.replace(tiny_config, max_steps=4, eval_every=2, model=model, run_dir=str(folder / "without"))
    after = dataclasses.replace(config, batch_norm_after="target", bn_alpha=1.0, run_dir=str(folder / "with"))
    return train(config), train(after)


def scores(run):
    return json.loads((run / "eval.json").read_text())


def test_by_default_the_source_moves_the_statistics_and_the_target_gives_a_share_at_the_end(tiny_config, tmp_path):
    run = train(dataclasses.replace(tiny_config, run_dir=str(tmp_path / "run")))
    said = scores(run)["protocol"]["batch_norm"]
    assert said.startswith("source: running statistics")
    assert "re-estimated on target images (share " in said


def test_training_goes_on_as_without(runs):
    without, adapted = (load_checkpoint(run / "checkpoints", "last") for run in runs)
    assert same(without["model"], adapted["trained_model"])
    assert np.array_equal(without["random"]["torch"], adapted["random"]["torch"])
    lines = [
        [{name: line[name] for name in line if name.startswith(("source/", "target/"))} for line in read_metrics(run)]
        for run in runs
    ]
    assert lines[0] == lines[1]
    differing = {name for name, value in without["model"].items() if not value.equal(adapted["model"][name])}
    assert differing == {name for name in without["model"] if name.endswith(STATISTICS)}
    assert scores(runs[0])["mean_entropy"] != scores(runs[1])["mean_entropy"]


def test_what_is_saved_has_the_statistics_of_the_targets_training_images(runs, tiny_config):
    """Every kept checkpoint, since exports and other trainings start from any."""
    target = open_pair(tiny_config.source, tiny_config.target).target_train
    images = [target[index].image for index in range(5)]
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    batch = torch.from_numpy(np.stack([(image / 255 - mean) / std for image in images])).permute(0, 3, 1, 2).float()
    for name in ("last", "selected", "best"):
        loaded = open_run(runs[1], name)
        assert loaded.training.re_estimated_on == "target images (share 1)"
        expected = dict(re_estimated(loaded.network, [batch], 1.0).network.named_buffers())
        for buffer, value in loaded.network.named_buffers():
            torch.testing.assert_close(value, expected[buffer], rtol=1e-4, atol=1e-5)
        state = load_checkpoint(runs[0] / "checkpoints", name)
        assert RE_ESTIMATED_ON not in state


def test_an_adapted_run_says_so(runs, tmp_path, run_here):
    for index in range(2):
        save(tmp_path / "images" / f"{index}.png", noise(index, 64, 32))
    flags = ("--images", str(tmp_path / "images"), "--device", "cpu")
    adapted = ("--model", str(runs[0]), *flags, "--out", str(tmp_path / "out"), "--bn-alpha", "1", "--accept")
    run_here(seg.adapt.main, *adapted)
    done = run_here(seg.export.main, "--model", tmp_path / "out", *flags, "--out", tmp_path / "new")
    assert "batch norm statistics re-estimated on the images that it was adapted to" in done.out
