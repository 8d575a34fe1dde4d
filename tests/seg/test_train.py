import contextlib
import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from accelerate.state import AcceleratorState
from PIL import Image
from support import ROOT, cases, noise, refuses, save
from support.pages import explained, keys_of
from support.report_runs import page, text_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import seg.check
import seg.evaluate
import seg.train
import seg.training.setup
import seg.tune
from dem_apps.report.runs import read_run
from dem_apps.runtime.run_reader import read_metrics
from dem_apps.runtime.settings import parse_config
from seg import load
from seg.benchmark import BenchmarkConfig, grid_jobs
from seg.config import LOSSES, TrainConfig, resolve
from seg.data.labels import CITYSCAPES_CLASSES, load_classes
from seg.data.settings import SourceConfig, TargetDataConfig
from seg.methods import METHODS
from seg.methods.settings import OptimizerConfig
from seg.models.settings import PRETRAINED, package_file

#: What a method logs beside what every run does, for each head or once.
PER_HEAD = {"advent": ("target/fooling", "discriminator/loss")}
OWN = {
    method: {f"{name}_{head}" for name in names for head in ("main", "aux")}
    for method, names in PER_HEAD.items()
}
OWN["self-training"] = {
    f"target/{name}" for name in ("pseudo_label_weight", "pseudo_label_loss", "masked_consistency")
}


def metrics(run):
    return (run / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, tiny_flags):
    """The main job, once, on tiny data; and what it prints."""
    run = tmp_path_factory.mktemp("runs") / "adadem"
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        seg.train.main(["--loss", "adadem", "--run-dir", str(run), *tiny_flags])
    return run, printed.getvalue()


def test_the_run_folder_holds_what_is_promised(finished):
    run, printed = finished
    scores = json.loads((run / "eval.json").read_text())
    assert {
        "miou",
        "per_class_iu",
        "pixel_accuracy",
        "mean_entropy",
        "checkpoint",
        "protocol",
    } <= set(scores)
    assert list(scores["per_class_iu"]) == list(CITYSCAPES_CLASSES.names)
    assert 0 <= scores["miou"] <= 1
    assert scores["checkpoint"] == "last"
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert (config["loss"], config["max_steps"]) == ("adadem", 6)
    environment = json.loads((run / "environment.json").read_text())
    assert {"packages", "device", "seed", "git_commit"} <= set(environment)
    maps = sorted((run / "entropy_maps").glob("*.png"))
    assert len(maps) == 2
    assert Image.open(maps[0]).size[0] > 3 * 96
    tiles = {file.stem: Image.open(file).size for file in maps[0].with_suffix("").iterdir()}
    assert tiles["confidently-wrong"] == (96, 48)
    pictures = EventAccumulator(str(run)).Reload()
    assert [event.step for event in pictures.Images(f"entropy_maps/{maps[0].stem}")] == [3, 6]
    lines = [json.loads(line) for line in metrics(run).splitlines()]
    assert [line["step"] for line in lines if "val/miou" in line] == [3, 6]
    # so short a training may be told that classes are being lost
    assert all(
        "target/objective_main" in line for line in lines if not {"val/miou", "alarm"} & set(line)
    )
    classes = json.loads((run / "classes.json").read_text())["classes"]
    assert [row["name"] for row in classes] == list(CITYSCAPES_CLASSES.names)
    kept = scores["checkpoints"]
    assert kept.keys() == {"last", "selected", "best"}
    assert [name for name, row in kept.items() if row["used_target_labels"]] == ["best"]
    assert kept["best"]["miou"] >= kept["last"]["miou"] == scores["miou"]
    assert {path.name for path in (run / "checkpoints").iterdir()} == {
        "last.pt",
        "selected.pt",
        "best.pt",
    }
    assert "mean IoU" in printed
    for what in (
        "MinEnt + AdaDEM, balanced, rare class sampling",
        "6 source train, 5 target train, 4 target val",
    ):
        assert what in printed.partition("step 3/6")[0]
    assert printed.splitlines()[-1] == f"report:       python -m dem_apps.report {run}"


