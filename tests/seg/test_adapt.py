"""``seg.adapt`` from a network and a folder to predictions, weights and an answer; mistakes are one sentence."""

import csv
import importlib
import json
import re
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from support.pictures import noise, save
from support.same_state import contents

from dem_apps import TestTimeAdapter
from dem_apps.errors import InputError
from dem_apps.runtime.settings import parse_config
from seg.adapt import LEARNING, STEP_LEARNING, AdaptConfig, adapt, main
from seg.adaptation.decision import RECORD, Beside, Verdict
from seg.adaptation.images import Predictions, Row
from seg.models.batch_norm import batch_norm_normalises
from seg.trained.description import Description
from seg.trained.open import open_trained

NETWORKS = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 4, 1)
    def forward(self, images):
        return self.last(self.norm(self.first(images)).relu())

def build():
    torch.manual_seed(0)
    model = Own()
    with torch.no_grad():
        model.last.weight *= 8
    return model
def group():
    model = build()
    model.norm = nn.GroupNorm(2, 8)
    return model
def bare():
    model = build()
    model.norm = nn.Identity()
    return model
def mostly_layer_norm():
    return nn.Sequential(nn.LayerNorm(8), Own(), nn.LayerNorm(8))
class Grid(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = build()
    def forward(self, images):
        self._buffers["grid"] = torch.linspace(0, 1, images.shape[3])
        return self.own(images + self.grid)
class Fixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.positions = build(), nn.Parameter(torch.zeros(3, 16, 24))
    def forward(self, images):
        return self.own(images + self.positions)
def fixed():
    return Fixed()
class Single(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = build()
    def forward(self, images):
        return self.own(images.view(1, 3, *images.shape[2:]))
def single():
    return Single()
def grid():
    return Grid()
def nan():
    model = build()
    with torch.no_grad():
        model.last.bias[1] = float("nan")
    return model
"""
IMAGENET = {"mean": "0.485,0.456,0.406", "std": "0.229,0.224,0.225"}
KINDS = ("prediction", "entropy", "pred_labelIds")


@pytest.fixture
def networks(tmp_path, monkeypatch) -> Any:
    """The module of the networks above."""
    (tmp_path / "own_adapted.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_adapted", raising=False)
    return importlib.import_module("own_adapted")


@pytest.fixture
def images(tmp_path) -> Path:
    """Nine images of patches, two of another size, one below a folder, and a label of each."""
    for index in range(9):
        width, height = (24, 16) if index not in (3, 4) else (16, 24)
        patches = Image.fromarray(noise(index, 4, 4)).resize((width, height), Image.Resampling.BILINEAR)
        name = f"deep/{index}.png" if index == 8 else f"{index}.png"
        save(tmp_path / "images" / name, np.asarray(patches))
        save(tmp_path / "labels" / name, noise(index, width, height)[..., 0] % 4)
    return tmp_path / "images"


@pytest.fixture
def config(networks, images, tmp_path) -> AdaptConfig:
    flags = {**spec(networks, "build", tmp_path), "images": str(images), "out": str(tmp_path / "out")}
    return parsed(**flags, **IMAGENET, device="cpu", batch_size=2, method="tent")


@pytest.fixture
def accepted(monkeypatch) -> None:
    """Every adaptation is accepted."""
    monkeypatch.setattr("seg.adaptation.decision.decide", lambda *_: Verdict(True, "the test says so"))


def spec(networks: Any, name: str, folder: Path) -> dict[str, str]:
    """Flags of one of the networks, whose weights are saved."""
    torch.save(getattr(networks, name)().state_dict(), folder / f"{name}.pth")
    return {"model": f"own_adapted:{name}", "weights": str(folder / f"{name}.pth")}


def parsed(**flags: Any) -> AdaptConfig:
    arguments = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
    return parse_config(AdaptConfig, "python -m seg.adapt", "python -m seg.adapt", arguments)


def moved(before: str, folder: Path) -> set[str]:
    """The weights that an adaptation has changed."""
    (file,) = (folder / "adapted").iterdir()
    old, new = (torch.load(each, weights_only=True) for each in (before, file))
    return {name for name in old if not torch.equal(old[name], new[name])}


def predicted(config: AdaptConfig, name: str) -> np.ndarray:
    return np.asarray(Image.open(Path(str(config.out)) / "after" / f"{name}_pred_labelIds.png"))


def as_seen(config: AdaptConfig, *names: str) -> torch.Tensor:
    pictures = [np.asarray(Image.open(Path(str(config.images)) / f"{name}.png")) for name in names]
    return torch.stack([Description().normalised(picture) for picture in pictures])


def test_everything_is_written(config, accepted, capsys):
    result = adapt(config)
    out = Path(str(config.out))
    assert sorted(entry.name for entry in out.iterdir()) == [
        "adapt.json", "adapted", "after", "before", "images.csv", "report.html", "shares.csv",
    ]  # fmt: skip
    for stage in ("before", "after"):
        for index in range(9):
            name = f"deep/{index}" if index == 8 else str(index)
            for kind in KINDS:
                with Image.open(out / stage / f"{name}_{kind}.png") as picture:
                    assert picture.size == ((24, 16) if index not in (3, 4) else (16, 24))
    document = json.loads((out / "adapt.json").read_text())
    assert document["adapted"]
    assert document["batches"] == document["planned_batches"] == 4  # of nine images by two, the last with three
    assert len(document["evidence"]["checks"]) > 2
    with open(out / "shares.csv") as opened:
        rows = list(csv.DictReader(opened))
    for stage in ("before", "after"):
        assert sum(float(row[stage]) for row in rows) == pytest.approx(1)
        ids = [np.asarray(Image.open(file)) for file in (out / stage).rglob("*_pred_labelIds.png")]
        counted = np.bincount(np.concatenate([each.ravel() for each in ids]), minlength=4)
        assert sorted(float(row[stage]) for row in rows) == pytest.approx(sorted(counted / counted.sum()))
    said = capsys.readouterr().out
    assert result.answer in said
    assert "predicted share of the pixels" in said
    page = (out / "report.html").read_text()
    places = [
        page.index(part) for part in ("<h1>Adapted</h1>", "Before and after</h2>", "Classes</h2>", "Evidence</h2>")
    ]
    assert places == sorted(places)
    assert page.count("<img") == 8 * 5  # the image itself once
    assert not re.search('src="(http|/)', page)


def test_what_cannot_be_read_is_left_out_and_named(config, run_here):
    folder, out = Path(str(config.images)), Path(str(config.out))
    (folder / "no_image.png").write_bytes(b"no image")
    save(folder / "1.png", noise(0, 64, 64))
    (folder / "1.png").write_bytes((folder / "1.png").read_bytes()[:4000])  # its header is whole
    flags = ("model", "weights", "images", "out", "device", "batch_size", "method")
    said = run_here(main, *(f"--{each.replace('_', '-')}={getattr(config, each)}" for each in flags))
    assert said.returncode == 1
    document = json.loads((out / "adapt.json").read_text())
    assert document["images"] == 8
    assert [row["image"] for row in document["skipped"]] == ["1.png", "no_image.png"]
    assert all(row["reason"].startswith("the image cannot be read") for row in document["skipped"])
    page = (out / "report.html").read_text()
    assert "Images left out" in page
    assert "no_image.png: " in page
    assert "1.png" in said.stderr
    assert said.stdout.splitlines()[-1].startswith("skipped:     2 of 10 images")


def test_the_answer_names_doubts(config, accepted):
    result = adapt(replace(config, method="bn"))
    assert result.answer.startswith("Adapted by all of these images' batch norm statistics alone: the test says so.")
    few = replace(
        result,
        outcome=replace(result.outcome, share=0.3, chosen=[0.3, 0.5]),
        rows={
            "before": {"0.png": Row(np.array([50, 30, 20, 0]), 0.5, None)},
            "after": {"0.png": Row(np.array([39, 31, 21, 9]), 0.5, None)},
        },
    )
    assert few.answer == (
        "Adapted by a share of 0.3 of these images' batch norm statistics alone: the test says so, on 1 image only, "
        "which is weak evidence. Largest changes: class 0 from 50.0 % of the pixels to 39.0 %. The share is uncertain: "
        f"the halves of the images choose 0.3 and 0.5. Of {RECORD[0]} such shares accepted so on "
        f"photographs {RECORD[1]} gained more than 0.5 mIoU and {RECORD[2]} lost as much; eight labelled images would "
        "measure it (--labels)."
    )


def test_the_saved_weights_predict_what_was_written(config, accepted):
    adapt(replace(config, lr=0.1))
    out = Path(str(config.out))
    again = open_trained(str(config.model), str(next((out / "adapted").iterdir())))
    with torch.no_grad():
        own = again.logits(as_seen(config, "0")).argmax(1)[0].numpy()
    np.testing.assert_array_equal(own, predicted(config, "0"))
    normalisation = {f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var")}
    assert normalisation <= moved(str(config.weights), out) <= {*normalisation, "norm.num_batches_tracked"}


@pytest.mark.parametrize("mode", ["epochs", "online", "episodic"])
def test_what_harms_is_kept_apart_and_accepted_on_demand(config, mode, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("seg.adaptation.decision.decide", lambda *_: Verdict(False, "the test says so"))
    result = adapt(replace(config, mode=mode))
    out = Path(str(config.out))
    assert not result.adapted
    assert contents(out / "before") == contents(out / "after")
    assert not moved(str(config.weights), out)
    assert "Not adapted: " in capsys.readouterr().out
    assert "<h1>Not adapted</h1>" in (out / "report.html").read_text()
    refused = {name: content for name, content in contents(out / "refused/after").items() if "entropy" in name}
    assert refused.keys() <= contents(out / "before").keys()
    assert any(content != contents(out / "before")[name] for name, content in refused.items())
    accepted = adapt(replace(config, mode=mode, accept=True, out=str(tmp_path / "accepted")))
    assert accepted.adapted
    assert "--accept takes it, although the test says so" in capsys.readouterr().out
    assert not (tmp_path / "accepted/refused").exists()
    if mode == "epochs":
        assert moved(str(config.weights), out / "refused") == moved(str(config.weights), tmp_path / "accepted") != set()


def test_without_batch_norm_going_back_to_the_start_is_not_adapted(config, networks, tmp_path):
    flags = spec(networks, "group", tmp_path)
    result = adapt(replace(config, **flags, lr=1e5, epochs=3))
    assert result.outcome.stopped
    assert not result.adapted
    out = Path(str(config.out))
    assert contents(out / "before") == contents(out / "after")
    assert not moved(flags["weights"], out)


def test_online_writes_the_prediction_of_before_the_update(config, accepted):
    adapt(replace(config, mode="online", lr=0.1))
    network = open_trained(str(config.model), str(config.weights)).network
    adapter = TestTimeAdapter(network, "tent", "entropy", lr=0.1, reduction="balanced")
    for names in (("0", "1", "2"), ("3", "4"), ("5", "6"), ("7", "deep/8")):
        for name, own in zip(names, adapter(as_seen(config, *names)).argmax(1).numpy(), strict=True):
            np.testing.assert_array_equal(own, predicted(config, name))


def test_episodic_begins_anew_with_every_image(config, accepted):
    adapt(replace(config, mode="episodic", lr=0.1, epochs=2))
    network = open_trained(str(config.model), str(config.weights)).network
    adapter = TestTimeAdapter(network, "tent", "entropy", lr=0.1, reduction="balanced", predict="after")
    adapter(as_seen(config, "6"))
    own = adapter(as_seen(config, "6")).argmax(1)[0].numpy()
    np.testing.assert_array_equal(own, predicted(config, "6"))
    assert not moved(str(config.weights), Path(str(config.out)))


def test_bf16_says_what_it_changes(config, accepted, monkeypatch, capsys):
    types, write = set(), Predictions.write

    def noted(self: Predictions, stage: str, index: int, logits: torch.Tensor, *others: Any) -> None:
        types.add(logits.dtype)
        write(self, stage, index, logits, *others)

    monkeypatch.setattr(Predictions, "write", noted)
    adapt(replace(config, precision="bf16"))
    assert types == {torch.bfloat16}
    assert float(re.findall(r"bf16: ([\d.]+) % of the pixels", capsys.readouterr().out)[0]) < 10
    (file,) = (Path(str(config.out)) / "adapted").iterdir()
    assert {value.dtype for value in torch.load(file, weights_only=True).values()} == {torch.float32, torch.int64}


def test_labels_give_a_score_and_decide(config, accepted, tmp_path, capsys):
    (tmp_path / "labels" / "0.png").unlink()
    result = adapt(replace(config, labels=str(tmp_path / "labels"), lr=0.1))
    document = json.loads((Path(str(config.out)) / "adapt.json").read_text())
    assert document["labels"]["images"] == 8
    assert document["labels"]["low"] <= document["labels"]["gain"] <= document["labels"]["high"]
    assert "with labels: on 8 labelled images mIoU" in capsys.readouterr().out
    # the labels are the network's own predictions: nothing can be better, and nothing is used that is worse
    for name in [*map(str, range(8)), "deep/8"]:
        ids = Path(str(config.out)) / "before" / f"{name}_pred_labelIds.png"
        (tmp_path / "labels" / f"{name}.png").write_bytes(ids.read_bytes())
    result = adapt(replace(config, labels=str(tmp_path / "labels"), out=str(tmp_path / "own-out"), lr=10.0))
    assert not result.adapted
    assert "it scores lower" in result.answer
    assert result.score is not None
    assert result.score.before == 1.0


@pytest.mark.parametrize("method", ["none", "bn", "lab", "eata", "cotta"])
def test_every_kind_of_method(config, accepted, method):
    source = config.images if method in ("lab", "eata") else None
    result = adapt(replace(config, method=method, source=source))
    out = Path(str(config.out))
    assert result.adapted == (method != "none")
    same = contents(out / "before") == contents(out / "after")
    assert same == (method == "none")
    page = (out / "report.html").read_text()
    assert (page.count("<img"), "Predictions</h2>" in page, "before %" in page) == (
        8 * (3 if same else 5),
        same,
        not same,
    )
    learns = method not in ("none", "bn", "lab")
    assert [result.settings[name] is not None for name in ("loss", "reduction", "lr")] == [learns] * 3


@pytest.mark.parametrize(
    ("network", "flags", "method"),
    [
        ("build", {}, "bn"),
        ("build", {"labels": "labels"}, "step"),
        ("build", {"labels": "labels", "mode": "episodic"}, "bn"),
        ("group", {"labels": "labels"}, "tent"),
        ("mostly_layer_norm", {}, "tent"),
        ("build", {"loss": "adadem"}, "tent"),
        ("build", {"epochs": 2}, "tent"),
    ],
)
def test_what_auto_stands_for(config, networks, network, flags, method):
    auto = replace(config, method="auto", **flags)
    resolved = auto.resolved(batch_norm_normalises(getattr(networks, network)()))
    assert resolved.method == method
    expected = {"tent": LEARNING, "step": STEP_LEARNING, "bn": dict.fromkeys(LEARNING)}[method]
    expected |= {name: value for name, value in flags.items() if name in LEARNING}
    assert {name: getattr(resolved, name) for name in expected} == expected


def test_a_step_learns_from_one_half_and_is_looked_at_on_the_other(config, accepted, monkeypatch, capsys):
    seen, call = list[torch.Tensor](), TestTimeAdapter.__call__
    monkeypatch.setattr(
        TestTimeAdapter, "__call__", lambda self, *inputs: seen.extend(inputs[0]) or call(self, *inputs)
    )
    monkeypatch.setattr(Beside, "verdict", Verdict(True, "the step may stay"))
    result = adapt(replace(config, method="step", bn_alpha=0.3))
    assert {tuple(image.shape) for image in seen} == {(3, 16, 24), (3, 24, 16)}
    assert {float(image.sum()) for image in seen} == {
        float(as_seen(config, name).sum()) for name in ("0", "2", "4", "6", "deep/8")
    }
    assert result.outcome.batches == result.outcome.planned == 4
    share, step = result.outcome.checks
    assert (share.beside, result.outcome.used) == (None, step)
    assert "statistics and a step of adadem, mean, learning rate 0.0003: the step may stay" in capsys.readouterr().out
    assert {"norm.weight", "norm.running_mean"} <= moved(str(config.weights), Path(str(config.out)))


def test_a_step_that_is_not_accepted_leaves_the_share(config, accepted, monkeypatch):
    monkeypatch.setattr(Beside, "verdict", Verdict(False, "the step moves too much"))
    result = adapt(replace(config, method="step", bn_alpha=0.3))
    assert result.adapted
    assert "so it went back to the statistics alone" in result.answer
    assert moved(str(config.weights), Path(str(config.out))) == {"norm.running_mean", "norm.running_var"}


def test_without_a_share_there_is_no_step(config, accepted):
    result = adapt(replace(config, method="step", bn_alpha=0.0))
    assert (len(result.outcome.checks), result.adapted) == (1, False)


def test_labels_choose_objective_and_rate_of_a_step(config, accepted, monkeypatch, tmp_path):
    monkeypatch.setattr(Beside, "verdict", Verdict(True, "without labels it would stay"))
    result = adapt(replace(config, method="step", bn_alpha=0.3, labels=str(tmp_path / "labels")))
    share, *steps = result.outcome.checks
    tried = [tuple(step.learning.values()) for step in steps]
    assert tried == list(product(("adadem", "entropy"), ("mean", "balanced"), (3e-4, 1e-4)))
    for step in steps:
        assert step.score.before == share.score.after  # beside the share, not beside the unadapted network
        assert step.verdict.adapt == (step.score.low > 0)
    given = replace(config, method="step", bn_alpha=0.3, labels=str(tmp_path / "labels"), lr=1e-4)
    assert len(adapt(replace(given, out=str(tmp_path / "given"))).outcome.checks) == 2


def test_the_answer_about_a_step_by_labels_begins_with_the_whole_adaptation(config, accepted, monkeypatch, tmp_path):
    measured = Verdict(True, "measured")
    monkeypatch.setattr("seg.adaptation.decision.decide_with_labels", lambda *_: measured)
    monkeypatch.setattr("seg.adaptation.result.decide_with_labels", lambda _, score: Verdict(True, score.sentence))
    result = adapt(replace(config, method="step", bn_alpha=0.3, labels=str(tmp_path / "labels")))
    used = result.outcome.used
    assert used.beside is not None
    assert f": {result.score.sentence}; the step alone: {used.score.sentence}." in result.answer


def test_each_half_of_the_images_looks_at_the_share_that_the_other_chooses(config, monkeypatch):
    shares, verdicts = iter([0.5, 0.3]), iter([Verdict(True, "yes"), Verdict(False, "the second half says no")])
    monkeypatch.setattr("seg.adaptation.adaptation.best_share", lambda scores: next(shares))
    monkeypatch.setattr("seg.adaptation.adaptation.decide", lambda *_: next(verdicts))
    monkeypatch.setattr("seg.inference.adaptive_batch_norm.best_share", lambda scores: 0.3)
    result = adapt(replace(config, method="bn"))
    assert (result.outcome.chosen, result.outcome.share) == ([0.5, 0.3], 0.3)
    assert not result.adapted
    assert "the second half says no" in result.answer


@pytest.mark.parametrize("most", [True, False])
def test_statistics_are_taken_where_most_layers_are_batch_norm(config, accepted, monkeypatch, most):
    monkeypatch.setattr("seg.adaptation.adaptation.batch_norm_normalises", lambda network: most)
    assert (adapt(config).outcome.share is not None) == most


def test_where_no_share_is_worth_more_than_none_nothing_is_adapted(config, accepted, monkeypatch):
    monkeypatch.setattr("seg.inference.adaptive_batch_norm.LEAST_GAIN", 1000.0)
    result = adapt(replace(config, method="bn"))
    assert not result.adapted
    assert result.outcome.share == 0
    assert "no share of these images' batch norm statistics is clearly better than none (--bn-alpha" in result.answer
    assert moved(str(config.weights), Path(str(config.out))) == set()


def test_an_smp_folder_comes_back_as_one(images, accepted, tmp_path):
    torch.manual_seed(0)
    model = smp.Unet("resnet18", encoder_weights=None, classes=3, encoder_depth=3, decoder_channels=(16, 8, 8)).eval()
    model.save_pretrained(str(tmp_path / "smp"))
    flags = {"model": str(tmp_path / "smp"), "images": str(images), "out": str(tmp_path / "out"), "device": "cpu"}
    adapt(parsed(**flags, size="32,32", method="bn"))
    again = smp.from_pretrained(str(tmp_path / "out" / "adapted"))
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    changed_ones = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"encoder.bn1.running_mean", "decoder.blocks.0.conv1.1.running_var"} <= changed_ones
    assert all(name.endswith(("running_mean", "running_var")) for name in changed_ones)


@pytest.mark.parametrize("method", ["bn", "tent"])
def test_buffers_that_forward_makes_for_each_size(config, accepted, networks, tmp_path, method):
    result = adapt(replace(config, method=method, size=None, **spec(networks, "grid", tmp_path)))
    assert result.adapted
    (written,) = (tmp_path / "out" / "adapted").iterdir()
    assert "grid" not in torch.load(written, weights_only=True)


@pytest.mark.parametrize(("network", "size"), [("fixed", [24, 16]), ("single", "auto")])
def test_networks_of_one_size_or_of_single_images(config, networks, tmp_path, network, size, capsys):
    result = adapt(replace(config, size=size, **spec(networks, network, tmp_path)))
    stability = [each for each in result.outcome.before.stability if each is not None]
    assert max(stability) < 1  # of a view that differs
    if network == "single":
        assert "the network takes one image at a time" in capsys.readouterr().out
        return
    with pytest.raises(InputError, match=r"takes no image of 224 × 224.*; --size W,H, or 'size' among its facts"):
        adapt(replace(config, out=str(tmp_path / "no"), size="auto", **spec(networks, network, tmp_path)))


def test_a_network_that_is_no_use(config, networks, tmp_path):
    with pytest.raises(InputError, match="the network's output is not finite; its weights are no use"):
        adapt(replace(config, **spec(networks, "nan", tmp_path)))
    with pytest.raises(
        InputError, match=r"--method tent: learns scale and shift .* has none; cotta learns all weights"
    ):
        adapt(replace(config, method="auto", **spec(networks, "bare", tmp_path)))
    assert not (tmp_path / "out").exists()


def test_flags_that_do_not_fit(config, images, tmp_path):
    (tmp_path / "three.yaml").write_text("classes: [{name: a, color: [1, 2, 3]}, {name: b, color: [2, 2, 2]}]")
    (tmp_path / "empty").mkdir()
    cases = [
        ({"classes": str(tmp_path / "three.yaml")}, "predicts 4 classes, and 2 are named .--classes."),
        ({"images": str(tmp_path / "empty")}, "--images: .* hold no image"),
        ({"model": None}, "--model: is missing"),
        ({"method": "lab"}, "--source: --method lab needs"),
        ({"out": str(images / "out")}, "--out: .* lies in --images"),
        ({"method": "bn", "tau": 2.0}, "--tau: is an option of --loss"),
        ({"method": "step", "epochs": 2}, "--mode: --method step learns once from a few images"),
        ({"method": "bn", "loss": "dem"}, "--loss: --method bn learns nothing; leave it out, or take --method tent"),
    ]
    for flags, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            adapt(replace(config, **flags))
        assert not (tmp_path / "out").exists(), flags


def test_what_was_there_is_never_overwritten_and_after_an_error_nothing_is_there(config, monkeypatch):
    out = Path(str(config.out))
    with monkeypatch.context() as patch:
        patch.setattr("seg.adaptation.adaptation.Adaptation.run", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            adapt(config)
    assert not out.exists()
    assert not list(out.parent.glob(".*.tmp"))
    adapt(config)
    kept = contents(out)
    with pytest.raises(InputError, match=r"--out: .* holds files already, which are never overwritten"):
        adapt(config)
    assert contents(out) == kept
