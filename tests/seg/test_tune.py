"""The search of tau and alpha. Kills and pruning: tests/dem_apps/jobs/test_search.py."""

import csv
import json
import re
import shlex

import pytest
import yaml
from PIL import Image
from support import ROOT, cases, refuses

from dem_apps.runtime.settings import parse_config
from dem_apps.runtime.signals import Stopped
from seg.config import TrainConfig
from seg.tune import main

DEMO = str(ROOT / "configs/seg/demo.yaml")


@pytest.fixture(scope="module")
def pair_flags(tiny_pair):
    return [
        "--train.source.root",
        str(tiny_pair / "gta5"),
        "--train.target.root",
        str(tiny_pair / "cityscapes"),
    ]


def test_a_trial_trains_scores_its_share_and_is_not_run_again(
    tmp_path, pair_flags, capfd, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    study = tmp_path / "s"
    command = [
        "--config",
        DEMO,
        "--study-dir",
        str(study),
        "--trials",
        "1",
        "--steps",
        "2",
        "--share",
        "0.5",
    ]
    main([*command, *pair_flags, "--train.reduction", "mean"])
    run = study / "trials" / "0000"
    trained = yaml.safe_load((run / "config.yaml").read_text())
    assert (trained["loss"], trained["tau"], trained["alpha"], trained["max_steps"]) == (
        "dem",
        1.0,
        1.0,
        2,
    )
    assert (trained["validation_part"], trained["reduction"], trained["maps"]) == (
        [0.0, 0.5],
        "mean",
        0,
    )
    row = next(csv.DictReader((study / "trials.csv").open()))
    assert float(row["miou"]) == json.loads((run / "eval.json").read_text())["miou"]
    assert Image.open(study / "search.png").size[0] > 500
    printed = capfd.readouterr().out
    assert "mIoU on 2 images of the target's validation set" in printed
    final = next(line for line in printed.splitlines() if line.startswith("next"))
    config = parse_config(TrainConfig, "x", "x", shlex.split(final)[4:])
    assert (config.loss, config.tau, config.alpha, config.validation_part) == (
        "dem",
        1.0,
        1.0,
        [0.5, 1.0],
    )
    assert (config.reduction, config.max_steps, config.target.root) == ("mean", 700, pair_flags[3])

    before = {path: path.stat().st_mtime_ns for path in (study / "trials").rglob("*")}
    main([*command, *pair_flags, "--train.reduction", "mean"])
    assert {path: path.stat().st_mtime_ns for path in (study / "trials").rglob("*")} == before
    refuses("train.reduction 'mean', not 'balanced'", main, [*command, *pair_flags])


def test_an_interrupted_search_says_how_it_goes_on(tmp_path, pair_flags, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dem_apps.jobs.search._run", interrupted)
    arguments = ["--study-dir", str(tmp_path / "my study"), *pair_flags]
    command = shlex.join(["python", "-m", "seg.tune", *arguments])
    with pytest.raises(
        Stopped, match=re.escape(f"interrupted; the same command continues: {command}")
    ):
        main(arguments)


@cases(
    (("--share", "0.99"), "the part 0.99 to 1 of 4 images is none"),
    (("--train.tau", "0.5"), "--train.tau: leave it out, the search finds it"),
    (("--train.validation-part", "0,0.5"), "--train.validation-part: leave it out, --share says"),
    (("--train.method", "source"), "--train.method: 'source' has no objective on target"),
    (("--max-steps", "3"), "--max-steps: is a flag of seg.train; write --train.max-steps"),
)
def test_bad_input_is_one_sentence_and_leaves_no_folder(flags, sentence, tmp_path, pair_flags):
    refuses(sentence, main, ["--study-dir", str(tmp_path / "s"), *pair_flags, *flags])
    assert not (tmp_path / "s").exists()
