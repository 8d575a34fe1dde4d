"""The tables of a report: final scores, checkpoints and classes, of one run or over the seeds of several settings.

What the scores are, and in which direction they are better, comes from the runs: :mod:`dem_apps.runtime.metrics_info`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dem_apps.report.groups import Group
from dem_apps.report.intervals import difference_interval, mean_and_std
from dem_apps.runtime.metrics_info import ClassColumn, ClassScores, Score
from dem_apps.runtime.run_reader import Run, at, number

#: A class with less than this share of the labelled pixels that are scored is a tail class.
TAIL_SHARE = 0.01


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


def scores_of(runs: Sequence[Run]) -> tuple[Score, ...]:
    """What the runs describe as their scores; of runs that describe none every number of ``eval.json`` by its key."""
    if runs[0].info.scores:
        return runs[0].info.scores
    keys = dict.fromkeys(key for run in runs for key, value in run.evaluation.items() if number(value) is not None)
    return tuple(Score(key, key) for key in keys)


def scores_table(scores: Sequence[Score], group: Group) -> Table:
    """The final scores of one setting, one a row: of its only run, or mean ± standard deviation and each seed's."""
    several = len(group.runs) > 1
    table = Table(
        "Final scores over seeds" if several else "Final scores",
        [("score", ""), *([("mean ± std", ""), *((f"seed {seed}", "") for seed in group.seeds)]
                          if several else [("value", "")])],
        note="Mean ± sample standard deviation." if several else "",
    )  # fmt: skip
    for score in scores:
        values = group.by_seed(_reader(score))
        if not values:
            continue
        cells = [Cell(_shown(values.get(seed), score)) for seed in group.seeds]
        std = None if several else group.runs[0].score(score.std)
        if several:
            cells.insert(0, _spread(list(values.values()), score))
        elif std is not None:
            cells = [Cell(f"{cells[0].main} ± {_shown(std, score)}")]
        table.rows.append((score.title, _note(score), cells))
    return table


def comparison_table(scores: Sequence[Score], groups: Sequence[Group], baseline: Group) -> Table:
    """Mean ± standard deviation over seeds of every score and setting, and the difference to the baseline's."""
    scores = [score for score in scores if any(group.by_seed(_reader(score)) for group in groups)]
    table = Table(
        "Final scores by setting",
        [("setting", "runs"), *((score.title, _note(score)) for score in scores)],
        note=f"Mean ± sample standard deviation over seeds. Small: difference to the baseline “{baseline.name}” "
        "with its 95 % confidence interval (Student's t over the seeds that both have, else Welch's); bold where it "
        "excludes 0. Nothing corrects for the number of comparisons." + _without_interval(groups, baseline),
    )
    for group in groups:
        cells = [_compared(score, group, baseline) for score in scores]
        table.rows.append((group.name, f"{len(group.runs)} run{'s' * (len(group.runs) > 1)}", cells))
    return table


def _without_interval(groups: Sequence[Group], baseline: Group) -> str:
    alone = [group.name for group in groups if group is not baseline and min(len(group.runs), len(baseline.runs)) < 2]
    if not alone:
        return ""
    which = "These differences have" if len(alone) == len(groups) - 1 else f"Those of {', '.join(alone)} have"
    return f" {which} no interval: a single seed does not tell them from chance."


def transposed(table: Table, corner: str) -> Table:
    """The same with its columns as rows."""
    columns = zip(table.header[1:], *(cells for _, _, cells in table.rows), strict=True)
    return Table(
        table.caption,
        [(corner, ""), *((name, mark) for name, mark, _ in table.rows)],
        [(name, note, cells) for (name, note), *cells in columns],
        table.note,
    )


def checkpoints_table(scores: Sequence[Score], run: Run) -> Table:
    """The run's checkpoints side by side: as ``eval.json`` has them, else as the files' names tell."""
    by_key = {score.key: score for score in scores}
    described = {checkpoint.name: checkpoint for checkpoint in run.info.checkpoints}
    header = ("checkpoint", "step", run.info.checkpoint_score, "chosen by")
    table = Table("Checkpoints", [(name, "") for name in header])
    for name in dict.fromkeys([*described, *run.checkpoints]):
        about = described.get(name)
        score = by_key.get(about.score) if about else None
        step = run.score(about.step) if about else None
        value = run.score(score.key) if score else None
        if value is None and step is None and name not in run.checkpoints:
            continue
        cells = [Cell("–" if step is None else f"{step:,.0f}"), Cell(_shown(value, score) if score else "–")]
        mark = score.note if score and score.warning else ""
        table.rows.append((name, mark, [*cells, Cell(about.chosen_by if about else "–", words=True)]))
    return table


