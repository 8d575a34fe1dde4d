"""Every number of README and of docs/adaptation.md is in a tested table or sentence, made of the raw rows."""

import csv
import json
import re
from functools import cache, partial
from statistics import fmean

import adapt_cost
import adapt_harm
import adapt_step
import cifar_labels
import claims
import imagenet_corruptions
import photograph_training
import pytest
import rl_goal_test
import stream_tables
from csv_rows import CsvRows, interval
from scipy.stats import fisher_exact
from support import ROOT

from dem_apps.report.intervals import difference_interval, mean_interval
from seg.adaptation.decision import RECORD

README, ADAPTATION, APPENDIX = "README.md", "docs/adaptation.md", "docs/appendix.md"
RL_ANSWER = "docs/rl_answer.md"
METHOD, TEST_TIME = "docs/method.md", "docs/test_time.md"
BEDS = ("cifar", "cifar_group_norm", "imagenet")
#: No results: versions, sizes, settings, and what is told of the shares and thresholds in the code.
SETTINGS = {
    README: "2025 3.11 5.6 1 0.8 0.1 95",
    ADAPTATION: "2 300 256 192 60 95 0 0.1 0.3 0.5 1 50 0.05 1.2 100 255 32 3 4 85 23 24 5 6 16 64",
}


@cache
def rows(name):
    with (ROOT / "docs" / "results" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def keyed(name, keys):
    return CsvRows(ROOT / "docs" / "results" / f"{name}.csv", keys)


TRAINING = keyed("photograph_training", photograph_training.KEYS)
HARM, LATER = (keyed(name, adapt_harm.KEYS) for name in ("adapt_harm", "adapt_harm_later"))
ONE_PHOTOGRAPH = imagenet_corruptions.table(keyed("tpt_photographs", imagenet_corruptions.KEYS))


def larger_weight():
    (weight,) = {row["ent_coef"] for row in rows("rl_larger_weight_runs") if row["arm"] != "none"}
    return f"Runs that reach the goal on MiniGrid, weight {weight}"


def reached(task, arm):
    """Whether each run of README's table reached the goal; two draws of a seed are two runs."""
    found = []
    for file in RL_TASKS[task]:
        runs = [row for row in rows(file) if row["env"].startswith(f"MiniGrid-{task}")]
        if arm in {row["arm"] for row in runs}:
            found += rl_goal_test.arrivals(runs, arm).values()
    return found


def at_the_goal():
    lines = []
    for task in RL_TASKS:
        cells = [f"{sum(found)}/{len(found)}" for arm in RL_ARMS if (found := reached(task, arm))]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    falling = rl_goal_test.arrivals(rows("rl_putnear_falling_runs"), "adadem-lin_0.1").values()
    return "\n".join(lines) + f" {sum(falling)}/{len(falling)} (lin_0.1) |"


def longer_tasks():
    """Both tasks' runs, and Fisher's exact test of both terms' against those without a term."""
    none, *terms = ([each for task in ("DoorKey-6x6", "KeyCorridor") for each in reached(task, arm)] for arm in RL_ARMS)
    entropy, adadem = terms
    chances = [fisher_exact([[sum(each), len(each) - sum(each)], [sum(none), len(none) - sum(none)]])[1]
               for each in terms]  # fmt: skip
    return (
        f"of the runs of DoorKey-6x6 and KeyCorridor {sum(entropy)} of {len(entropy)} arrive with entropy, "
        f"{sum(adadem)} of {len(adadem)} with AdaDEM, {sum(none)} of {len(none)} without (p = {max(chances):.1g})"
    )


def in_the_return():
    """Of twenty runs each; without a term on DoorKey-6x6 those that were run beside them."""
    runs = rows("rl_entropy_in_return_short_runs") + rows("rl_larger_weight_again_runs")
    runs += [row for row in rows("rl_larger_weight_tasks_runs") if row["env"].startswith("MiniGrid-KeyCorridor")]
    told = []
    for arm in ("entropy-return", "adadem-return", "none"):
        by_task = {"DoorKey-6x6": 0, "KeyCorridor": 0}
        for (env, _), arrived in rl_goal_test.arrivals(runs, arm).items():
            by_task[next(task for task in by_task if task in env)] += arrived
        told.append(" and ".join(map(str, by_task.values())))
    return "on DoorKey-6x6 and KeyCorridor {} of 20 arrive with entropy, {} with AdaDEM, {} without".format(*told)


def falling_weight():
    reached = rl_goal_test.arrivals(rows("rl_putnear_falling_runs"), "adadem-lin_0.1").values()
    return f"with AdaDEM at lin_0.1 {sum(reached)} of {len(reached)} arrive"


RL_ARMS = ("none", "entropy 0.1", "adadem 0.1")
#: README's tasks, and the rows of their runs.
RL_TASKS = {
    "DoorKey-5x5": ["rl_larger_weight_runs"],
    "DoorKey-6x6": ["rl_larger_weight_tasks_runs", "rl_larger_weight_again_runs"],
    "KeyCorridor": ["rl_larger_weight_tasks_runs", "rl_larger_weight_again_runs"],
    "PutNear": ["rl_putnear_runs"],
}


def nine_tasks():
    runs = rows("rl_paper_runs")
    assert len({row["env"] for row in runs}) == 9
    (weight,) = {row["ent_coef"] for row in runs}
    return f"At the paper's weight, {weight}, nothing changes on nine tasks."


def speed():
    losses = json.loads((ROOT / "docs" / "results" / "losses.json").read_text(encoding="utf-8"))
    times = losses["medians_ms"]["map"]
    ratio = times["paper's pseudo code"] / times["adadem mean, auto"]
    return f"speed: {ratio:.0f} times the paper's code"


def on_a_gpu():
    found = json.loads((ROOT / "docs/results/losses_gpu.json").read_text(encoding="utf-8"))["medians_ms"]
    paper, ours, common = (
        [found[shape][name] for shape in ("large", "large, bf16")]
        for name in ("paper's pseudo code", "adadem mean, auto", "F.cross_entropy")
    )
    return f"default | {paper[0] / ours[0]:.2f}x | {ours[0] / common[0]:.2f}x | {ours[1] / common[1]:.2f}x |"


def cracks():
    counts = {stage: [0, 0, 0, 0] for stage in ("before", "after")}
    for row in rows("adapted_cracks"):
        for stage, sums in counts.items():
            for index, count in enumerate(row[stage].split()):
                sums[index] += int(count)
    before, after = (mean_iou(sums) for sums in counts.values())
    losing = sum(mean_iou(row["after"].split()) < mean_iou(row["before"].split()) for row in rows("adapted_cracks"))
    return f"mIoU over {len(rows('adapted_cracks'))}: {before:.1f} → {after:.1f}; {losing} of them lose"


def mean_iou(counts):
    """Of two classes in per cent, from [label 0 found 0, 0 found 1, 1 found 0, 1 found 1]."""
    both_0, only_1, only_0, both_1 = map(int, counts)
    each = [hits / (hits + only_1 + only_0) for hits in (both_0, both_1) if hits + only_1 + only_0]
    return 100 * fmean(each)


def streams():
    by_rule = {}
    for row in rows("adapt_statistics"):
        by_rule.setdefault(row["rule"], {})[row["network"], row["folder"]] = float(row["miou"])
    changes = {
        share: [miou - by_rule["fixed 0.0"][pair] for pair, miou in by_rule[f"stream of 4, fixed {share}"].items()]
        for share in ("0.1", "0.3")
    }
    less, more = changes.values()
    return (
        f"of batches of four, 0.1 gains {fmean(less):.1f} (worst {min(less):.1f}; {len(less)} pairs), "
        f"0.3 loses {-fmean(more):.1f}"
    )


def classifier():
    noise = {row["bn_alpha"]: row["accuracy"] for row in rows("imagenet_streams")
             if row["corruption"] == "gaussian_noise" and row["method"] in ("none", "bn")}  # fmt: skip
    return f"Gaussian noise accuracy goes from {noise['']} to {noise['0.1']} by 0.1, to {noise['1.0']} by 1"


def photographs():
    ((images, size),) = {(row["images"], row["size"]) for row in rows("imagenet_streams")}
    return f"({images} ImageNet photographs at {size}×{size}"


def cost_of_one_photograph():
    (share,) = re.findall(r"^\| bn 0.1 .*\| -(\S+) \[-(\S+), -(\S+)\]", ONE_PHOTOGRAPH, flags=re.MULTILINE)
    return "costs EfficientNet-Lite0 {0} points of accuracy [{2}, {1}]".format(*share)


def record():
    """What the answer of seg.adapt says of other adaptations is of the rows that the page tells of."""
    taken = [row for found in (HARM, LATER) for row in adapt_harm.taken(adapt_harm.rows_of(found))]
    lost, exact, by_family = adapt_harm.bounds(taken)
    gained = sum(adapt_harm.change(each) > 0.5 for each in taken)
    assert (len(taken), gained, lost, round(100 * max(exact, by_family))) == RECORD
    return f"With {len(adapt_harm.rows_of(LATER))} later pairs {lost} of {len(taken)} adaptations lose more than 0.5"


def costs():
    return adapt_cost.table(json.loads((ROOT / "docs/results/adapt_cost.json").read_text(encoding="utf-8"))["rows"])


def thresholds():
    from seg.adaptation import decision

    return (
        f"below {decision.LEAST_SCORE} of the network's own stability score, {decision.LEAST_CLASSES} of its classes "
        f"or {decision.LEAST_ENTROPY} of its entropy"
    )


def gain(file, arm, control="control"):
    """Difference of mIoU % over pairs of world and seed."""
    found = {arm: {}, control: {}}
    for row in rows(file):
        place, name, seed = row["run"].split("/")
        if name in found:
            found[name][f"{place} {seed}"] = 100 * float(row["miou"])
    return difference_interval(found[arm], found[control])


def told(apart):
    assert apart.low is not None
    assert apart.high is not None
    return f"{apart.estimate:+.1f} [{apart.low:.1f}, {apart.high:.1f}]"


def few_labels():
    def mean(file, arm):
        return 100 * fmean(float(row["miou"]) for row in rows(file) if row["run"].startswith(f"{arm}/"))

    return (
        f"{mean('seg_labelled', '1-of-16/labels-beside'):.1f} mIoU % on drawn streets, where the best method without "
        f"labels has {mean('seg_worlds', 'demo/best'):.1f}"
    )


GAMMA = adapt_harm.change(adapt_harm.rows_of(HARM)["net02", "gamma 40"]["seg.adapt"])
PAIRS = f"{len(adapt_harm.rows_of(HARM))} pairs"
STEP, BALANCED = (keyed(name, adapt_step.KEYS) for name in ("adapt_step", "adapt_step_balanced"))
LABELS = keyed("cifar_labels", cifar_labels.KEYS)


def without_batch_norm():
    before, gains = {}, {"input": [], "encoder": []}
    for row in rows("adapt_without_batch_norm"):
        base = before.setdefault((row["network"], row["folder"]), float(row["miou"]))
        if row["chosen"] == row["shifted"] == "True":
            gains[row["way"]].append(float(row["miou"]) - base)
    own, inner = (f"{fmean(each):+.1f} (worst {min(each):+.1f})" for each in gains.values())
    return f"by the same rule gains {own}, of moments behind each of the encoder's convolutions {inner}"


def first_labelled():
    found = {(row["pair"], row["seed"], row["arm"]): float(row["miou"]) for row in rows("label_first")}
    seeds = [(pair, seed) for pair, seed, arm in found if arm == "ranked" and (pair, seed, "random") in found]
    changes = {}
    for pair, seed in seeds:
        changes.setdefault(pair, []).append(found[pair, seed, "ranked"] - found[pair, seed, "random"])
    mean = interval(mean_interval([fmean(each) for each in changes.values()]))
    return f"have over random ones {mean} over five pairs, {len(seeds)} of 25 runs"


#: What stands on a page, word for word.
TOLD = {
    README: [
        partial(adapt_harm.groups_table, HARM), record, lambda: PAIRS, partial(photograph_training.gains, TRAINING),
        cracks, larger_weight, at_the_goal, nine_tasks, speed,
    ],
    ADAPTATION: [
        *(partial(getattr(photograph_training, name), TRAINING) for name in ("table", "chosen_by", "confirmed")),
        partial(adapt_harm.table, HARM), partial(adapt_harm.by_image, HARM),
        partial(adapt_harm.accepted_table, HARM, LATER), lambda: PAIRS,
        lambda: f"discs under gamma: {GAMMA:+.1f}", lambda: f"{RECORD[2]} of {RECORD[0]}, bound {RECORD[3]} %",
        partial(adapt_step.table, STEP), partial(adapt_step.told, STEP), partial(adapt_step.confirmed, BALANCED),
        costs, without_batch_norm, streams, photographs, classifier, thresholds, few_labels,
    ],
    APPENDIX: [
        lambda: ONE_PHOTOGRAPH, first_labelled,
        partial(photograph_training.table, TRAINING, most=False),
        partial(photograph_training.claim_table, TRAINING), partial(photograph_training.networks_table, TRAINING),
        lambda: stream_tables.summary([row for bed in BEDS for row in rows(f"{bed}_streams")]),
        lambda: stream_tables.table(claims.tent_on_cifar()),
        *(partial(cifar_labels.of_table, LABELS, *of) for of in (("labels", "accuracy"), ("imbalance", "f1"))),
    ],
    METHOD: [claims.table],
    "docs/benchmarks.md": [on_a_gpu],
    TEST_TIME: [cost_of_one_photograph],
    RL_ANSWER: [longer_tasks, in_the_return, falling_weight],
}  # fmt: skip


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize(("page", "fragment"), [(page, each) for page, found in TOLD.items() for each in found])
def test_what_a_page_says_is_of_the_raw_rows(page, fragment):
    assert words(fragment()) in words((ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", SETTINGS)
def test_no_number_is_without_its_rows(page):
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    text = words(re.sub(r"`[^`]*`|\]\([^)]*\)", "", text))
    for fragment in TOLD[page]:
        text = text.replace(words(re.sub(r"`[^`]*`|\]\([^)]*\)", "", fragment())), "")
    text = re.sub(r"\b[A-Za-z][\w-]*\d[\w.]*", "", text)  # names such as ESPNetv2, Lite0
    left = set(re.findall(r"\d+(?:\.\d+)?", text)) - set(SETTINGS[page].split())
    assert not left
