"""Tables of the pages have the numbers of the raw rows in docs/results; sentences are free.

A table of a page is found by its headings. It may have fewer rows and columns than the table that is made from the raw
rows. Rows are matched by their first cell and columns by their heading, and the numbers in a cell have to be the same.
A table that leaves a page leaves :data:`TABLES` too.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import adapt_cost
import adapt_harm
import adapt_labelled
import adapt_rules
import adapt_step
import cifar_labels
import claims
import imagenet_corruptions
import long_streams
import minent_weights
import photograph_training
import pytest
import rates_figure
import stream_tables
from csv_rows import RESULTS, CsvRows
from support import ROOT, pages, result_tables
from support.result_tables import measured, rows

from dem_apps.report.tables import markdown
from seg.adaptation.decision import RECORD

README, ADAPTATION, APPENDIX = "README.md", "docs/adaptation.md", "docs/appendix.md"
TEST_TIME = "docs/test_time.md"
METHOD, BENCHMARKS, RL_ANSWER = "docs/method.md", "docs/benchmarks.md", "docs/rl_answer.md"


def keyed(name, keys):
    return CsvRows(RESULTS / f"{name}.csv", keys)


TRAINING = keyed("photograph_training", photograph_training.KEYS)
WEIGHTS = minent_weights.Rows(RESULTS / "minent_weights.csv")
HARM = keyed("adapt_harm", adapt_harm.KEYS)
LABELLED = keyed("adapt_labelled", adapt_labelled.KEYS)
RULES = adapt_rules.by_rule(RESULTS / "adapt_rules.csv")
STEP, BALANCED = (keyed(name, adapt_step.KEYS) for name in ("adapt_step", "adapt_step_balanced"))
LONG = [*long_streams.rows(), *long_streams.again()]
LABELS = keyed("cifar_labels", cifar_labels.KEYS)
ONE_PHOTOGRAPH = keyed("tpt_photographs", imagenet_corruptions.KEYS)


def streams(table):
    beds = ("cifar", "cifar_group_norm", "imagenet")
    return table([row for bed in beds for row in rows(f"{bed}_streams")])


def rates_table():
    return rates_figure.table(rates_figure.curves(RESULTS / "cifar_rates.csv"))


def tent_table():
    return stream_tables.table(claims.tent_on_cifar())


def camvid_table():
    """Images of the published data set, which is not here."""
    lines = [["camvid", "367", "233"], ["camvid-day", "577", ""], ["camvid-dusk", "62", "62"]]
    return markdown(["layout", "train", "val, which is scored"], lines)


class Compared(NamedTuple):
    """A table of a page."""

    page: str
    made: Callable[[], str]  #: the same table in Markdown, from raw rows
    #: headings of the cells that name a row; None: the first; (): its place
    keys: tuple[str, ...] | None = None


DEMO = "docs/segmentation.md"
TABLES = [
    Compared(DEMO, partial(result_tables.grid_table, "seg_demo", "source only")),
    Compared(README, partial(adapt_rules.groups_table, RULES)),
    Compared(README, partial(photograph_training.gains_table, TRAINING)),
    Compared(README, partial(minent_weights.confirmed_means, WEIGHTS)),
    Compared(README, result_tables.goal_table),
    Compared(ADAPTATION, partial(photograph_training.table, TRAINING)),
    Compared(ADAPTATION, partial(photograph_training.default_table, TRAINING)),
    Compared(ADAPTATION, partial(photograph_training.other_pairs_table, TRAINING)),
    Compared(ADAPTATION, partial(photograph_training.best_with_adadem_table, TRAINING)),
    Compared(ADAPTATION, partial(adapt_harm.table, HARM)),
    Compared(ADAPTATION, partial(adapt_rules.rules_table, RULES), ("pairs", "rule")),
    Compared(ADAPTATION, partial(adapt_rules.labels_table, RULES)),
    Compared(ADAPTATION, partial(adapt_labelled.table, LABELLED)),
    Compared(ADAPTATION, partial(adapt_step.table, STEP)),
    Compared(ADAPTATION, partial(adapt_step.balanced_table, BALANCED)),
    Compared(
        ADAPTATION, partial(adapt_cost.table, measured("adapt_cost")["rows"]), ("network", "images")
    ),
    Compared(APPENDIX, partial(photograph_training.table, TRAINING, most=False)),
    Compared(APPENDIX, partial(photograph_training.claim_table, TRAINING)),
    Compared(APPENDIX, partial(photograph_training.networks_table, TRAINING)),
    Compared(APPENDIX, partial(minent_weights.choice_table, WEIGHTS)),
    Compared(APPENDIX, partial(minent_weights.confirmed_table, WEIGHTS), ("pair", "arm")),
    Compared(APPENDIX, partial(imagenet_corruptions.table, ONE_PHOTOGRAPH)),
    Compared(APPENDIX, partial(streams, stream_tables.summary)),
    Compared(APPENDIX, partial(streams, stream_tables.controls_table)),
    Compared(APPENDIX, partial(long_streams.at_own_rates, LONG), ("network", "method")),
    Compared(APPENDIX, partial(long_streams.by_rate, LONG), ("network", "method", "rate")),
    Compared(APPENDIX, tent_table, ("method", "objective")),
    Compared(APPENDIX, partial(cifar_labels.of_table, LABELS, "labels", "accuracy")),
    Compared(APPENDIX, partial(cifar_labels.of_table, LABELS, "imbalance", "f1")),
    Compared(APPENDIX, result_tables.files_table, ("raw values",)),
    Compared(APPENDIX, result_tables.fresh_seeds_table),
    Compared(APPENDIX, camvid_table),
    Compared(METHOD, claims.table),
    Compared(TEST_TIME, rates_table),
    Compared(BENCHMARKS, result_tables.objectives_table),
    Compared(BENCHMARKS, result_tables.gpu_table),
    Compared(BENCHMARKS, result_tables.step_table),
    Compared(BENCHMARKS, result_tables.ppo_table),
    Compared(RL_ANSWER, result_tables.answers_table, ()),
]
#: Tables without results, by page and first heading.
WITHOUT_RESULTS = {
    (APPENDIX, "authors' code"),
    (METHOD, "paper"),
    (TEST_TIME, "method="),
    (DEMO, "command"),
    (DEMO, "policy"),
    (DEMO, "--self-training.…"),
}


@cache
def made(compared):
    (table,) = pages.tables(compared.made())
    return table


def on_page(page):
    return pages.tables((ROOT / page).read_text(encoding="utf-8"))


def has_columns_of(table, other):
    return table.headings[0] == other.headings[0] and set(table.headings) <= set(other.headings)


def name_of(compared):
    function = getattr(compared.made, "func", compared.made)
    return f"{compared.page} {function.__module__}.{function.__name__}"


@pytest.mark.parametrize("compared", TABLES, ids=name_of)
def test_the_cells_of_a_table_are_of_the_raw_rows(compared):
    raw = made(compared)
    found = [each for each in on_page(compared.page) if has_columns_of(each, raw)]
    assert len(found) == 1, (
        f"{len(found)} tables of {compared.page} have columns among {raw.headings}"
    )
    keys = raw.headings[:1] if compared.keys is None else compared.keys
    expected = raw.by_key(keys)
    for name, row in found[0].by_key(keys).items():
        assert name in expected, f"no raw rows of {name}"
        for heading, cell in row.items():
            assert pages.numbers(cell) == pages.numbers(expected[name][heading]), (
                name,
                heading,
                cell,
            )


@pytest.mark.parametrize("page", sorted({each.page for each in TABLES}))
def test_every_table_has_its_raw_rows(page):
    own = [made(compared) for compared in TABLES if compared.page == page]
    for table in on_page(page):
        is_known = any(has_columns_of(table, raw) for raw in own)
        assert is_known or (page, table.headings[0]) in WITHOUT_RESULTS, (
            f"no raw rows for {table.headings}"
        )


def test_what_seg_adapt_says_of_other_adaptations_is_of_the_raw_rows():
    assert adapt_rules.record(RULES[adapt_rules.STANDS]) == RECORD
