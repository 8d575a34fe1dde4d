"""The tables of a report: final scores, checkpoints and classes, of one run or over the seeds of several settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dem_apps.report.groups import Group, Interval, against, mean_and_std
from dem_apps.report.run import Run, at, number

#: A class with less than this share of the labelled pixels is a tail class.
TAIL_SHARE = 0.01
LABELS_USED = "chosen with target labels"


@dataclass(frozen=True)
class Score:
    """One number of ``eval.json``.

    Args:
        title: its heading.
        keys: where it stands.
        scale: what it is multiplied with for display, such as 100 for per cent.
        digits: behind the point.
        note: said in small letters below the heading.
    """

    title: str
    keys: tuple[str, ...]
    scale: float = 1.0
    digits: int = 3
    note: str = ""

    def of(self, run: Run) -> float | None:
        """The displayed value, or None where the run has none."""
        value = number(at(run.evaluation, *self.keys))
        return None if value is None else self.scale * value


@dataclass(frozen=True)
class Cell:
    """A table cell: ``main`` and ``small`` below it; ``strong`` where an interval excludes 0; ``bar`` from 0 to 1;
    ``words`` where ``main`` is no number and may be wrapped.
    """

    main: str
    small: str = ""
    strong: bool = False
    bar: float | None = None
    words: bool = False


@dataclass(frozen=True)
class Table:
    """A table of the page.

    Args:
        caption: above it.
        header: of every column, with a note in small letters; the first names the rows.
        rows: the row's name, a mark behind it (or an empty text), and its cells.
        note: below it.
    """

    caption: str
    header: list[tuple[str, str]]
    rows: list[tuple[str, str, list[Cell]]] = field(default_factory=list)
    note: str = ""


SEG_SCORES = (
    Score("mean IoU %, last", ("miou",), 100, 2, "end of training"),
    Score("mean IoU %, selected", ("checkpoints", "selected", "miou"), 100, 2, "chosen by a label-free score"),
    Score("mean IoU %, best", ("checkpoints", "best", "miou"), 100, 2, LABELS_USED),
    Score("mean IoU %, best", ("best_miou_chosen_with_target_labels",), 100, 2, LABELS_USED),
    Score("pixel accuracy %", ("pixel_accuracy",), 100, 2),
    Score("mean entropy / log C", ("mean_entropy_normalised",), note="0 is certain, 1 is uniform"),
    Score("calibration error", ("calibration_error",), note="lower is better"),
    Score("error ranking, AUROC", ("error_ranking_auroc",), note="0.5 is chance"),
    Score("label-free: entropy", ("label_free", "entropy"), note="higher is better"),
    Score("label-free: IM", ("label_free", "im"), note="higher is better"),
    Score("label-free: SND", ("label_free", "snd"), note="nats, higher is better"),
    Score("largest class %", ("label_free", "largest_class_share"), 100, 1, "share of pixels; an alarm, no score"),
)
RL_SCORES = tuple(
    Score(f"{title}, {which}{actions}", (*keys, actions, name), scale, digits, note)
    for which, keys, note in (("", (), "last policy"), ("best policy, ", ("best",), "chosen by evaluation in training"))
    for title, name, scale, digits in (("return", "mean_return", 1, 3), ("success %", "success_rate", 100, 1))
    for actions in ("sampled", "greedy")
)


def scores_table(scores: Sequence[Score], run: Run) -> Table:
    """The final scores of one run, one a row."""
    table = Table("Final scores", [("score", ""), ("value", "")])
    for score in scores:
        value = score.of(run)
        if value is None:
            continue
        # the spread over episodes stands beside the mean in the file
        std = number(at(run.evaluation, *score.keys[:-1], "std_return")) if score.keys[-1] == "mean_return" else None
        spread = "" if std is None else f" ± {std:.{score.digits}f}"
        table.rows.append((score.title, score.note, [Cell(f"{value:.{score.digits}f}{spread}")]))
    return table


def comparison_table(scores: Sequence[Score], groups: Sequence[Group], baseline: Group) -> Table:
    """Mean ± standard deviation over seeds of every score and setting, and the difference to the baseline's."""
    scores = [score for score in scores if any(score.of(run) is not None for group in groups for run in group.runs)]
    table = Table(
        "Final scores by setting",
        [("setting", "runs"), *((score.title, score.note) for score in scores)],
        note=f"Mean ± sample standard deviation over seeds. Small: difference to the baseline “{baseline.name}” "
        "with its 95 % confidence interval (Student's t over the seeds that both have, else Welch's); bold where it "
        "excludes 0. Nothing corrects for the number of comparisons.",
    )
    for group in groups:
        cells = [_compared(score, group, baseline) for score in scores]
        table.rows.append((group.name, f"{len(group.runs)} run{'s' * (len(group.runs) > 1)}", cells))
    return table


