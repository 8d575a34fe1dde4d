"""Reading training images at ADVENT's sizes: plain decoding and resizing beside our data set.

    python benchmarks/data.py [--threads 1] [--images 4] [--repeats 9] [--out docs/results/data.json]

The benchmark draws its own GTA5 (1914x1052, with labels) and Cityscapes (2048x1024, without) in a temporary folder:
the demo's street world, enlarged, with noise, so that the PNG files have the size of the real ones (2.3 MB each).
The contestants take turns; medians are compared within the run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from dem_apps.runtime.device import processor
from seg.data.datasets import SegmentationDataset
from seg.data.labels import LABEL_ID_PALETTE
from seg.data.pixel_format import IMAGENET_MEAN, IMAGENET_STD, normalised
from seg.demo.street.looks import CAMERA_STREET, GAME_STREET, Domain
from seg.demo.street.world import draw_street

Parts = tuple[Tensor, Tensor | None]
PLAIN, OURS = "plain PIL", "ours"
WORK = {"pixels": "uint8 image and train ids", "tensors": "the same as normalised float32 and int64 tensors"}
#: Standard deviation of the added noise, in grey levels; found by trying, for files of some 2.3 MB.
NOISE = 1.3


def write_images(root: Path, count: int) -> dict[str, SegmentationDataset]:
    """Files in both layouts at their real sizes, opened at ADVENT's."""
    for index in range(count):
        frame = f"train/stadt/stadt_{index:06d}_000019_leftImg8bit.png"
        _draw(
            GAME_STREET,
            index,
            (1914, 1052),
            root / f"gta5/images/{index:05d}.png",
            root / f"gta5/labels/{index:05d}.png",
        )
        _draw(CAMERA_STREET, index, (2048, 1024), root / f"cityscapes/leftImg8bit/{frame}", None)
    return {
        "GTA5 1914x1052 to 1280x720, with label": SegmentationDataset(
            root / "gta5", "gta5", "train", labelled=True, size=(1280, 720)
        ),
        "Cityscapes 2048x1024 to 1024x512": SegmentationDataset(
            root / "cityscapes", "cityscapes", "train", labelled=False, size=(1024, 512)
        ),
    }


def _draw(domain: Domain, index: int, size: tuple[int, int], image_file: Path, label_file: Path | None) -> None:
    picture, ids = draw_street(domain, "train", index, size=(480, 240))
    enlarged = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BICUBIC), np.float32)
    noise = np.random.default_rng(index).normal(0.0, NOISE, enlarged.shape[:2])[..., None]
    image_file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.clip(enlarged + noise, 0, 255).round().astype(np.uint8)).save(image_file)
    if label_file is not None:
        label = Image.fromarray(ids).resize(size, Image.Resampling.NEAREST)
        label.putpalette(LABEL_ID_PALETTE)
        label_file.parent.mkdir(parents=True, exist_ok=True)
        label.save(label_file)


def plain(dataset: SegmentationDataset, index: int, tensors: bool) -> Any:
    """What a plain data set class does: decode, resize, look the labels up, normalise by arithmetic."""
    image_file, label_file = dataset.files[index]
    assert dataset.size is not None
    image = np.asarray(Image.open(image_file).convert("RGB").resize(dataset.size, Image.Resampling.BICUBIC))
    label = None
    if label_file is not None:
        label = dataset.train_ids[np.asarray(Image.open(label_file).resize(dataset.size, Image.Resampling.NEAREST))]
    if not tensors:
        return image, label
    mean, std = np.array(IMAGENET_MEAN, np.float32), np.array(IMAGENET_STD, np.float32)
    scaled = (image.astype(np.float32) / 255.0 - mean) / std
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(2, 0, 1))), _label_tensor(label)


def ours(dataset: SegmentationDataset, index: int, tensors: bool) -> Any:
    """What training does without augmentation."""
    sample = dataset[index]
    return (normalised(sample.image), _label_tensor(sample.label)) if tensors else (sample.image, sample.label)


def _label_tensor(label: NDArray[np.uint8] | None) -> Tensor | None:
    return None if label is None else torch.from_numpy(label.astype(np.int64))


def measure(dataset: SegmentationDataset, repeats: int, tensors: bool) -> dict[str, list[float]]:
    """Seconds per image of each contestant, one number a repeat; contestants take turns."""
    contestants: dict[str, Callable[..., Any]] = {PLAIN: plain, OURS: ours}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for repeat in range(repeats + 1):
        for name, read in contestants.items():
            started = time.perf_counter()
            for index in range(len(dataset)):
                read(dataset, index, tensors)
            if repeat:  # the first round warms up
                times[name].append((time.perf_counter() - started) / len(dataset))
    return times


def check_equal(dataset: SegmentationDataset) -> None:
    """All contestants must give the same numbers, or their times mean nothing."""
    (image, label), (expected, its) = ours(dataset, 0, True), plain(dataset, 0, True)
    if not torch.equal(image, expected) or (label is not None and not torch.equal(label, its)):
        raise SystemExit("the contestants disagree")


def environment(threads: int) -> dict[str, Any]:
    """The machine and the versions that the numbers belong to."""
    return {
        "cpu": processor()[0],
        "cpu_count": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "threads": threads,
        "torch": torch.__version__,
        "pillow": PIL.__version__,
        "opencv": cv2.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": " ".join(["python", *sys.argv]),
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Draw, measure."""
    result: dict[str, Any] = {"environment": environment(options.threads), "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        datasets = write_images(Path(folder), options.images)
        for title, dataset in datasets.items():
            check_equal(dataset)
            stored = [sum(file.stat().st_size for file in pair if file) / 1e6 for pair in dataset.files]
            for work in WORK:
                times = measure(dataset, options.repeats, tensors=work == "tensors")
                medians = {name: statistics.median(values) for name, values in times.items()}
                result["rows"].append(
                    {
                        "data": title,
                        "work": work,
                        "original_mb": round(statistics.mean(stored), 3),
                        "images_per_second": {name: round(1 / value, 2) for name, value in medians.items()},
                        "speedup": round(medians[PLAIN] / medians[OURS], 2),
                        "seconds_per_image": {name: [round(t, 6) for t in each] for name, each in times.items()},
                    }
                )
    return result


def markdown(result: dict[str, Any]) -> str:
    """The table of docs/benchmarks.md."""
    header = ["data", "work", "originals", *(f"{name}, images/s" for name in (PLAIN, OURS)), "speed-up"]
    rows = [
        [
            row["data"], row["work"], f"{row['original_mb']:.1f} MB",
            *(f"{row['images_per_second'][name]:.1f}" for name in (PLAIN, OURS)), f"{row['speedup']:.1f}x",
        ]
        for row in result["rows"]
    ]  # fmt: skip
    return "\n".join("| " + " | ".join(line) + " |" for line in [header, ["---"] * len(header), *rows])


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="threads of torch and OpenCV; Pillow has one")
    parser.add_argument("--images", type=int, default=4, help="images of each data set")
    parser.add_argument("--repeats", type=int, default=9, help="measurements of each contestant")
    parser.add_argument("--out", type=Path, default=Path("docs/results/data.json"), help="file for the raw values")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cv2.setNumThreads(options.threads)
    result = run(options)
    print("\n" + markdown(result) + "\n")
    print("\n".join(f"{name}: {what}" for name, what in WORK.items()))
    print(", ".join(f"{key}: {value}" for key, value in result["environment"].items()))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
