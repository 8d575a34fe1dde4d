"""``seg.adapt`` from a network and a folder to predictions, weights and an answer; mistakes are one sentence."""

import csv
import html
import importlib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from support import contents, noise, refuses, save
from support.adapting import IMAGENET, as_seen, moved, parsed, predicted, spec
from support.trained_networks import open_trained

from dem_apps.errors import InputError
from dem_apps.runtime.settings import parse_config
from seg.adapt import adapt, main
from seg.adaptation.decision import RECORD, Verdict
from seg.adaptation.images import ImageNumbers
from seg.inference.settings import ExportConfig
from seg.scores.evidence import Probe, plain_forward
from seg.trained.adaptive_batch_norm import SHARES

KINDS = ("prediction", "entropy", "pred_labelIds")


def test_everything_is_written(config, accepted, capsys):
    result = adapt(config)
    out = Path(str(config.out))
    assert sorted(entry.name for entry in out.iterdir()) == [
        "adapt.json",
        "adapted",
        "after",
        "before",
        "images.csv",
        "report.html",
        "shares.csv",
    ]
    for stage in ("before", "after"):
        for index in range(9):
            name = f"deep/{index}" if index == 8 else str(index)
            for kind in KINDS:
                with Image.open(out / stage / f"{name}_{kind}.png") as picture:
                    assert picture.size == ((24, 16) if index not in (3, 4) else (16, 24))
    document = json.loads((out / "adapt.json").read_text())
    assert document["adapted"]
    # of nine images by two, the last with three
    assert document["batches"] == document["planned_batches"] == 4
    assert len(document["evidence"]["checks"]) > 2
    with open(out / "shares.csv") as opened:
        rows = list(csv.DictReader(opened))
    for stage in ("before", "after"):
        assert sum(float(row[stage]) for row in rows) == pytest.approx(1)
        ids = [np.asarray(Image.open(file)) for file in (out / stage).rglob("*_pred_labelIds.png")]
        counted = np.bincount(np.concatenate([each.ravel() for each in ids]), minlength=4)
        assert sorted(float(row[stage]) for row in rows) == pytest.approx(
            sorted(counted / counted.sum())
        )
    said = capsys.readouterr().out
    assert result.answer in said
    page = (out / "report.html").read_text()
    assert page.count("<img") == 8 * 5  # the image itself once
    assert not re.search('src="(http|/)', page)
    assert "<script" not in page
    assert "None" not in re.sub("<[^>]*>", " ", page)


def test_what_cannot_be_read_is_left_out_and_named(config, run_here):
    folder, out = Path(str(config.images)), Path(str(config.out))
    (folder / "no_image.png").write_bytes(b"no image")
    save(folder / "1.png", noise(0, 64, 64))
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:4000])  # its header is whole
    flags = ("model", "weights", "images", "out", "device", "batch_size", "method")
    said = run_here(
        main, *(f"--{each.replace('_', '-')}={getattr(config, each)}" for each in flags), status=1
    )
    document = json.loads((out / "adapt.json").read_text())
    assert document["images"] == 8
    assert [row["image"] for row in document["skipped"]] == ["1.png", "no_image.png"]
    assert all(row["reason"].startswith("the image cannot be read") for row in document["skipped"])
    page = (out / "report.html").read_text()
    assert "Images left out" in page
    assert "no_image.png: " in page
    assert "1.png" in said.err
    assert said.out.splitlines()[-1].startswith("skipped:     2 of 10 images")


def test_the_answer_names_doubts(config, accepted):
    result = adapt(replace(config, method="bn"))
    assert result.answer.startswith(
        "Adapted by all of these images' batch norm statistics alone: no sign of harm: "
    )
    pixels = {"before": [50, 30, 20, 0], "after": [39, 31, 21, 9]}
    rows = {
        stage: {"0.png": ImageNumbers(np.array(each), 0.5, None)} for stage, each in pixels.items()
    }
    outcome = replace(result.outcome, share=0.3, share_by_halves=[0.3, 0.5])
    answer = replace(result, outcome=outcome, rows=rows).answer
    parts = (
        "Adapted by a share of 0.3 of",
        "on 1 image only",
        "choose 0.3 and 0.5",
        "In {} tests {} networks got worse by more than 0.5 mIoU; in sum {} times as".format(
            *RECORD
        ),
    )
    for part in parts:
        assert part in answer


