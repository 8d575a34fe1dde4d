"""``seg.adapt`` from a network and a folder to predictions, weights and an answer; mistakes are one sentence."""

import base64
import csv
import hashlib
import html
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from support import contents, noise, refuses, save
from support.adapting import IMAGENET, as_seen, moved, parsed, predicted, spec

from dem_apps.errors import InputError
from seg.adapt import adapt, main
from seg.adaptation.decision import RECORD, Verdict
from seg.adaptation.images import ImageNumbers, Predictions
from seg.inference.adaptive_batch_norm import SHARES
from seg.scores.evidence import Probe, plain_forward
from seg.trained.open import open_trained

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
        "label_first.csv",
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
    # the image itself once; four class maps at every share
    assert page.count("<img") == 8 * 5 + 4 * len(SHARES)
    shares = re.findall(r'<b data-at="(\d)" ?(?:hidden)?>share ([\d.]+): stability score', page)
    assert shares == [(str(index), f"{share:g}") for index, share in enumerate(SHARES)]
    assert not re.search('src="(http|/)', page)
    (script,) = re.findall("<script>(.*?)</script>", page)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
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
        "Adapted by all of these images' batch norm statistics alone: the test says so."
    )
    pixels = {"before": [50, 30, 20, 0], "after": [39, 31, 21, 9]}
    rows = {
        stage: {"0.png": ImageNumbers(np.array(each), 0.5, None)} for stage, each in pixels.items()
    }
    few = replace(result, outcome=replace(result.outcome, share=0.3, chosen=[0.3, 0.5]), rows=rows)
    assert few.answer == (
        "Adapted by a share of 0.3 of these images' batch norm statistics alone: the test says so, on 1 image only, "
        "which is weak evidence. Largest changes: class 0 from 50.0 % of the pixels to 39.0 %. The share is uncertain: "
        "the halves of the images choose 0.3 and 0.5. Of {} adaptations accepted so on other networks and folders {} "
        "gained more than 0.5 mIoU and {} lost as much (95 % bound: {} %); eight labelled images would measure it "
        "(--labels)."
    ).format(*RECORD)


def test_an_image_that_becomes_less_stable_keeps_its_prediction(config, accepted, monkeypatch):
    for module in ("inference.adaptive_batch_norm", "adaptation.adaptation"):
        monkeypatch.setattr(f"seg.{module}.best_share", lambda scores: 1.0)
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
        probe = Probe([as_seen(config, name)], networks[0].description.multiple)
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
    assert given.outcome.kept == ()


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
    result = adapt(replace(config, mode=mode))
    out = Path(str(config.out))
    assert not result.adapted
    assert contents(out / "before") == contents(out / "after")
    assert not moved(str(config.weights), out)
    assert "Not adapted: " in capsys.readouterr().out
    assert "<h1>Not adapted</h1>" in (out / "report.html").read_text()
    refused = {
        name: content
        for name, content in contents(out / "refused/after").items()
        if "entropy" in name
    }
    assert refused.keys() <= contents(out / "before").keys()
    assert any(content != contents(out / "before")[name] for name, content in refused.items())
    accepted = adapt(replace(config, mode=mode, accept=True, out=str(tmp_path / "accepted")))
    assert accepted.adapted
    assert "--accept takes it, although the test says so" in capsys.readouterr().out
    assert not (tmp_path / "accepted/refused").exists()
    if mode == "epochs":
        assert (
            moved(str(config.weights), out / "refused")
            == moved(str(config.weights), tmp_path / "accepted")
            != set()
        )


def test_bf16_says_what_it_changes(config, accepted, monkeypatch, capsys):
    types, write = set(), Predictions.write

    def noted(self, stage, index, logits, *others):
        types.add(logits.dtype)
        write(self, stage, index, logits, *others)

    monkeypatch.setattr(Predictions, "write", noted)
    adapt(replace(config, precision="bf16"))
    assert types == {torch.bfloat16}
    assert float(re.findall(r"bf16: ([\d.]+) % of the pixels", capsys.readouterr().out)[0]) < 10
    (file,) = (Path(str(config.out)) / "adapted").iterdir()
    assert {value.dtype for value in torch.load(file, weights_only=True).values()} == {
        torch.float32,
        torch.int64,
    }


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


