"""Training from ImageNet weights on photographs: what each arm gives on the target, beside source only.

    OMP_NUM_THREADS=1 python benchmarks/photograph_training.py --photographs PHOTOGRAPHS --work WORK [--only ARM|ARM]
        [--network fpn] [--pairs NAME,NAME] [--seeds 0,1,2] [--steps 300] [--out docs/results/photograph_training.csv]

PHOTOGRAPHS is of ``benchmarks/photographs.py``. Of either domain the first 60 % of the images are trained on, and at
most 48 of the others scored. Settings that an arm does not name are seg.train's defaults, the network (FPN on
EfficientNet-Lite0 with ImageNet weights) and the size among them; ``--network`` takes another. Every run is scored with
the statistics that it was trained to, and, if most of its normalisation has such, with shares of the batch norm
statistics of the target's training images; ``worths`` are what the default rule compares, of share 0, 0.3, 0.5 and 1.
The same command continues with the missing rows, and prints the table; with ``--only none`` it prints alone.
"""

import itertools
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from csv_rows import CsvRows, parser_of
from photograph_networks import parts
from torch import nn

from dem_apps.report.intervals import difference_interval
from dem_apps.report.tables import markdown
from dem_apps.runtime.settings import from_dict
from seg.config import TrainConfig
from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair
from seg.data.statistics import spread_batches
from seg.inference.adaptive_batch_norm import SHARES, best_share, re_estimated_on
from seg.models.batch_norm import batch_norm_normalises
from seg.models.settings import PRETRAINED
from seg.scores.evaluation import evaluate
from seg.scores.evidence import Probe, plain_forward
from seg.trained.run_network import open_run
from seg.trained.start_from import normalisation
from seg.training.loop import train

#: A pair's set, source domains, target domain.
PAIRS = {
    "dusk": ("camvid", ("Seq05VD", "0016E5", "0006R0"), "0001TP"),
    "drone": ("cracks", ("asphalt",), "drone"),
    "drishti": ("discs", ("refuge",), "drishti"),
    "chase": ("vessels", ("drive",), "chase"),
    "concrete": ("cracks", ("asphalt",), "concrete"),
}
#: Of many classes as well, to confirm what one such pair chose.
OTHER_PAIRS = {
    "Seq05VD → 0006R0": ("camvid", ("Seq05VD",), "0006R0"),
    "dusk → 0016E5": ("camvid", ("0001TP",), "0016E5"),
}
TITLES = {
    "dusk": "streets at dusk", "drone": "cracks by drone", "drishti": "optic discs", "chase": "retinal vessels",
    "concrete": "cracks in concrete", "dusk → 0016E5": "dusk to day", "Seq05VD → 0006R0": "another drive by day",
}  # fmt: skip
SCORED = 48
#: The default; DeepLab-V2 on the same encoder; and one of layer norm, whose weights are random.
NETWORKS: dict[str, dict[str, Any]] = {
    "fpn": {},
    "deeplab": {"name": "deeplabv2", "encoder": PRETRAINED},
    "transformer": {"name": "fpn", "encoder": "mit_b0", "encoder_weights": None},
}
Arm = dict[str, Any]
#: Of a row.
Score = Callable[[Mapping[str, Any]], float]
_COLOURS = {"brightness": [0.5, 1.5], "contrast": [0.5, 1.5], "saturation": [0.5, 1.5], "hue": [-0.1, 0.1], "p": 0.8}
_STRONG = [{"HorizontalFlip": {"p": 0.5}}, {"ColorJitter": _COLOURS}, {"GaussianBlur": {"p": 0.3}}]
STRONG, FOURIER = {"source": {"augmentation": _STRONG}}, {"source": {"style": "fourier"}}
RARE = {"source": {"rare_class_temperature": 0.01}}
STRONG_FOURIER = {"source": {"augmentation": _STRONG, "style": "fourier"}}
SOURCE: Arm = {"method": "source"}


def adapting(method: str, loss: str, policy: str = "source", **settings: Any) -> Arm:
    """A method that reads target images."""
    return {"method": method, "loss": loss, "model": {"batch_norm": policy}, **settings}


