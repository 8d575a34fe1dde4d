"""seg.benchmark: its jobs, its table, its mistakes. Kills and several commands: tests/dem_apps/jobs/test_grid.py."""

import csv
import re

import pytest
import yaml
from support import cases, refuses
from support.report_runs import STAND_IN, seg_run
from support.shell_job import train_by

from dem_apps.report.intervals import difference_interval
from dem_apps.runtime.settings import parse_config
from seg.benchmark import BenchmarkConfig, benchmark, grid_jobs, main


@pytest.fixture
def _stand_in(tmp_path, monkeypatch):
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    train_by(tmp_path / "stand_in.py", monkeypatch)
    for seed in range(3):
        seg_run(tmp_path / "none" / str(seed), 0.1 + 0.001 * seed, "none", seed)
        seg_run(tmp_path / "adadem" / str(seed), 0.2 + 0.002 * seed, "adadem", seed)


@pytest.fixture
def data(tiny_pair):
    return {
        "source": {"root": str(tiny_pair / "gta5")},
        "target": {"root": str(tiny_pair / "cityscapes")},
    }


def config(path, **changes):
    arms = {"control": {"loss": "none"}, "adadem": {"loss": "adadem"}}
    settings = {
        "arms": arms,
        "seeds": [0, 1, 2],
        "folder": str(path),
        "control": "control",
        "workers": 2,
    }
    return BenchmarkConfig(**{**settings, "train": {"max_steps": 20}, **changes})


def test_flags_of_nested_keys_are_all_kept_and_replace_single_keys_of_the_file(tmp_path):
    file = tmp_path / "grid.yaml"
    file.write_text(
        "train: {model: {name: fpn, depth: 5}, source.root: a}\narms: {a: {loss: none}}\n"
    )
    flags = [
        "--train.model.depth",
        "3",
        "--train.model.encoder=resnet18",
        "--train.source.root",
        "b",
        "--arms.a.loss=dem",
    ]
    found = parse_config(BenchmarkConfig, "seg.benchmark", "", ["--config", str(file), *flags])
    assert found.train == {
        "model": {"name": "fpn", "depth": 3, "encoder": "resnet18"},
        "source.root": "b",
    }
    assert found.arms == {"a": {"loss": "dem"}}


