"""Tables of the pages that no benchmark prints, made from the raw rows in docs/results."""

import csv
import json
from functools import cache
from statistics import fmean, mode
from typing import Any

import rl_goal_test
from csv_rows import RESULTS, Row, interval
from scipy.stats import fisher_exact

from dem_apps.report.intervals import difference_interval, mean_interval
from dem_apps.report.tables import markdown
from support import pages

#: README's tasks, and the files of their runs; two draws of a seed are two runs.
GOAL_TASKS = {
    "DoorKey-5x5": ["rl_larger_weight_runs"],
    "DoorKey-6x6": ["rl_larger_weight_tasks_runs", "rl_larger_weight_again_runs"],
    "KeyCorridor": ["rl_larger_weight_tasks_runs", "rl_larger_weight_again_runs"],
    "PutNear": ["rl_putnear_runs"],
}
GOAL_ARMS = {"no term": "none", "entropy": "entropy 0.1", "AdaDEM": "adadem 0.1"}
#: Files of runs in the appendix, and the setting whose most frequent value the row's question names.
RUN_FILES = {
    "rl_paper_runs": "ent_coef",
    "rl_paper_steps_runs": "timesteps",
    "rl_default_command": "",
    "rl_coefficients_runs": "",
    "rl_robustness_runs": "",
    "rl_larger_weight_runs": "ent_coef",
    "rl_robustness_tasks_runs": "",
    "rl_larger_weight_tasks_runs": "ent_coef",
    "rl_larger_weight_again_runs": "",
    "rl_putnear_runs": "ent_coef",
    "rl_putnear_falling_runs": "ent_coef",
    "rl_entropy_in_return_short_runs": "",
    "rl_minatar_runs": "",
    "rl_breakout_runs": "",
    "rl_space_invaders_runs": "",
}
#: Arms of the registered comparison; the file holds those that chose their weights as well.
IN_RETURN = ("entropy-return", "adadem-return")
#: Arms on twenty fresh seeds of DoorKey-6x6, by their names on the page.
FRESH_ARMS = {
    "none": ["none"],
    "none, advantages not normalised": ["none, advantages as they are"],
    "entropy 0.1": ["entropy 0.1"],
    "AdaDEM 0.1": ["adadem 0.1"],
    "AdaDEM lin_0.1": ["adadem lin_0.1"],
    "AdaDEM-Norm 0.1; DEM 0.1": ["adadem-norm 0.1", "dem 0.1"],
    "CR-PPO 0.1": ["complexity 0.1"],
    "adaptive coefficient 0.1": ["adaptive-entropy 0.1"],
}