def weighing(loss: str, weight: float, policy: str = "source", **settings: Any) -> Arm:
    """An objective at a weight."""
    return adapting("minent", loss, policy, weights={"target_main": weight}, **settings)


#: τ and α of the demo's table; they were not searched on photographs.
_DEM = {"tau": 1.5, "alpha": 0.0}
ARMS: dict[str, Arm] = {
    "source": SOURCE,
    "target statistics": adapting("minent", "none", "target"),
    "both statistics": adapting("minent", "none", "trainable"),
    "ADVENT's statistics": adapting("minent", "none", "affine-frozen"),
    "strong": SOURCE | STRONG,
    "fourier": SOURCE | FOURIER,
    "strong, fourier": SOURCE | STRONG_FOURIER,
    "rare": SOURCE | RARE,
    "rare, strong": SOURCE | {"source": RARE["source"] | STRONG["source"]},
    "rare, fourier": SOURCE | {"source": RARE["source"] | FOURIER["source"]},
    "rare, adadem 0.01": weighing("adadem", 0.01, **RARE),
    "frozen": SOURCE | {"model": {"batch_norm": "frozen"}},
    "best of before": adapting("minent", "none", "target", source={"style": "fourier", "rare_class_temperature": 0.01}),
    "entropy 0.01": weighing("entropy", 0.01),
    "entropy 0.1": weighing("entropy", 0.1),
    "entropy 1": weighing("entropy", 1.0),
    "dem 0.01": weighing("dem", 0.01, **_DEM),
    "dem 0.1": weighing("dem", 0.1, **_DEM),
    "dem 1": weighing("dem", 1.0, **_DEM),
    "adadem 0.01": weighing("adadem", 0.01),
    "adadem 0.1": weighing("adadem", 0.1),
    "adadem 1": weighing("adadem", 1.0),
    "entropy 0.01, ADVENT's": weighing("entropy", 0.01, "affine-frozen"),
    "dem 0.01, ADVENT's": weighing("dem", 0.01, "affine-frozen", **_DEM),
    "adadem 0.01, ADVENT's": weighing("adadem", 0.01, "affine-frozen"),
    "strong, adadem 0.01": weighing("adadem", 0.01, **STRONG),
    "advent none": adapting("advent", "none"),
    "advent entropy": adapting("advent", "entropy"),
    "advent dem": adapting("advent", "dem", **_DEM),
    "advent adadem": adapting("advent", "adadem"),
    "advent entropy, ADVENT's": adapting("advent", "entropy", "affine-frozen"),
    "advent adadem, ADVENT's": adapting("advent", "adadem", "affine-frozen"),
    "self-training, source": adapting("self-training", "none", "source"),
    "self-training, target": adapting("self-training", "none", "target"),
    "self-training, source, masks": adapting("self-training", "none", "source", self_training={"mask_ratio": 0.7}),
    "self-training, source, strong": adapting("self-training", "none", "source", **STRONG),
    "target labels": {"method": "source", "target": {"labelled_part": 1.0, "labelled_use": "instead"}},
}
#: What seg.train does unless told otherwise, with the share.
DEFAULT = "rare"
#: The pair and arms of the paper's claim, and CamVid's rare classes: pole, sign, fence, pedestrian, bicyclist.
CLAIM_PAIR = "dusk"
CLAIM = [
    "source", "entropy 0.01", "entropy 0.1", "entropy 1", "dem 0.01", "dem 0.1", "dem 1", "adadem 0.01", "adadem 0.1",
    "adadem 1", "ADVENT's statistics", *(arm for arm in ARMS if "ADVENT's" in arm and arm != "ADVENT's statistics"),
    *(arm for arm in ARMS if arm.startswith("advent") and "ADVENT's" not in arm),
]  # fmt: skip
TAIL = (2, 6, 7, 9, 10)
KEYS = ("network", "pair", "arm", "seed", "steps")
SCORES = ("as trained", *(f"share {share:g}" for share in SHARES[1:]), "source", "ious", "worths", "minutes")


