import json
import shlex
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from support import cases, noise, refuses, save
from support.untrained_run import write_run
from torch import nn
from torch.nn import functional as F

from dem_apps.runtime.settings import parse_config
from seg.data.datasets import Sample
from seg.data.domains import open_validation
from seg.data.labels import CITYSCAPES_CLASSES
from seg.data.settings import DataConfig, TargetDataConfig
from seg.evaluate import main
from seg.inference.evaluate_run import prediction_writer
from seg.inference.settings import EvaluateConfig, ExportConfig, next_command
from seg.scores.evaluation import evaluate
from seg.scores.evidence import plain_forward
from seg.trained.open import load

CPU = torch.device("cpu")


class Answers(nn.Module):
    """Gives the labels of a data set, one image after the other, a third of them wrong, at half their size."""

    def __init__(self, dataset):
        super().__init__()
        rng = np.random.default_rng(0)
        self.answers = []
        for sample in (dataset[index] for index in range(len(dataset))):
            label = torch.from_numpy(sample.label[::2, ::2].astype(np.int64))
            noise = torch.from_numpy(rng.integers(0, 18, label.shape))  # any but bicycle
            wrong = torch.from_numpy(rng.random(label.shape) < 0.3) | (label == 255)
            self.answers.append(
                6 * F.one_hot(torch.where(wrong, noise, label), 19).movedim(-1, 0)[None].float()
            )

    def forward(self, _images):
        return {"main": self.answers.pop(0)}


class Samples(list):
    classes = CITYSCAPES_CLASSES


def test_scores_need_a_network_that_works():
    sample = Sample("folder/0.png", np.zeros((10, 16, 3), np.uint8), np.zeros((20, 32), np.uint8))
    samples = Samples([sample])
    broken = Answers(samples)
    broken.answers[0][:, 0] = torch.nan
    refuses(
        r"folder/0\.png: the network's output is not finite",
        evaluate,
        plain_forward(broken),
        samples,
        CPU,
    )


def test_cityscapes_own_package_gives_the_same_scores(target, tmp_path):
    theirs = pytest.importorskip("cityscapesscripts.evaluation.evalPixelLevelSemanticLabeling")
    truth = sorted(map(str, (target / "gtFine" / "val").glob("*/*_gtFine_labelIds.png")))
    for file in truth:  # no bicycle is labelled, and none is predicted
        ids = np.asarray(Image.open(file))
        Image.fromarray(np.where(ids == 33, 0, ids).astype(np.uint8)).save(file)
    dataset = open_validation(DataConfig(root=str(target)), CITYSCAPES_CLASSES)
    folder = tmp_path / "predictions"
    folder.mkdir()
    writer = prediction_writer(folder, dataset)
    result = evaluate(plain_forward(Answers(dataset)), dataset, CPU, on_sample=writer)
    arguments = theirs.args
    # no instances are drawn
    arguments.evalInstLevelScore, arguments.quiet, arguments.JSONOutput = False, True, False
    arguments.predictionPath, arguments.predictionWalk = str(folder), None
    # their way to find a prediction by its name
    predictions = [theirs.getPrediction(arguments, file) for file in truth]
    assert len(set(predictions)) == len(dataset)
    expected = theirs.evaluateImgLists(predictions, truth, arguments)
    assert 0.1 < result["miou"] < 0.9
    assert result["per_class_iu"]["bicycle"] is None
    assert result["miou"] == pytest.approx(expected["averageScoreClasses"], abs=1e-4)
    for name, iou in result["per_class_iu"].items():
        assert (np.nan if iou is None else iou) == pytest.approx(
            expected["classScores"][name], abs=1e-4, nan_ok=True
        )


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_pair):
    """Its checkpoints have different weights."""
    target = TargetDataConfig(root=str(tiny_pair / "cityscapes"))
    return write_run(
        tmp_path_factory.mktemp("run") / "run", 0, ("best", "selected", "last"), target=target
    )


