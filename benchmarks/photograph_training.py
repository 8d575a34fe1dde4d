"""Train from ImageNet weights on photographs: tables of docs/adaptation.md and docs/appendix.md.

    OMP_NUM_THREADS=1 python benchmarks/photograph_training.py --photographs PHOTOGRAPHS --work WORK [--only ARM|ARM]
        [--network fpn] [--pairs NAME,NAME] [--seeds 0,1,2] [--steps 300] [--out docs/results/photograph_training.csv]

PHOTOGRAPHS is the folder that ``benchmarks/photographs.py`` writes. The first 60 % of each domain's images are trained
on, and at most 48 of the others scored. Settings that an arm does not name are seg.train's defaults, also the network
(FPN on EfficientNet-Lite0 with ImageNet weights) and the size; ``--network`` takes another. Every run is scored with
the statistics that it was trained to, and, if most of its normalisation has such, with shares of the batch norm
statistics of the target's training images; ``worths`` are what the default rule compares, of share 0, 0.3, 0.5 and 1.
The same command continues with the missing rows, and prints the tables; with ``--only none`` it prints alone.
"""

import itertools
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from csv_rows import RESULTS, CsvRows, Row, beside, half, interval, parser_of
from photograph_networks import parts
from torch import nn

from dem_apps.report.intervals import difference_interval, mean_interval
from dem_apps.report.tables import markdown
from dem_apps.runtime.settings import from_dict
from seg.config import TrainConfig
from seg.data.datasets import SegmentationDataset
from seg.data.domains import open_pair
from seg.data.statistics import spread_batches
from seg.models.batch_norm import batch_norm_normalises
from seg.models.settings import PRETRAINED
from seg.scores.evaluation import evaluate
from seg.scores.evidence import Probe, plain_forward
from seg.trained.adaptive_batch_norm import SHARES, best_share, re_estimated_on
from seg.trained.run_network import open_run
from seg.trained.start_from import Start
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
    "dusk": "streets at dusk",
    "drone": "cracks by drone",
    "drishti": "optic discs",
    "chase": "retinal vessels",
    "concrete": "cracks in concrete",
    "dusk → 0016E5": "dusk to day",
    "Seq05VD → 0006R0": "another drive by day",
}
SCORED = 48
#: The default; DeepLab-V2 on the same encoder; and one of layer norm, whose weights are random.
NETWORKS: dict[str, dict[str, Any]] = {
    "fpn": {},
    "deeplab": {"name": "deeplabv2", "encoder": PRETRAINED},
    "transformer": {"name": "fpn", "encoder": "mit_b0", "encoder_weights": None},
}
Arm = dict[str, Any]
#: Of a row.
Score = Callable[[Row], float]
_COLOURS = {
    "brightness": [0.5, 1.5],
    "contrast": [0.5, 1.5],
    "saturation": [0.5, 1.5],
    "hue": [-0.1, 0.1],
    "p": 0.8,
}
_STRONG = [{"HorizontalFlip": {"p": 0.5}}, {"ColorJitter": _COLOURS}, {"GaussianBlur": {"p": 0.3}}]
_RARE = {"rare_class_temperature": 0.01}
#: τ and α of the demo's table; they were not searched on photographs.
_DEM = {"tau": 1.5, "alpha": 0.0}


def adapting(method: str, loss: str, policy: str = "source", **settings: Any) -> Arm:
    """A method that reads target images."""
    return {"method": method, "loss": loss, "model": {"batch_norm": policy}, **settings}


def weighing(
    loss: str, weight: float, policy: str = "source", relative: bool = True, **settings: Any
) -> Arm:
    """An objective at a weight, which the source's cross-entropy scales unless ``relative`` is False."""
    weights = {"target_main": weight, "relative": relative}
    return adapting("minent", loss, policy, weights=weights, **settings)


