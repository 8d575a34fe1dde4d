"""GTA5 → Cityscapes: the grid's settings, and docs/howto/gta5_cityscapes.md on a pair like the published files."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import asdict

import pytest
import torch
import yaml
from PIL import Image
from support import ROOT, pages

from dem_apps.runtime.checkpoint import load_checkpoint
from dem_apps.runtime.settings import parse_config
from seg.benchmark import BenchmarkConfig, grid_jobs
from seg.config import TrainConfig
from seg.data.labels import LABELS
from seg.data.street.figures import SOURCE_LOOK, target_look
from seg.data.street.world import draw_street

PAGE = ROOT / "docs/howto/gta5_cityscapes.md"
GRID = "gta5_cityscapes"
ARMS = {
    "source only": ("source", "none"),
    "MinEnt": ("minent", "entropy"),
    "MinEnt + AdaDEM": ("minent", "adadem"),
    "AdvEnt": ("advent", "none"),
    "AdvEnt + DEM*": ("advent", "dem"),
    "AdvEnt + AdaDEM": ("advent", "adadem"),
}
GTA5_SIZE, CITYSCAPES_SIZE = (1914, 1052), (2048, 1024)
#: The rehearsal trains two steps of a small network. The grid sees images at a quarter of the protocol's sizes.
SMALL_NETWORK = {"model.encoder": "resnet18", "model.encoder_weights": None}
SHORT = {"max_steps": 2, "eval_every": 2, "log_every": 1, "workers": 0, "maps": 1}
QUARTER_SIZES = {"source.size": [320, 180], "target.size": [256, 128]}


def test_an_arm_of_the_grid_trains_as_its_command_on_the_page_does():
    roots = ["--train.source.root", "$GTA5", "--train.target.root", "$CITYSCAPES"]
    grid = parse_config(BenchmarkConfig, "seg.benchmark", "", ["--config", GRID, *roots])
    single = [command.arguments for command in pages.commands(PAGE) if is_of_one_arm(command)]
    cells = grid_jobs(grid)
    assert [arm for _, arm in cells] == list(ARMS)
    for (_, arm), (first, *_), arguments in zip(cells, cells.values(), single, strict=True):
        of_grid, of_page = settings(first.flags), settings(arguments)
        assert of_page.pop("run_dir") is not None
        assert of_grid.pop("run_dir") is None
        assert of_grid == of_page, arm
        assert (of_grid["method"], of_grid["loss"]) == ARMS[arm]


def is_of_one_arm(command):
    trains_a_seed = command.module == "seg.train" and "--seed" in command.arguments
    return trains_a_seed and not any("best.yaml" in argument for argument in command.arguments)


def settings(arguments):
    return asdict(parse_config(TrainConfig, "seg.train", "", arguments).resolved())


def test_a_licence_plate_of_gta5_is_ignored(tmp_path):
    """GTA5's labels have 35 ids: Cityscapes' 0 to 33, and 34 for the licence plate, which Cityscapes stores as -1."""
    write_gta5(tmp_path / "GTA5", images=1)
    file = tmp_path / "GTA5/labels/00001.png"
    label = Image.open(file)
    label.paste(34, (0, 0, 20, 10))
    label.save(file)
    write_cityscapes(tmp_path / "Cityscapes")
    roots = ["--source.root", "GTA5", "--target.root", "Cityscapes"]
    command(tmp_path, "seg.data", "check", "--config", "gta5_cityscapes_minent", *roots)


@pytest.mark.slow
def test_the_steps_of_the_page_on_a_pair_with_the_sizes_and_names_of_the_published_files(tmp_path):
    write_gta5(tmp_path / "GTA5", images=3)
    write_cityscapes(tmp_path / "Cityscapes")
    roots = ["--source.root", "GTA5", "--target.root", "Cityscapes"]

    checked = command(tmp_path, "seg.data", "check", "--config", "gta5_cityscapes_minent", *roots)
    assert checked.rstrip().endswith("7 images checked, nothing wrong")

    small = {"seeds": [1], "train": {**SHORT, **SMALL_NETWORK, **QUARTER_SIZES}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    of_grid = [argument.replace("--", "--train.") for argument in roots]
    command(
        tmp_path,
        "seg.benchmark",
        "--config",
        GRID,
        "--config",
        "small.yaml",
        *of_grid,
        "--workers",
        "2",
    )
    check_grid(tmp_path / "runs/gta5-cityscapes")

    # the network is small; the sizes and everything else are the protocol's
    flags = [
        *roots,
        "--seed",
        "1",
        "--run-dir",
        "runs/minent-adadem",
        *as_flags({**SHORT, **SMALL_NETWORK}),
    ]
    command(tmp_path, "seg.train", "--config", "gta5_cityscapes_minent", "--loss", "adadem", *flags)
    run = tmp_path / "runs/minent-adadem"
    check_run(run, *ARMS["MinEnt + AdaDEM"], source=[1280, 720], target=[1024, 512])

    of_run = ["--run", "runs/minent-adadem", "--checkpoint", "last"]
    command(tmp_path, "seg.evaluate", *of_run, "--out", "minent-adadem.json")
    scores = json.loads((tmp_path / "minent-adadem.json").read_text())
    in_training = json.loads((run / "eval.json").read_text())
    assert scores["checkpoint"] == "last"
    assert scores["miou"] == pytest.approx(in_training["miou"], abs=1e-6)
    assert scores["per_class_iu"].keys() == in_training["per_class_iu"].keys()

    command(
        tmp_path, "seg.export", *of_run, "--images", "Cityscapes/leftImg8bit/val", "--out", "maps"
    )
    check_maps(tmp_path / "maps")

    arms = [f"runs/gta5-cityscapes/{arm.replace(' ', '-')}/seed1" for arm in ARMS]
    command(tmp_path, "dem_apps.report", *arms, "--out", "gta5.html")
    page = (tmp_path / "gta5.html").read_text()
    assert all(title in page for title in ("source only", "MinEnt + AdaDEM", "AdvEnt + DEM"))


def write_gta5(root, images):
    """GTA5's files: PNG images of 1914×1052 and palette labels whose indices are Cityscapes' label ids."""
    palette = [channel for label in LABELS for channel in label.color]
    for number in range(1, images + 1):
        image, label = drawn(SOURCE_LOOK, "train", number, GTA5_SIZE)
        label.putpalette(palette)
        save(image, root / f"images/{number:05d}.png")
        save(label, root / f"labels/{number:05d}.png")


def write_cityscapes(root):
    """Cityscapes' files: two images a split, labels of val, and labels of train that cannot be read."""
    cities = {"train": ("aachen", "bochum"), "val": ("frankfurt", "munster")}
    for split, names in cities.items():
        for number, city in enumerate(names):
            image, label = drawn(target_look(), split, number, CITYSCAPES_SIZE)
            frame = f"{split}/{city}/{city}_000000_000019"
            save(image, root / f"leftImg8bit/{frame}_leftImg8bit.png")
            label_file = root / f"gtFine/{frame}_gtFine_labelIds.png"
            save(label, label_file)
            label_file.with_name(f"{city}_000000_000019_gtFine_polygons.json").write_text("{}")
            if split == "train":
                label_file.write_bytes(b"training must not open this")
    (root / "license.txt").write_text("")


