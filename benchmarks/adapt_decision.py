"""How often the label-free answer of ``seg.adapt`` is right, and what the objectives are worth under corruptions.

    OMP_NUM_THREADS=1 python benchmarks/adapt_decision.py --run RUN [--part decision|objectives|extremes]
        [--out docs/results/adapt_decision.jsonl]

RUN is of ``seg.train --method source --source.size 96,48 --target.size 96,48`` on the demo pair. Adapted to are new
pictures of the source's world (``home``) and of the target's, as they are and corrupted by albumentations: 24 images in
batches of two, once. The network is looked at as ``seg.adapt`` does, and scored with the labels at the same moments.
Part ``decision`` runs methods × learning rates over three decades, some of them ruinous; part ``objectives`` runs
methods × objectives × reductions at one rate; part ``extremes`` runs ``bn`` on images that are hardly to be recognised,
where a network predicts few classes, and steadily. A row that stands in the file is not made again, so the same command
continues. ``benchmarks/adapt_decision_tables.py`` makes the tables of docs/adaptation.md.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from corrupted_streets import CORRUPTIONS, EXTREMES, FIRST_IMAGE, SIZE, confusion, corrupted, mean_iou, rounded, rows_of
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from seg.adaptation.evidence import Probe
from seg.adaptation.watched import WatchedAdapter, deployed_copy, plain_forward
from seg.data.layouts import LAYOUTS
from seg.data.pixel_format import normalised
from seg.demo.street.looks import GAME_STREET, target_look
from seg.demo.street.world import draw_street
from seg.models.trained import TrainedNetwork, open_run

IMAGES, PROBE, BATCH, CHECKS, RECOMMENDED = 24, 12, 2, 2, 1e-1
#: The rule's thresholds were chosen on these; what is reported is of the others.
TUNED_ON = ("fog", "night", "gaussian blur", "gaussian noise", "low contrast", "colour")

#: (where the pictures are from, corruption, strength); "clean" is no corruption.
DATA = (
    *(("home", name, strength) for strength in (1, 3) for name in CORRUPTIONS),
    *(("target", name, 2) for name in CORRUPTIONS),
    ("home", "clean", 0), ("target", "clean", 0),
)  # fmt: skip
#: Of them what the network needs help with.
STRONG = tuple(each for each in DATA if each[2] > 1)
#: method, objective, reduction, rates.
DECISION = (
    ("bn", "none", "mean", (0.0,)),
    ("tent", "entropy", "mean", (1.0, 1e1)),
    ("tent", "adadem", "balanced", (1e-1, 1.0, 1e1)),
    ("eta", "entropy", "balanced", (1e1,)),
    ("sar", "entropy", "mean", (1.0,)),
    ("cotta", "entropy", "mean", (1e-2, 1.0)),
)
OBJECTIVES = tuple(
    (method, objective, reduction, (RECOMMENDED,))
    for method in ("tent",)
    for objective in ("entropy", "adadem", "adadem-norm", "dem")
    for reduction in ("mean", "balanced")
)


#: Of ``extremes``.
STATISTICS = (("bn", "none", "mean", (0.0,)),)
FAR = tuple((domain, name, strength) for domain in ("home", "target") for name in EXTREMES for strength in (1, 2, 3))
#: part → what is adapted to, and how.
PARTS = {"decision": (DATA, DECISION), "objectives": (STRONG, OBJECTIVES), "extremes": (FAR, STATISTICS)}


def main() -> None:
    """Make the rows that are missing, each written as it comes."""
    arguments = _arguments()
    torch.set_num_threads(1)
    loaded = open_run(arguments.run, "last")[0]
    done = {key_of(row) for row in rows_of(arguments.out)}
    data_of_part, arms = PARTS[arguments.part]
    for domain, corruption, strength in data_of_part:
        named = {"part": arguments.part, "network": arguments.run.name, "domain": domain, "corruption": corruption}
        wanted = [
            {**named, "strength": strength, "method": method, "objective": objective, "reduction": reduction, "lr": lr}
            for method, objective, reduction, rates in arms
            for lr in rates
        ]
        wanted = [row for row in wanted if key_of(row) not in done]
        data = Data(loaded, domain, corruption, strength, arguments.part != "objectives") if wanted else None
        for row in wanted:
            row |= rounded(data.adapted(row["method"], row["objective"], row["reduction"], row["lr"]))
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            scores = [f"{100 * check['miou']:.1f}" for check in row["checks"]]
            print(*(row[key] for key in KEYS), f"{100 * row['before']['miou']:.1f} ->", *scores, flush=True)


class Data:
    """The images of one corruption, and the network's scores and evidence before."""

    def __init__(self, loaded: TrainedNetwork, domain: str, corruption: str, strength: int, evidence: bool) -> None:
        self.loaded, self.evidence = loaded, evidence
        look = GAME_STREET if domain == "home" else target_look(0, 1.0)
        table, _ = LAYOUTS["cityscapes"].train_ids(loaded.class_set)
        self.images, self.labels = [], []
        for index in range(IMAGES):
            picture, label_ids = draw_street(look, "val", FIRST_IMAGE + index, seed=0, size=SIZE)
            self.images.append(normalised(corrupted(picture, corruption, strength, index)))
            self.labels.append(torch.from_numpy(table[label_ids]).long())
        # as seg.adapt takes them: evenly from the folder
        shown = [self.images[round(place * IMAGES / PROBE)] for place in range(PROBE)]
        self.probe = Probe([torch.stack(shown[:8]), torch.stack(shown[8:])])
        self.before = self.probe.look(plain_forward(loaded.network))
        self.score_before = self.score(loaded.network)
        self.first: dict[str, dict[str, Any]] = {}

    def batches(self) -> Iterator[Tensor]:
        """Every image once, shuffled."""
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0)).tolist()
        for first in range(0, IMAGES, BATCH):
            yield torch.stack([self.images[index] for index in order[first : first + BATCH]])

    @torch.no_grad()
    def score(self, network: nn.Module) -> dict[str, float]:
        """With the labels of all images."""
        logits = torch.cat([plain_forward(network)(torch.stack(self.images[i : i + 8])) for i in range(0, IMAGES, 8)])
        table = confusion(logits, torch.stack(self.labels), len(self.loaded.class_set))
        return {"miou": mean_iou(table), "pixel_accuracy": float(table.diag().sum() / table.sum())}

    def adapted(self, method: str, objective: str, reduction: str, lr: float) -> dict[str, Any]:
        """Evidence and scores before, and at every look."""
        network = copy.deepcopy(self.loaded.network)
        given = {} if objective == "none" else {"objective": objective, "lr": lr, "reduction": reduction}
        watched = WatchedAdapter(TestTimeAdapter(network, method, **given), self.probe, self.before)
        policy = watched.adapter.batch_norm
        checks = [self.first.setdefault(policy, {}) or self.look(watched)]  # before anything is learnt all are alike
        self.first[policy] = checks[0]
        batches = list(self.batches()) if method != "bn" else []
        looks = CHECKS if self.evidence else 1
        marks = {round(len(batches) * (place + 1) / looks) for place in range(looks)}
        for batch in batches:
            if watched.learn(batch) is None:
                checks.append({"step": watched.step, "evidence": None, "miou": 0.0, "pixel_accuracy": 0.0})
                break
            if watched.step in marks:
                checks.append(self.look(watched))
        return {"before": {"evidence": asdict(self.before), **self.score_before}, "checks": checks}

    def look(self, watched: WatchedAdapter) -> dict[str, Any]:
        """Evidence and scores of the network as it is now."""
        candidate = deployed_copy(watched.adapter, self.probe)
        if not self.evidence:
            return {"step": watched.step, "evidence": None, **self.score(candidate)}
        try:
            evidence = self.probe.look(plain_forward(candidate))
        except NotFiniteError:
            return {"step": watched.step, "evidence": None, "miou": 0.0, "pixel_accuracy": 0.0}
        return {"step": watched.step, "evidence": asdict(evidence), **self.score(candidate)}


KEYS = ("part", "network", "domain", "corruption", "strength", "method", "objective", "reduction", "lr")


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row is of."""
    return tuple(row[key] for key in KEYS)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--part", choices=tuple(PARTS), default="decision")
    parser.add_argument("--out", type=Path, default=Path("docs/results/adapt_decision.jsonl"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
