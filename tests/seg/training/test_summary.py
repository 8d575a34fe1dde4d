"""The phrase that describes a run."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from seg.config import TrainConfig
from seg.training.summary import in_words, title


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
