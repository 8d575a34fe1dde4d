"""Everything that computes, on a GPU against the CPU; skipped where torch finds none."""

from __future__ import annotations

import copy
import json
import math
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import stable_baselines3
import torch
from PIL import Image
from support import ROOT
from support.tiny_networks import Tiny, batches, tiny
from torch import Tensor

import seg.adapt
import seg.train
from dem_apps import TestTimeAdapter, build_objective
from dem_apps.errors import InputError
from dem_apps.objectives import OBJECTIVES
from dem_apps.runtime.settings import parse_config
from dem_apps.test_time_methods import METHODS
from rl import with_entropy_objective
from seg.config import TrainConfig
from seg.data.street.demo_pair import write_demo_pair
from seg.training.step import training_step

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
GPU = "cuda"
#: These draw patches or weights, and a GPU draws others.
DRAWS = {"cotta", "deyo"}
#: relative norm of the difference to float64
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 4e-3, torch.float16: 1e-3}


def relative(actual: Tensor, expected: Tensor) -> float:
    """NaN where the actual value has one."""
    return ((actual.double().cpu() - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def value_and_gradient(
    objective: torch.nn.Module, logits: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    logits = logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    loss = objective(logits, **options)
    loss.backward()
    return loss.detach(), logits.grad


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("backend", ["auto", "compiled", "eager", "reference"])
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_objectives_equal_float64_on_the_cpu(name: str, backend: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(2, 19, 96, 200, generator=generator)).to(dtype)
    mask = torch.rand(2, 96, 200, generator=generator) > 0.3
    for layout in (torch.contiguous_format, torch.channels_last):
        given = logits.to(GPU, memory_format=layout)
        for reduction in ("mean", "balanced", "sum"):
            exact = build_objective(name, 19, backend="reference").double()
            ours = build_objective(name, 19, backend=backend).to(GPU)
            for masked in (mask, None):  # the second call finds class marginals that have moved
                expected = value_and_gradient(
                    exact, logits.double(), mask=masked, reduction=reduction
                )
                on_gpu = None if masked is None else masked.to(GPU)
                actual = value_and_gradient(ours, given, mask=on_gpu, reduction=reduction)
                assert relative(actual[0], expected[0]) < 2e-5, (layout, reduction)
                # a mean's gradients underflow there
                if dtype != torch.float16 or reduction == "sum":
                    assert relative(actual[1], expected[1]) < TOLERANCES[dtype], (layout, reduction)
            for key, value in exact.state_dict().items():
                torch.testing.assert_close(
                    ours.state_dict()[key].double().cpu(), value, rtol=1e-5, atol=1e-7
                )


def test_few_and_many_classes_and_forbidden_ones() -> None:
    for classes in (2, 7, 64, 65, 150):
        logits = torch.randn(5000, classes, dtype=torch.float64)
        logits[::7, 0] = -1e8  # a forbidden class
        expected = value_and_gradient(
            build_objective("adadem", classes, backend="reference").double(), logits
        )
        actual = value_and_gradient(
            build_objective("adadem", classes).to(GPU), logits.float().to(GPU)
        )
        assert relative(actual[0], expected[0]) < 2e-5
        assert relative(actual[1], expected[1]) < 2e-5
    with pytest.raises(InputError, match="at most 64"):
        build_objective("adadem", 65, backend="compiled").to(GPU)(torch.randn(4, 65, device=GPU))


def test_second_backwards_empty_masks_and_nan() -> None:
    objective = build_objective("adadem", 5).to(GPU)
    logits = torch.randn(2, 5, 300, 300, device=GPU, requires_grad=True)
    loss = objective(logits)
    first, second = (torch.autograd.grad(loss, logits, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    nothing = objective(logits, mask=torch.zeros(2, 300, 300, dtype=torch.bool, device=GPU))
    assert nothing.item() == 0.0
    assert not torch.autograd.grad(nothing, logits)[0].any()
    spoiled = logits.detach().clone()
    spoiled[0, 0, 0, 0] = math.nan
    assert objective(spoiled).isnan()
    unread = torch.ones(2, 300, 300, dtype=torch.bool, device=GPU)
    unread[0, 0, 0] = False
    assert objective(spoiled, mask=unread).isfinite()


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_adapters_learn_what_they_learn_on_the_cpu(method: str, dense: bool) -> None:
    network = tiny(dense=dense)
    found = {}
    for device in ("cpu", GPU):
        torch.manual_seed(0)
        try:
            adapter = TestTimeAdapter(
                copy.deepcopy(network).to(device), method=method, objective="adadem", lr=1e-2
            )
        except InputError:
            pytest.skip(f"{method} asks for more than a network")
        found[device] = [adapter(images.to(device)).detach().cpu() for images in batches()]
        adapter.reset()
    if method in DRAWS:
        assert all(each.isfinite().all() for each in found[GPU])
    else:
        # statistics are float32
        torch.testing.assert_close(found[GPU], found["cpu"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_an_adapter_under_autocast(dtype: torch.dtype) -> None:
    adapter = TestTimeAdapter(Tiny().to(GPU), method="tent", objective="adadem", lr=1e-3)
    with torch.autocast(GPU, dtype):
        for images in batches():
            assert adapter(images.float().to(GPU)).isfinite().all()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("pair") / "street"
    write_demo_pair(root, size=(96, 48), source_train=6, target_train=5, target_val=4)
    return [
        "--source.root",
        str(root / "gta5"),
        "--target.root",
        str(root / "cityscapes"),
        "--model.encoder=resnet18",
    ]


SHORT = [
    "--max-steps=4",
    "--eval-every=2",
    "--log-every=1",
    "--maps=1",
    "--discriminator.channels=4",
]


def train(run: Path, *flags: str) -> list[dict[str, float]]:
    """The lines of a short training's ``metrics.jsonl``."""
    seg.train.train(
        parse_config(TrainConfig, "seg.train", "", [*SHORT, *flags, "--run-dir", str(run)])
    )
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", ["minent", "advent", "self-training"])
def test_trainings_begin_with_the_losses_of_the_cpu(
    method: str, pair: list[str], tmp_path: Path
) -> None:
    flags = [*pair, "--method", method, *(["--loss", "adadem"] if method == "minent" else [])]
    cpu, gpu = (train(tmp_path / device, *flags, "--device", device) for device in ("cpu", GPU))
    for name, value in cpu[0].items():
        if name.startswith(("source/", "target/")):
            assert gpu[0][name] == pytest.approx(value, rel=2e-2), name
    assert len(cpu) == len(gpu)
    for precision in ("bf16", "fp16"):
        half = train(tmp_path / precision, *flags, "--device", GPU, "--precision", precision)
        for name, value in gpu[0].items():
            if name.startswith("source/cross"):
                assert half[0][name] == pytest.approx(value, rel=0.1), (precision, name)
        assert all(
            math.isfinite(value)
            for line in half
            for value in line.values()
            if isinstance(value, float)
        )


def test_compiled_network_trains(pair: list[str], tmp_path: Path) -> None:
    plain = train(tmp_path / "plain", *pair, "--loss", "adadem", "--device", GPU)
    compiled = train(tmp_path / "compiled", *pair, "--loss", "adadem", "--device", GPU, "--compile")
    assert compiled[0]["source/cross_entropy_main"] == pytest.approx(
        plain[0]["source/cross_entropy_main"], rel=2e-2
    )


@pytest.mark.parametrize(("first", "second"), [("cpu", GPU), (GPU, "cpu")])
def test_a_training_goes_on_on_the_other_device(
    first: str, second: str, pair: list[str], tmp_path: Path
) -> None:
    run, stopped = (
        tmp_path / "run",
        mock.Mock(side_effect=[*[mock.DEFAULT] * 2, RuntimeError("stopped")]),
    )
    step = mock.Mock(side_effect=lambda *given: (stopped(), training_step(*given))[1])
    with (
        mock.patch("seg.training.loop.training_step", step),
        pytest.raises(RuntimeError, match="stopped"),
    ):
        train(run, *pair, "--loss", "adadem", "--device", first)
    seg.train.train(
        parse_config(TrainConfig, "seg.train", "", ["--resume", str(run), "--device", second])
    )
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(steps) == 4


def test_seg_adapt_predicts_what_it_predicts_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "images").mkdir()
    generator = np.random.default_rng(0)
    for k in range(5):
        noise = generator.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).resize((128, 96)).save(tmp_path / f"images/{k}.png")
    text = "from support.tiny_networks import tiny\ndef build(): return tiny().float()\n"
    (tmp_path / "network_of_gpu_test.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    found = {}
    for device in ("cpu", GPU):
        flags = [
            "--model",
            "network_of_gpu_test:build",
            "--images",
            str(tmp_path / "images"),
            "--method",
            "tent",
        ]
        flags += [
            "--loss",
            "adadem",
            "--accept",
            "true",
            "--device",
            device,
            "--out",
            str(tmp_path / device),
        ]
        monkeypatch.setattr(sys, "argv", ["seg.adapt", *flags])
        seg.adapt.main()
        files = sorted((tmp_path / device / "after").rglob("*labelIds.png"))
        found[device] = np.stack([np.array(Image.open(file)) for file in files])
    assert (found["cpu"] == found[GPU]).mean() > 0.99


@pytest.mark.parametrize("where", ["loss", "return"])
def test_policies_learn_on_a_gpu(where: str, tmp_path: Path) -> None:
    kind = with_entropy_objective(stable_baselines3.PPO, "adadem", where=where)
    model = kind(
        "MlpPolicy", "CartPole-v1", ent_coef=0.1, device=GPU, seed=0, n_steps=32, batch_size=32
    )
    model.learn(128)
    model.save(tmp_path / "model")
    again = kind.load(tmp_path / "model", device="cpu")
    for name, value in again.policy.state_dict().items():
        assert torch.equal(value, model.policy.state_dict()[name].cpu()), name
