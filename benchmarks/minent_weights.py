"""Choose and confirm MinEnt's weight on photographs, with entropy and with AdaDEM: tables of docs/appendix.md.

    export OMP_NUM_THREADS=1
    python benchmarks/minent_weights.py --photographs PHOTOGRAPHS --work WORK --stage choose
    python benchmarks/minent_weights.py --photographs PHOTOGRAPHS --work WORK --stage halve
    python benchmarks/minent_weights.py --photographs PHOTOGRAPHS --work WORK --stage confirm [--seeds 3,4]
    python benchmarks/minent_weights.py --table

Registered in docs/results/minent_weights_registration.txt. PHOTOGRAPHS is the folder that
``benchmarks/photographs.py`` writes. Training and scores are those of ``benchmarks/photograph_training.py``
with its default network, and its rows of the same settings count. The same command continues with the missing rows.
Processes that make rows side by side have ``--seeds`` of their own, and an ``--out`` each if they share no disk.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from csv_rows import RESULTS, CsvRows, beside, interval, parser_of
from photograph_training import ARMS as MORE_ARMS
from photograph_training import (
    KEYS,
    SCORES,
    WEIGHT_CHOSEN_ON,
    Arm,
    Score,
    by_rule,
    folders,
    plain,
    settings,
    tail,
    weighing,
)
from photograph_training import scores as trained

from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown

OBJECTIVES, WEIGHTS, STEPS = ("entropy", "adadem"), (0.03, 0.1, 0.3), 300
#: The name says the weight, and ``constant`` where the source's cross-entropy does not scale it.
ARMS: dict[str, Arm] = {name: MORE_ARMS[name] for name in ("source", "advent none")}
for _loss in OBJECTIVES:
    ARMS[f"advent {_loss}"] = MORE_ARMS[f"advent {_loss}"]
    for _weight in WEIGHTS:
        ARMS[f"{_loss} {_weight:g}"] = weighing(_loss, _weight)
        ARMS[f"{_loss} {_weight:g}, constant"] = weighing(_loss, _weight, relative=False)
CONFIRMED_ON = ("dusk", "dusk → 0016E5", "Seq05VD → 0006R0")
ADVENT_ON = "dusk"
CONFIRM_SEEDS = range(3, 11)
Key = tuple[str, int]


class Rows:
    """The rows of this benchmark, and those of the older one with the same settings."""

    def __init__(self, out: Path) -> None:
        self.own = CsvRows(out, KEYS, SCORES)
        self.older = CsvRows(RESULTS / "photograph_training.csv", KEYS)

    def found(
        self, arm: str, pairs: tuple[str, ...], seeds: range, score: Score = plain
    ) -> dict[Key, float]:
        """Scores by pair and seed."""
        keys = [(pair, seed) for pair in pairs for seed in seeds]
        rows = {
            key: self.own.get(_row(arm, *key)) or self.older.get(_row(arm, *key)) for key in keys
        }
        return {key: score(row) for key, row in rows.items() if row is not None}

    def gain(self, arm: str, seeds: range) -> float | None:
        """Mean difference to source only over the pairs that choose; None where a row is missing."""
        ours, source = (self.found(each, WEIGHT_CHOSEN_ON, seeds) for each in (arm, "source"))
        if len(ours) < len(WEIGHT_CHOSEN_ON) * len(seeds):
            return None
        return fmean(score - source[key] for key, score in ours.items())

    def best(self, objective: str, among: list[str], seeds: range, count: int) -> list[str]:
        """The arms of an objective with the highest gains."""
        gains = {arm: self.gain(arm, seeds) for arm in among if arm.startswith(objective)}
        if None in gains.values():
            raise SystemExit(f"the stage before has rows missing: {gains}")
        return sorted(gains, key=lambda arm: gains[arm] or 0.0, reverse=True)[:count]

    def halved(self) -> list[str]:
        """The two best of each objective by seed 0."""
        return [arm for each in OBJECTIVES for arm in self.best(each, [*ARMS], range(1), 2)]

    def chosen(self) -> dict[str, str]:
        """Each objective's best arm by seeds 0 to 2."""
        halved = self.halved()
        return {each: self.best(each, halved, range(3), 1)[0] for each in OBJECTIVES}

    def asked(self, stage: str, seeds: Sequence[int]) -> list[tuple[str, str, int]]:
        """Arm, pair and seed of a stage's runs, seed by seed."""
        weighed = [arm for arm in ARMS if arm.startswith(OBJECTIVES)]
        if stage == "choose":
            return [(arm, pair, 0) for arm in ("source", *weighed) for pair in WEIGHT_CHOSEN_ON]
        if stage == "halve":
            arms = ("source", *self.halved())
            return [
                (arm, pair, seed) for seed in (1, 2) for arm in arms for pair in WEIGHT_CHOSEN_ON
            ]
        arms = ("source", *self.chosen().values())
        asked = [(arm, pair, seed) for seed in seeds for pair in CONFIRMED_ON for arm in arms]
        advent = [arm for arm in ARMS if arm.startswith("advent")]
        return asked + [(arm, ADVENT_ON, seed) for seed in seeds for arm in advent]