def test_the_command_scores_the_checkpoint_that_labels_chose_and_says_so(run, run_here, tmp_path):
    out, before = tmp_path / "new" / "scores.json", sorted(run.rglob("*"))
    stdout, stderr = run_here(
        main, "--run", run, "--out", out, "--save-predictions", tmp_path / "predictions"
    )
    assert not stderr
    document = json.loads(out.read_text())
    assert (document["checkpoint"], document["protocol"]["step"]) == ("best", 0)
    assert "checkpoint best (target labels), step 0" in " ".join(stdout.split())
    assert stdout.startswith(
        f"result:      mIoU {100 * document['miou']:.1f} % on 4 target images (checkpoint best)\n"
        "seen as:     RGB from 0 to 1"
    )
    assert f"next:        python -m seg.export --run={run} --images DIR --out DIR" in stdout
    assert "optimistic:  these images' labels chose the checkpoint" in stdout
    assert f"{100 * document['miou']:.2f}" in stdout
    assert len(list((tmp_path / "predictions").glob("*_leftImg8bit_pred_labelIds.png"))) == 4
    assert sorted(run.rglob("*")) == before
    (run / "checkpoints" / "best.pt").rename(tmp_path / "best.pt")  # as of a target without labels
    assert "checkpoint last (end of training), step 2" in repr(load(run))
    assert "label-free score im" in repr(load(run, checkpoint="selected"))
    (tmp_path / "best.pt").rename(run / "checkpoints" / "best.pt")
    again = tmp_path / "last.json"
    refused = run_here(main, "--run", run, "--save-predictions", tmp_path / "predictions", status=2)
    assert "holds files already" in refused.err
    assert (
        "exists and is never overwritten"
        in run_here(main, "--run", run, "--out", out, status=2).err
    )
    run_here(main, "--run", run, "--out", again, "--checkpoint", "last")
    last = json.loads(again.read_text())
    assert (last["checkpoint"], last["protocol"]["step"]) == ("last", 2)
    assert last["mean_entropy"] != document["mean_entropy"]


def test_the_command_scores_other_data(run, run_here, tmp_path, tiny_pair):
    flags = (
        "--target.root",
        tiny_pair / "gta5",
        "--target.layout",
        "gta5",
        "--target.size",
        "[48, 24]",
    )
    out = tmp_path / "scores.json"
    assert not run_here(main, "--run", run, "--out", out, *flags).err
    how = json.loads(out.read_text())["protocol"]
    assert how["train_size"]["target"] == [48, 24]


@cases(
    (["--size", "null"], None),
    (["--tile", "64"], None),
    (["--tile", "64", "--size", "own"], [48, 24]),
)
def test_a_run_is_scored_at_the_size_of_the_flag(flags, size, run_here, tmp_path, tiny_pair):
    target = TargetDataConfig(root=str(tiny_pair / "cityscapes"), size=[48, 24])
    small = write_run(tmp_path / "run", 0, ("last",), target=target)
    run_here(main, "--run", small, "--out", tmp_path / "scores.json", *flags)
    how = json.loads((tmp_path / "scores.json").read_text())["protocol"]
    assert how["train_size"]["target"] == size


def test_a_prediction_without_a_label_has_the_size_of_its_image(run_here, target, tmp_path):
    shutil.rmtree(target / "gtFine")
    small = write_run(tmp_path / "run", 0, target=TargetDataConfig(root=str(target), size=[48, 24]))
    run_here(main, "--run", small, "--save-predictions", tmp_path / "out")
    assert {Image.open(file).size for file in (tmp_path / "out").iterdir()} == {(96, 48)}


@cases([64, 48], "own", None)
def test_the_next_command_sees_images_in_the_same_way(size, tmp_path):
    flags = {"size": size, "mean": [0.5] * 3, "std": [0.2] * 3, "checkpoint": "last"}
    command = next_command("seg.export", EvaluateConfig(run=str(tmp_path), **flags))
    words = [*shlex.split(command)[3:], f"--images={tmp_path}", "--out=out"]
    parsed = vars(parse_config(ExportConfig, "seg.export", "", words))
    assert {name: parsed[name] for name in flags} == flags
    assert parsed["run"] == str(tmp_path)


def test_a_damaged_image_costs_no_score(run, run_here, tmp_path):
    for index in range(3):
        save(tmp_path / "images" / f"{index}.jpg", noise(index, 64, 48))
        save(tmp_path / "labels" / f"{index}.png", noise(index, 64, 48)[..., 0] % 2 + 7)
    (tmp_path / "images/1.jpg").write_bytes((tmp_path / "images/1.jpg").read_bytes()[:900])
    flags = (
        "--images",
        tmp_path / "images",
        "--labels",
        tmp_path / "labels",
        "--save-predictions",
        tmp_path / "out",
    )
    printed = run_here(main, "--model", run, *flags).out
    assert f"on 2 images of {tmp_path / 'images'} (checkpoint best)" in printed
    assert "1 of 3 images left out, damaged or cut short" in printed
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        f"{n}_pred_labelIds.png" for n in (0, 2)
    ]
