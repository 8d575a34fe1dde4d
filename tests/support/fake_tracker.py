"""A tracker in place of wandb's that keeps what it gets, and TensorBoard's scalars to compare it with."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def fake_wandb(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Stands for accelerate's tracker class, and says that wandb alone is installed; called, it gives one tracker."""
    kind = Mock(requires_logging_directory=False)
    kind.return_value.configure_mock(name="wandb", **{"tracker.id": "of-the-server"})
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "wandb", kind)
    monkeypatch.setattr("dem_apps.runtime.trackers.find_spec", lambda name: name == "wandb" or None)
    return kind


def assert_like_tensorboard(kind: Mock, run: Path) -> None:
    """The tracker got every scalar of every step that TensorBoard has, and was closed."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    shown = {(name, each.step): each.value for name in events.Tags()["scalars"] for each in events.Scalars(name)}
    calls = kind.return_value.log.call_args_list
    logged = {(name, each.kwargs["step"]): value for each in calls for name, value in each.args[0].items()}
    assert logged == pytest.approx(shown, nan_ok=True)
    assert shown
    kind.return_value.finish.assert_called()
