"""Which share of the target's batch norm statistics serves: networks × folders of photographs × rules.

    CLONES=… python benchmarks/adapt_statistics.py --photographs PHOTOGRAPHS --networks NETWORKS
        [--out docs/results/adapt_statistics.csv]

PHOTOGRAPHS and NETWORKS are of ``benchmarks/photographs.py`` and ``benchmarks/photograph_networks.py``, CLONES as in
``benchmarks/public_networks.py``. A folder is 14 images, evenly from a domain. Each layer's statistics of the folder
are gathered once, through layers that all use their batch of four, as by
:func:`seg.models.adaptive_batch_norm.re_estimated`; then each rule says which share of them a layer takes. A ``stream``
is ``TestTimeAdapter(method="bn")``, whose statistics are each batch's own, gathered through layers that mix already. A
row is a network, a folder and a rule, with the mIoU in per cent on the folder's labels. The same command continues with
the missing rows.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
from torch.nn.modules.batchnorm import _BatchNorm

from dem_apps import TestTimeAdapter
from dem_apps.test_time_methods.normalisation import BATCH_SHARE, mixed, tracking
from seg.models.adaptive_batch_norm import re_estimated
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


@dataclass(frozen=True)
class Layer:
    """What is known of a layer: moments of its input, (C,) each, stored and of the folder."""

    mean: Tensor
    var: Tensor
    target_mean: Tensor
    target_var: Tensor
    place: float  #: 0 of the first layer, 1 of the last

    @property
    def distance(self) -> float:
        """Mean over channels of the distance of the means, in deviations of the source."""
        return float(((self.target_mean - self.mean).abs() / self.var.clamp_min(1e-12).sqrt()).mean())


Rule = Callable[[list[Layer]], list[float]]


def first_distance(layers: list[Layer]) -> float:
    """The mean distance of the first tenth of the layers, at least three."""
    number = max(3, len(layers) // 10)
    return float(np.mean([layer.distance for layer in layers[:number]]))


def fixed(share: float) -> Rule:
    """The same share everywhere."""
    return lambda layers: [share] * len(layers)


def falling(share: float) -> Rule:
    """A share that falls to 0 at the last layer."""
    return lambda layers: [share * (1 - layer.place) for layer in layers]


def by_shift(prior: float) -> Rule:
    """One share, which the distance of the first layers says."""
    return lambda layers: [first_distance(layers) / (first_distance(layers) + prior)] * len(layers)


RULES: dict[str, Rule] = {
    **{f"fixed {share}": fixed(share) for share in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)},
    **{f"falling {share}": falling(share) for share in (0.4, 0.5, 0.6)},
    **{f"shift {prior}": by_shift(prior) for prior in (0.5,)},
}


#: Batch sizes and shares of streams; None is the library's default.
STREAMS = ((4, None), (1, None), (4, 0.1))


@torch.no_grad()
def gather(network: nn.Module, batches: Sequence[Tensor]) -> list[Layer]:
    """The moments of every layer on the batches, in the order in which the layers run."""
    order: list[_BatchNorm] = []
    hooks = [layer.register_forward_pre_hook(lambda own, _: order.append(own)) for layer in tracking(network)]
    network(batches[0][:1])
    for hook in hooks:
        hook.remove()
    order = list(dict.fromkeys(order))
    whole = dict(zip(tracking(network), tracking(re_estimated(network, batches, 1.0).network), strict=True))
    network._bed_order = order  # type: ignore[assignment]
    return [
        Layer(
            layer.running_mean, layer.running_var, whole[layer].running_mean, whole[layer].running_var,  # type: ignore[arg-type]
            index / max(1, len(order) - 1),
        )
        for index, layer in enumerate(order)
    ]  # fmt: skip


@torch.no_grad()
def take(network: nn.Module, layers: list[Layer], shares: Sequence[float]) -> None:
    """Give the network's layers a share of the folder's statistics each."""
    for layer, moments, share in zip(network._bed_order, layers, shares, strict=True):  # type: ignore[arg-type]
        layer.running_mean, layer.running_var = mixed(
            moments.mean, moments.var, moments.target_mean, moments.target_var, share
        )


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
    network: nn.Module, batches: Sequence[Tensor], labels: Sequence[NDArray[np.uint8]], size: int, share: float | None
) -> float:
    """:func:`miou` of a stream in batches of a size."""
    adapter = TestTimeAdapter(network, "bn", bn_alpha=share)
    logits = torch.cat([adapter(images) for images in torch.cat(list(batches)).split(size)])
    adapter.close()
    network.eval()
    return miou(nn.Identity(), [logits], labels)


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


def print_table(rows: CsvRows) -> None:
    """Per rule and group of folders: mean change of mIoU, worst change, and how many lose more than 0.5."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for row in rows.rows.values():
        found.setdefault((row["network"], row["folder"]), {})[row["rule"]] = float(row["miou"])
    groups = {
        "public networks": [key for key in found if key[0] not in NETWORKS],
        "ours, shifted": [key for key in found if key[0] in NETWORKS and key[1] != "unshifted"],
        "ours, unshifted": [key for key in found if key[0] in NETWORKS and key[1] == "unshifted"],
    }
    for rule in dict.fromkeys(row["rule"] for row in rows.rows.values()):
        of_rule = {name: [key for key in keys if rule in found[key]] for name, keys in groups.items()}
        print_changes(rule, {
            name: [found[key][rule] - found[key]["fixed 0.0"] for key in keys] for name, keys in of_rule.items()
        })  # fmt: skip


def print_changes(title: str, groups: dict[str, list[float]]) -> None:
    """A line: of each group of folders the mean change of mIoU, the worst, and how many lose more than 0.5."""
    print(f"{title:26}", end="")
    for name, changes in groups.items():
        if changes:
            harmed = sum(change < -0.5 for change in changes)
            print(f" {name} {np.mean(changes):+.1f} (worst {min(changes):+.1f}, {harmed} of {len(changes)})", end=";")
    print()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("photographs", "networks"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/results/adapt_statistics.csv"))
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rows = CsvRows(options.out, ["network", "folder", "rule"], ["distance", "mean_share", "miou"])
    for name in (*PUBLIC, *NETWORKS, "wnet_drive"):
        if options.only not in name or (name in NETWORKS and not (options.networks / name).exists()):
            continue
        network, moments, size = opened(name, options.networks)
        for folder, files, change in folders(options.photographs, name):
            missing = [rule for rule in RULES if rows.get({"network": name, "folder": folder, "rule": rule}) is None]
            batches, labels = read(files, change, moments, size)
            with torch.backends.mkldnn.flags(enabled=not name.startswith("espnet_")):
                layers = gather(network, batches)
                for rule in missing:
                    shares = RULES[rule](layers)
                    take(network, layers, shares)
                    rows.add({
                        "network": name, "folder": folder, "rule": rule,
                        "distance": round(first_distance(layers), 4), "mean_share": round(float(np.mean(shares)), 4),
                        "miou": round(miou(network, batches, labels), 2),
                    })  # fmt: skip
                take(network, layers, [0.0] * len(layers))
                for size_, share in STREAMS:
                    rule = f"stream of {size_}, fixed {BATCH_SHARE if share is None else share}"
                    if rows.get({"network": name, "folder": folder, "rule": rule}) is None:
                        found = streamed_miou(network, batches, labels, size_, share)
                        rows.add({"network": name, "folder": folder, "rule": rule, "miou": round(found, 2)})
            print(name, folder, flush=True)
    print_table(rows)


if __name__ == "__main__":
    main()
