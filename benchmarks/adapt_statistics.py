"""Streams that take a share of their batches' batch norm statistics: networks × folders of photographs × shares.

    CLONES=… python benchmarks/adapt_statistics.py --photographs PHOTOGRAPHS --networks NETWORKS
        [--out docs/results/adapt_statistics.csv]

PHOTOGRAPHS and NETWORKS are of ``benchmarks/photographs.py`` and ``benchmarks/photograph_networks.py``, CLONES as in
``benchmarks/public_networks.py``. A folder is 14 images, evenly from a domain, in batches of four. A stream is
``TestTimeAdapter(method="bn")``, whose statistics are each batch's own, gathered through layers that mix already;
``fixed 0.0`` is the network as it is. A row is a network, a folder and one of these, with the mIoU in per cent on the
folder's labels. The same command continues with the missing rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import albumentations as A
import numpy as np
import public_networks
import segmentation_models_pytorch as smp
import torch
from csv_rows import CsvRows
from numpy.typing import NDArray
from photograph_networks import NETWORKS, SIZES, load, parts
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps import TestTimeAdapter
from seg.scores.metrics import confusion

IMAGES, BATCH = 14, 4
PUBLIC = ("espnetv2_05", "espnetv2_10", "espnetv2_15", "espnetv2_20", "espnet_q3", "espnet_q5", "espnet_q8")
#: Domains of a set that its networks have not seen.
TARGETS = {
    "camvid": ("0001TP",), "cracks": ("drone", "concrete"), "discs": ("drishti",), "vessels": ("chase",), "field": (),
}  # fmt: skip
#: Changes of a source's own unseen images, by a strength from 1 to 5.
SHIFTS: dict[str, Callable[[int], A.BasicTransform]] = {
    "fog": lambda level: A.RandomFog(fog_coef_range=(level / 6, level / 6), alpha_coef=0.1, p=1),
    "dark": lambda level: A.RandomBrightnessContrast((-0.13 * level,) * 2, (-0.1 * level,) * 2, p=1),
    "blur": lambda level: A.GaussianBlur((0, 0), (0.7 * level,) * 2, p=1),
    "white balance": lambda level: A.RGBShift((10 * level,) * 2, (0, 0), (-10 * level,) * 2, p=1),
    "noise": lambda level: A.GaussNoise((0.04 * level,) * 2, p=1),
    "contrast": lambda level: A.RandomBrightnessContrast((0, 0), (0.2 * level,) * 2, p=1),
}
STRENGTHS = (1, 2, 3, 4, 5)


@torch.no_grad()
def miou(network: nn.Module, batches: Sequence[Tensor], labels: Sequence[NDArray[np.uint8]]) -> float:
    """In per cent, over the classes that the labels contain."""
    table = np.zeros((0, 0), np.int64)
    for image, label in zip(torch.cat(list(batches)), labels, strict=True):
        logits = network(image[None])
        found = F.interpolate(logits, label.shape, mode="bilinear")[0].argmax(0)
        known, size = torch.from_numpy(label < logits.shape[1]), logits.shape[1]
        own = confusion(torch.from_numpy(label).long()[known], found[known], size).numpy()
        table = own if not table.size else table + own
    hits, union, there = np.diag(table), table.sum(0) + table.sum(1) - np.diag(table), table.sum(1) > 0
    return float(100 * (hits / np.maximum(union, 1))[there].mean())


def streamed_miou(
    network: nn.Module, batches: Sequence[Tensor], labels: Sequence[NDArray[np.uint8]], share: float
) -> float:
    """:func:`miou` of a stream that takes this share."""
    adapter = TestTimeAdapter(network, "bn", bn_alpha=share)
    logits = torch.cat([adapter(images) for images in batches])
    adapter.close()
    network.eval()
    return miou(nn.Identity(), [logits], labels)


RULES: dict[str, Callable[..., float]] = {
    "fixed 0.0": miou,
    **{f"stream of {BATCH}, fixed {share}": partial(streamed_miou, share=share) for share in (0.1, 0.3)},
}


def folders(root: Path, name: str) -> Iterator[tuple[str, list[Path], A.BasicTransform | None]]:
    """The folders of a network: by name, their files, and what is done to each image."""
    if name in PUBLIC:
        for domain in ("Seq05VD", "0001TP", "0016E5", "0006R0"):
            yield domain, sorted((root / "camvid" / domain / "images").iterdir()), None
    elif name == "wnet_drive":
        yield "chase", sorted((root / "vessels/chase/images").iterdir()), None
    else:
        group, sources, *_ = NETWORKS[name]
        for domain in TARGETS[group]:
            yield domain, sorted((root / group / domain / "images").iterdir()), None
        unseen = [file for domain in sources for file in parts(root / group, domain)[1]]
        yield "unshifted", unseen, None
        for shift, change in SHIFTS.items():
            for strength in STRENGTHS:
                yield f"{shift} {strength}", unseen, change(strength)


def opened(name: str, networks: Path) -> tuple[nn.Module, Tensor, tuple[int, int]]:
    """A network, its (2, 3) mean and deviation of RGB from 0 to 1, and the size at which it sees images."""
    if name in NETWORKS:
        moments = torch.full((2, 3), 0.5)
        return smp.from_pretrained(str(networks / name)).eval(), moments, SIZES[NETWORKS[name][0]]
    size = SIZES["vessels" if name == "wnet_drive" else "camvid"]
    return getattr(public_networks, name)()[0].eval(), public_networks.IMAGENET, size


def read(
    files: Sequence[Path], change: A.BasicTransform | None, moments: Tensor, size: tuple[int, int]
) -> tuple[list[Tensor], list[NDArray[np.uint8]]]:
    """Fourteen images of a folder, changed, as batches that a network takes, and their labels."""
    chosen = [files[index * len(files) // IMAGES] for index in range(IMAGES)]
    images, labels = zip(*(load(file, size) for file in chosen), strict=True)
    if change is not None:
        images = tuple(A.Compose([change], seed=index)(image=image)["image"] for index, image in enumerate(images))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2) / 255
    return list(((pixels - moments[0].view(3, 1, 1)) / moments[1].view(3, 1, 1)).split(BATCH)), list(labels)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("photographs", "networks"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/adapt_statistics.csv"))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rows = CsvRows(options.out, ["network", "folder", "rule"], ["miou"])
    for name in (*PUBLIC, *NETWORKS, "wnet_drive"):
        if options.only not in name or (name in NETWORKS and not (options.networks / name).exists()):
            continue
        network, moments, size = opened(name, options.networks)
        for folder, files, change in folders(options.photographs, name):
            batches, labels = read(files, change, moments, size)
            with torch.backends.mkldnn.flags(enabled=not name.startswith("espnet_")):
                for rule, score in RULES.items():
                    keys = {"network": name, "folder": folder, "rule": rule}
                    if rows.get(keys) is None:
                        rows.add({**keys, "miou": round(score(network, batches, labels), 2)})
            print(name, folder, flush=True)


if __name__ == "__main__":
    main()
