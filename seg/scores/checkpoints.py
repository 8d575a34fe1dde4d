"""Names of a run's checkpoints, and how the label-free scores that choose one fared."""

from __future__ import annotations

CHECKPOINTS = ("auto", "last", "selected", "best")
#: Runs of docs/results/seg_selection.csv in which a label-free score chose a better checkpoint than the last, and in
#: which a worse one; elsewhere it chose the last. ``benchmarks/seg_selection.py --from-csv`` counts them.
RECORD_RUNS, RECORD = 57, {"im": (13, 1), "entropy": (0, 14), "snd": (0, 52)}
_BETTER, _WORSE = (", ".join(map(str, counts)) for counts in zip(*RECORD.values(), strict=True))
RECORDS = f"by {', '.join(RECORD)} better than last in {_BETTER} of {RECORD_RUNS} runs, worse in {_WORSE}"
CHECKPOINT_HELP = (
    "auto: best, chosen by the target's validation labels, where it has any, else last; selected: chosen without "
    f"labels, {RECORDS}"
)


def chosen_by(checkpoint: str, criterion: str) -> str:
    """Describe how a checkpoint was chosen, with the record of the label-free score ``criterion``."""
    better, worse = RECORD[criterion]
    score = f"label-free score {criterion}; better than last in {better} of {RECORD_RUNS} runs, worse in {worse}"
    return {"selected": score, "best": "target labels"}.get(checkpoint, "end of training")
