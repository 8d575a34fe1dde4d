from __future__ import annotations

from typing import Any

import pytest

from seg.scores.checkpoint_selection import CheckpointSelector

SOURCE = {"road": 0.99, "rider": 0.01}


def scores(
    im: float, miou: float = 0.3, share: float = 0.4, entropy: float = 0.2, rider: float = 0.01
) -> dict[str, Any]:
    return {
        "miou": miou, "mean_entropy_normalised": entropy, "label_free": {"im": im, "largest_class_share": share},
        "predicted_share": {"road": 1.0 - rider, "rider": rider},
    }  # fmt: skip


def test_selected_follows_the_label_free_score_and_best_the_labels() -> None:
    selector = CheckpointSelector("im")
    assert selector.update(10, scores(im=0.5, miou=0.1)) == ["selected", "best"]
    assert selector.update(20, scores(im=0.6, miou=0.05)) == ["selected"]
    assert selector.update(30, scores(im=0.4, miou=0.2)) == ["best"]
    assert selector.update(40, scores(im=0.6, miou=0.2)) == []  # the earlier of equals stays
    table = selector.table(40, 0.2)
    assert {name: (row["step"], row["miou"]) for name, row in table.items()} == {
        "last": (40, 0.2), "selected": (20, 0.05), "best": (30, 0.2),
    }  # fmt: skip
    assert {name: row["used_target_labels"] for name, row in table.items()} == {
        "last": False, "selected": False, "best": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (scores(im=0.5), scores(im=0.4), None),
        (scores(im=0.1), scores(im=0.2, share=0.97), "97.0 % of the pixels are predicted as one class"),
        (scores(im=0.5), scores(im=0.4, entropy=0.001), "'im' falls (0.5000 to 0.4000)"),
        (scores(im=0.4), scores(im=0.5, entropy=0.001), None),
        (scores(im=0.4), scores(im=0.5, rider=0.031), "rare classes swell: rider 3.1 % of the pixels, over 3 times"),
        (scores(im=0.4), scores(im=0.5, rider=0.029), None),  # so much a class has for a while without an objective
    ],
)
def test_alarm(before: dict[str, Any], now: dict[str, Any], said: str | None) -> None:
    selector = CheckpointSelector("im")
    selector.update(10, before)
    assert selector.alarm(before, SOURCE) is None
    selector.update(20, now)
    alarm = selector.alarm(now, SOURCE)
    assert alarm is None if said is None else said in alarm


def test_classes_that_swell_count_together_where_each_has_a_hundredth() -> None:
    selector = CheckpointSelector("im")
    for train, alarmed in ((0.015, True), (0.009, False)):
        now = scores(im=0.5) | {"predicted_share": {"road": 0.9, "rider": 0.022, "train": train}}
        selector.update(10, now)
        assert ("rider 2.2 %, train 1.5 %" in str(selector.alarm(now, {"road": 1.0}))) == alarmed
        assert selector.alarm(now, {}) is None  # before a label was seen