def seeds_table(scores: Sequence[Score], group: Group) -> Table:
    """Mean ± standard deviation of one setting, and the score of each seed beside it."""
    runs = dict(zip(_seed_names(group), group.runs, strict=True))
    table = Table(
        "Final scores over seeds",
        [("score", ""), ("mean ± std", ""), *((f"seed {name}", "") for name in runs)],
        note="Mean ± sample standard deviation.",
    )
    for score in scores:
        values = [score.of(run) for run in runs.values()]
        found = [value for value in values if value is not None]
        if found:
            cells = [Cell("–" if value is None else f"{value:.{score.digits}f}") for value in values]
            table.rows.append((score.title, score.note, [_spread(found, score.digits), *cells]))
    return table


def transposed(table: Table, corner: str) -> Table:
    """The same with its columns as rows."""
    columns = zip(table.header[1:], *(cells for _, _, cells in table.rows), strict=True)
    return Table(
        table.caption,
        [(corner, ""), *((name, mark) for name, mark, _ in table.rows)],
        [(name, note, cells) for (name, note), *cells in columns],
        table.note,
    )


def checkpoints_table(run: Run) -> Table:
    """Last, selected and best side by side: as ``eval.json`` has them, else as the files' names tell."""
    listed = at(run.evaluation, "checkpoints")
    table = Table("Checkpoints", [("checkpoint", ""), ("step", ""), ("mean IoU %", ""), ("chosen by", "")])
    if run.kind != "seg":
        table.header[2] = ("return, sampled", "")
    for name in dict.fromkeys([*run.checkpoints, *(listed if isinstance(listed, dict) else {})]):
        step = at(listed, name, "step") if isinstance(listed, dict) else None
        step = step if number(step) is not None else run.checkpoints.get(name)
        cells = [Cell("–" if step is None else f"{step:,.0f}"), Cell(_checkpoint_score(run, name))]
        table.rows.append((name, _mark(run, name), [*cells, Cell(_chosen_by(run, name), words=True)]))
    return table


def class_table(groups: Sequence[Group], tail: Sequence[str]) -> Table | None:
    """IoU by class as bars, one column per setting; None where no run has any."""
    names = list(dict.fromkeys(name for group in groups for run in group.runs for name in _per_class(run)))
    if not names:
        return None
    shares = label_shares([run for group in groups for run in group.runs])
    tails = set(tail) or {name for name, share in shares.items() if share < TAIL_SHARE}
    table = Table(
        "IoU by class, %", [("class", ""), *((group.name, "") for group in groups)], note=_tail_note(shares, tail)
    )
    single = groups[0].runs[0] if len(groups) == 1 and len(groups[0].runs) == 1 else None
    if single is not None:
        table.header[1:] = [("IoU %", ""), ("entropy / log C", "of the pixels predicted as it")]
    for name in names:
        cells = [_class_cell(group, name) for group in groups]
        if single is not None:
            entropy = number(at(single.evaluation, "per_class_entropy", name))
            cells.append(Cell("–") if entropy is None else Cell(f"{entropy:.3f}", bar=entropy))
        table.rows.append((name, "tail" if name in tails else "", cells))
    if tails & set(names):
        means = [_values(group, lambda run: _tail_mean(run, tails)) for group in groups]
        cells = [_spread(list(values.values()), 1) for values in means]
        table.rows.append(("mean over tail classes", "", cells + [Cell("")] * (single is not None)))
    return table


