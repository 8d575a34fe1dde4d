"""The phrase that describes a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from seg.config import TrainConfig
from seg.training.summary import in_words, title


@pytest.mark.parametrize(
    ("settings", "phrase"),
    [
        ({"method": "source"}, "trained on labelled source images alone"),
        (
            {"loss": "dem", "batch_norm_after": "target"},
            "trained on labelled source images; adapted to target images without labels by minent with the objective "
            "dem; batch norm statistics re-estimated on target images at the end",
        ),
    ],
)
def test_a_run_in_words(settings: dict[str, Any], phrase: str) -> None:
    assert in_words(replace(TrainConfig(), **settings), nn.BatchNorm2d(3)) == phrase


def test_style_rare_classes_and_labels_in_words() -> None:
    config = TrainConfig(loss="none")
    config = replace(config, source=replace(config.source, style="fourier", rare_class_temperature=0.01))
    config = replace(config, target=replace(config.target, labelled_part=0.5))
    assert in_words(config, nn.LayerNorm(3)) == (
        "trained on labelled source and target images; target images only pass through it; source images have the "
        "style of target images (fourier); images with rare classes are drawn more often; 0.5 of the target's training "
        "images have labels"
    )
    assert title(config) == "minent, no objective, fourier style, rare classes first, 0.5 of target labelled (beside)"