ARMS: dict[str, Arm] = {
    "source": {"method": "source"},
    "target statistics": adapting("minent", "none", "target"),
    "both statistics": adapting("minent", "none", "trainable"),
    "ADVENT's statistics": adapting("minent", "none", "affine-frozen"),
    "strong": {"method": "source", "source": {"augmentation": _STRONG}},
    "fourier": {"method": "source", "source": {"style": "fourier"}},
    "rare": {"method": "source", "source": _RARE},
    "rare, entropy": weighing("entropy", 0.03, relative=False, source=_RARE),
    "rare, adadem": weighing("adadem", 0.03, relative=False, source=_RARE),
    "frozen": {"method": "source", "model": {"batch_norm": "frozen"}},
    "entropy 0.01": weighing("entropy", 0.01),
    "entropy 0.1": weighing("entropy", 0.1),
    "dem 0.1": weighing("dem", 0.1, **_DEM),
    "adadem 0.01": weighing("adadem", 0.01),
    "adadem 0.1": weighing("adadem", 0.1),
    "entropy 0.01, ADVENT's": weighing("entropy", 0.01, "affine-frozen"),
    "adadem 0.01, ADVENT's": weighing("adadem", 0.01, "affine-frozen"),
    "advent none": adapting("advent", "none"),
    "advent entropy": adapting("advent", "entropy"),
    "advent dem": adapting("advent", "dem", **_DEM),
    "advent adadem": adapting("advent", "adadem"),
    "self-training, source": adapting("self-training", "none"),
    "self-training, source, masks": adapting(
        "self-training", "none", self_training={"mask_ratio": 0.7}
    ),
    "target labels": {
        "method": "source",
        "target": {"labelled_part": 1.0, "labelled_use": "instead"},
    },
}
#: What seg.train does unless told otherwise, with the share.
DEFAULT = "rare"
#: Pairs that chose the weight of MinEnt with AdaDEM, by minent_weights_registration.txt.
WEIGHT_CHOSEN_ON = ("dusk", "chase")
#: The pair and arms of the paper's claim, and CamVid's rare classes: pole, sign, fence, pedestrian, bicyclist.
CLAIM_PAIR = "dusk"
CLAIM = (
    "source",
    "entropy 0.01",
    "entropy 0.1",
    "dem 0.1",
    "adadem 0.01",
    "adadem 0.1",
    "ADVENT's statistics",
    "entropy 0.01, ADVENT's",
    "adadem 0.01, ADVENT's",
    "advent none",
    "advent entropy",
    "advent dem",
    "advent adadem",
)
TAIL = (2, 6, 7, 9, 10)
KEYS = ("network", "pair", "arm", "seed", "steps")
SCORES = (
    "as trained",
    *(f"share {share:g}" for share in SHARES[1:]),
    "source",
    "ious",
    "worths",
    "minutes",
)


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


def settings(
    network: str, arm: Arm, roots: dict[str, str], seed: int, steps: int, run: Path
) -> TrainConfig:
    """The settings of a run."""
    own = dict(arm)
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
    device, stored = torch.device("cpu"), trained.config
    assert stored is not None
    rgb = Start(stored.model).pixels
    pair = open_pair(stored.source, stored.target, trained.class_set, rgb=rgb)
    source_val = SegmentationDataset(
        Path(str(stored.source.root)),
        "folders",
        "val",
        size=tuple(stored.source.size or ()) or None,  # type: ignore[arg-type]
        classes=pair.classes,
        labelled=None,
    )
    source_val.pixels = pair.pixels
    images = spread_batches(
        lambda index: pair.target_train[index].normalised(), len(pair.target_train), device
    )

    def miou(network: nn.Module, dataset: SegmentationDataset) -> tuple[float, list[float]]:
        align = trained.description.align_corners
        found = evaluate(plain_forward(network.eval()), dataset, device, align_corners=align)
        return 100 * found["miou"], [
            100 * value for value in found["per_class_iu"].values() if value is not None
        ]

    result["as trained"], result["ious"] = miou(trained.network, pair.target_val)
    result["source"] = miou(trained.network, source_val)[0]
    if not batch_norm_normalises(trained.network):
        return result
    probe = Probe([(batch, None) for batch in itertools.islice(images, 2)], 32)
    before = probe.look(plain_forward(trained.network))
    result["worths"] = [before.stability_score(before)]
    for share in SHARES[1:]:
        network = re_estimated_on(pair.target_train, trained.network, device, share).network
        result["worths"].append(probe.look(plain_forward(network)).stability_score(before))
        result[f"share {share:g}"] = miou(network, pair.target_val)[0]
    return result


def plain(row: Row) -> float:
    """The score as trained."""
    return float(row["as trained"])