def test_the_answer_has_four_lines_and_then_its_details(config, accepted, tmp_path, capsys):
    settings = replace(config, method="bn")
    for labels in (None, str(tmp_path / "labels")):
        out = tmp_path / f"labels {labels is not None}"
        adapt(replace(settings, labels=labels, out=str(out)))
        lines = capsys.readouterr().out.splitlines()
        start = next(place for place, line in enumerate(lines) if line.startswith("Adapted"))
        titles = [line.partition(":")[0] for line in lines[start:]]
        own = ["answer", "assumes"] if labels else ["answer", "assumes", "to be sure"]
        assert titles[1:] == [*own, "new images", "weights", "page", "ONNX"]
        (command,) = (line for line in lines if line.startswith("new images:"))
        module, *flags = shlex.split(command.partition(" -m ")[2].replace("DIR", str(tmp_path)))
        export = parse_config(ExportConfig, module, "", flags)
        assert (export.model, export.mean, export.std) == (config.model, config.mean, config.std)
        assert lines[start].startswith(
            "Adapted: mIoU " if labels else "Adapted, not measured: stability of the predictions "
        )
        assert ("label these 8 and add --labels: 0.png, 1.png, " in lines[start + 3]) is not bool(
            labels
        )
        page = (out / "report.html").read_text()
        assert ("Labels of these images would measure it" in page) is not bool(labels)