def folders(photographs: Path, work: Path, pair: str) -> dict[str, str]:
    """The roots of a pair's two folders, made of links."""
    group, sources, target = (PAIRS | OTHER_PAIRS)[pair]
    roots = {domain: work / "pairs" / pair / domain for domain in ("source", "target")}
    for domain, names in (("source", sources), ("target", (target,))):
        for name in names:
            first, rest = parts(photographs / group, name)
            splits = {"train": first, "val": rest[:: -(-len(rest) // (SCORED // len(names)))]}
            for (split, files), kind in itertools.product(splits.items(), ("images", "labels")):
                place = roots[domain] / kind / split
                place.mkdir(parents=True, exist_ok=True)
                for file in files:
                    link = place / f"{name}_{file.name}"
                    if not link.is_symlink():
                        link.symlink_to((file.parent.parent / kind / file.name).resolve())
    return {domain: str(root) for domain, root in roots.items()}


def settings(network: str, arm: str, roots: dict[str, str], seed: int, steps: int, run: Path) -> TrainConfig:
    """Those of a run."""
    own = dict(ARMS[arm])
    own["model"] = NETWORKS[network] | own.get("model", {})
    if network == "transformer":
        own["model"].pop("batch_norm", None)
    # source pixels are pasted into images of their size
    size = {"size": [256, 192]} if own["method"] == "self-training" else {}
    data = {domain: {"root": root, **size, **own.get(domain, {})} for domain, root in roots.items()}
    data["source"].setdefault("rare_class_temperature", None)  # as before it was the default
    fixed = {"seed": seed, "max_steps": steps, "eval_every": steps, "maps": 0, "run_dir": str(run)}
    config = from_dict(TrainConfig, {**own, **data, **fixed}, "an arm")
    config.check()
    return config


def scores(config: TrainConfig) -> dict[str, Any]:
    """Train, and mIoU % on both domains' held-out images."""
    began = time.monotonic()
    run = train(config)
    result: dict[str, Any] = {"minutes": (time.monotonic() - began) / 60}
    trained = open_run(run, "last")
    device, config = torch.device("cpu"), trained.training.config
    pair = open_pair(config.source, config.target, trained.class_set, rgb=normalisation(config.model))
    source_val = SegmentationDataset(
        Path(str(config.source.root)), "folders", "val", size=tuple(config.source.size or ()) or None,  # type: ignore[arg-type]
        classes=pair.classes, labelled=None, resize_labels=False,
    )  # fmt: skip
    source_val.pixels = pair.pixels
    images = spread_batches(lambda index: pair.target_train[index].normalised(), len(pair.target_train), device)

    def miou(network: nn.Module, dataset: SegmentationDataset) -> tuple[float, list[float]]:
        align = trained.description.align_corners
        found = evaluate(network, dataset, trained.class_set, device, align_corners=align)
        return 100 * found["miou"], [100 * value for value in found["per_class_iu"].values() if value is not None]

    result["as trained"], result["ious"] = miou(trained.network, pair.target_val)
    result["source"] = miou(trained.network, source_val)[0]
    if not batch_norm_normalises(trained.network):
        return result
    probe = Probe(list(itertools.islice(images, 2)), 32)
    before = probe.look(plain_forward(trained.network))
    result["worths"] = [before.stability_score(before)]
    for share in SHARES[1:]:
        network = re_estimated_on(pair.target_train, trained.network, device, share).network
        result["worths"].append(probe.look(plain_forward(network)).stability_score(before))
        result[f"share {share:g}"] = miou(network, pair.target_val)[0]
    return result


def by_rule(row: Mapping[str, Any]) -> float:
    """The score with the share that :func:`seg.inference.adaptive_batch_norm.re_estimated` takes."""
    worths = [float(value) for value in row["worths"].split()] or [0.0]
    share = best_share(worths)
    return float(row["as trained" if share == 0 else f"share {share:g}"])


def by_arm(rows: CsvRows, steps: int, network: str = "fpn") -> dict[str, dict[str, dict[str, Mapping[str, Any]]]]:
    """The rows of an arm, of a pair, of a seed."""
    found: dict[str, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for row in rows.rows.values():
        if (str(row["steps"]), row["network"]) == (str(steps), network):
            found.setdefault(row["arm"], {}).setdefault(row["pair"], {})[str(row["seed"])] = row
    return found


def gains(rows: CsvRows) -> str:
    """README's sentence: what the default adds to source only, mean over seeds."""
    each = _after_source(rows, DEFAULT, TITLES)
    return ", ".join(f"{TITLES[pair]} {gain:+.1f}" for pair, gain in each.items())


def table(rows: CsvRows, most: bool = True) -> str:
    """mIoU % of each arm on each pair, mean over seeds, and the difference to source only as trained, in 300 steps.

    The difference is seed by seed, with its interval where there are several seeds. Where the source moves the
    statistics, an arm has the default share of the target's; source only stands there without it as well. ``most``:
    the arms that were run on most of the pairs, or the others but for those that :func:`claim_table` has.
    """
    found = {arm: pairs for arm, pairs in by_arm(rows, 300).items() if arm not in CLAIM or set(pairs) != {CLAIM_PAIR}}
    source = {pair: _scores(seeds, _plain) for pair, seeds in found["source"].items()}
    lines = [["source", *(_cell(source[pair], source[pair]) for pair in PAIRS)]]
    for arm in (arm for arm in ARMS if arm in found and (2 * len(found[arm]) > len(PAIRS)) == most):
        score, title = _after(arm), f"{arm}, share" if _after(arm) is by_rule else arm
        lines.append([title, *(_cell(_scores(found[arm].get(pair, {}), score), source[pair]) for pair in PAIRS)])
    return markdown(["arm", *PAIRS], lines[0 if most else 1 :])


def chosen_by(rows: CsvRows) -> str:
    """The choice of the default: differences to source only, mean over pairs, and what it did in all runs."""
    apart = {arm: list(_after_source(rows, arm).values()) for arm in (DEFAULT, "source", "adadem 0.01", "strong")}
    means = "; ".join(
        f"`{arm}, share` {fmean(gains):+.1f}, {'worst pair ' * (arm == DEFAULT)}{min(gains):+.1f}"
        for arm, gains in apart.items()
    )
    found = by_arm(rows, 300)
    every = [by_rule(row) - _plain(found["source"][pair][seed])
             for pair, seeds in found[DEFAULT].items() if pair in PAIRS for seed, row in seeds.items()]  # fmt: skip
    return (
        f"{means}. The first is below source only in {sum(gain < 0 for gain in every)} of {len(every)} runs, and "
        f"three points or more above it on {sum(gain >= 3 for gain in apart[DEFAULT])} pairs"
    )


def confirmed(rows: CsvRows) -> str:
    """On :data:`OTHER_PAIRS` the default, each half of it alone: differences to source only."""
    found, told = by_arm(rows, 300), []
    for pair in OTHER_PAIRS:
        halves = ((DEFAULT, by_rule), (DEFAULT, _plain), ("source", by_rule))
        source = _scores(found["source"][pair], _plain)
        both, rare, share = (_cell(_scores(found[arm][pair], score), source).split(", ", 1)[1] for arm, score in halves)
        told.append(f"{pair} {both}, without a share {rare}, the share alone {share}")
    return "; ".join(told)


def _after_source(rows: CsvRows, arm: str, pairs: Iterable[str] = PAIRS) -> dict[str, float]:
    """By pair the mean over seeds of what an arm with the default share has over source only as trained."""
    found = by_arm(rows, 300)
    return {
        pair: fmean(by_rule(row) - _plain(found["source"][pair][seed]) for seed, row in found[arm][pair].items())
        for pair in pairs
    }


def _plain(row: Mapping[str, Any]) -> float:
    return float(row["as trained"])


def _tail(row: Mapping[str, Any]) -> float:
    ious = list(map(float, row["ious"].split()))
    return fmean(ious[index] for index in TAIL)


def claim_table(rows: CsvRows) -> str:
    """The paper's claim on :data:`CLAIM_PAIR` as trained: mIoU %, and of the tail; both as :func:`table` has them."""
    seeds = {arm: str(len(pairs[CLAIM_PAIR])) for arm, pairs in by_arm(rows, 300).items() if CLAIM_PAIR in pairs}
    miou, tail = claim_cells(rows), claim_cells(rows, _tail)
    return markdown(["arm", "seeds", "mIoU", "tail"], [[arm, seeds[arm], miou[arm], tail[arm]] for arm in miou])


def as_trained(rows: CsvRows, arm: str) -> dict[str, float]:
    """mIoU % on :data:`CLAIM_PAIR`, by seed."""
    return _scores(by_arm(rows, 300)[arm][CLAIM_PAIR], _plain)


def claim_cells(rows: CsvRows, score: Score = _plain) -> dict[str, str]:
    """By arm a score on :data:`CLAIM_PAIR` and its difference to source only."""
    found = {arm: _scores(pairs.get(CLAIM_PAIR, {}), score) for arm, pairs in by_arm(rows, 300).items()}
    return {arm: _cell(found[arm], found["source"]) for arm in CLAIM if found.get(arm)}


def networks_table(rows: CsvRows) -> str:
    """Of the networks, seed 0: source only, the default share's difference, and AdaDEM's with the share."""
    lines = []
    for network in NETWORKS:
        found = by_arm(rows, 300, network)
        for arm, score in (("source", _plain), ("source", by_rule), ("adadem 0.01", by_rule)):
            cells = []
            for pair in PAIRS:
                row, source = found.get(arm, {}).get(pair, {}).get("0"), found["source"].get(pair, {}).get("0")
                apart = score is by_rule and source is not None
                cells.append("" if row is None else f"{score(row) - (_plain(source) if apart else 0):{'+' * apart}.1f}")
            lines.append([network, f"{arm}, share" if score is by_rule else arm, *cells])
    return markdown(["network", "arm", *PAIRS], lines)


def lengths_table(rows: CsvRows) -> str:
    """Source only in three lengths, seed 0: mIoU % on held-out source images; on the target; with the default share."""
    lines = []
    for steps in (100, 300, 900):
        found = by_arm(rows, steps).get("source", {})
        chosen = [found.get(pair, {}).get("0") for pair in PAIRS]
        cells = [f"{float(r['source']):.1f}; {_plain(r):.1f}; {by_rule(r):.1f}" if r else "" for r in chosen]
        lines.append([str(steps), *cells])
    return markdown(["steps", *PAIRS], lines)


def _after(arm: str) -> Score:
    """An arm's score that counts: with the default share where the source moves the statistics, else as trained."""
    return by_rule if ARMS[arm].get("model", {}).get("batch_norm", "source") == "source" else _plain


def _scores(seeds: Mapping[str, Any], score: Score) -> dict[str, float]:
    return {seed: score(row) for seed, row in seeds.items()}


def _cell(scores: dict[str, float], source: dict[str, float]) -> str:
    scores = {seed: score for seed, score in scores.items() if seed in source}
    if not scores:
        return ""
    mean = f"{sum(scores.values()) / len(scores):.1f}"
    if scores == source:
        return mean
    apart = difference_interval(scores, source)
    ends = "" if apart.low is None else f" [{apart.low:+.1f}, {apart.high:+.1f}]"
    return f"{mean}, {apart.estimate:+.1f}{ends}"


def main() -> None:
    """Train the missing rows, and print the table."""
    parser = parser_of(__doc__, "photographs", "work", out="docs/results/photograph_training.csv")
    parser.add_argument("--network", default="fpn", choices=NETWORKS)
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--only", default="|".join(ARMS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, SCORES)
    arms = [arm for arm in options.only.split("|") if arm in ARMS]
    for seed, arm, pair in itertools.product(options.seeds.split(","), arms, options.pairs.split(",")):
        row = {"network": options.network, "pair": pair, "arm": arm, "seed": int(seed), "steps": options.steps}
        if rows.get(row) is None:
            run = options.work / "runs" / "-".join(map(str, row.values())).replace(" ", "_").replace(",", "")
            shutil.rmtree(run, ignore_errors=True)
            roots = folders(options.photographs, options.work, pair)
            config = settings(options.network, arm, roots, int(seed), options.steps, run)
            print(rows.add(row | scores(config)), flush=True)
            shutil.rmtree(run)
    tables = (table(rows), table(rows, most=False), claim_table(rows), networks_table(rows), lengths_table(rows))
    print(*tables, gains(rows), sep="\n")


if __name__ == "__main__":
    main()