@cache
def rows(name: str) -> list[Row]:
    """The rows of a CSV file."""
    with (RESULTS / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@cache
def measured(name: str) -> dict[str, Any]:
    """A JSON file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


# Runs of PPO


def reached(task: str, arm: str, draws: int | None = None) -> list[bool]:
    """Whether each run of an arm reached the goal of one of README's tasks; of the first draws alone if so many."""
    found: list[bool] = []
    for file in GOAL_TASKS[task][:draws]:
        runs = [row for row in rows(file) if row["env"].startswith(f"MiniGrid-{task}")]
        if any(row["arm"] == arm for row in runs):
            found += rl_goal_test.arrivals(runs, arm).values()
    return found


def falling() -> tuple[list[bool], str]:
    """The same for AdaDEM on PutNear with a weight that falls to 0, and this weight."""
    runs = rows("rl_putnear_falling_runs")
    (weight,) = {row["ent_coef"] for row in runs}
    return [*rl_goal_test.arrivals(runs, f"adadem-{weight}").values()], weight


def goal_table() -> str:
    """README's: runs that reach the goal."""
    lines = []
    for task in GOAL_TASKS:
        found = [reached(task, arm) for arm in GOAL_ARMS.values()]
        lines.append([task, *(f"{sum(each)}/{len(each)}" for each in found)])
    at_goal, weight = falling()
    assert lines[-1][-1] == "0/0"  # there was no run at a fixed weight
    lines[-1][-1] = f"{sum(at_goal)}/{len(at_goal)} ({weight})"
    return markdown(["task", *GOAL_ARMS], lines)


def files_table() -> str:
    """The appendix's list of files: how many runs each holds."""
    lines = []
    for name, setting in RUN_FILES.items():
        runs = rows(name)
        if name == "rl_entropy_in_return_short_runs":
            runs = [row for row in runs if row["arm"] in IN_RETURN]
        value = mode(row[setting] for row in runs if row["loss"] != "none") if setting else ""
        lines.append([value, "", f"{len(runs)}", f"{name}.csv"])
    return markdown(["question", "FILE", "runs", "raw values"], lines)


def returns(
    name: str, arm: str, env: str = "", which: str = "sampled"
) -> dict[tuple[str, str], float]:
    """The last mean return of every run of an arm, by environment and seed."""
    runs = [row for row in rows(name) if row["arm"] == arm and env in row["env"]]
    return {(row["env"], row["seed"]): float(row[f"last_mean_return_{which}"]) for row in runs}


def fresh_seeds_table() -> str:
    """The appendix's: DoorKey-6x6 on twenty fresh seeds."""
    name, env = "rl_larger_weight_tasks_runs", "DoorKey-6x6"
    runs = [row for row in rows(name) if env in row["env"]]
    none = returns(name, "none", env)
    lines = []
    for title, arms in FRESH_ARMS.items():
        arrived = [[*rl_goal_test.arrivals(runs, arm).values()] for arm in arms]
        (counts,) = {f"{sum(each)} of {len(each)}" for each in arrived}
        apart = [difference_interval(returns(name, arm, env), none) for arm in arms]
        if arms == ["none"]:
            apart = [mean_interval([*none.values()])]
        text = "; ".join(f"{each.estimate:+.3f}" for each in apart)
        if len(apart) == 1:
            text += f" [{apart[0].low:+.3f}, {apart[0].high:+.3f}]"
        lines.append([title, counts, text])
    return markdown(
        [f"{env}, twenty fresh seeds", "at the goal", "sampled return, difference to none"], lines
    )


def answers_table() -> str:
    """The table of docs/rl_answer.md: the numbers of every row; its words are the page's."""
    tasks = rows("rl_larger_weight_tasks_runs")
    paper, grids = (
        rows("rl_paper_runs"),
        [rows("rl_robustness_runs"), rows("rl_robustness_tasks_runs")],
    )
    counts = {arm: reached("DoorKey-5x5", arm) for arm in GOAL_ARMS.values()}
    at_goal, weight = falling()
    rivals = [row for row in tasks if row["arm"] in ("complexity 0.1", "adaptive-entropy 0.1")]
    games = [rows("rl_breakout_runs"), rows("rl_space_invaders_runs")]
    longer = [row for row in tasks if row["arm"] in GOAL_ARMS.values()]
    longer_runs = (
        len(longer) + len(rows("rl_larger_weight_again_runs")) + len(rows("rl_putnear_runs"))
    )
    lines = [
        ["", _at_the_papers_weight(), f"{len(paper)}"],
        ["", f"of {2 * len({row['env'] for row in paper})} differences one excludes 0", ""],
        [
            "does 0.1 reach",
            " ".join(f"{sum(each)}" for each in counts.values()),
            f"{sum(map(len, counts.values()))}",
        ],
        ["", f"{_longer_tasks()} {_putnear()}", f"{longer_runs}"],
        ["", f"{weight}: {sum(at_goal)} of {len(at_goal)}", f"{len(at_goal)}"],
        [
            "",
            _in_the_return(),
            f"{sum(row['arm'] in IN_RETURN for row in rows('rl_entropy_in_return_short_runs'))}",
        ],
        ["", "up to 0.1, fail at 1", " ".join(f"{len(each)}" for each in grids)],
        ["", f"from {_least_losing_weight('complexity')} on", f"{len(grids[0])} {len(rivals)}"],
        ["", f"at 0.1: {_breakout()}; at 0.1", " ".join(f"{len(each)}" for each in games)],
    ]
    return markdown(["question", "answer", "runs"], lines)


def _at_the_papers_weight() -> str:
    """Differences of sampled returns to no term, means over tasks with their intervals over seeds; and the weight."""
    (weight,) = {row["ent_coef"] for row in rows("rl_paper_runs")}
    told = []
    none = returns("rl_paper_runs", "none")
    for arm in ("entropy", "adadem"):
        by_seed: dict[str, list[float]] = {}
        for run, value in returns("rl_paper_runs", arm).items():
            by_seed.setdefault(run[1], []).append(value - none[run])
        apart = mean_interval([fmean(each) for each in by_seed.values()])
        told.append(f"{apart.estimate:+.3f} [{apart.low:+.3f}, {apart.high:+.3f}]")
    return f"{', '.join(told)}, {weight}"


def _longer_tasks() -> str:
    """Runs at the goal with entropy, AdaDEM and no term on both tasks, and Fisher's exact test of the terms.

    The test has the first draw alone: draws of one seed are not independent.
    """
    every, first = (
        [
            reached("DoorKey-6x6", arm, draws) + reached("KeyCorridor", arm, draws)
            for arm in GOAL_ARMS.values()
        ]
        for draws in (None, 1)
    )
    none, *terms = [(sum(each), len(each) - sum(each)) for each in first]
    chance = max(fisher_exact([each, none])[1] for each in terms)
    none_of_all, *terms_of_all = [f"{sum(each)} of {len(each)}" for each in every]
    return f"{', '.join((*terms_of_all, none_of_all))}, {chance:.1g}"


def _putnear() -> str:
    """Runs at the goal of PutNear without a term and with entropy, and McNemar's exact test."""
    both = [reached("PutNear", arm) for arm in ("none", "entropy 0.1")]
    chance = pages.numbers(rl_goal_test.compared(rows("rl_putnear_runs"), "none", "entropy 0.1"))[
        -1
    ]
    return f"{', '.join(f'{sum(each)} of {len(each)}' for each in both)}, {chance}"


def _in_the_return() -> str:
    """Runs at the goal of both tasks, of twenty each; without a term those that were run beside them."""
    runs = [*rows("rl_entropy_in_return_short_runs"), *rows("rl_larger_weight_again_runs")]
    runs += [row for row in rows("rl_larger_weight_tasks_runs") if "KeyCorridor" in row["env"]]
    counts = []
    for arm in (*IN_RETURN, "none"):
        arrived = rl_goal_test.arrivals(runs, arm)
        by_task = [
            [at for (env, _), at in arrived.items() if task in env]
            for task in ("DoorKey-6x6", "KeyCorridor")
        ]
        assert [len(each) for each in by_task] == [20, 20]
        counts.append([sum(each) for each in by_task])
    entropy, adadem, none = counts
    return (
        f"{entropy[0]} and {entropy[1]} of 20, {adadem[0]} and {adadem[1]}, {none[0]} and {none[1]}"
    )


def _least_losing_weight(arm: str) -> str:
    """The least weight from which on an arm reaches the goal in at least two runs fewer than no term does."""
    runs = rows("rl_robustness_runs")
    none = sum(rl_goal_test.arrivals(runs, "none").values())
    weights = sorted(
        {float(row["ent_coef"]) for row in runs if row["arm"].startswith(f"{arm} ")}, reverse=True
    )
    least = ""
    for weight in weights:
        if sum(rl_goal_test.arrivals(runs, f"{arm} {weight}").values()) > none - 2:
            return least
        least = f"{weight}"
    return least


def _breakout() -> str:
    """Mean greedy returns with entropy, AdaDEM and no term."""
    arms = ("entropy 0.1", "adadem 0.1", "none")
    return ", ".join(
        f"{fmean(returns('rl_breakout_runs', arm, which='greedy').values()):.1f}" for arm in arms
    )


# Speed and memory


def objectives_table() -> str:
    """One forward and backward of a map: speed over the paper's code, time over cross-entropy, extra memory."""
    times, memory = measured("losses")["medians_ms"]["map"], measured("losses")["extra_memory"]
    names = {
        "paper's pseudo code": "paper's pseudo code",
        "ADVENT's entropy": "ADVENT's entropy",
        "F.cross_entropy": "F.cross_entropy",
        "adadem, plain equations": "adadem mean, reference",
        "adadem without a compiler": "adadem mean, eager",
        "adadem, default": "adadem mean, auto",
        "entropy, default": "entropy, auto",
    }
    lines = []
    for title, name in names.items():
        speed = times["paper's pseudo code"] / times[name]
        slower = times[name] / times["F.cross_entropy"]
        lines.append([title, f"{speed:.2f}x", f"{slower:.2f}x", f"{memory[name]:.2f}"])
    heads = [
        "speed over the paper's pseudo code",
        "time over cross-entropy",
        "extra memory / logits",
    ]
    return markdown(["", *heads], lines)


def gpu_table() -> str:
    """The same of larger logits on a GPU, in float32, and in bf16 the time over cross-entropy."""
    times = measured("losses_gpu")["medians_ms"]
    wide, narrow = times["large"], times["large, bf16"]
    names = {
        "paper's pseudo code": "paper's pseudo code",
        "adadem without Triton": "adadem mean, eager",
        "adadem, default": "adadem mean, auto",
    }
    lines = []
    for title, name in names.items():
        speed = wide["paper's pseudo code"] / wide[name]
        slower = [each[name] / each["F.cross_entropy"] for each in (wide, narrow)]
        lines.append([title, f"{speed:.2f}x", *(f"{each:.2f}x" for each in slower)])
    return markdown(["", "speed, float32", "time over cross-entropy", "bf16"], lines)


def step_table() -> str:
    """A training step beside ADVENT's plain loop."""
    times, memory = (
        measured("seg_step")["medians_ms"]["advent"],
        measured("seg_step")["peak_mib"]["advent"],
    )
    plain, lines = "plain loop, MinEnt", []
    for name in times:
        lines.append(
            [name, f"{times[plain] / times[name]:.2f}x", f"{memory[name] / memory[plain]:.2f}"]
        )
    return markdown(["training step", "speed over plain", "memory / plain"], lines)


def ppo_table() -> str:
    """PPO's training loop over SB3's."""
    found, later = measured("rl_throughput"), measured("rl_throughput_return")["results"]
    times = {name: f"{own['times_sb3']:.2f}" for name, own in found["results"].items()}
    beside = [
        f"{later[name]['times_sb3']:.2f}"
        for name in ("ours, adadem, in the return", "ours, adadem")
    ]
    lines = [
        [f"SB3 {found['machine']['stable_baselines3']} as published", times["SB3 as published"]],
        ["SBX (JAX)", times["SBX"]],
        [
            "ours, adadem",
            next(own for name, own in times.items() if name.startswith("ours, adadem")),
        ],
        ["the same, in the return (another run)", ", ".join(beside)],
    ]
    return markdown(["", "× SB3"], lines)


def grid_table(name: str, control: str) -> str:
    """Arms of a grid of ``seg.benchmark`` by the rows of its ``runs.csv``: mIoU, and the difference to the control."""
    arms: dict[str, dict[str, float]] = {}
    for row in rows(name):
        arms.setdefault(row["arm"], {})[row["seed"]] = 100 * float(row["miou"])
    lines = []
    for arm, scores in arms.items():
        difference = "" if arm == control else interval(difference_interval(scores, arms[control]))
        lines.append([arm, str(len(scores)), f"{fmean(scores.values()):.1f}", difference])
    return markdown(["arm", "seeds", "mIoU %", f"difference to {control}"], lines)