def test_null_leaves_an_arm_of_an_earlier_file_out(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text(
        f"folder: {tmp_path}/grid\narms: {{a: {{loss: none}}, b: {{loss: entropy}}}}\n"
    )
    second.write_text("seeds: [0]\narms: {a: null}\n")
    files = ["--config", str(first), "--config", str(second)]
    grid = parse_config(BenchmarkConfig, "seg.benchmark", "", files)
    assert [arm for _, arm in grid_jobs(grid)] == ["b"]


@pytest.mark.usefixtures("_stand_in")
def test_the_table_compares_arms_with_the_control_seed_by_seed(tmp_path, capsys):
    assert benchmark(config(tmp_path / "grid")) == {}
    runs = list(csv.DictReader((tmp_path / "grid/report/runs.csv").open()))
    assert [(row["arm"], row["seed"]) for row in runs] == [
        (arm, s) for arm in ("control", "adadem") for s in "012"
    ]
    assert (
        runs[4].items()
        >= {
            "row": "",
            "loss": "adadem",
            "miou": "0.202",
            "checkpoints.best.miou": "0.21200000000000002",
            "IoU % road": "0.9",
            "IoU % train": "",
            "label_free.im": "0.4",
        }.items()
    )
    # columns are aligned
    table = re.sub(" +", " ", (tmp_path / "grid/report/table.md").read_text())
    ours, theirs = ({s: base + s * step for s in range(3)} for base, step in ((20, 0.2), (10, 0.1)))
    interval = difference_interval(ours, theirs)
    shown = f"20.20 ± 0.20 (**{interval.estimate:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}], better**)"
    assert f"| adadem | 3 | {shown} |" in table
    printed = re.sub(" +", " ", capsys.readouterr().out).splitlines()
    first = printed.index(f"| adadem | 3 | {shown} |")
    assert printed[first - 3] == "| arm | seeds | mean IoU %, last |"
    assert max(map(len, printed[first - 3 : first + 1])) <= 80
    assert "| control | 3 | 10.10 ± 0.10 |" in table
    assert "mean IoU %, best (chosen with target labels) |" in table


@pytest.mark.usefixtures("_stand_in")
def test_tasks_are_a_second_axis(tmp_path):
    arms = {"a": {"loss": "none"}, "b": {"loss": "adadem"}}
    tasks = {name: {"max_steps": 20} for name in ("small", "large")}
    settings = config(tmp_path / "grid", tasks=tasks, arms=arms, seeds=[0], control="a")
    assert benchmark(settings) == {}
    assert (tmp_path / "grid/large/b/seed0/eval.json").is_file()
    # columns are aligned
    table = re.sub(" +", " ", (tmp_path / "grid/report/table.md").read_text())
    assert re.findall(r"^## (\w+)", table, flags=re.MULTILINE) == ["small", "large"]
    assert "| b | 1 | 20.00 (+10.00) |" in table


def test_a_grid_of_a_real_training(tmp_path, data, capsys):
    grid = tmp_path / "grid.yaml"
    train = {**data, "max_steps": 2, "eval_every": 2, "maps": 0, "model": {"encoder": "resnet18"}}
    arms = {"balanced": {"loss": "adadem"}}
    grid.write_text(
        yaml.safe_dump({"train": train, "arms": arms, "folder": str(tmp_path / "grid")})
    )
    main(["--config", str(grid), "--seeds", "0"])
    assert "1 of 1 runs; the report is in" in capsys.readouterr().out
    # what a run filled in is no other setting, nor is where it ran
    for more in ([], ["--report-only"]):
        grid.write_text(
            yaml.safe_dump(
                {"train": {**train, "workers": 1}, "arms": arms, "folder": str(tmp_path / "grid")}
            )
        )
        main(["--config", str(grid), "--seeds", "0", *more])
        assert "1 of 1 runs; the report is in" in capsys.readouterr().out
    (row,) = csv.DictReader((tmp_path / "grid/report/runs.csv").open())
    assert 0 < float(row["miou"]) < 1
    trained = yaml.safe_load((tmp_path / "grid/balanced/seed0/config.yaml").read_text())
    assert (trained["loss"], trained["max_steps"], trained["source"]["layout"]) == (
        "adadem",
        2,
        "auto",
    )


@cases(
    (
        {"arms": {}},
        "--config: needs a file that names arms, such as configs/seg/demo_benchmark.yaml",
    ),
    ({"control": "nothing"}, "--control: 'nothing' is not one of control, adadem"),
    ({"arms": {"control": {}, 0.001: {}}}, "arms: 0.001 cannot name a folder"),
    ({"tasks": {"../a": {}}}, "tasks: '../a' cannot name a folder"),
    ({"tasks": {"day": 3}}, "tasks, day: expected a mapping of settings such as {}, got 3"),
    ({"tasks": {"day": {"max_stesp": 3}}}, "day, control: unknown key 'max_stesp'; did you mean"),
    ({"train": {"run-dir": "x"}}, "control: leave 'run-dir' out, the grid sets it"),
    ({"report_only": True}, "no run of this grid is finished, so there is nothing to report"),
)
def test_mistakes_are_one_sentence_before_anything_runs(changes, message, tmp_path):
    refuses(re.escape(message), benchmark, config(tmp_path / "grid", **changes))
    assert not (tmp_path / "grid").exists()


def test_a_run_of_other_settings_is_refused(tmp_path):
    run = tmp_path / "adadem" / "seed1"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump({"loss": "adadem", "max_steps": 10}))
    refuses(r"--max-steps: .*seed1 was started with 10, not 20", grid_jobs, config(tmp_path))
    (run / "config.yaml").write_text("")
    refuses(r"seed1/config\.yaml: ", grid_jobs, config(tmp_path))
