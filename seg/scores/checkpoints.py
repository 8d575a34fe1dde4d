"""Names of a run's checkpoints, and the record of the label-free score that selects one."""

from __future__ import annotations

CHECKPOINTS = ("auto", "last", "selected", "best")
#: The label-free score that selects a checkpoint: information maximisation. In the runs of
#: docs/results/seg_selection.csv it chose a better checkpoint than the last 13 times and a worse one once; minus the
#: entropy was worse 14 times, Soft Neighborhood Density 52 times, and neither ever better.
CRITERION, RECORD_RUNS, RECORD = "im", 57, (13, 1)
_RECORD = f"better than last in {RECORD[0]} of {RECORD_RUNS} runs, worse in {RECORD[1]}"
CHECKPOINT_HELP = (
    "auto: best, chosen by the target's validation labels, where it has any, else last; selected: chosen without "
    f"labels, {_RECORD}"
)


def chosen_by(checkpoint: str) -> str:
    """Describe how a checkpoint was chosen."""
    score = f"label-free score {CRITERION}; {_RECORD}"
    return {"selected": score, "best": "target labels"}.get(checkpoint, "end of training")
