from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stable-Baselines3 takes a GPU where there is one; that is ``tests/test_gpu.py``'s."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
