"""Record evidence and confusion matrices of networks on folders, so that any rule of seg.adapt can be replayed.

    CLONES=… PYTHONPATH=benchmarks python benchmarks/adapt_bed.py --photographs PHOTOGRAPHS --work WORK
        [--only NAME …]

PHOTOGRAPHS is the folder that ``benchmarks/photographs.py`` writes, CLONES as in ``benchmarks/public_networks.py``.
WORK gets networks, and a file below ``bed`` for each pair of a network and a folder of at least 24 images. The rules,
and the decision between them, are registered in ``docs/results/adapt_rules_registration.txt``;
``benchmarks/adapt_rules.py`` replays them. The same command continues.

Shapes of a file: S shares of batch norm's statistics, N images in the order in which seg.adapt reads its probe (its
first half, then its second), V views, C classes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import albumentations as A
import cv2
import numpy as np
import photograph_networks as ours
import public_networks
import torch
from csv_rows import parser_of
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from seg.scores.evidence import Probe, Views, plain_forward
from seg.trained.adaptive_batch_norm import SHARES, TargetStatistics

LITE0, LITE1 = "tu-tf_efficientnet_lite0", "tu-tf_efficientnet_lite1"
#: The families of our networks: head and encoder.
FAMILIES = [
    ("FPN", LITE1),
    ("Unet", LITE1),
    ("DeepLabV3Plus", LITE0),
    ("Linknet", LITE0),
    ("PAN", LITE1),
    ("MAnet", LITE0),
    ("UnetPlusPlus", LITE0),
    ("PSPNet", LITE1),
]
#: Set, source, unseen domains, classes, and width and height of what networks see.
SETS = [
    ("camvid", "Seq05VD", ("0016E5", "0001TP"), 11, (256, 192)),
    ("cracks", "asphalt", ("drone", "concrete"), 2, (256, 192)),
    ("discs", "refuge", ("drishti",), 3, (192, 192)),
    ("camvid", "0016E5", ("0006R0", "0001TP"), 11, (256, 192)),
    ("vessels", "drive", ("chase",), 2, (224, 224)),
    ("cracks", "drone", ("asphalt", "concrete"), 2, (256, 192)),
    ("field", "robot", (), 3, (256, 192)),
    ("discs", "drishti", ("refuge",), 3, (192, 192)),
    ("camvid", "0006R0", ("Seq05VD", "0001TP"), 11, (256, 192)),
    ("vessels", "chase", ("drive",), 2, (224, 224)),
]
#: Our networks, trained for this bed: number → family and set, each another combination.
OURS = {
    f"net{number}": (FAMILIES[number % 8], SETS[number % 10], number) for number in range(40, 80)
}
#: Published networks of CamVid's classes.
PUBLIC = (
    "dicenet_05",
    "dicenet_10",
    "dicenet_15",
    "espnetv2_05_small",
    "espnetv2_10_small",
    "espnetv2_20_small",
)
SEQUENCES = ("0001TP", "0006R0", "0016E5", "Seq05VD")
#: Changes of images that are made: of other kinds than in ``photograph_networks.SHIFTS``, and of those between levels.
CHANGES: dict[str, A.BasicTransform] = {
    "jpeg": A.ImageCompression(quality_range=(8, 8), p=1),
    "motion": A.MotionBlur(blur_limit=(13, 13), p=1),
    "gamma 40": A.RandomGamma((40, 40), p=1),
    "gamma 220": A.RandomGamma((220, 220), p=1),
    "grey": A.ToGray(p=1),
    "coarse": A.Downscale(scale_range=(0.3, 0.3), p=1),
    "hue": A.HueSaturationValue((20, 20), (0, 0), (0, 0), p=1),
    "pale": A.HueSaturationValue((0, 0), (-90, -90), (30, 30), p=1),
    "fog 3.5": ours.SHIFTS["fog"](3.5),
    "dark 2.5": ours.SHIFTS["dark"](2.5),
    "noise 1.5": ours.SHIFTS["noise"](1.5),
    "contrast 3.5": ours.SHIFTS["contrast"](3.5),
}
#: Steps of training, and the part of a source's images that a network is trained on.
STEPS, TRAINED = 150, 0.5
NETWORKS = [*OURS, *PUBLIC]
#: Images of a folder, those in a batch of the probe, and the multiple of the sides that networks take.
IMAGES, BATCH, MULTIPLE = 24, 4, 32
#: Averages of the shares' probabilities, recorded after the shares: each alike, and by the image's own scores.
AVERAGES = ("average", "average by image")


class Folder(NamedTuple):
    """A folder: ``IMAGES`` of its files, evenly drawn, and the change made to them, if any."""

    name: str
    files: Sequence[Path]
    shifted: bool = True
    change: A.BasicTransform | None = None


class Pair(NamedTuple):
    """A recorded pair of a network and a folder."""

    views: list[Views]  #: of each share, without logits
    #: (S + 2, N, C, C) by label and prediction, of the shares and :data:`AVERAGES`
    tables: NDArray[np.int64]
    family: str
    network: str
    folder: str
    shifted: bool


def parts(root: Path, domain: str, number: int) -> tuple[list[Path], list[Path]]:
    """Split a domain's images into the half that a network is trained on and the rest; the start differs by network."""
    files = sorted((root / domain / "images").iterdir())
    begin = number * len(files) // 7 % len(files)
    files = files[begin:] + files[:begin]
    return files[: round(TRAINED * len(files))], files[round(TRAINED * len(files)) :]


def folders_of(name: str, root: Path) -> Iterator[Folder]:
    """The folders of a network that have enough images."""
    return (each for each in _folders(name, root) if len(each.files) >= IMAGES)


