import csv
from operator import itemgetter
from pathlib import Path

from support.cases import cases

from seg.scores.checkpoints import CRITERION, RECORD, RECORD_RUNS, CheckpointSelector, chosen_by

SOURCE = {"road": 0.5, "sky": 0.49, "rider": 0.01}


def scores(im, miou=0.3, share=0.4, entropy=0.2, rider=0.01):
    return {
        "miou": miou, "mean_entropy_normalised": entropy, "label_free": {"im": im},
        "predicted_share": {"road": share, "sky": 1.0 - share - rider, "rider": rider},
    }  # fmt: skip


def test_selected_follows_the_label_free_score_and_best_the_labels():
    selector = CheckpointSelector()
    assert selector.update(10, scores(im=0.5, miou=0.1), None) == ["selected", "best"]
    assert selector.update(20, scores(im=0.6, miou=0.05), None) == ["selected"]
    assert selector.update(25, scores(im=0.9, miou=0.05), "rare classes swell") == []  # an alarm selects nothing
    assert selector.update(30, scores(im=0.4, miou=0.2), None) == ["best"]
    assert selector.update(40, scores(im=0.6, miou=0.2), None) == []  # the earlier of equals stays
    table = selector.table(40, 0.2)
    assert {name: (row["step"], row["miou"]) for name, row in table.items()} == {
        "last": (40, 0.2), "selected": (20, 0.05), "best": (30, 0.2),
    }  # fmt: skip
    assert {name: row["used_target_labels"] for name, row in table.items()} == {
        "last": False, "selected": False, "best": True,
    }  # fmt: skip


def test_the_record_of_label_free_choices_is_that_of_the_raw_values():
    with open(Path(__file__).parents[3] / "docs/results/seg_selection.csv", newline="") as file:
        rows = [{k: v if k == "run" else float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    runs = [[row for row in rows if row["run"] == name] for name in {row["run"] for row in rows}]
    assert len(runs) == RECORD_RUNS
    for criterion, counts in {CRITERION: RECORD, "entropy": (0, 14), "snd": (0, 52)}.items():
        gains = [max(run, key=itemgetter(criterion))["miou"] - max(run, key=itemgetter("step"))["miou"] for run in runs]
        assert (sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)) == counts
    assert chosen_by("selected") == "label-free score im; better than last in 13 of 57 runs, worse in 1"


@cases(
    (scores(im=0.5), scores(im=0.4), None),
    (scores(im=0.1), scores(im=0.2, share=0.97), "97.0 % of the pixels are predicted as one class"),
    (scores(im=0.5), scores(im=0.4, entropy=0.001), "'im' falls (0.5000 to 0.4000)"),
    (scores(im=0.4), scores(im=0.5, entropy=0.001), None),
    (scores(im=0.4), scores(im=0.5, rider=0.031), "rare classes swell: rider 3.1 % of the pixels, over 3 times"),
    (scores(im=0.4), scores(im=0.5, rider=0.029), None),  # so much a class has for a while without an objective,
)
def test_alarm(before, now, said):
    selector = CheckpointSelector()
    assert selector.alarm(before, SOURCE) is None
    selector.update(10, before, None)
    alarm = selector.alarm(now, SOURCE)
    assert alarm is None if said is None else said in alarm


def test_a_class_that_is_nearly_all_of_the_labels_as_well_is_no_alarm():
    """Background, of cracks: a collapse leaves less than a quarter of the labels' other pixels."""
    source = {"road": 0.985, "rider": 0.015}
    for share, alarmed in ((0.994, False), (0.998, True)):
        said = CheckpointSelector().alarm(scores(im=0.1, share=share, rider=1 - share), source)
        assert (said is not None) == alarmed


def test_classes_that_swell_count_together_where_each_has_a_hundredth():
    selector = CheckpointSelector()
    for train, alarmed in ((0.015, True), (0.009, False)):
        now = scores(im=0.5) | {"predicted_share": {"road": 0.9, "rider": 0.022, "train": train}}
        assert ("rider 2.2 %, train 1.5 %" in str(selector.alarm(now, {"road": 1.0}))) == alarmed
        assert selector.alarm(now, {}) is None  # before a label was seen
