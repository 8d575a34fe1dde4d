"""How often an adaptation that seg.adapt accepts without labels does harm: the tables of README and docs/adaptation.md.

    CLONES=… PYTHONPATH=benchmarks python benchmarks/adapt_harm.py --photographs PHOTOGRAPHS --work WORK
        [--out docs/results/adapt_harm.csv] [--only NAME …]

Measured on pairs that chose none of its rules, and registered in ``docs/results/adapt_harm_registration.txt``.
PHOTOGRAPHS is of ``benchmarks/photographs.py``, CLONES as in ``benchmarks/public_networks.py``; WORK gets networks,
folders, and what the command writes. A pair is a network and a folder of images at the size that the network sees. The
row ``seg.adapt, today`` is of the command without labels; ``seg.adapt``, ``… by image`` and ``… by vote`` are of the
frozen command (2ac2fe53), whose smaller views had any size; the others are of rules that choose a share of batch norm's
statistics, or average over shares, on the same images. mIoU in per cent, against the labels that no rule reads. The
same command continues.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import albumentations as A
import cv2
import numpy as np
import photograph_networks as ours
import public_networks
import torch
from csv_rows import RESULTS, CsvRows, Row, half, parser_of
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.errors import NotFiniteError
from dem_apps.report.tables import markdown
from dem_apps.test_time_methods.network import find_logits
from seg.adapt import AdaptConfig, adapt
from seg.scores.segmentation_scores import confusion
from seg.trained.adaptive_batch_norm import SHARES, re_estimated

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
#: Our networks: number → family and set, each combination another one; net01 served to try the script.
OURS = {
    f"net{number:02}": (FAMILIES[number % 8], SETS[number % 10], number)
    for number in (0, *range(2, 33), 34)
}
#: Trained after the looks were changed; their rows are in ``docs/results/adapt_harm_later.csv``.
LATER = ("net25", "net26", "net27", "net28", "net29", "net30", "net31", "net32", "net34")
#: Published networks of CamVid's classes, and images of each folder: the smaller are small folders.
PUBLIC = {
    "dicenet_05": 16,
    "dicenet_10": 16,
    "dicenet_15": 16,
    "espnetv2_05_small": 7,
    "espnetv2_10_small": 7,
    "espnetv2_20_small": 7,
}
#: The registered networks.
REGISTERED = [*(name for name in OURS if name not in LATER), *PUBLIC, "wnet_drive"]
SEQUENCES = ("0001TP", "0006R0", "0016E5", "Seq05VD")
MANY, SOME, SMALL = 16, 10, 6
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
STEPS, TRAINED = 150, 0.5
RULES = ("entropy", "information", "density", "nuclear", "agreement", "score", "information score")


class Pair(NamedTuple):
    """A folder of a network: at most ``images`` of the files, evenly, changed or not."""

    name: str
    files: Sequence[Path]
    images: int
    shifted: bool
    change: A.BasicTransform | None = None


def parts(root: Path, domain: str, number: int) -> tuple[list[Path], list[Path]]:
    """The half of a domain's images that a network is trained on, and the rest; where it begins differs by network."""
    files = sorted((root / domain / "images").iterdir())
    begin = number * len(files) // 7 % len(files)
    files = files[begin:] + files[:begin]
    return files[: round(TRAINED * len(files))], files[round(TRAINED * len(files)) :]


def pairs_of(name: str, root: Path) -> Iterator[Pair]:
    """The folders of a network."""
    if name in PUBLIC:
        for domain in SEQUENCES:
            yield Pair(
                domain, sorted((root / "camvid" / domain / "images").iterdir()), PUBLIC[name], True
            )
        return
    if name == "wnet_drive":
        unseen = [root / "vessels/drive/images" / f"{number:02}.png" for number in range(1, 21)]
        targets, changes = (), ["jpeg", "gamma 40"]
    else:
        _, (group, source, targets, *_), number = OURS[name]
        unseen = sorted(parts(root / group, source, number)[1])
        changes = [[*CHANGES][place % len(CHANGES)] for place in (number, number + 5)]
    yield Pair("unshifted", unseen, MANY, False)
    yield Pair("unshifted small", unseen, SMALL, False)
    for target, images in zip(targets, (MANY, 8), strict=False):
        yield Pair(target, sorted((root / group / target / "images").iterdir()), images, True)
    for change in changes:
        yield Pair(change, unseen, SOME, True, CHANGES[change])