def drawn(look, split, number, size):
    """A street and its label ids, drawn at half the size."""
    width, height = size
    image, ids = draw_street(look, split, number, size=(width // 2, height // 2))
    return [
        Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST) for pixels in (image, ids)
    ]


def save(picture, file):
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.save(file, compress_level=1)


def command(folder, module, *arguments):
    """Run ``python -m MODULE`` in ``folder`` and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (
        f"{module} {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


def as_flags(values):
    return [
        f"--{key.replace('_', '-')}={json.dumps(value)}".replace('"', "")
        for key, value in values.items()
    ]


def check_grid(folder):
    """A run and a row of the tables for every arm, each trained as its name says."""
    with (folder / "report/runs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["method"], row["loss"]) for row in rows] == [
        (arm, *ARMS[arm]) for arm in ARMS
    ]
    table = (folder / "report/table.md").read_text()
    named = re.findall(r"^\| (.+?) +\| 1 ", table, flags=re.M)
    assert named == list(ARMS)
    for row in rows:
        run = folder / row["arm"].replace(" ", "-") / "seed1"
        check_run(
            run,
            row["method"],
            row["loss"],
            source=QUARTER_SIZES["source.size"],
            target=QUARTER_SIZES["target.size"],
        )
        assert float(row["miou"]) == json.loads((run / "eval.json").read_text())["miou"]
    (dem,) = [row["arm"] for row in rows if row["loss"] == "dem"]
    how = json.loads((folder / dem.replace(" ", "-") / "seed1/eval.json").read_text())["protocol"]
    assert how["options"] == {"tau": 0.6, "alpha": 1.3}


def check_run(run, method, loss, source, target):
    """The run's files, ADVENT's protocol in ``eval.json``, and class marginals that have moved."""
    for file in ("config.yaml", "metrics.jsonl", "environment.json", "checkpoints/best.pt"):
        assert (run / file).is_file(), file
    assert len(list((run / "entropy_maps").rglob("image.png"))) == SHORT["maps"]
    result = json.loads((run / "eval.json").read_text())
    assert {
        "miou",
        "per_class_iu",
        "pixel_accuracy",
        "mean_entropy",
        "checkpoint",
        "checkpoints",
    } <= result.keys()
    assert result["checkpoint"] == "last"
    assert len(result["per_class_iu"]) == 19
    how = result["protocol"]
    assert how["train_size"] == {"source": source, "target": target}
    assert (how["method"], how["step"]) == (method, SHORT["max_steps"])
    assert how["loss"] == (None if method == "source" else loss)
    assert how["upsampling"] == "bilinear, align_corners=True"
    assert how["score_size"].startswith("labels' own")
    assert how["batch_norm"].startswith("affine-frozen")
    assert (
        how["optimizer"].items()
        >= {"name": "sgd", "lr": 0.00075, "horizon": 250000, "power": 0.9}.items()
    )
    assert how["labelled_images"] == {"source": 3, "target": 0}
    assert how["network"]["output_stride"] == 8
    if method != "source":
        assert how["reduction"] == "mean" or loss == "none"
        assert how["weights"]["aux"] == 0.2
    if loss == "adadem":
        assert how["weights"]["target_main"] == 0.001
        check_class_marginals(load_checkpoint(run / "checkpoints", "last")["minent"])


def check_class_marginals(state):
    for head in ("main", "aux"):
        marginals = state[f"objectives.{head}.class_marginals"]
        assert marginals.shape == (19, 19)
        assert (marginals - 1 / 19).abs().max() > 1e-3
        torch.testing.assert_close(marginals.sum(dim=1), torch.ones(19))


def check_maps(folder):
    """Prediction and entropy map of each validation image, at the images' own size."""
    with (folder / "entropy.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 2
    for kind in ("entropy", "prediction"):
        maps = sorted(folder.rglob(f"*_{kind}.png"))
        assert [file.name for file in maps] == [
            f"{city}_000000_000019_leftImg8bit_{kind}.png" for city in ("frankfurt", "munster")
        ]
        assert all(Image.open(file).size == CITYSCAPES_SIZE for file in maps)