def test_every_key_is_explained(finished):
    run, _ = finished
    scores = json.loads((run / "eval.json").read_text())
    assert keys_of(scores, "label_free") == explained("Segmentation: `eval.json`")
    lines = [json.loads(line) for line in metrics(run).splitlines()]
    assert set().union(*lines, {"alarm"}, *OWN.values()) == explained(
        "Segmentation: `metrics.jsonl`"
    )


def test_the_run_describes_every_metric_that_it_writes_and_no_other(finished):
    run, _ = finished
    info = read_run(run).info
    named = {metric.name for metric in info.metrics}
    assert named | {"step", "alarm"} == explained("Segmentation: `metrics.jsonl`")
    scores = read_run(run).evaluation
    assert all(read_run(run).score(score.key) is not None for score in info.scores)
    described = {score.key.split(".")[0] for score in (*info.scores, *info.classes)}
    assert described | {"checkpoint", "protocol", "mean_entropy"} == set(scores)
    (folder, *_) = [entry for entry in (run / "entropy_maps").iterdir() if entry.is_dir()]
    assert {f"{view.name}.png" for view in info.views} == {file.name for file in folder.iterdir()}


def test_a_finished_run_resumes_to_its_own_scores(finished, run_here):
    run, _ = finished
    before = metrics(run), (run / "eval.json").read_text()
    said = run_here(seg.train.main, "--resume", run).out
    last = read_run(run).config["max_steps"]
    assert f"resumed  at step {last} of {last}" in said
    assert (metrics(run), (run / "eval.json").read_text()) == before
    longer = run_here(seg.train.main, "--resume", run, "--max-steps", "12", status=2).err
    assert f"; a new run goes on from its weights by --model.start-from {run}" in longer


@cases(
    ["--method", "source"],
    ["--method", "control"],
    ["--method", "minent"],
    ["--method", "advent", "--loss", "none", "--discriminator.channels", "4"],
    [
        "--method",
        "self-training",
        "--self-training.mask-ratio",
        "0.5",
    ],
)
def test_every_method_runs_in_the_same_loop(flags, tmp_path, tiny_flags, run_here):
    run, short = tmp_path / "run", ("--max-steps=2", "--eval-every=2", "--maps=0")
    run_here(seg.train.main, *tiny_flags, *flags, "--run-dir", run, *short)
    how = json.loads((run / "eval.json").read_text())["protocol"]
    assert how["method"] == flags[1]
    own = {"source": set(), "control": set(), "minent": set(), "advent": {"discriminator"}}
    assert set(how["method_options"]) == own.get(flags[1], {flags[1].replace("-", "_")})
    if flags[1] == "self-training":
        assert how["method_options"]["self_training"]["mask_ratio"] == 0.5
    logged = set(json.loads(metrics(run).splitlines()[0]))
    assert logged & set().union(*OWN.values()) == OWN.get(flags[1], set())


def test_bf16_stays_near_float32(tmp_path, tiny_config):
    plain = dataclasses.replace(tiny_config, optimizer=OptimizerConfig(name="sgd", lr=0.01))
    steps = []
    for precision in ("float32", "bf16"):
        run_dir = str(tmp_path / precision)
        run = seg.train.train(dataclasses.replace(plain, precision=precision, run_dir=run_dir))
        steps.append(read_metrics(run)[:2])  # without the scores, which count pixels
    exact, rounded = steps
    assert exact != rounded
    for one, other in zip(exact, rounded, strict=True):
        assert other == pytest.approx(one, rel=0.01)


