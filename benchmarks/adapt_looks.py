"""Adaptations of trained networks to folders of photographs: their scores, and what is seen of them without labels.

    CLONES=… python benchmarks/adapt_looks.py --photographs PHOTOGRAPHS --networks NETWORKS
        [--ways statistics|streams] [--out docs/results/adapt_looks.csv]

PHOTOGRAPHS and NETWORKS are of ``benchmarks/photographs.py`` and ``benchmarks/photograph_networks.py``, CLONES as in
``benchmarks/public_networks.py``. A folder is 14 images, evenly from a domain, in batches of four. A row of
``statistics`` is a network, a folder and a share of the folder's batch norm statistics, with mIoU in per cent before
and after on the same images, the label-free numbers, and the answer of ``seg.adapt``. One of ``streams``
(``--out docs/results/adapt_statistics.csv``) is a network, a folder and a rule, with the mIoU of
``TestTimeAdapter(method="bn")``, whose statistics are each batch's own, gathered through layers that mix already;
``fixed 0.0`` is the network as it is. The same command continues with the missing rows.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import albumentations as A
import numpy as np
import public_networks
import segmentation_models_pytorch as smp
import torch
from csv_rows import CsvRows, parser_of
from numpy.typing import NDArray
from photograph_networks import NETWORKS, SHIFTS, SIZES, confusions, miou, parts, read
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from seg.adaptation.decision import decide
from seg.inference.adaptive_batch_norm import re_estimated
from seg.scores.evidence import Evidence, Probe

IMAGES, BATCH = 14, 4
PUBLIC = ("espnetv2_05", "espnetv2_10", "espnetv2_15", "espnetv2_20", "espnet_q3", "espnet_q5", "espnet_q8")
#: Domains of a set that its networks have not seen.
TARGETS = {
    "camvid": ("0001TP",), "cracks": ("drone", "concrete"), "discs": ("drishti",), "vessels": ("chase",), "field": (),
}  # fmt: skip
STATISTICS = {f"share {share}": share for share in (0.3, 0.5, 1.0)}
STREAMS = {"fixed 0.0": 0.0, **{f"stream of {BATCH}, fixed {share}": share for share in (0.1, 0.3)}}
#: Numbers of a network on a folder, before and after, by name.
Numbers = dict[str, float]


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
            for strength in range(1, 6):
                yield f"{shift} {strength}", unseen, change(strength)


def opened(name: str, networks: Path) -> tuple[nn.Module, Tensor, tuple[int, int]]:
    """A network, its (2, 3) mean and deviation of RGB from 0 to 1, and the size at which it sees images."""
    if name in NETWORKS:
        moments = torch.full((2, 3), 0.5)
        return smp.from_pretrained(str(networks / name)).eval(), moments, SIZES[NETWORKS[name][0]]
    size = SIZES["vessels" if name == "wnet_drive" else "camvid"]
    return getattr(public_networks, name)()[0].eval(), public_networks.IMAGENET, size


class Folder:
    """A folder's images and labels, and the numbers of networks on them.

    Args:
        batches: (B, 3, H, W) as the network takes them.
        labels: of the same images.
    """

    def __init__(self, batches: Sequence[Tensor], labels: list[NDArray[np.uint8]]) -> None:
        self.batches, self.labels = batches, labels
        self.evidence: Evidence | None = None

    @torch.no_grad()
    def numbers(self, network: nn.Module) -> tuple[Numbers, bool]:
        """The numbers of a network, and whether ``seg.adapt`` accepts it; the first one's stand for before.

        Raises NotFiniteError: its output is not finite.
        """
        outputs: list[Tensor] = []

        def forward(images: Tensor) -> Tensor:
            outputs.append(network(images))
            return outputs[-1]

        evidence = Probe(list(self.batches), 32).look(forward)
        logits = torch.cat(outputs[: len(self.batches)])  # a look begins with the images as they are
        if self.evidence is None:
            self.evidence = evidence
        numbers = {
            "miou": miou(confusions(logits, self.labels)), "entropy": evidence.entropy,
            "stability": evidence.stability_on(self.evidence), "classes": evidence.effective_classes,
        }  # fmt: skip
        return numbers, decide(self.evidence, evidence).adapt

    @torch.no_grad()
    def streamed(self, network: nn.Module, share: float) -> float:
        """The mIoU of a stream that takes this share of its batches' statistics; of share 0, of the network."""
        adapter = TestTimeAdapter(network, "bn", bn_alpha=share) if share else network
        logits = torch.cat([adapter(images) for images in self.batches])
        if isinstance(adapter, TestTimeAdapter):
            adapter.close()
            network.eval()
        return miou(confusions(logits, self.labels))


def main() -> None:
    """The command."""
    parser = parser_of(__doc__, "photographs", "networks", out="docs/results/adapt_looks.csv")
    parser.add_argument("--only", nargs="*", default=[*PUBLIC, *NETWORKS, "wnet_drive"])
    parser.add_argument("--ways", default="statistics", choices=("statistics", "streams"))
    parser.add_argument("--strengths", default="12345", help="of the shifts that are made")
    options = parser.parse_args()
    streams = options.ways == "streams"
    ways, column = (STREAMS, "rule") if streams else (STATISTICS, "way")
    scores = [
        f"{stage} {name}" for stage in ("before", "after") for name in ("miou", "entropy", "stability", "classes")
    ]
    rows = CsvRows(options.out, ["network", "folder", column], ["miou"] if streams else [*scores, "accepted"])
    for name in options.only:
        if name in NETWORKS and not (options.networks / name).exists():
            continue
        network, moments, size = opened(name, options.networks)
        for folder, files, change in folders(options.photographs, name):
            keys = {"network": name, "folder": folder}
            missing = [way for way in ways if rows.get({**keys, column: way}) is None]
            made = folder[-1] in "12345" and folder[-2] == " "
            if not missing or (made and folder[-1] not in options.strengths):
                continue
            images, labels = read(files, IMAGES, change, moments, size)
            with torch.backends.mkldnn.flags(enabled=not name.startswith("espnet_")):
                there = Folder(images.split(BATCH), labels)
                before = None if streams else there.numbers(network)[0]
                for way in missing:
                    if streams:
                        rows.add({**keys, column: way, "miou": round(there.streamed(network, ways[way]), 2)})
                        continue
                    try:
                        adapted = re_estimated(network, list(there.batches), ways[way]).network.eval()
                        after, accepted = there.numbers(adapted)
                    except NotFiniteError:
                        after, accepted = {}, False
                    rows.add({**keys, column: way, "before": before, "after": after, "accepted": accepted})
            print(name, folder, flush=True)


if __name__ == "__main__":
    main()