def _row(arm: str, pair: str, seed: int) -> dict[str, str | int]:
    return {"network": "fpn", "pair": pair, "arm": arm, "seed": seed, "steps": STEPS}


def choice_table(rows: Rows) -> str:
    """Differences to source only, mIoU points, of the settings that were tried: seed 0, then seeds 0 to 2."""
    lines = []
    for arm in ARMS:
        gains = [rows.gain(arm, seeds) for seeds in (range(1), range(3))]
        if arm.startswith(OBJECTIVES) and gains[0] is not None:
            lines.append([arm, *("" if gain is None else f"{gain:+.2f}" for gain in gains)])
    return markdown(["objective and weight", "seed 0", "seeds 0 to 2"], lines)


def confirmed_table(rows: Rows) -> str:
    """mIoU % of each pair and arm, and the difference to source only with its 95 % CI over seeds."""
    lines = []
    for pair in CONFIRMED_ON:
        for arm in ARMS:
            if seeds := by_seed(rows, arm, (pair,)):
                cells = [_cell(rows, arm, pair, score) for score in (plain, tail, by_rule)]
                lines.append([pair, arm, str(len(seeds)), *cells])
    return markdown(["pair", "arm", "seeds", "mIoU", "rare classes", "with the share"], lines)


def confirmed_means(rows: Rows) -> str:
    """mIoU % over the pairs that confirm, and differences with 95 % CIs over seeds, each seed's mean over the pairs."""
    entropy, adadem = rows.chosen().values()
    scores = {arm: by_seed(rows, arm, CONFIRMED_ON) for arm in ("source", entropy, adadem)}
    lines = []
    for title, arm, others in (
        ("source only", "source", ()),
        ("MinEnt", entropy, ("source",)),
        ("MinEnt + AdaDEM", adadem, ("source", entropy)),
    ):
        differences = [interval(difference_interval(scores[arm], scores[each])) for each in others]
        mean = f"{fmean(scores[arm].values()):.1f}"
        lines.append([title, mean, *differences, *[""] * (2 - len(others))])
    return markdown(
        ["streets at dusk and by day", "mIoU", "over source only", "over MinEnt"], lines
    )


def _cell(rows: Rows, arm: str, pair: str, score: Score) -> str:
    own, source = (by_seed(rows, each, (pair,), score) for each in (arm, "source"))
    return f"{fmean(own.values()):.1f}" if arm == "source" else beside(own, source)


def by_seed(rows: Rows, arm: str, pairs: tuple[str, ...], score: Score = plain) -> dict[int, float]:
    """The mean over the pairs by seed, for seeds that every pair has."""
    found = rows.found(arm, pairs, CONFIRM_SEEDS, score)
    complete = [seed for seed in CONFIRM_SEEDS if all((pair, seed) in found for pair in pairs)]
    return {seed: fmean(found[pair, seed] for pair in pairs) for seed in complete}


def main() -> None:
    """Train the missing rows of a stage, or print the tables."""
    parser = parser_of(__doc__, out=RESULTS / "minent_weights.csv")
    parser.add_argument("--photographs", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--stage", choices=("choose", "halve", "confirm"))
    parser.add_argument("--seeds", default=",".join(map(str, CONFIRM_SEEDS)))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows = Rows(options.out)
    if options.table:
        print(choice_table(rows), confirmed_table(rows), confirmed_means(rows), sep="\n")
        return
    seeds = [int(seed) for seed in options.seeds.split(",")]
    for arm, pair, seed in rows.asked(options.stage, seeds):
        row = _row(arm, pair, seed)
        if rows.own.get(row) or rows.older.get(row):
            continue
        run = options.work / "runs" / f"{pair}-{arm}-{seed}".replace(" ", "_").replace(",", "")
        shutil.rmtree(run, ignore_errors=True)
        roots = folders(options.photographs, options.work, pair)
        config = settings("fpn", ARMS[arm], roots, seed, STEPS, run)
        print(rows.own.add(row | trained(config)), flush=True)
        shutil.rmtree(run)


if __name__ == "__main__":
    main()