def test_a_target_without_any_label_is_adapted_to_and_scored_without(
    tmp_path, tiny_pair, tiny_flags, run_here
):
    target, run = tmp_path / "target", tmp_path / "run"
    shutil.copytree(tiny_pair / "cityscapes" / "leftImg8bit", target / "leftImg8bit")
    printed = run_here(
        seg.train.main, *tiny_flags, "--target.root", target, "--run-dir", run, "--max-steps=3"
    ).out
    for said in (
        "4 target val without labels (scores are those that need none)",
        "label-free score 'im'",
        "label-free: information maximisation",
        "other commands take last",
    ):
        assert said in printed
    assert "IoU" not in printed
    assert "IoU" not in text_of(page(run))
    scores = json.loads((run / "eval.json").read_text())
    assert scores["miou"] is None
    assert {name: row["miou"] for name, row in scores["checkpoints"].items()} == {
        "last": None,
        "selected": None,
    }
    assert not any("val/miou" in line for line in read_metrics(run))
    assert sorted(file.name for file in next((run / "entropy_maps").glob("*/")).iterdir()) == [
        "entropy.png",
        "image.png",
        "overlay.png",
        "prediction.png",
    ]
    run_here(seg.evaluate.main, "--run", run, "--save-predictions", tmp_path / "predictions")
    assert len(list((tmp_path / "predictions").iterdir())) == 4
    search = [flag.replace("--", "--train.") for flag in tiny_flags]
    searched = run_here(seg.tune.main, *search, "--train.target.root", target, status=2).err
    assert (
        "the search compares mIoU, and this target's validation images have no labels" in searched
    )
    checked = run_here(seg.check.main, "check", *tiny_flags, "--target.root", target).out
    assert (
        f"note: target val: {target}: no labels, so training gives the unsupervised scores alone"
        in checked
    )


@cases(
    (("--source.root", "/nowhere"), "/nowhere does not exist"),
    (("--precision", "fp16"), "--precision: fp16 needs a GPU"),
    (("--model.encoder", "resnet19"), "did you mean 'resnet18'?"),
    (
        ("--model.encoder-weights", "x"),
        "'x' is neither a file nor one of imagenet, ssl, swsl, the weights of resnet18",
    ),
)
def test_bad_input_is_one_sentence_and_status_2(flags, sentence, tmp_path, tiny_flags, run_here):
    assert (
        sentence
        in run_here(
            seg.train.main, *tiny_flags, "--run-dir", tmp_path / "run", *flags, status=2
        ).err
    )
    assert not (tmp_path / "run").exists()


def test_the_second_gpu_is_the_one_that_trains(monkeypatch):
    # accelerate's own choice is the first; the device is named and not touched, so no machine has to have it
    monkeypatch.setattr(seg.training.setup, "torch_device", torch.device)
    assert seg.training.setup._accelerator("cuda:1", "float32").device == torch.device("cuda:1")
    AcceleratorState._reset_state(reset_partial_state=True)  # the next test may have no GPU


def test_the_demo_config_file_is_the_default():
    config = parse_config(TrainConfig, "x", "x", ["--config", str(ROOT / "configs/seg/demo.yaml")])
    assert config == TrainConfig()


def test_the_demos_best_arm_is_the_recipe():
    files = (ROOT / f"configs/seg/{name}.yaml" for name in ("best", "demo_benchmark"))
    recipe, grid = (yaml.safe_load(file.read_text()) for file in files)
    assert grid["arms"]["best"] == recipe


@pytest.mark.parametrize(
    "file", sorted((ROOT / "configs/seg").glob("*.yaml")), ids=lambda file: file.stem
)
def test_every_config_file_is_valid_and_names_its_command(file):
    if "arms:" in file.read_text():  # of a grid, whose trainings are checked one by one
        config = parse_config(BenchmarkConfig, "x", "x", ["--config", str(file)])
        tasks = dict(list(config.tasks.items())[-1:])  # all set the same keys
        cells = grid_jobs(dataclasses.replace(config, seeds=config.seeds[:1], tasks=tasks))
        assert {arm for _, arm in cells} == set(config.arms)
        assert (
            f"python -m seg.benchmark --config configs/seg/{file.name}"
            in file.read_text().splitlines()[2]
        )
        return
    config = parse_config(TrainConfig, "x", "x", ["--config", str(file)])
    assert config.objective in LOSSES
    assert config.method in METHODS
    assert "python -m seg.train" in file.read_text().splitlines()[0]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--config", "demo"],
        ["--config", "gta5_cityscapes_minent"],
        ["--method", "minent", "--loss", "none"],  # which is the control
        ["--loss", "adadem", "--weights.target-main", "null"],
    ],
    ids=" ".join,
)
def test_the_same_command_with_resume_continues(arguments, tmp_path):
    """The run has recorded what the command left open."""
    command = [*arguments, "--run-dir", str(tmp_path)]
    started = parse_config(TrainConfig, "x", "x", command).resolved()
    recorded = dataclasses.replace(started, batch_norm_after="target")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(dataclasses.asdict(recorded)))
    again = parse_config(TrainConfig, "x", "x", [*command, "--resume"])
    assert again == dataclasses.replace(recorded, resume=True)
    other = [*command, "--resume", "--max-steps", "3"]
    refuses("^--max-steps: .* was started with", parse_config, TrainConfig, "x", "x", other)


