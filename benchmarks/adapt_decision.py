"""How often the label-free answer of ``seg.adapt`` is right, and scores of the objectives under corruptions.

    OMP_NUM_THREADS=1 python benchmarks/adapt_decision.py --run RUN [--part decision|objectives|extremes]
        [--out docs/results/adapt_decision.csv]

RUN is a run of ``seg.train --method source --source.size 96,48 --target.size 96,48`` on the demo pair. It is adapted to
new images of the source's world (``home``) and of the target's, clean and corrupted by albumentations: 24 images in
batches of two, once. Evidence is measured as in ``seg.adapt``, and scores with labels at the same steps.

``decision``    methods × learning rates over three decades, the largest harmful
``objectives``  methods × objectives × reductions at one rate
``extremes``    ``bn`` on images that are hardly recognisable, on which a network predicts few classes, and steadily

A row has the scores at each look, the numbers of the acceptance test, and whether it accepts. The same command
continues with the missing rows.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from corrupted_streets import CORRUPTIONS, EXTREMES, FIRST_IMAGE, SIZE, confusion, corrupted, mean_iou
from csv_rows import CsvRows
from torch import Tensor, nn

from dem_apps import TestTimeAdapter
from dem_apps.errors import NotFiniteError
from seg.adaptation.decision import decide
from seg.adaptation.evidence import Evidence, Probe
from seg.adaptation.watched import WatchedAdapter, deployed_copy, plain_forward
from seg.data.labels import id_tables
from seg.data.layouts import LAYOUTS
from seg.data.pixel_format import normalised
from seg.demo.street.looks import GAME_STREET, target_look
from seg.demo.street.world import draw_street
from seg.models.trained import open_run
from seg.models.trained_network import TrainedNetwork

IMAGES, PROBE, BATCH, CHECKS, RECOMMENDED = 24, 12, 2, 2, 1e-1
#: The thresholds of the answer were chosen on these; the others are reported.
TUNED_ON = ("fog", "night", "gaussian blur", "gaussian noise", "low contrast", "colour")

#: World, corruption, strength; "clean" is no corruption.
DATA = (
    *(("home", name, strength) for strength in (1, 3) for name in CORRUPTIONS),
    *(("target", name, 2) for name in CORRUPTIONS),
    ("home", "clean", 0), ("target", "clean", 0),
)  # fmt: skip
#: The strong corruptions.
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


#: Arms and data of ``extremes``.
STATISTICS = (("bn", "none", "mean", (0.0,)),)
FAR = tuple((domain, name, strength) for domain in ("home", "target") for name in EXTREMES for strength in (1, 2, 3))
#: Part → data, arms.
PARTS = {"decision": (DATA, DECISION), "objectives": (STRONG, OBJECTIVES), "extremes": (FAR, STATISTICS)}


KEYS = ("part", "network", "domain", "corruption", "strength", "method", "objective", "reduction", "lr")
#: Columns of the unadapted network and of each look.
NUMBERS = ("miou", "pixel_accuracy", "entropy", "classes", "stability", "adapt")
LOOKS = ("before", *(f"step {IMAGES // BATCH * place // CHECKS}" for place in range(CHECKS + 1)))


def main() -> None:
    """Measure and append the missing rows."""
    arguments = _arguments()
    torch.set_num_threads(1)
    loaded = open_run(arguments.run, "last")[0]
    rows = CsvRows(arguments.out, KEYS, [f"{look} {number}" for look in LOOKS for number in NUMBERS])
    data_of_part, arms = PARTS[arguments.part]
    for domain, corruption, strength in data_of_part:
        where = (arguments.part, arguments.run.name, domain, corruption, strength)
        wanted = [
            dict(zip(KEYS, (*where, method, objective, reduction, lr), strict=True))
            for method, objective, reduction, rates in arms
            for lr in rates
        ]
        wanted = [row for row in wanted if rows.get(row) is None]
        data = Data(loaded, domain, corruption, strength, arguments.part != "objectives") if wanted else None
        for row in wanted:
            written = rows.add(row | data.adapted(row["method"], row["objective"], row["reduction"], row["lr"]))
            scores = [f"{100 * written[name]:.1f}" for look in LOOKS if (name := f"{look} miou") in written]
            print(*row.values(), *scores, flush=True)


class Data:
    """The images of one corruption, and scores and evidence of the unadapted network."""

    def __init__(self, loaded: TrainedNetwork, domain: str, corruption: str, strength: int, evidence: bool) -> None:
        self.loaded, self.evidence = loaded, evidence
        look = GAME_STREET if domain == "home" else target_look(0, 1.0)
        table, _ = id_tables(loaded.class_set, LAYOUTS["cityscapes"].ids)
        self.images, self.labels = [], []
        for index in range(IMAGES):
            picture, label_ids = draw_street(look, "val", FIRST_IMAGE + index, seed=0, size=SIZE)
            self.images.append(normalised(corrupted(picture, corruption, strength, index)))
            self.labels.append(torch.from_numpy(table[label_ids]).long())
        # evenly from the folder, as in seg.adapt
        shown = [self.images[round(place * IMAGES / PROBE)] for place in range(PROBE)]
        self.probe = Probe([torch.stack(shown[:8]), torch.stack(shown[8:])])
        self.before = self.probe.look(plain_forward(loaded.network))
        self.first: dict[str, dict[str, Any]] = {}

    def batches(self) -> Iterator[Tensor]:
        """Every image once, shuffled."""
        order = torch.randperm(IMAGES, generator=torch.Generator().manual_seed(0)).tolist()
        for first in range(0, IMAGES, BATCH):
            yield torch.stack([self.images[index] for index in order[first : first + BATCH]])

    @torch.no_grad()
    def score(self, network: nn.Module) -> dict[str, float]:
        """Scores with the labels of all images."""
        logits = torch.cat([plain_forward(network)(torch.stack(self.images[i : i + 8])) for i in range(0, IMAGES, 8)])
        table = confusion(logits, torch.stack(self.labels), len(self.loaded.class_set))
        return {"miou": mean_iou(table), "pixel_accuracy": float(table.diag().sum() / table.sum())}

    def adapted(self, method: str, objective: str, reduction: str, lr: float) -> dict[str, Any]:
        """Numbers before, and at every look."""
        network = copy.deepcopy(self.loaded.network)
        given = {} if objective == "none" else {"objective": objective, "lr": lr, "reduction": reduction}
        watched = WatchedAdapter(TestTimeAdapter(network, method, **given), self.probe, self.before)
        policy = watched.adapter.batch_norm
        if policy not in self.first:  # the same for all arms before learning
            self.first[policy] = self.look(watched)
        looks = {"before": self.numbers(self.loaded.network, self.before), "step 0": self.first[policy]}
        batches = list(self.batches()) if method != "bn" else []
        for batch in batches:
            failed = watched.learn(batch) is None
            if failed or (f"step {watched.step}" in LOOKS and (self.evidence or watched.step == len(batches))):
                looks[f"step {watched.step}"] = {"miou": 0.0, "pixel_accuracy": 0.0} if failed else self.look(watched)
            if failed:
                break
        return looks

    def look(self, watched: WatchedAdapter) -> dict[str, Any]:
        """Numbers of the current network."""
        candidate = deployed_copy(watched.adapter, self.probe)
        if not self.evidence:
            return self.numbers(candidate)
        try:
            return self.numbers(candidate, self.probe.look(plain_forward(candidate)))
        except NotFiniteError:
            return {"miou": 0.0, "pixel_accuracy": 0.0}

    def numbers(self, network: nn.Module, evidence: Evidence | None = None) -> dict[str, Any]:
        """Scores, and the numbers of the acceptance test."""
        if evidence is None:
            return self.score(network)
        return self.score(network) | {
            "entropy": evidence.entropy, "classes": evidence.effective_classes,
            "stability": evidence.stability_on(self.before), "adapt": decide(self.before, evidence).adapt,
        }  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--part", choices=tuple(PARTS), default="decision")
    parser.add_argument("--out", type=Path, default=Path("docs/results/adapt_decision.csv"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
