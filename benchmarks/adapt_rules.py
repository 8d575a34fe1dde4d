"""Replay rules of seg.adapt, without labels and with few, on recordings: tables of README and docs/adaptation.md.

    python benchmarks/adapt_rules.py [--bed WORK/bed]

Prints the tables of the rows in ``docs/results/adapt_rules.csv``; with the files of ``benchmarks/adapt_bed.py`` it
writes these rows anew, which takes a minute. Rules, draws and decision are registered in
``docs/results/adapt_rules_registration.txt``. A row is a pair of a network and a folder, and a rule; mIoU in per cent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import photograph_networks as ours
from adapt_bed import CHANGES, PUBLIC, Pair, read_pair
from csv_rows import RESULTS, CsvRows, Row, half, parser_of
from numpy.typing import NDArray
from scipy import stats

from dem_apps.report.tables import markdown
from seg.adaptation.decision import choose_share, decide, decide_with_labels, label_score
from seg.scores.evidence import Evidence
from seg.trained.adaptive_batch_norm import SHARES, best_share

Tables = NDArray[np.int64]
#: The rule of seg.adapt by the registered decision; ``crossing`` is "today" in the registration.
STANDS = "no test"
#: Pairs of README's table.
GROUPS = ("published, other streets", "ours, other cameras", "ours, made shifts", "no shift")
#: Labelled images of a draw, and draws.
LABELLED, DRAWS = (0, 4, 8), 20
#: Networks of at most so many classes have few; a change below −HARM is harm.
FEW_CLASSES, HARM = 3, 0.5
BOOTSTRAPS, ONE_SIDED = 10_000, 0.95
KEYS = ("network", "folder", "rule")
SCORES = (
    *("family", "shifted", "classes", "share", "accepted", "before", "after", "best"),
    *("draws accepted", "draws harmed", "mean change", "mean best"),
)


class Looks:
    """The evidence of a recorded pair at every share: by halves, on all images, and of each image."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        number = pair.tables.shape[1]
        middle = -(-number // 2)
        self.halves = [
            [views.evidence(half) for views in pair.views]
            for half in (slice(middle), slice(middle, None))
        ]
        self.whole = [views.evidence() for views in pair.views]
        self.own = [
            [views.evidence(slice(place, place + 1)) for place in range(number)]
            for views in pair.views
        ]

    def by_image(self, share: float, reference: Evidence) -> Tables:
        """(N, C, C) of a share, where an image's own stability score does not fall; else of the network as it is."""
        before, after = self.own[0], self.own[SHARES.index(share)]
        falls = [
            new.stability_score(reference) < old.stability_score(reference)
            for old, new in zip(before, after, strict=True)
        ]
        tables = self.pair.tables
        return np.where(np.array(falls)[:, None, None], tables[0], tables[SHARES.index(share)])


class Outcome(NamedTuple):
    """The decision of a rule on a pair."""

    share: float
    accepted: bool
    tables: Tables  #: (N, C, C) of the predictions that stand


def _halves(looks: Looks, refuses: bool = True, between: bool = False) -> Outcome:
    choice, second = choose_share(looks.halves), looks.halves[1]
    own = choice.by_halves
    apart = len(set(own)) == 2 and min(own) > 0
    accepted = choice.share > 0
    if refuses and not (between and apart):
        verdicts = [decide(second[0], second[SHARES.index(choice.share)])]
        # each half looks at the share that the other would choose
        verdicts += [
            decide(half[0], half[SHARES.index(share)])
            for share, half in zip(own, reversed(looks.halves), strict=True)
            if share
        ]
        accepted = accepted and all(verdict.adapt for verdict in verdicts)
    return _standing(looks, choice.share, accepted, second[0])


def _whole(looks: Looks) -> Outcome:
    scores = [look.stability_score(looks.whole[0]) for look in looks.whole]
    share = best_share(scores)
    accepted = share > 0 and decide(looks.whole[0], looks.whole[SHARES.index(share)]).adapt
    return _standing(looks, share, accepted, looks.whole[0])


def _average(looks: Looks) -> Outcome:
    outcome, tables = _halves(looks), looks.pair.tables
    if outcome.accepted and tables.shape[-1] <= FEW_CLASSES:
        return outcome._replace(tables=tables[-1])
    return outcome


def _standing(looks: Looks, share: float, accepted: bool, reference: Evidence) -> Outcome:
    tables = looks.by_image(share, reference) if accepted else looks.pair.tables[0]
    return Outcome(share, accepted, tables)


def _always(share: float) -> Callable[[Looks], Outcome]:
    """A rule that gives the same share to every image of every folder."""
    return lambda looks: Outcome(share, True, looks.pair.tables[SHARES.index(share)])


def _no_vote(looks: Looks) -> Outcome:
    share = choose_share(looks.halves).share
    return Outcome(share, share > 0, looks.pair.tables[SHARES.index(share)])


#: Those that are registered, the one without a vote by a registration of its own, then two that look at nothing.
RULES: dict[str, Callable[[Looks], Outcome]] = {
    "crossing": _halves,
    "whole": _whole,
    "no test": lambda looks: _halves(looks, refuses=False),
    "between": lambda looks: _halves(looks, between=True),
    "average": _average,
    "no vote": _no_vote,
    "always 0.3": _always(0.3),
    "always 1": _always(1.0),
}


def with_labels(looks: Looks, labelled: Sequence[int]) -> Outcome:
    """The outcome of ``seg.adapt --method bn --labels`` with labels of some images."""
    tables, second = looks.pair.tables, looks.halves[1]
    own = [[*tables[place, labelled]] for place in range(len(SHARES))]
    share = best_share([label_score(own[0], each).after for each in own])
    place = SHARES.index(share)
    verdict = decide_with_labels(decide(second[0], second[place]), label_score(own[0], own[place]))
    accepted = share > 0 and verdict.adapt
    return Outcome(share, accepted, tables[place if accepted else 0])


def scores(outcome: Outcome, tables: Tables, images: Sequence[int] | slice) -> dict[str, Any]:
    """The scores of an outcome on some of the images."""
    each = [ours.miou(tables[place][images]) for place in range(len(SHARES))]
    return {
        "share": outcome.share,
        "accepted": outcome.accepted,
        "before": each[0],
        "after": ours.miou(outcome.tables[images]),
        "best": max(each),
    }


def replayed(pair: Pair) -> Iterator[dict[str, Any]]:
    """The rows of a pair."""
    looks, tables = Looks(pair), pair.tables
    for rule, decided in RULES.items():
        yield {"rule": rule, **scores(decided(looks), tables, slice(None))}
    number, without = tables.shape[1], RULES[STANDS](looks)
    for count in LABELLED:
        draws = []
        for draw in range(DRAWS):
            order = np.random.default_rng(draw).permutation(number)
            outcome = with_labels(looks, order[:count]) if count else without
            draws.append(scores(outcome, tables, order[count or max(LABELLED) :]))
        yield {"rule": f"{count} labels", **draws[0], **over_draws(draws)}


def over_draws(draws: Sequence[Row]) -> dict[str, Any]:
    """Means and counts over the rows of all draws."""
    return {
        "draws accepted": sum(row["accepted"] for row in draws),
        "draws harmed": sum(row["accepted"] and change(row) < -HARM for row in draws),
        "mean change": fmean(map(change, draws)),
        "mean best": fmean(row["best"] - row["before"] for row in draws),
    }


def change(row: Row) -> float:
    """The change of mIoU in a row, in points."""
    return float(row["after"]) - float(row["before"])


def accepts(row: Row) -> bool:
    """Whether the adaptation of a row was accepted."""
    return str(row["accepted"]) == "True"


def confirms(row: Row) -> bool:
    """Whether a row is of a network that decides between the rules."""
    name = str(row["network"])
    return "_10" in name if name in PUBLIC else int(name[3:]) % 2 == 1


def bounds(accepted: Sequence[Row]) -> tuple[int, float, float]:
    """Count harmed pairs, and bound their rate from above: Clopper and Pearson's, and by a bootstrap of families."""
    harmful = np.array([change(row) < -HARM for row in accepted])
    test = stats.binomtest(int(harmful.sum()), len(harmful), alternative="less")
    _, families = np.unique([row["family"] for row in accepted], return_inverse=True)
    inside, lost = np.bincount(families), np.bincount(families, harmful)
    drawn = np.random.default_rng(0).integers(len(inside), size=(BOOTSTRAPS, len(inside)))
    rates = lost[drawn].sum(1) / inside[drawn].sum(1)
    exact = float(test.proportion_ci(ONE_SIDED).high)
    return int(harmful.sum()), exact, float(np.quantile(rates, ONE_SIDED))


def cells(rows: Sequence[Row]) -> list[str]:
    """Accepted, harmed, bounds in per cent, per cent kept, and the mean change (worst) of a rule's rows."""
    accepted = [row for row in rows if accepts(row)]
    count, exact, by_family = bounds(accepted)
    changes = [change(row) for row in rows]
    kept = sum(changes) / sum(float(row["best"]) - float(row["before"]) for row in rows)
    return [
        f"{len(accepted)} of {len(rows)}",
        f"{count}",
        f"{100 * count / len(accepted):.1f}",
        f"{100 * exact:.1f}, {100 * by_family:.1f}",
        f"{100 * kept:.0f}",
        f"{fmean(changes):+.1f} ({min(changes):+.1f})",
    ]


HEADS = ["accepted", "harmed", "%", "bound %, by families", "kept %", "mean (worst)"]


def rules_table(rows: Mapping[str, Sequence[Row]]) -> str:
    """Accepted, harmed and kept by each rule without labels, on the pairs that decide and on the others."""
    lines = []
    for title, counts in (
        ("decide", confirms),
        ("decide, few classes", lambda row: confirms(row) and int(row["classes"]) <= FEW_CLASSES),
        ("others", lambda row: not confirms(row)),
    ):
        lines += [
            [title, rule, *cells([row for row in rows[rule] if counts(row)])] for rule in RULES
        ]
    return markdown(["pairs", "rule", *HEADS], lines)


def groups_table(rows: Mapping[str, Sequence[Row]]) -> str:
    """README's table: means over networks of mIoU as it is and of changes by seg.adapt's rule and AdaBN (worst)."""

    def by_network(title: str, rule: str, number: Callable[[Row], float]) -> list[list[float]]:
        found: dict[str, list[float]] = {}
        for row in rows[rule]:
            if group_of(row) == title:
                found.setdefault(str(row["network"]), []).append(number(row))
        return [*found.values()]

    lines = []
    for title in GROUPS:
        before = by_network(title, STANDS, lambda row: float(row["before"]))
        cells = [f"{fmean(map(fmean, before)):.1f}"]
        for rule in (STANDS, "always 1"):
            changes = by_network(title, rule, change)
            cells.append(f"{half([*map(fmean, changes)])} ({min(map(min, changes)):+.1f})")
        lines.append([title, *cells])
    return markdown(["networks", "as it is", "adapted", "AdaBN"], lines)


def group_of(row: Row) -> str:
    """The group of :data:`GROUPS` to which a row belongs."""
    if str(row["network"]) in PUBLIC:
        return GROUPS[0]
    if str(row["shifted"]) != "True":
        return GROUPS[3]
    return GROUPS[2 if row["folder"] in CHANGES else 1]


def record(rows: Sequence[Row]) -> tuple[int, int, int]:
    """Accepted pairs, the harmed among them, and how many times as much is gained as lost in sum."""
    accepted = [change(row) for row in rows if accepts(row) and confirms(row)]
    harmed = sum(each < -HARM for each in accepted)
    gained, lost = (sum(max(sign * each, 0) for each in accepted) for sign in (1, -1))
    return len(accepted), harmed, round(gained / lost)


def labels_table(rows: Mapping[str, Sequence[Row]]) -> str:
    """The cells for 0, 4 and 8 labelled images, all pairs, draw 0; and the rate of harm and part kept in all draws."""
    lines = []
    for count in LABELLED:
        own = rows[f"{count} labels"]
        accepted, harmed, gained, best = (
            sum(float(row[name]) for row in own)
            for name in ("draws accepted", "draws harmed", "mean change", "mean best")
        )
        every = [f"{100 * harmed / accepted:.1f}", f"{100 * gained / best:.0f}"]
        lines.append([f"{count}", *cells(own), *every])
    return markdown(["labels", *HEADS, "harmed in all draws %", "kept in all draws %"], lines)


def by_rule(file: Path) -> dict[str, list[Row]]:
    """The rows of a file by their rule."""
    found: dict[str, list[Row]] = {}
    for row in CsvRows(file, KEYS).rows.values():
        found.setdefault(str(row["rule"]), []).append(row)
    return found


def main() -> None:
    """Replay the recordings where they are given, and print the tables."""
    parser = parser_of(__doc__, out=RESULTS / "adapt_rules.csv")
    parser.add_argument("--bed", type=Path)
    options = parser.parse_args()
    if options.bed is not None:
        options.out.unlink(missing_ok=True)
        rows = CsvRows(options.out, KEYS, SCORES)
        for file in sorted(options.bed.glob("*.npz")):
            pair = read_pair(file)
            facts = {
                "family": pair.family,
                "network": pair.network,
                "folder": pair.folder,
                "shifted": pair.shifted,
                "classes": pair.tables.shape[-1],
            }
            for row in replayed(pair):
                rows.add({**facts, **row})
    found = by_rule(options.out)
    print(rules_table(found), labels_table(found), groups_table(found), sep="\n")
    print(record(found[STANDS]))


if __name__ == "__main__":
    main()