def _folders(name: str, root: Path) -> Iterator[Folder]:
    if name in PUBLIC:
        for domain in SEQUENCES:
            yield from _halves(domain, sorted((root / "camvid" / domain / "images").iterdir()))
        return
    _, (group, source, targets, *_), number = OURS[name]
    unseen = sorted(parts(root / group, source, number)[1])
    yield from _halves("unshifted", unseen, shifted=False)
    for target in targets:
        yield from _halves(target, sorted((root / group / target / "images").iterdir()))
    for place in (number, number + 4, number + 8):
        change = [*CHANGES][place % len(CHANGES)]
        yield Folder(change, unseen, change=CHANGES[change])


def _halves(name: str, files: Sequence[Path], shifted: bool = True) -> list[Folder]:
    """Split a large set into two folders of every second image; a smaller set stays whole."""
    if len(files) < 2 * IMAGES:
        return [Folder(name, files, shifted)]
    return [Folder(f"{name} {half + 1}", files[half::2], shifted) for half in range(2)]


def size_of(name: str) -> tuple[int, int]:
    """Width and height of a network's input."""
    return (256, 192) if name in PUBLIC else OURS[name][1][4]


def opened(name: str, photographs: Path, networks: Path) -> tuple[nn.Module, Tensor]:
    """Open a network, with the mean and deviation of its images; train it first if it is one of ours and missing."""
    if name in PUBLIC:
        return getattr(public_networks, name)()[0].eval(), public_networks.IMAGENET
    (head, encoder), (group, source, _, classes, size), number = OURS[name]
    files = parts(photographs / group, source, number)[0]
    network = ours.kept(networks / name, head, classes, files, size, STEPS, 100 + number, encoder)
    return network, ours.MOMENTS


def pictures(folder: Folder, size: tuple[int, int]) -> tuple[ours.Pixels, ours.Pixels]:
    """The images (h, w, 3) of a folder and their labels (h, w), both at a size."""
    images, labels = ours.pictures(folder.files, IMAGES, folder.change, size)
    return images, [cv2.resize(each, size, interpolation=cv2.INTER_NEAREST) for each in labels]


def probe_order(images: int) -> list[int]:
    """The images' places in the order of seg.adapt's probe: every second one, then the others."""
    return [*range(0, images, 2), *range(1, images, 2)]


def probe_batches(images: Tensor) -> list[tuple[Tensor, None]]:
    """Batches of images in the order of the probe."""
    half = -(-len(images) // 2)
    return [(batch, None) for part in (images[:half], images[half:]) for batch in part.split(BATCH)]


@torch.no_grad()
def recorded(
    network: nn.Module, images: Tensor, labels: Sequence[NDArray[np.uint8]]
) -> dict[str, Any]:
    """The arrays of a file, of (N, 3, H, W) images and their labels (H, W), in the order of the probe."""
    batches = probe_batches(images)
    probe = Probe.of(network, batches, MULTIPLE)
    statistics = TargetStatistics(network, batches)
    views = [probe.views(plain_forward(statistics.network(share))) for share in SHARES]
    before = views[0].evidence()
    size = images.shape[2:]
    probabilities = torch.stack(
        [
            F.interpolate(torch.cat([*each.logits]), size, mode="bilinear").softmax(1)
            for each in views
        ]
    )
    own = [
        [
            each.evidence(slice(place, place + 1)).stability_score(before)
            for place in range(len(images))
        ]
        for each in views
    ]
    weights = torch.tensor(own)[..., None, None, None]
    arms = [*probabilities, probabilities.mean(0), (weights * probabilities).sum(0)]
    number = probabilities.shape[2]
    return {
        "sums": np.stack([each.sums for each in views]).astype(np.float32),
        "agreements": np.stack([each.agreements for each in views]).astype(np.int32),
        "tables": np.stack(
            [ours.confusions([*arm.argmax(1)], labels, number) for arm in arms]
        ).astype(np.int32),
    }


def read_pair(file: Path) -> Pair:
    """A recorded pair."""
    with np.load(file) as saved:
        sums, agreements = (
            torch.from_numpy(saved[name]).double() for name in ("sums", "agreements")
        )
        family, network, folder = (str(saved[name]) for name in ("family", "network", "folder"))
        views = [Views((), *each) for each in zip(sums, agreements, strict=True)]
        tables, shifted = saved["tables"].astype(np.int64), bool(saved["shifted"])
        return Pair(views, tables, family, network, folder, shifted)


def main() -> None:
    """Record what is missing."""
    parser = parser_of(__doc__, "photographs", "work")
    parser.add_argument("--only", nargs="*", default=NETWORKS)
    options = parser.parse_args()
    bed = options.work / "bed"
    bed.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        network, moments = opened(name, options.photographs, options.work / "networks")
        size = size_of(name)
        family = (
            " ".join((OURS[name][0][0], OURS[name][0][1][-5:]))
            if name in OURS
            else name.split("_")[0]
        )
        for folder in folders_of(name, options.photographs):
            file = bed / f"{name} {folder.name}.npz"
            if file.exists():
                continue
            images, there = pictures(folder, size)
            order = probe_order(len(images))
            seen = ours.normalised([images[place] for place in order], moments).contiguous()
            labels = [there[place] for place in order]
            facts = {
                "family": family,
                "network": name,
                "folder": folder.name,
                "shifted": folder.shifted,
            }
            part = file.with_suffix(".part.npz")
            np.savez_compressed(part, **facts, **recorded(network, seen, labels))
            part.rename(file)
            print(file.stem, flush=True)


if __name__ == "__main__":
    main()