def label_shares(runs: Sequence[Run]) -> dict[str, float]:
    """Share of each class in the labelled pixels, of the first run that has it."""
    for run in runs:
        shares = at(run.evaluation, "per_class_label_share")
        if isinstance(shares, dict):
            return {str(name): float(share) for name, share in shares.items() if number(share) is not None}
    return {}


def by_seed(group: Group, score: Score) -> dict[object, float]:
    """A score by seed; by the run's name where two runs of the group have one seed."""
    return _values(group, score.of)


def _values(group: Group, value_of: Any) -> dict[object, float]:
    values = {name: value_of(run) for name, run in zip(_seed_names(group), group.runs, strict=True)}
    return {key: value for key, value in values.items() if value is not None}


def _seed_names(group: Group) -> list[str]:
    seeds = [str(run.seed) for run in group.runs]
    return seeds if len(set(seeds)) == len(seeds) else [run.name for run in group.runs]


def _compared(score: Score, group: Group, baseline: Group) -> Cell:
    ours, theirs = by_seed(group, score), by_seed(baseline, score)
    cell = _spread(list(ours.values()), score.digits)
    if group is baseline:
        return Cell(cell.main, "baseline")
    if not ours or not theirs:
        return cell
    interval = against(ours, theirs)
    return Cell(cell.main, _difference(interval, score.digits), strong=interval.excludes_zero)


def _difference(interval: Interval, digits: int) -> str:
    text = f"{interval.difference:+.{digits}f}"
    if interval.low is None or interval.high is None:
        return f"{text} (too few seeds)"
    return f"{text} [{interval.low:+.{digits}f}, {interval.high:+.{digits}f}]"


def _spread(values: Sequence[float], digits: int) -> Cell:
    if not values:
        return Cell("–")
    mean, std = mean_and_std(values)
    return Cell(f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}"))


def _checkpoint_score(run: Run, name: str) -> str:
    if run.kind == "seg":
        miou = number(at(run.evaluation, "checkpoints", name, "miou"))
        if miou is None and name == at(run.evaluation, "checkpoint"):
            miou = number(at(run.evaluation, "miou"))
        if miou is None and name == "best":
            miou = number(at(run.evaluation, "best_miou_chosen_with_target_labels"))
        return "–" if miou is None else f"{100 * miou:.2f}"
    block = run.evaluation if at(run.evaluation, "checkpoint") == name else at(run.evaluation, name)
    mean = number(at(block, "mean_return"))
    return "–" if mean is None else f"{mean:.3f}"


def _mark(run: Run, name: str) -> str:
    used = at(run.evaluation, "checkpoints", name, "used_target_labels") is True
    # a seg run that never finished still has a best one, and only target labels can choose it
    return LABELS_USED if run.kind == "seg" and (used or name == "best") else ""


def _chosen_by(run: Run, name: str) -> str:
    told = at(run.evaluation, "checkpoints", name, "chosen_by")
    if isinstance(told, str):
        return told
    if name == "best":
        return "target labels" if run.kind == "seg" else "evaluation during training"
    return {"last": "end of training", "selected": "a label-free score"}.get(name, "–")


def _per_class(run: Run) -> dict[str, Any]:
    found = at(run.evaluation, "per_class_iu")
    return {str(name): value for name, value in found.items()} if isinstance(found, dict) else {}


def _class_cell(group: Group, name: str) -> Cell:
    values = [100 * iou for run in group.runs if (iou := number(_per_class(run).get(name))) is not None]
    cell = _spread(values, 1)
    return cell if not values else Cell(cell.main, bar=min(1.0, max(0.0, sum(values) / len(values) / 100)))


def _tail_mean(run: Run, tails: set[str]) -> float | None:
    values = [100 * iou for name in tails if (iou := number(_per_class(run).get(name))) is not None]
    return sum(values) / len(values) if values else None


def _tail_note(shares: dict[str, float], tail: Sequence[str]) -> str:
    if tail:
        return "Tail classes are those named with --tail."
    if shares:
        return f"Tail classes have less than {TAIL_SHARE:.0%} of the labelled pixels."
    return "Tail classes are not marked: eval.json has no per_class_label_share; --tail CLASS,CLASS names them."
