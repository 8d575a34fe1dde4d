"""Pictures of the demo are drawn finer than its network's input; other images are unchanged."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from seg.config import SourceConfig, TargetDataConfig
from seg.data.domains import open_pair
from seg.demo.demo_pair import DemoPair
from seg.training.run import TrainingRun


@pytest.mark.parametrize("builtin", [True, False])
def test_only_the_demo_is_drawn_finer(builtin: bool, tiny_pair: DemoPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seg.data.domains._demo_pair", lambda _world: tiny_pair)
    roots = (None, None) if builtin else (str(tiny_pair.source_root), str(tiny_pair.target_root))
    pair = open_pair(SourceConfig(root=roots[0]), TargetDataConfig(root=roots[1]))
    sample = pair.target_val[1]
    assert sample.label is not None
    logits = torch.zeros(19, *sample.label.shape)
    logits[3, :, : logits.shape[2] // 2] = 1.0
    image, label, shown = TrainingRun._to_look_at(SimpleNamespace(pair=pair), 1, sample, logits)
    assert label is not None
    if not builtin:
        assert image is sample.image
        assert shown is logits
        return
    assert image.shape == (384, 768, 3)
    assert label.shape == shown.shape[1:] == (384, 768)
    assert set(np.unique(label)) <= {*range(19), 255}
    np.testing.assert_array_equal(shown.argmax(0)[:, :380] == 3, True)
    assert not (shown.argmax(0)[:, 400:] == 3).any()