@pytest.mark.parametrize(("network", "size"), [("Fixed", [24, 16]), ("Single", "auto")])
def test_networks_of_one_size_or_of_single_images(
    config, networks, tmp_path, network, size, capsys
):
    result = adapt(replace(config, size=size, **spec(networks, network, tmp_path)))
    stability = [each for each in result.outcome.before.stability if each is not None]
    assert max(stability) < 1  # of a view that differs
    if network == "Single":
        assert "the network takes one image at a time" in capsys.readouterr().out
        return
    with pytest.raises(
        InputError, match=r"takes no image of 224 × 224.*; --size W,H, or 'size' among its facts"
    ):
        adapt(
            replace(
                config, out=str(tmp_path / "no"), size="auto", **spec(networks, network, tmp_path)
            )
        )


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
        ({"method": "step", "epochs": 2}, "--mode: --method step learns once from a few images"),
        (
            {"method": "bn", "loss": "dem"},
            "--loss: --method bn learns nothing; leave it out, or take --method tent",
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
GUESSED = {"mean": None, "std": None}


def adapted(config, name, **changes):
    out = Path(str(config.out)).with_name(name)
    adapt(replace(config, method="none", out=str(out), **changes))
    return json.loads((out / "adapt.json").read_text()), out


def test_labels_find_it_before_anything_is_adapted(config):
    """They are what the network predicts of images that are seen otherwise than is guessed."""
    _, out = adapted(config, "said", mean=[0.5] * 3, std=[0.5] * 3)
    for file in (out / "before").rglob("*_pred_labelIds.png"):
        label = str(file.relative_to(out / "before")).replace("_pred_labelIds", "")
        save(out.with_name("own") / label, np.asarray(Image.open(file)))
    found, out = adapted(config, "guess", labels=str(out.with_name("own")), **GUESSED)
    assert found["normalisation"]["mean"] == [0.5] * 3
    assert found["normalisation"]["origin"] == "chosen of the usual ones by 9 labelled images"
    tried = {row["name"]: row["labels"] for row in found["normalisation"]["tried"]}
    assert max(tried, key=lambda name: tried[name]["after"]) == "0.5"
    assert found["labels"]["before"] == 1.0  # the baseline is the best
    assert "scores higher: on 9 labelled images" in found["answer"]
    kept, _ = adapted(
        config, "kept", labels=str(out.with_name("own")), mean=[0.1] * 3, std=[0.5] * 3
    )
    assert kept["normalisation"]["mean"] == [0.1] * 3
    assert (
        "predictions keep the own one (--mean, --std, --channels set the other)" in kept["answer"]
    )
    page = (out / "report.html").read_text()
    assert (
        "RGB from 0 to 1, mean 0.5 0.5 0.5, deviation 0.5 0.5 0.5 (chosen of the usual ones" in page
    )


def test_without_labels_both_leads_are_said(config, capsys):
    found, out = adapted(config, "guess", **GUESSED)
    assert found["normalisation"]["origin"].startswith("a guess: ")
    trial = found["normalisation"]["trial"]
    assert "stability score" in trial
    assert "distance" in trial
    for where in (capsys.readouterr().out, (out / "report.html").read_text()):
        assert trial in html.unescape(where)
    said = adapted(config, "said")[0]["normalisation"]
    assert (said["trial"], said["origin"]) == ("", "the user")
    wrong, _ = adapted(config, "wrong", scale=255, **GUESSED)
    assert (
        "ALARM, wrong scale: as RGB from 0 to 255, mean 0 0 0, deviation 1 1 1 (the user)"
        in wrong["answer"]
    )