# -- two folders of photographs and nothing else said ---------------------------------------------------------------
IDS = np.repeat(np.array([[0, 1, 2]], np.uint8), 400, 0).repeat(200, 1)
ROOTS = (("source.root", "mine"), ("target.root", "theirs"))
COLOURS = np.array([[0, 0, 0], [0, 128, 255], [255, 0, 0]], np.uint8)
MASKS = {
    "colours": (
        COLOURS[IDS],
        "are pictures in 3 colours",
        ("colors", tuple(map(tuple, COLOURS.tolist()))),
    ),
    "yes and no": (IDS // 2 * 255, "hold the ids 0, 255", ("ids", (0, 255))),
}


@pytest.mark.parametrize("kind", MASKS)
def test_two_folders_are_all_that_is_needed(kind, run_here, tmp_path):
    mask, said, (key, expected) = MASKS[kind]
    for domain in ("mine", "theirs"):
        for number in range(4):
            image = save(
                tmp_path / domain / "images" / f"{number:05d}.jpg", noise(number, 600, 400)
            )
            if number != 1:
                save(tmp_path / domain / "labels" / f"{number:05d}.png", mask)
        image.write_bytes(image.read_bytes()[:-500])
    run, roots = tmp_path / "run", [f"--{name}={tmp_path / where}" for name, where in ROOTS]
    printed = run_here(
        seg.train.main, "--config", "best", *roots, "--max-steps", 2, "--maps", 0, "--run-dir", run
    ).out
    for line in (
        "target images are 600x400, seen here at 256x192 to be quick; --target.size 600,400 keeps them",
        f"the labels {said}",
        f"taken as {len(expected)} classes, since no --classes names them",
        f"source train: 1 of 4 images left out, damaged or cut short, or with such a label: {tmp_path}/mine/",
        "source train: 1 of 3 images have no label and are left out, such as",
        "imagenet weights" if package_file(PRETRAINED) else "random weights",
    ):
        assert line in printed
    assert getattr(load_classes(str(run / "classes.json")), key) == expected
    assert load(run, device="cpu").description.pixels.mean[0] == (
        0.5 if package_file(PRETRAINED) else 0.485
    )
    run_here(
        seg.evaluate.main, "--run", run, "--checkpoint", "last", "--out", tmp_path / "scores.json"
    )
    before, after = (
        json.loads(file.read_text()) for file in (run / "eval.json", tmp_path / "scores.json")
    )
    assert after["mean_entropy"] == pytest.approx(before["mean_entropy"], abs=1e-5)


@cases(
    ([{"HorizontalFlip": {"p": 0.5}}], [256, 192]),
    ([{"ColorJitter": {}}, {"GaussianBlur": {"p": 0.3}}], [256, 192]),  # both domains at one scale
    ([{"RandomCrop": {"height": 200, "width": 200}}], None),
)
def test_an_augmentation_sets_the_size_where_it_crops_or_resizes(augmentation, size, tmp_path):
    for folder in ("images", "labels"):
        save(tmp_path / folder / "a.png", noise(0, 600, 400))
    source = SourceConfig(str(tmp_path), augmentation=augmentation)
    config = TrainConfig(source=source, target=TargetDataConfig(str(tmp_path)))
    found, lines = resolve(config, "cpu")
    assert found.source == dataclasses.replace(source, size=size)
    assert found.target.size == [256, 192]
    assert len(lines) == 1 + (size is not None)