def opened(name: str, photographs: Path, networks: Path) -> tuple[nn.Module, str]:
    """A network, one of ours trained where its folder is not there, and what ``--model`` calls it."""
    if name not in OURS:
        return getattr(public_networks, name)()[0].eval(), f"public_networks:{name}"
    (head, encoder), (group, source, _, classes, size), number = OURS[name]
    files = parts(photographs / group, source, number)[0]
    return ours.kept(
        networks / name, head, classes, files, size, STEPS, 100 + number, encoder
    ), str(networks / name)


def numbers(before: NDArray[np.int64], after: NDArray[np.int64]) -> dict[str, Any]:
    """mIoU before and after, and how many images lose and gain more than 0.5 of their own mIoU."""
    changes = [
        ours.miou(new[None]) - ours.miou(old[None]) for old, new in zip(before, after, strict=True)
    ]
    return {
        "before": ours.miou(before),
        "after": ours.miou(after),
        "images": len(changes),
        "lose": sum(change < -0.5 for change in changes),
        "gain": sum(change > 0.5 for change in changes),
    }


def commanded(
    spec: str, labels: Sequence[NDArray[np.uint8]], place: Path, number: int
) -> dict[str, Any]:
    """The row of ``seg.adapt`` as a user calls it, without labels."""
    out, normalised = (
        place.parent / "adapted",
        {} if ":" in spec else {"mean": [0.5] * 3, "std": [0.5] * 3},
    )
    shutil.rmtree(out, ignore_errors=True)
    adapt(AdaptConfig(model=spec, images=str(place), out=str(out), **normalised))
    said = json.loads((out / "adapt.json").read_text())
    tables = []
    for stage in ("before", "after"):
        files = [out / stage / f"{index:02}_pred_labelIds.png" for index in range(len(labels))]
        found = [torch.from_numpy(cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)) for file in files]
        tables.append(ours.confusions(found, labels, number))
    return {
        **numbers(*tables),
        "choice": said["share_of_statistics"],
        "accepted": said["adapted"],
        "halves": said["share_by_halves"],
    }


