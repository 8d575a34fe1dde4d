"""Files of weights run no code, whoever wrote them."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import seg.convert
from dem_apps.runtime.command import run_command


class Payload:
    """Makes the file ``marker`` when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("kind", ["pickle", "torch", "old torch"])
def test_weights_that_bring_code_are_refused_and_nothing_runs(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marker, file, content = tmp_path / "marker", tmp_path / "weights.pth", io.BytesIO()
    if kind == "pickle":
        content.write(pickle.dumps(Payload(marker)))
    else:
        state = {"conv1.weight": torch.zeros(2), "evil": Payload(marker)}
        torch.save(state, content, _use_new_zipfile_serialization=kind == "torch")
    file.write_bytes(content.getvalue())
    monkeypatch.setattr(sys, "argv", ["convert", "--advent", str(file), "--run-dir", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as left:
        run_command(seg.convert.main)
    assert left.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "weights.pth is no checkpoint" in line
    assert [path.name for path in tmp_path.iterdir()] == ["weights.pth"]
    with contextlib.suppress(Exception):
        torch.load(file, weights_only=False)
    assert marker.exists()  # opened without care it does run, so this test can fail