def class_table(about: ClassScores, groups: Sequence[Group], tail: Sequence[str]) -> Table | None:
    """Scores by class as bars, one column per setting; None where no run has any."""
    scores = Score(about.key, about.title, scale=100, digits=1)
    names = list(dict.fromkeys(name for group in groups for run in group.runs for name in by_class(run, about.key)))
    if not names:
        return None
    shares = _label_shares([run for group in groups for run in group.runs], about.share)
    tails = set(tail) or {name for name, share in shares.items() if share < TAIL_SHARE}
    header = [("class", ""), *((group.name, "") for group in groups)]
    single = groups[0].runs[0] if len(groups) == 1 and len(groups[0].runs) == 1 else None
    columns = [(one, by_class(single, one.key)) for one in about.columns] if single is not None else []
    columns = [(one, values) for one, values in columns if values]
    if single is not None:
        header[1:] = [(about.title, ""), *((one.title, one.note) for one, _ in columns)]
    table = Table(f"{about.title.removesuffix(' %')} by class, %", header, note=_tail_note(about, shares, tail))
    for name in names:
        cells = [_class_cell(scores, group, name) for group in groups]
        cells += [_column_cell(one, values.get(name)) for one, values in columns]
        table.rows.append((name, "tail" if name in tails else "", cells))
    if tails & set(names):
        means = [group.by_seed(lambda run: _tail_mean(run, about.key, tails)) for group in groups]
        cells = [_spread(list(values.values()), scores) for values in means]
        table.rows.append(("mean over tail classes", "", cells + [Cell("")] * len(columns)))
    return table


def by_class(run: Run, key: str) -> dict[str, float | None]:
    """A mapping from classes to numbers; None for a class without one."""
    found = at(run.evaluation, *key.split("."))
    return {str(name): number(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _reader(score: Score) -> Callable[[Run], float | None]:
    return lambda run: run.score(score.key)


def _note(score: Score) -> str:
    return score.note or ", ".join(filter(None, (score.unit, f"{score.better} is better" if score.better else "")))


def _shown(value: float | None, score: Score) -> str:
    return "–" if value is None else score.text(value)


def _compared(score: Score, group: Group, baseline: Group) -> Cell:
    ours, theirs = group.by_seed(_reader(score)), baseline.by_seed(_reader(score))
    main = _spread(list(ours.values()), score).main
    if group is baseline:
        return Cell(main, "baseline")
    if not ours or not theirs:
        return Cell(main)
    interval = difference_interval(ours, theirs)
    estimate = score.text(interval.estimate, "+")
    if interval.low is None or interval.high is None:
        return Cell(main, estimate)
    verdict = ""
    if interval.excludes_zero and score.better:
        verdict = ", better" if (interval.estimate > 0) == (score.better == "higher") else ", worse"
    ends = f"[{score.text(interval.low, '+')}, {score.text(interval.high, '+')}]"
    return Cell(main, f"{estimate} {ends}{verdict}", strong=interval.excludes_zero)


def _spread(values: Sequence[float], score: Score) -> Cell:
    if not values:
        return Cell("–")
    mean, std = mean_and_std(values)
    return Cell(_shown(mean, score) + ("" if std is None else f" ± {_shown(std, score)}"))


def _label_shares(runs: Sequence[Run], key: str) -> dict[str, float]:
    """Share of each class in the labels, of the first run that has it."""
    for run in runs:
        shares = by_class(run, key)
        if shares:
            return {name: share for name, share in shares.items() if share is not None}
    return {}


def _class_cell(score: Score, group: Group, name: str) -> Cell:
    values = list(group.by_seed(lambda run: by_class(run, score.key).get(name)).values())
    cell = _spread(values, score)
    return Cell(cell.main, bar=min(1.0, max(0.0, mean_and_std(values)[0]))) if values else cell


def _column_cell(about: ClassColumn, value: float | None) -> Cell:
    return Cell("–") if value is None else Cell(f"{about.scale * value:.{about.digits}f}")


def _tail_mean(run: Run, key: str, tails: set[str]) -> float | None:
    values = [value for name, value in by_class(run, key).items() if name in tails and value is not None]
    return sum(values) / len(values) if values else None


def _tail_note(about: ClassScores, shares: dict[str, float], tail: Sequence[str]) -> str:
    if tail:
        return f"Tail classes are those named as such: {', '.join(tail)}."
    if shares:
        return f"Tail classes have less than {TAIL_SHARE:.0%} of the labelled pixels that the scores are from."
    return f"Tail classes are not marked: eval.json has no {about.share}; --tail CLASS,CLASS names them."