class Looks:
    """Predictions of a folder at every share, and the label-free scores of each, of the folder and of its images."""

    @torch.no_grad()
    def __init__(self, network: nn.Module, images: Tensor) -> None:
        batches = list(images.split(4))
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        self.probabilities: list[Tensor] = []  # (N, C, H, W) of each share
        self.scores: list[dict[str, float]] = []
        self.steady: list[Tensor] = []  # (N,) stability score of each share, by image
        size = images.shape[2:]
        smaller = [max(32, round(0.75 * side / 32) * 32) for side in size]
        mirrored = [batch.flip(3) for batch in batches]
        shrunk = [
            F.interpolate(batch, smaller, mode="bilinear", antialias=True) for batch in batches
        ]
        for share in SHARES:
            adapted = re_estimated(network, batches, share).network.eval() if share else network
            views = [_predicted(adapted, each, size) for each in (batches, mirrored, shrunk)]
            views[1] = views[1].flip(3)
            self.probabilities.append(views[0])
            found = [view.argmax(1) for view in views]
            tables = torch.stack(
                [
                    torch.stack(
                        [
                            confusion(own, other, views[0].shape[1]).double()
                            for own, other in zip(found[0], others, strict=True)
                        ]
                    )
                    for others in found[1:]
                ]
            )
            if not self.scores:
                self.first = tables.sum((0, 1)).sum(1) / tables.sum()
            self.scores.append(self._scores(views[0], tables))
            self.steady.append(
                torch.stack([self._score(tables[:, [image]]) for image in range(len(images))])
            )

    def _scores(self, p: Tensor, tables: Tensor) -> dict[str, float]:
        classes, mean = p.shape[1], p.mean((0, 2, 3))
        entropy = float(torch.special.entr(p).sum(1).mean()) / np.log(classes)
        information = float(torch.special.entr(mean).sum()) / np.log(classes) - entropy
        flat = [image.flatten(1) for image in p]
        nuclear = np.mean(
            [
                float(torch.linalg.matrix_norm(each, "nuc"))
                / np.sqrt(min(each.shape) * each.shape[1])
                for each in flat
            ]
        )
        steady = self._stability(tables)
        return {
            "entropy": 1 - entropy,
            "information": information,
            "nuclear": float(nuclear),
            "density": float(np.mean([self._density(each.T) for each in flat])),
            "agreement": float(tables.diagonal(dim1=2, dim2=3).sum() / tables.sum()),
            "score": float(self._score(tables)),
            "information score": steady**2 * information,
        }

    @staticmethod
    def _density(p: Tensor) -> float:
        """Soft Neighborhood Density (Saito et al., ICCV 2021) of at most 1,000 of the (N, C) probabilities, in nats."""
        points = F.normalize(p[torch.linspace(0, len(p) - 1, min(1000, len(p))).round().long()])
        similarities = ((points @ points.T - 1) / 0.05).fill_diagonal_(-torch.inf)
        return float(torch.special.entr(similarities.softmax(1)).sum(1).mean())

    def _stability(self, tables: Tensor) -> float:
        """Of the classes of the network as it is, as in :mod:`seg.scores.evidence`."""
        joined = tables.sum(1)
        kept = joined.diagonal(dim1=1, dim2=2)
        iou = (kept / (joined.sum(1) + joined.sum(2) - kept).clamp_min(1)).mean(0)
        return float(iou[self.first >= 1e-3].mean())

    def _score(self, tables: Tensor) -> Tensor:
        shares = tables.sum((0, 1, 3)) / tables.sum()
        return self._stability(tables) ** 2 * torch.special.entr(shares).sum().exp()

    def arms(self) -> Iterator[tuple[str, Any, Tensor]]:
        """Rule, its choice, and the predicted classes (N, H, W)."""
        classes = [each.argmax(1) for each in self.probabilities]
        for share, own in zip(SHARES, classes, strict=True):
            yield f"share {share:g}", share, own
        for rule in RULES:
            values = [scores[rule] for scores in self.scores]
            best = int(np.argmax(values))
            yield rule, SHARES[best], classes[best]
        p = torch.stack(self.probabilities)
        doubt = torch.special.entr(p).sum(2).mean((2, 3)) / np.log(p.shape[2])
        yield "InTEnt", "", (p * (1 - doubt)[..., None, None, None]).sum(0).argmax(1)
        place = int(np.argmax([scores["score"] for scores in self.scores]))
        fallen = self.steady[place] < self.steady[0]  # the image's own stability score
        yield (
            "by image, or none",
            SHARES[place],
            torch.where(fallen[:, None, None], classes[0], classes[place]),
        )