def test_an_image_that_becomes_less_stable_keeps_its_prediction(config, accepted, monkeypatch):
    monkeypatch.setattr("seg.adaptation.decision.best_share", lambda scores: 1.0)
    for name in ("1", "6"):  # unlike the others, whose statistics do not suit them
        save(Path(str(config.images)) / f"{name}.png", noise(0, 24, 16) // 16)
    result = adapt(replace(config, method="bn"))
    out = Path(str(config.out))
    kept = {Path(name).stem for name in json.loads((out / "adapt.json").read_text())["kept_before"]}
    networks = [
        open_trained(str(config.model), str(file))
        for file in (config.weights, *(out / "adapted").iterdir())
    ]
    less_stable = set()
    for name in ("0", "1", "2", "3", "4", "5", "6", "7", "deep/8"):
        probe = Probe([(as_seen(config, name), None)], networks[0].description.multiple)
        old, new = (
            probe.look(plain_forward(each.network)).stability_score(result.outcome.before)
            for each in networks
        )
        less_stable |= {Path(name).stem} if new < old else set()
        expected = networks[new >= old].logits(as_seen(config, name)).argmax(1)[0]
        np.testing.assert_array_equal(expected.numpy(), predicted(config, name))
    assert kept == less_stable
    assert 0 < len(kept) < 9
    assert f"Of 9 images {len(kept)} keep" in result.answer
    given = adapt(replace(config, method="bn", bn_alpha=1.0, out=str(out.with_name("given"))))
    assert given.outcome.kept_before == ()


def test_weights_of_a_file_keep_the_classes_that_they_had(images, accepted, tmp_path, monkeypatch):
    torch.save(
        smp.Unet("resnet18", encoder_weights=None, classes=3).state_dict(), tmp_path / "unet.pth"
    )
    known = {"architecture": "Unet", "encoder": "resnet18", "classes": "own.yaml", **IMAGENET}
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("classes: [a, b, c]")
    adapt(
        parsed(model="unet.pth", images=str(images), out="out", device="cpu", method="bn", **known)
    )
    Path("own.yaml").write_text("classes: [x, y, z]")
    for elsewhere in (tmp_path, images):
        monkeypatch.chdir(elsewhere)
        assert open_trained(str(tmp_path / "out")).class_set.names == ("a", "b", "c")


def test_the_saved_weights_predict_what_was_written(config, accepted):
    adapt(replace(config, lr=0.1))
    out = Path(str(config.out))
    again = open_trained(str(config.model), str(next((out / "adapted").iterdir())))
    with torch.no_grad():
        own = again.logits(as_seen(config, "0")).argmax(1)[0].numpy()
    np.testing.assert_array_equal(own, predicted(config, "0"))
    normalisation = {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    assert (
        normalisation
        <= moved(str(config.weights), out)
        <= {*normalisation, "norm.num_batches_tracked"}
    )


@pytest.mark.parametrize("mode", ["epochs", "online", "episodic"])
def test_what_harms_is_kept_apart_and_accepted_on_demand(
    config, mode, monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(
        "seg.adaptation.decision.decide", lambda *_: Verdict(False, "the test says so")
    )
    # a share that the user gives is looked at; one that evidence chose has been
    config = replace(config, mode=mode, bn_alpha=1.0)
    result = adapt(config)
    out = Path(str(config.out))
    assert not result.adapted
    assert contents(out / "before") == contents(out / "after")
    assert not moved(str(config.weights), out)
    assert "Not adapted: " in capsys.readouterr().out
    assert "<h1>Not adapted" in (out / "report.html").read_text()
    accepted = adapt(replace(config, accept=True, out=str(tmp_path / "accepted")))
    assert accepted.adapted
    assert "--accept takes it, although the test says so" in capsys.readouterr().out
    assert bool(moved(str(config.weights), tmp_path / "accepted")) == (mode != "episodic")


def test_labels_give_a_score_and_decide(config, accepted, tmp_path, capsys):
    (tmp_path / "labels" / "0.png").unlink()
    result = adapt(replace(config, labels=str(tmp_path / "labels"), lr=0.1))
    document = json.loads((Path(str(config.out)) / "adapt.json").read_text())
    assert document["labels"]["images"] == 8
    assert document["labels"]["low"] <= document["labels"]["gain"] <= document["labels"]["high"]
    assert "Adapted: mIoU" in capsys.readouterr().out
    # the labels are the network's own predictions: nothing can be better, and nothing is used that is worse
    for name in [*map(str, range(8)), "deep/8"]:
        ids = Path(str(config.out)) / "before" / f"{name}_pred_labelIds.png"
        (tmp_path / "labels" / f"{name}.png").write_bytes(ids.read_bytes())
    result = adapt(
        replace(config, labels=str(tmp_path / "labels"), out=str(tmp_path / "own-out"), lr=10.0)
    )
    assert not result.adapted
    assert "it scores lower" in result.answer
    assert result.score is not None
    assert result.score.before == 1.0


def test_networks_of_one_size(config, networks, tmp_path):
    flags = spec(networks, "Fixed", tmp_path)
    result = adapt(replace(config, size=[24, 16], **flags))
    stability = [each for each in result.outcome.before.stability if each is not None]
    assert max(stability) < 1  # of a view that differs
    with pytest.raises(InputError, match=r"takes no image of 224 × 224.*--size W,H"):
        adapt(replace(config, out=str(tmp_path / "no"), size="auto", **flags))


def test_a_network_that_is_no_use(config, networks, tmp_path):
    refuses(
        "the network's output is not finite",
        adapt,
        replace(config, **spec(networks, "nan", tmp_path)),
    )
    said = r"--method tent: learns scale and shift .* has none; cotta learns all weights"
    refuses(said, adapt, replace(config, method="auto", **spec(networks, "bare", tmp_path)))
    assert not (tmp_path / "out").exists()


def test_flags_that_do_not_fit(config, images, tmp_path):
    (tmp_path / "three.yaml").write_text(
        "classes: [{name: a, color: [1, 2, 3]}, {name: b, color: [2, 2, 2]}]"
    )
    (tmp_path / "empty").mkdir()
    cases = [
        (
            {"classes": str(tmp_path / "three.yaml")},
            "predicts 4 classes, and 2 are named .--classes.",
        ),
        ({"images": str(tmp_path / "empty")}, "--images: .* hold no image"),
        ({"method": "lab"}, "--source: --method lab needs"),
        ({"out": str(images / "out")}, "--out: .* lies in --images"),
        ({"method": "bn", "tau": 2.0}, "--tau: is an option of --loss"),
        ({"method": "step"}, "--labels: --method step needs labels"),
        (
            {"method": "step", "labels": str(tmp_path / "labels"), "mode": "episodic"},
            "--mode: --method step learns once from a few images",
        ),
        (
            {"method": "bn", "loss": "dem"},
            "--loss: --method bn takes none; leave it out, or take --method tent",
        ),
    ]
    for flags, sentence in cases:
        refuses(sentence, adapt, replace(config, **flags))
        assert not (tmp_path / "out").exists(), flags


def test_what_was_there_is_never_overwritten_and_after_an_error_nothing_is_there(
    config, monkeypatch
):
    out = Path(str(config.out))
    with monkeypatch.context() as patch:
        patch.setattr(
            "seg.adaptation.adaptation.Adaptation.run",
            lambda _: (_ for _ in ()).throw(KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            adapt(config)
    assert not out.exists()
    assert not list(out.parent.glob(".*.tmp"))
    adapt(config)
    kept = contents(out)
    refuses(r"--out: .* holds files already, which are never overwritten", adapt, config)
    assert contents(out) == kept


# -- a normalisation that nobody gave -------------------------------------------------------------------------------
HALF = {"mean": [0.5] * 3, "std": [0.5] * 3}


@pytest.fixture
def guessed(config, networks, tmp_path):
    """Settings that leave open how images are normalised, of a network whose statistics are those of 0.5."""
    network = networks.build()
    names = [*map(str, range(3)), *map(str, range(5, 8))]
    images = (as_seen(config, *names) * 0.225 + 0.45 - 0.5) / 0.5
    with torch.no_grad():
        features = network.first(images)
        network.norm.running_mean.copy_(features.mean((0, 2, 3)))
        network.norm.running_var.copy_(features.var((0, 2, 3)))
    torch.save(network.state_dict(), tmp_path / "half.pth")
    weights = str(tmp_path / "half.pth")
    return replace(config, weights=weights, mean=None, std=None, method="none")


def adapted(config, name, **changes):
    out = Path(str(config.out)).with_name(name)
    adapt(replace(config, out=str(out), **changes))
    return json.loads((out / "adapt.json").read_text()), out


def test_a_guess_is_doubted_and_a_wrong_scale_is_an_alarm(guessed, capsys):
    document, out = adapted(guessed, "guess")
    assert document["normalisation"]["origin"].startswith("a guess: ")
    trial = document["normalisation"]["trial"]
    assert "mean 0.5 0.5 0.5" in trial
    assert "distance" in trial
    sentence = (
        "(a guess: ImageNet's); a few labels and --mean, --std, --channels, --scale would tell"
    )
    for text in (capsys.readouterr().out, (out / "report.html").read_text()):
        assert trial in html.unescape(text)
        assert sentence in html.unescape(text)
    document, _ = adapted(guessed, "said", **HALF)
    assert document["normalisation"]["trial"] == ""
    assert document["normalisation"]["origin"] == "the user"
    assert "a few labels" not in capsys.readouterr().out
    wrong, _ = adapted(guessed, "wrong", scale=255)
    assert "tried:    warning: ALARM, wrong scale" in capsys.readouterr().out
    assert "ALARM, wrong scale" in wrong["answer"]
    assert "RGB from 0 to 255" in wrong["answer"]


# -- what it costs --------------------------------------------------------------------------------------------------
def test_every_look_serves_the_predictions_and_images_are_decoded_once(
    config, accepted, networks, monkeypatch
):
    """Three views by four shares, once the statistics; predictions, vote by image and check add none."""
    read, seen, forward = [], [], networks.Own.forward
    monkeypatch.setattr("seg.adaptation.decision.best_share", lambda scores: 0.3)
    read_image = importlib.import_module("seg.adaptation.images").read_image
    noting = lambda file, pixels: read.append(file) or read_image(file, pixels)  # noqa: E731
    monkeypatch.setattr("seg.adaptation.images.read_image", noting)
    counted = lambda self, images: seen.append(len(images)) or forward(self, images)  # noqa: E731
    monkeypatch.setattr(networks.Own, "forward", counted)
    # which sizes the network takes is asked elsewhere
    monkeypatch.setattr("seg.scores.evidence.takes", lambda network, images: True)
    result = adapt(replace(config, method="bn"))
    assert result.adapted
    assert len(read) == 9
    # a network of a function is opened with one image; the check of the normalisation sees each image once
    assert sum(seen[1:]) == 9 * (3 * len(SHARES) + 2)