def by_rule(row: Row) -> float:
    """The score with the share that :func:`seg.trained.adaptive_batch_norm.re_estimated` takes."""
    share = best_share([*map(float, row["worths"].split())] or [0.0])
    return float(row["as trained" if share == 0 else f"share {share:g}"])


def tail(row: Row) -> float:
    """The mean over rare classes as trained."""
    return fmean(float(row["ious"].split()[index]) for index in TAIL)


def usual(arm: str) -> Score:
    """An arm's score that counts: with the default share where the source moves the statistics, else as trained."""
    return by_rule if ARMS[arm].get("model", {}).get("batch_norm", "source") == "source" else plain


def by_seed(
    rows: CsvRows, arm: str, pair: str, score: Score = plain, network: str = "fpn"
) -> dict[str, float]:
    """A score of an arm on a pair, in 300 steps."""
    wanted = {"network": network, "pair": pair, "arm": arm, "steps": "300"}
    found = (
        row
        for row in rows.rows.values()
        if all(str(row[key]) == value for key, value in wanted.items())
    )
    return {str(row["seed"]): score(row) for row in found}


def cell(scores: dict[str, float], source: dict[str, float]) -> str:
    """The mean over the seeds that source only has as well, and the difference to it where there is one."""
    scores = {seed: score for seed, score in scores.items() if seed in source}
    if scores and scores != source:
        return beside(scores, source)
    return f"{fmean(scores.values()):.1f}" if scores else ""


def after_source(rows: CsvRows, arm: str, pair: str) -> list[float]:
    """The difference of an arm with the default share to source only as trained, by seed."""
    source = by_seed(rows, "source", pair)
    return [score - source[seed] for seed, score in by_seed(rows, arm, pair, by_rule).items()]


def gains_table(rows: CsvRows) -> str:
    """README's table: mIoU % of source only and of the default, means over seeds; the difference with half its CI."""
    lines = []
    for pair, title in TITLES.items():
        alone = fmean(by_seed(rows, "source", pair).values())
        ours = fmean(by_seed(rows, DEFAULT, pair, by_rule).values())
        lines.append(
            [title, f"{alone:.1f}", f"{ours:.1f}", half(after_source(rows, DEFAULT, pair))]
        )
    return markdown(["target images", "source only", "adapted", "difference"], lines)


def table(rows: CsvRows, most: bool = True) -> str:
    """mIoU % of each arm on each pair, mean over seeds, and the difference to source only as trained, in 300 steps.

    The difference is seed by seed, with its interval where there are several seeds. Where the source moves the
    statistics, an arm has the default share of the target's; source only stands there without it as well. ``most``:
    the arms that were run on most of the pairs, or the others but for those that :func:`claim_table` has.
    """
    source = {pair: by_seed(rows, "source", pair) for pair in PAIRS}
    lines = [["source", *(cell(source[pair], source[pair]) for pair in PAIRS)]] if most else []
    for arm in ARMS:
        found = {pair: by_seed(rows, arm, pair, usual(arm)) for pair in PAIRS}
        run_on = [pair for pair in PAIRS if found[pair]]
        if (2 * len(run_on) > len(PAIRS)) == most and not (arm in CLAIM and run_on == [CLAIM_PAIR]):
            title = f"{arm}, share" if usual(arm) is by_rule else arm
            lines.append([title, *(cell(found[pair], source[pair]) for pair in PAIRS)])
    return markdown(["arm", *PAIRS], lines)


def default_table(rows: CsvRows) -> str:
    """The choice of the default: differences to source only over pairs, and how many runs are below it."""
    lines = []
    for arm in (DEFAULT, "source", "adadem 0.01", "strong"):
        by_pair = [after_source(rows, arm, pair) for pair in PAIRS]
        means = [fmean(each) for each in by_pair]
        runs = [difference for each in by_pair for difference in each]
        below = sum(difference < 0 for difference in runs)
        lines.append(
            [
                f"{arm}, share",
                f"{fmean(means):+.1f}",
                f"{min(means):+.1f}",
                f"{below} of {len(runs)}",
            ]
        )
    return markdown(["arm", "mean over pairs", "worst pair", "runs below source only"], lines)