def _predicted(network: nn.Module, batches: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    """(N, C, H, W) probabilities. Raises NotFiniteError."""
    logits = torch.cat(
        [F.interpolate(find_logits(network(batch)), size, mode="bilinear") for batch in batches]
    )
    if not bool(logits.isfinite().all()):
        raise NotFiniteError("the network's output is not finite")
    return logits.softmax(1)


#: Rows of the table, and how they are called there.
SHOWN = {
    "seg.adapt, today": "**seg.adapt**",
    "seg.adapt": "frozen, one share for all",
    "seg.adapt, by image": "frozen, by image",
    "share 0.3": "always 0.3",
    "share 1": "always 1",
    "entropy": "least entropy",
    "information": "information",
    "density": "SND",
    "nuclear": "nuclear norm",
    "agreement": "agreement",
    "information score": "stability² × information",
    "InTEnt": "InTEnt",
}
TODAY, FROZEN, BY_IMAGE, BY_VOTE = (
    "seg.adapt, today",
    "seg.adapt",
    "seg.adapt, by image",
    "seg.adapt, by vote",
)
#: The networks on whose folders the least vote was chosen.
CHOSE_THE_VOTE = ("net00", "net02", "net03", "net04", "net05")
#: The rows of a pair of network and folder, by rule.
Rules = dict[str, Row]
HARM, DRAWS, ONE_SIDED = 0.5, 10_000, 0.95


def rows_of(rows: CsvRows) -> dict[tuple[str, ...], Rules]:
    """The rows of every finished pair."""
    return {pair: rules for pair, rules in rows.by("network", "folder").items() if TODAY in rules}


def taken(pairs: Mapping[tuple[str, ...], Rules], rule: str = TODAY) -> list[Row]:
    """The rows of accepted adaptations."""
    return [rules[rule] for rules in pairs.values() if str(rules[rule]["accepted"]) == "True"]


def change(row: Row) -> float:
    """Of mIoU."""
    return float(row["after"]) - float(row["before"])


def best(rules: Rules) -> float:
    """The change by the best share by all labels."""
    return max(change(rules[f"share {share:g}"]) for share in SHARES)


def bounds(accepted: Sequence[Row]) -> tuple[int, float, float]:
    """Harmful ones, and one-sided bounds of their rate: Clopper and Pearson's, and by a bootstrap of families."""
    harmful = [change(row) < -HARM for row in accepted]
    exact = (
        stats.binomtest(sum(harmful), len(harmful), alternative="less")
        .proportion_ci(ONE_SIDED)
        .high
    )
    _, families = np.unique([row["family"] for row in accepted], return_inverse=True)
    inside, lost = np.bincount(families), np.bincount(families, harmful)
    drawn = np.random.default_rng(0).integers(len(inside), size=(DRAWS, len(inside)))
    return (
        sum(harmful),
        float(exact),
        float(np.quantile(lost[drawn].sum(1) / inside[drawn].sum(1), ONE_SIDED)),
    )


def table(rows: CsvRows) -> str:
    """Of each rule the change of mIoU, mean (worst; pairs that lose more than 0.5), and the images that lose."""
    pairs, lines = rows_of(rows), []
    for rule, title in SHOWN.items():
        cells = []
        for shifted in ("True", "False"):
            own = [
                rules[rule] for rules in pairs.values() if str(rules[rule]["shifted"]) == shifted
            ]
            changes = [change(row) for row in own]
            cells.append(
                f"{np.mean(changes):+.1f} ({min(changes):+.1f}; {sum(each < -HARM for each in changes)})"
            )
        every = [rules[rule] for rules in pairs.values()]
        images = sum(int(row["images"]) for row in every)
        kept = sum(map(change, every)) / sum(map(best, pairs.values()))
        lines.append(
            [
                title,
                *cells,
                f"{100 * kept:.0f}",
                f"{100 * sum(int(row['lose']) for row in every) / images:.0f}",
            ]
        )
    shifted = sum(str(rules["seg.adapt"]["shifted"]) == "True" for rules in pairs.values())
    heads = [
        f"{shifted} shifted",
        f"{len(pairs) - shifted} unshifted",
        "kept %",
        "images that lose %",
    ]
    return markdown(["share of the statistics", *heads], lines)


def groups_table(rows: CsvRows) -> str:
    """README's: mIoU as it is, and the changes by seg.adapt's answer and by AdaBN, with CIs over networks (worst)."""
    groups: dict[str, dict[tuple[str, ...], Rules]] = {
        "published, other streets": {},
        "ours, other cameras": {},
        "ours, made shifts": {},
        "no shift": {},
    }
    for (name, folder), rules in rows_of(rows).items():
        place = (
            0 if name in PUBLIC else 3 if "unshifted" in folder else 2 if folder in CHANGES else 1
        )
        groups[[*groups][place]][name, folder] = rules
    lines = []
    for title, pairs in groups.items():
        cells = []
        for rule in (TODAY, "share 1"):
            by_network: dict[str, list[float]] = {}
            for (name, _), rules in pairs.items():
                by_network.setdefault(name, []).append(change(rules[rule]))
            mean = half([float(np.mean(each)) for each in by_network.values()])
            cells.append(f"{mean} ({min(map(min, by_network.values())):+.1f})")
        before = np.mean([float(rules[FROZEN]["before"]) for rules in pairs.values()])
        lines.append([title, f"{before:.1f}", *cells])
    return markdown(["networks", "as it is", "adapted", "AdaBN"], lines)


def accepted_table(rows: CsvRows, later: CsvRows) -> str:
    """Accepted adaptations by rule, of the registered pairs and of those of networks that were trained later."""
    lines = []
    for title, found, rule in (
        ("**seg.adapt**", rows, TODAY),
        ("frozen", rows, FROZEN),
        ("frozen, by image", rows, BY_IMAGE),
        ("three quarters no less stable", rows, BY_VOTE),
        ("**seg.adapt**, later", later, TODAY),
        ("frozen, by image, later", later, BY_IMAGE),
    ):
        chose = CHOSE_THE_VOTE if rule == BY_VOTE else ()
        pairs = {key: rules for key, rules in rows_of(found).items() if key[0] not in chose}
        accepted = taken(pairs, rule)
        changes = [change(rules[rule]) for rules in pairs.values()]
        count, exact, by_family = bounds(accepted)
        gain = sum(change(row) > HARM for row in accepted)
        bound = f"{100 * exact:.0f}, {100 * by_family:.0f}"
        mean = f"{np.mean(changes):+.1f} ({min(changes):+.1f})"
        lines.append(
            [title, f"{len(accepted)} of {len(pairs)}", f"{gain}", f"{count}", bound, mean]
        )
    return markdown(
        ["rule", "accepted", "gain", "lose", "bound %, by families", "all pairs"], lines
    )


def classes_of(name: str) -> int:
    """C of a network."""
    if name in OURS:
        return OURS[name][1][3]
    return 2 if name == "wnet_drive" else len(public_networks.CAMVID)


KEYS, SCORES = (
    ("family", "network", "folder", "rule"),
    ("shifted", "choice", "halves", "accepted", "images", "before", "after", "lose", "gain"),
)


def measured(
    pair: Pair, network: nn.Module, spec: str, name: str, work: Path
) -> Iterator[dict[str, Any]]:
    """The rows of a pair, that of the command last."""
    place, number = work / "images", classes_of(name)
    size, moments = (512, 512) if name == "wnet_drive" else (256, 192), public_networks.IMAGENET
    if name in OURS:
        size, moments = OURS[name][1][4], ours.MOMENTS
    images, labels = ours.pictures(pair.files, pair.images, pair.change, size)
    labels = [cv2.resize(label, size, interpolation=cv2.INTER_NEAREST) for label in labels]
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for index, image in enumerate(images):
        cv2.imwrite(str(place / f"{index:02}.png"), image[..., ::-1])
    arms = [*Looks(network, ours.normalised(images, moments).contiguous()).arms()]
    before = ours.confusions(list(arms[0][2]), labels, number)
    for rule, choice, classes in arms:
        yield {
            "rule": rule,
            "choice": choice,
            **numbers(before, ours.confusions(list(classes), labels, number)),
        }
    yield {"rule": TODAY, **commanded(spec, labels, place, number)}


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = parser_of(__doc__, "photographs", "work", out=RESULTS / "adapt_harm.csv")
    parser.add_argument("--only", nargs="*", default=REGISTERED)
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, SCORES)
    for name in options.only:
        network, spec = opened(name, options.photographs, options.work / "networks")
        family = (
            f"{OURS[name][0][0]} {OURS[name][0][1][-5:]}" if name in OURS else name.split("_")[0]
        )
        for pair in pairs_of(name, options.photographs):
            keys = {"family": family, "network": name, "folder": pair.name, "shifted": pair.shifted}
            if rows.get({**keys, "rule": TODAY}) is None:
                for row in measured(pair, network, spec, name, options.work):
                    rows.add({**keys, **row})
                print(name, pair.name, row, flush=True)
    later = CsvRows(RESULTS / "adapt_harm_later.csv", KEYS)
    print(groups_table(rows), table(rows), accepted_table(rows, later), sep="\n")


if __name__ == "__main__":
    main()
