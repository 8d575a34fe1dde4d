"""Every method and mode of ``seg.adapt``: what learns, from which images, and whether it may stay."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from support import cases, contents
from support.adapting import as_seen, moved, predicted, spec
from support.trained_networks import open_trained

from dem_apps import TestTimeAdapter
from seg.adapt import adapt
from seg.adaptation.decision import Verdict
from seg.adaptation.settings import LEARNING
from seg.models.batch_norm import batch_norm_normalises


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
        for name, own in zip(
            names, adapter(as_seen(config, *names)).argmax(1).numpy(), strict=True
        ):
            np.testing.assert_array_equal(own, predicted(config, name))


def test_episodic_begins_anew_with_every_image(config, accepted):
    adapt(replace(config, mode="episodic", lr=0.1, epochs=2))
    network = open_trained(str(config.model), str(config.weights)).network
    adapter = TestTimeAdapter(
        network, "tent", "entropy", lr=0.1, reduction="balanced", predict="after"
    )
    adapter(as_seen(config, "6"))
    own = adapter(as_seen(config, "6")).argmax(1)[0].numpy()
    np.testing.assert_array_equal(own, predicted(config, "6"))
    assert not moved(str(config.weights), Path(str(config.out)))


@pytest.mark.parametrize("method", ["none", "bn", "lab", "eata", "cotta"])
def test_every_kind_of_method(config, accepted, method):
    source = config.images if method in ("lab", "eata") else None
    result = adapt(replace(config, method=method, source=source))
    out = Path(str(config.out))
    assert result.adapted == (method != "none")
    same = contents(out / "before") == contents(out / "after")
    assert same == (method == "none")
    learns = method not in ("none", "bn", "lab")
    assert [result.settings[name] is not None for name in ("loss", "reduction", "lr")] == [
        learns
    ] * 3


@cases(
    ("build", {}, "bn"),
    ("build", {"labels": "labels"}, "step"),
    ("build", {"labels": "labels", "mode": "episodic"}, "bn"),
    ("group", {"labels": "labels"}, "tent"),
    ("mostly_layer_norm", {}, "tent"),
    ("build", {"loss": "adadem"}, "tent"),
    ("build", {"epochs": 2}, "tent"),
)
def test_what_auto_stands_for(network, flags, method, config, networks):
    auto = replace(config, method="auto", **flags)
    resolved = auto.resolved(batch_norm_normalises(getattr(networks, network)()))
    assert resolved.method == method
    expected = dict(LEARNING if method == "tent" else dict.fromkeys(LEARNING))
    expected |= {name: value for name, value in flags.items() if name in LEARNING}
    assert {name: getattr(resolved, name) for name in expected} == expected


CHOICE = {"objective": ("adadem",), "reduction": ("mean",), "lr": (1e-3,)}


@pytest.fixture
def step(config, tmp_path):
    return replace(config, method="step", bn_alpha=0.3, labels=str(tmp_path / "labels"))


@pytest.fixture
def decided(monkeypatch):
    """The verdict of the labels on each look: of the share, then of the steps."""
    verdicts = [Verdict(True, "the share is good")]
    monkeypatch.setattr(
        "seg.adaptation.decision.decide_with_labels",
        lambda *_: verdicts.pop(0) if len(verdicts) > 1 else verdicts[0],
    )
    return verdicts


def test_a_step_learns_from_one_half(step, decided, monkeypatch, capsys):
    seen, call = list[torch.Tensor](), TestTimeAdapter.__call__
    noting = lambda self, *inputs: seen.extend(inputs[0]) or call(self, *inputs)  # noqa: E731
    monkeypatch.setattr(TestTimeAdapter, "__call__", noting)
    monkeypatch.setattr("seg.adaptation.decision.AcceptanceMonitor._worth", lambda *_: 1.0)
    monkeypatch.setattr("seg.adaptation.settings.STEP_CHOICES", CHOICE)
    result = adapt(step)
    assert {tuple(image.shape) for image in seen} == {(3, 16, 24), (3, 24, 16)}
    half = [as_seen(step, name) for name in ("0", "2", "4", "6", "deep/8")]
    assert {float(image.sum()) for image in seen} == {float(image.sum()) for image in half}
    assert result.outcome.batches == result.outcome.planned == 4
    share, tried = result.outcome.checks
    assert (share.learning, tried.learning["lr"]) == (None, 1e-3)
    assert result.outcome.used == tried
    assert "a step of adadem, mean, learning rate 0.001" in capsys.readouterr().out
    assert {"norm.weight", "norm.running_mean"} <= moved(str(step.weights), Path(str(step.out)))


def test_a_step_that_is_not_accepted_leaves_the_share(step, decided):
    decided.append(Verdict(False, "the step scores lower"))
    result = adapt(step)
    assert result.adapted
    assert "the step scores lower" in result.answer
    assert "learning rate" not in Path(str(step.out), "report.html").read_text()
    assert moved(str(step.weights), Path(str(step.out))) == {
        "norm.running_mean",
        "norm.running_var",
    }


def test_labels_choose_objective_and_rate_of_a_step(step, accepted):
    share, *steps = adapt(step).outcome.checks
    tried = [tuple(check.learning.values()) for check in steps]
    assert tried == list(product(("adadem", "entropy"), ("mean", "balanced"), (3e-4, 1e-4)))
    for check in steps:
        # beside the share, not beside the unadapted network
        assert check.score.before == share.score.after
        assert check.verdict.adapt == (check.score.low > 0)


def test_the_halves_of_the_images_choose_a_share_that_is_taken_without_another_test(
    config, monkeypatch
):
    shares = iter([0.3, 0.5, 0.3])
    monkeypatch.setattr("seg.adaptation.decision.best_share", lambda scores: next(shares))
    monkeypatch.setattr("seg.adaptation.decision.decide", lambda *_: Verdict(False, "no"))
    result = adapt(replace(config, method="bn"))
    assert (result.outcome.share_by_halves, result.outcome.share) == ([0.5, 0.3], 0.3)
    assert result.adapted
    given = adapt(replace(config, method="bn", bn_alpha=0.3, out=f"{config.out}_given"))
    assert not given.adapted


@pytest.mark.parametrize("most", [True, False])
def test_statistics_are_taken_where_most_layers_are_batch_norm(config, accepted, monkeypatch, most):
    monkeypatch.setattr("seg.adaptation.adaptation.batch_norm_normalises", lambda network: most)
    assert (adapt(config).outcome.share is not None) == most


def test_where_no_share_is_worth_more_than_none_nothing_is_adapted(config, accepted, monkeypatch):
    monkeypatch.setattr("seg.trained.adaptive_batch_norm.LEAST_GAIN", 1000.0)
    result = adapt(replace(config, method="bn"))
    assert not result.adapted
    assert result.outcome.share == 0
    assert "--bn-alpha" in result.answer
    assert moved(str(config.weights), Path(str(config.out))) == set()
