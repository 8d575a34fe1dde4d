"""Runs of a grid kept in one file come back as they were, and the table says what they scored."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "kept_runs.py"


@pytest.fixture(scope="module")
def kept_runs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kept_runs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def a_run(grid: Path, name: str, miou: float, finished: bool = True) -> Path:
    folder = grid / name
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "last.pt").write_bytes(b"weights")
    (folder / "config.yaml").write_text("seed: 1\n")
    (folder / "environment.json").write_text("{}\n")
    (folder / "metrics.jsonl").write_text(
        '{"step": 1, "loss": 2.0}\n{"step": 2, "eval/miou": 0.25, "loss": 1.0}\n{"step": 3, "eval/mi'
    )
    if finished:
        scores = {"miou": miou, "per_class_iu": {"road": 2 * miou, "pole": 0.0, "train": None}}
        (folder / "eval.json").write_text(json.dumps(scores))
    return folder


def test_a_finished_run_comes_back_with_its_scores_and_evaluations_alone(kept_runs, tmp_path):
    run = a_run(tmp_path / "grid", "streets/best/seed1", 0.4)
    a_run(tmp_path / "grid", "streets/best/seed2", 0.5, finished=False)
    kept_runs.keep(tmp_path / "grid", tmp_path / "kept.jsonl")

    kept_runs.restore(tmp_path / "kept.jsonl", tmp_path / "again")

    assert [path.parent for path in (tmp_path / "again").rglob("eval.json")] == [tmp_path / "again/streets/best/seed1"]
    restored = tmp_path / "again" / "streets" / "best" / "seed1"
    for name in ("config.yaml", "eval.json", "environment.json"):
        assert (restored / name).read_bytes() == (run / name).read_bytes()
    assert (restored / "metrics.jsonl").read_text() == '{"step": 2, "eval/miou": 0.25}\n'
    assert not (restored / "checkpoints").exists()


def test_what_is_kept_stays_and_what_is_there_is_left_alone(kept_runs, tmp_path):
    a_run(tmp_path / "grid", "streets/best/seed1", 0.4)
    file = tmp_path / "kept.jsonl"
    kept_runs.keep(tmp_path / "grid", file)
    first = file.read_text()
    a_run(tmp_path / "other", "streets/best/seed1", 0.9)
    a_run(tmp_path / "other", "streets/best/seed2", 0.5)
    kept_runs.keep(tmp_path / "other", file)
    assert file.read_text().startswith(first)
    assert [json.loads(line)["run"] for line in file.read_text().splitlines()] == [
        "streets/best/seed1", "streets/best/seed2",
    ]  # fmt: skip

    (tmp_path / "other" / "streets" / "best" / "seed1" / "config.yaml").write_text("mine\n")
    kept_runs.restore(file, tmp_path / "other")
    assert (tmp_path / "other" / "streets" / "best" / "seed1" / "config.yaml").read_text() == "mine\n"


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside"])
def test_a_run_outside_of_the_grid_is_refused(kept_runs, tmp_path, name):
    (tmp_path / "kept.jsonl").write_text(json.dumps({"run": name, "config.yaml": "x"}) + "\n")
    with pytest.raises(SystemExit, match="line 1"):
        kept_runs.restore(tmp_path / "kept.jsonl", tmp_path / "grid")
    assert not (tmp_path / "outside").exists()


def test_the_table_pairs_seeds_and_leaves_out_classes_without_a_score(kept_runs, tmp_path, capsys):
    for seed, control, best in ((1, 0.30, 0.32), (2, 0.40, 0.44)):
        a_run(tmp_path / "grid", f"streets/control/seed{seed}", control)
        a_run(tmp_path / "grid", f"streets/best/seed{seed}", best)
    kept_runs.keep(tmp_path / "grid", tmp_path / "kept.jsonl")
    capsys.readouterr()

    kept_runs.table(tmp_path / "kept.jsonl", "control", None)
    # differences of 2 and 4 have a standard error of 1, and Student's t of one degree of freedom is 12.7
    assert capsys.readouterr().out.splitlines()[2:4] == [
        "| control | 35.0 (2 runs) |",
        "| best | 38.0, +3.0 [-9.7, +15.7] (2) |",
    ]
    kept_runs.table(tmp_path / "kept.jsonl", "control", ["road", "train"])
    assert capsys.readouterr().out.splitlines()[2] == "| control | 70.0 (2 runs) |"
    with pytest.raises(SystemExit, match="no run of 'contrl'"):
        kept_runs.table(tmp_path / "kept.jsonl", "contrl", None)
