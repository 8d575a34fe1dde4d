"""Whether ``--config best`` trains by MinEnt, by the rule of docs/results/best_adadem_again_registration.txt.

    python benchmarks/best_adadem_again.py

The rows are those of ``benchmarks/photograph_training.py`` with the arguments that the registration gives.
"""

from statistics import fmean

from csv_rows import RESULTS, CsvRows, interval, parser_of
from photograph_training import DEFAULT, KEYS, TITLES, by_rule, by_seed, plain

from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown

SEEDS = ("3", "4", "5", "6")
SOURCE, ENTROPY, ADADEM = "source", "rare, entropy", "rare, adadem"
ARMS = (SOURCE, DEFAULT, ENTROPY, ADADEM)
MEAN = "all pairs"
#: mIoU % by arm, pair and seed.
Scores = dict[str, dict[str, dict[str, float]]]


def complete(rows: CsvRows) -> bool:
    """Whether every row is there."""
    return len(rows.rows) == len(ARMS) * len(TITLES) * len(SEEDS)


def scores(rows: CsvRows) -> Scores:
    """The scores of complete rows, and by ``MEAN`` each seed's mean over pairs."""
    found = {
        arm: {
            pair: by_seed(rows, arm, pair, plain if arm == SOURCE else by_rule) for pair in TITLES
        }
        for arm in ARMS
    }
    for pairs in found.values():
        pairs[MEAN] = {seed: fmean(pairs[pair][seed] for pair in TITLES) for seed in SEEDS}
    return found


def table(found: Scores) -> str:
    """mIoU % of ``best``, and what entropy and AdaDEM add to it, with 95 % CIs over seeds."""
    lines = []
    for pair in (*TITLES, MEAN):
        means = (f"{fmean(found[arm][pair].values()):.1f}" for arm in (SOURCE, DEFAULT))
        differences = (
            interval(difference_interval(found[arm][pair], found[control][pair]))
            for arm, control in ((ENTROPY, DEFAULT), (ADADEM, DEFAULT), (ADADEM, ENTROPY))
        )
        lines.append([pair, *means, *differences])
    headings = ["source only", "best", "entropy − best", "AdaDEM − best", "AdaDEM − entropy"]
    return markdown(["pair", *headings], lines)


def decided(found: Scores) -> str:
    """The arm that ``--config best`` takes."""

    def serves(arm: str) -> bool:
        apart = {
            pair: difference_interval(found[arm][pair], found[DEFAULT][pair]) for pair in found[arm]
        }
        low = apart.pop(MEAN).low
        lost = [-each.estimate for each in apart.values()]
        above = low is not None and low > 0
        return above and sum(loss > 1 for loss in lost) <= 1 and max(lost) <= 3

    entropy, adadem = (fmean(found[arm][MEAN].values()) for arm in (ENTROPY, ADADEM))
    if serves(ADADEM) and adadem >= entropy:
        return ADADEM
    return ENTROPY if serves(ENTROPY) else DEFAULT


def main() -> None:
    """Print the table and the decision once every row is there."""
    parser_of(__doc__).parse_args()
    rows = CsvRows(RESULTS / "best_adadem_again.csv", KEYS)
    if complete(rows):
        found = scores(rows)
        print(table(found), f"best takes: {decided(found)}", sep="\n")
    else:
        print(f"not complete: {len(rows.rows)} of {len(ARMS) * len(TITLES) * len(SEEDS)} rows")


if __name__ == "__main__":
    main()