def other_pairs_table(rows: CsvRows) -> str:
    """Differences to source only on :data:`OTHER_PAIRS`: of the default, and of each half of it alone."""
    arms = {
        f"{DEFAULT}, share": (DEFAULT, by_rule),
        DEFAULT: (DEFAULT, plain),
        "source, share": ("source", by_rule),
    }
    lines = []
    for pair in OTHER_PAIRS:
        source = by_seed(rows, "source", pair)
        found = [by_seed(rows, arm, pair, score) for arm, score in arms.values()]
        lines.append([pair, *(interval(difference_interval(each, source)) for each in found)])
    return markdown(["pair", *arms], lines)


def best_with_adadem_table(rows: CsvRows) -> str:
    """``--config best`` and the same with MinEnt and AdaDEM, mIoU %, by best_adadem_registration.txt.

    The difference has its 95 % CI over seeds on each pair, and over pairs in the last two lines.
    """
    lines, means = [], dict[str, float]()
    for pair in TITLES:
        best, ours = (by_seed(rows, arm, pair, by_rule) for arm in (DEFAULT, f"{DEFAULT}, adadem"))
        apart = difference_interval(ours, best)
        means[pair] = apart.estimate
        lines.append(
            [pair, *(f"{fmean(each.values()):.1f}" for each in (best, ours)), interval(apart)]
        )
    others = [mean for pair, mean in means.items() if pair not in WEIGHT_CHOSEN_ON]
    for title, each in (("all pairs", [*means.values()]), ("pairs that chose nothing", others)):
        lines.append([title, "", "", interval(mean_interval(each))])
    return markdown(["pair", "best", "best with AdaDEM", "difference"], lines)


def claim_table(rows: CsvRows) -> str:
    """The paper's claim on :data:`CLAIM_PAIR` as trained: mIoU %, and of the tail; both as :func:`table` has them."""
    lines = []
    for arm in CLAIM:
        found = {score: by_seed(rows, arm, CLAIM_PAIR, score) for score in (plain, tail)}
        cells = [
            cell(own, by_seed(rows, "source", CLAIM_PAIR, score)) for score, own in found.items()
        ]
        lines.append([arm, str(len(found[plain])), *cells])
    return markdown(["arm", "seeds", "mIoU", "tail"], lines)


def networks_table(rows: CsvRows) -> str:
    """mIoU % of each network by seed 0: source only, and the differences of the share and of AdaDEM with the share."""
    lines = []
    for network in NETWORKS:
        source = {pair: by_seed(rows, "source", pair, network=network)["0"] for pair in PAIRS}
        lines.append([f"{network}, source", *(f"{source[pair]:.1f}" for pair in PAIRS)])
        for arm in ("source", "adadem 0.01"):
            found = {pair: by_seed(rows, arm, pair, by_rule, network).get("0") for pair in PAIRS}
            cells = [
                "" if score is None else f"{score - source[pair]:+.1f}"
                for pair, score in found.items()
            ]
            lines.append([f"{network}, {arm}, share", *cells])
    return markdown(["network and arm", *PAIRS], lines)


def main() -> None:
    """Train the missing rows, and print the tables."""
    parser = parser_of(__doc__, "photographs", "work", out=RESULTS / "photograph_training.csv")
    parser.add_argument("--network", default="fpn", choices=NETWORKS)
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--only", default="|".join(ARMS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, SCORES)
    arms = [arm for arm in options.only.split("|") if arm in ARMS]
    same = {"network": options.network, "steps": options.steps}
    every = itertools.product(options.seeds.split(","), arms, options.pairs.split(","))
    asked = ({**same, "pair": pair, "arm": arm, "seed": int(seed)} for seed, arm, pair in every)
    for row in rows.missing(asked):
        run = (
            options.work
            / "runs"
            / "-".join(str(row[key]) for key in KEYS).replace(" ", "_").replace(",", "")
        )
        shutil.rmtree(run, ignore_errors=True)
        roots = folders(options.photographs, options.work, row["pair"])
        config = settings(options.network, ARMS[row["arm"]], roots, row["seed"], options.steps, run)
        print(rows.add(row | scores(config)), flush=True)
        shutil.rmtree(run)
    if options.out == RESULTS / "photograph_training.csv":
        tables = (
            gains_table,
            table,
            default_table,
            other_pairs_table,
            best_with_adadem_table,
            claim_table,
            networks_table,
        )
        print(*(each(rows) for each in tables), table(rows, most=False), sep="\n")


if __name__ == "__main__":
    main()
