"""Training from ImageNet weights on photographs: what each arm gives on the target, beside source only.

    OMP_NUM_THREADS=1 python benchmarks/photograph_training.py --photographs PHOTOGRAPHS --work WORK [--only WORD,WORD]
        [--pairs NAME,NAME] [--seeds 0,1,2] [--steps 300] [--out docs/results/photograph_training.csv] [--markdown]

PHOTOGRAPHS is of ``benchmarks/photographs.py``. Of either domain the first 60 % of the images are trained on and the
others scored, at most 48 of them; all else is seg.train's default, the network (FPN on EfficientNet-Lite0 with ImageNet
weights) and the size among it. Every run is scored as it is trained, and with a share of the batch norm statistics of
the target's training images (``--batch-norm-after target``): 0.3, 0.5, 1, and the one that the rule takes. The same
command continues with the missing rows.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from csv_rows import CsvRows
from photograph_networks import parts
from torch import nn

from dem_apps.runtime.settings import from_dict
from seg.adaptation.evidence import Probe, plain_forward
from seg.config import TrainConfig
from seg.data.datasets import SegmentationDataset
from seg.data.domains import DomainPair, open_pair
from seg.data.statistics import spread_batches
from seg.models.adaptive_batch_norm import SHARES, re_estimated_on
from seg.models.start_from import normalisation
from seg.models.trained import open_run
from seg.scores.evaluation import evaluate
from seg.training.decided import decided
from seg.training.loop import train

#: A pair's set, source domains, target domain.
PAIRS = {
    "dusk": ("camvid", ("Seq05VD", "0016E5", "0006R0"), "0001TP"),
    "drone": ("cracks", ("asphalt",), "drone"),
    "drishti": ("discs", ("refuge",), "drishti"),
    "chase": ("vessels", ("drive",), "chase"),
    "concrete": ("cracks", ("asphalt",), "concrete"),
}
SCORED = 48
JITTER = {
    "ColorJitter": {
        "brightness": [0.5, 1.5],
        "contrast": [0.5, 1.5],
        "saturation": [0.5, 1.5],
        "hue": [-0.1, 0.1],
        "p": 0.8,
    }
}
FLIP, BLUR = {"HorizontalFlip": {"p": 0.5}}, {"GaussianBlur": {"p": 0.3}}
SOURCE, NONE = {"method": "source"}, {"method": "minent", "loss": "none"}


def on_source(**settings: Any) -> dict[str, Any]:
    """An arm of the target's objective with the source's running statistics."""
    return {"method": "minent", "model": {"batch_norm": "source"}, **settings}


def weighing(loss: str, weight: float, policy: str = "source") -> dict[str, Any]:
    """An objective at a weight."""
    return {"method": "minent", "loss": loss, "model": {"batch_norm": policy}, "weights": {"target_main": weight}}


def teaching(policy: str, **settings: Any) -> dict[str, Any]:
    """Self-training under a policy."""
    return {"method": "self-training", "loss": "none", "model": {"batch_norm": policy}, **settings}


FOURIER, STRONG = {"source": {"style": "fourier"}}, {"source": {"augmentation": [FLIP, JITTER, BLUR]}}
RARE = {"source": {"rare_class_temperature": 0.01}}
ARMS: dict[str, dict[str, Any]] = {
    "source": SOURCE,
    "target statistics": NONE,
    "strong": SOURCE | STRONG,
    "fourier": SOURCE | FOURIER,
    "self-training, source": teaching("source"),
    "self-training, target": teaching("target"),
    "self-training, source, strong": teaching("source", **STRONG),
    "best of before": NONE | {"source": {"style": "fourier", "rare_class_temperature": 0.01}},
    "adadem 0.01": weighing("adadem", 0.01),
    "entropy 0.01": weighing("entropy", 0.01),
    "adadem 0.1": weighing("adadem", 0.1),
    "entropy 0.1": weighing("entropy", 0.1),
    "self-training, source, masks": teaching("source", self_training={"mask_ratio": 0.7}),
    "both statistics": NONE | {"model": {"batch_norm": "trainable"}},
    "rare": SOURCE | RARE,
    "advent entropy": {"method": "advent", "loss": "entropy", "model": {"batch_norm": "source"}},
    "adadem 0.01, target": weighing("adadem", 0.01, "target"),
    "entropy 0.01, target": weighing("entropy", 0.01, "target"),
    "lab": SOURCE | {"source": {"style": "lab"}},
    "frozen": SOURCE | {"model": {"batch_norm": "frozen"}},
    "target labels": {"method": "source", "target": {"labelled_part": 1.0, "labelled_use": "instead"}},
}  # fmt: skip
KEYS = ("pair", "arm", "seed", "steps")
SCORES = (
    "as trained",
    *(f"share {share:g}" for share in SHARES),
    "rule",
    "chosen",
    "source",
    "ious",
    "worths",
    "minutes",
)


def folders(photographs: Path, work: Path, pair: str) -> dict[str, str]:
    """The roots of a pair's two folders, made of links."""
    group, sources, target = PAIRS[pair]
    roots = {"source": work / "pairs" / pair / "source", "target": work / "pairs" / pair / "target"}
    for domain, names in (("source", sources), ("target", (target,))):
        for name, (split, files) in itertools.product(names, zip(("train", "val"), ((), ()), strict=True)):
            first, rest = parts(photographs / group, name)
            files = first if split == "train" else rest[:: -(-len(rest) // (SCORED // len(names)))]
            for file, kind in itertools.product(files, ("images", "labels")):
                link = roots[domain] / kind / split / f"{name}_{file.name}"
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.is_symlink():
                    link.symlink_to((file.parent.parent / kind / file.name).resolve())
    return {domain: str(root) for domain, root in roots.items()}


def settings(arm: str, roots: dict[str, str], seed: int, steps: int, run: Path) -> TrainConfig:
    """Those of a run."""
    own = ARMS[arm]
    data = {domain: {"root": root, **own.get(domain, {})} for domain, root in roots.items()}
    fixed = {"seed": seed, "max_steps": steps, "eval_every": steps, "maps": 0, "run_dir": str(run)}
    config = from_dict(TrainConfig, {**own, **data, **fixed}, "an arm")
    config.check()
    return config


def held_out(pair: DomainPair, config: TrainConfig) -> SegmentationDataset:
    """The source's images that are not trained on."""
    return SegmentationDataset(
        Path(str(config.source.root)), "folders", "val", size=tuple(config.source.size or ()) or None,
        classes=pair.classes, labelled=None, resize_labels=False,
    )  # fmt: skip


def scores(config: TrainConfig) -> dict[str, Any]:
    """Train, and mIoU % on both domains' held-out images."""
    began = time.monotonic()
    run = train(config)
    minutes = (time.monotonic() - began) / 60
    trained, training = open_run(run, "last")
    device, classes = torch.device("cpu"), trained.class_set
    config = decided(training.config, "cpu")[0]
    pair = open_pair(config.source, config.target, classes, rgb=normalisation(config.model))
    source_val = held_out(pair, config)
    source_val.pixels = pair.pixels

    def miou(network: nn.Module, dataset: SegmentationDataset) -> tuple[float, list[float]]:
        result = evaluate(network, dataset, classes, device, align_corners=trained.description.align_corners)
        return 100 * result["miou"], [100 * value for value in result["per_class_iu"].values() if value is not None]

    result: dict[str, Any] = {"minutes": minutes}
    result["as trained"], result["ious"] = miou(trained.network, pair.target_val)
    result["source"] = miou(trained.network, source_val)[0]
    probe = Probe(
        list(
            itertools.islice(
                spread_batches(lambda index: pair.target_train[index].normalised(), len(pair.target_train), device), 2
            )
        ),
        32,
    )
    before = probe.look(plain_forward(trained.network))
    result["worths"] = [before.worth_on(before)]
    rule = re_estimated_on(pair.target_train, trained.network, device)
    for share in SHARES:
        network = (
            rule.network
            if share == rule.share
            else re_estimated_on(pair.target_train, trained.network, device, share).network
        )
        result["worths"].append(probe.look(plain_forward(network)).worth_on(before))
        result[f"share {share:g}"] = miou(network, pair.target_val)[0]
    result["chosen"], result["rule"] = rule.share, result[f"share {rule.share:g}"]
    shutil.rmtree(run)
    return result


def main() -> None:
    """Train the missing rows, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photographs", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--only", default="", help="arms, with commas; all by default")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", default="300")
    parser.add_argument("--out", type=Path, default=Path("docs/results/photograph_training.csv"))
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, SCORES)
    arms = options.only.split("|") if options.only else list(ARMS)
    for steps, seed, arm, pair in itertools.product(
        map(int, options.steps.split(",")), map(int, options.seeds.split(",")), arms, options.pairs.split(",")
    ):
        row: dict[str, Any] = {"pair": pair, "arm": arm, "seed": seed, "steps": steps}
        if rows.get(row) is None:
            run = options.work / "runs" / "-".join(map(str, row.values())).replace(" ", "_").replace(",", "")
            if run.exists():
                shutil.rmtree(run)
            config = settings(arm, folders(options.photographs, options.work, pair), seed, steps, run)
            print(rows.add(row | scores(config)), flush=True)


if __name__ == "__main__":
    main()
