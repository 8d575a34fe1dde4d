"""Single steps of ``seg.train``: a fresh state on a small network, images of a seed, and the comparison of weights."""

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import Tensor
from torch.nn import functional as F

from dem_apps.runtime.reproducibility import seed_everything
from seg.config import TrainConfig
from seg.methods.optimization import MicroBatch
from seg.models.settings import ModelConfig
from seg.trained.run_network import build_network
from seg.training.setup import build_state
from seg.training.step import TrainState

C, H, W = 4, 32, 64
MODEL = ModelConfig(encoder="resnet18", depth=3, output_stride=8)


def fresh(config: TrainConfig, seed: int = 0) -> TrainState:
    AcceleratorState._reset_state()
    accelerator = Accelerator(
        cpu=True, mixed_precision="bf16" if config.precision == "bf16" else "no"
    )
    seed_everything(seed)
    config = config.resolved()
    network = build_network(config.model, C)
    return build_state(config.for_network(network), network, C, accelerator)


def micro_batch(seed: int, images: int = 2) -> MicroBatch:
    """Labels in blocks of 8 × 8 pixels, without any in the first three rows."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(0, C, (images, H // 8, W // 8), generator=generator)
    label = label.repeat_interleave(8, 1).repeat_interleave(8, 2)
    label[:, :3] = 255
    source, target = (torch.randn(images, 3, H, W, generator=generator) for _ in range(2))
    draws = torch.randint(2**62, (images,), generator=generator)
    return MicroBatch(
        {"image": source, "label": label, "name": ["source"] * images, "draw": draws},
        {"image": target + 0.5, "name": ["target"] * images, "draw": draws + 1},
    )


def full_size(logits: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        head: F.interpolate(v, (H, W), mode="bilinear", align_corners=True)
        for head, v in logits.items()
    }


def assert_close(
    ours: dict[str, Tensor], expected: dict[str, Tensor], rtol: float = 1e-5, atol: float = 1e-7
) -> None:
    """The tensors of two state dicts."""
    for name, value in ours.items():
        torch.testing.assert_close(value, expected[name], rtol=rtol, atol=atol, msg=name)
