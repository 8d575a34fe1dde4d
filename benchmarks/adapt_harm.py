"""How often an adaptation that seg.adapt accepts without labels does harm, on pairs that chose none of its rules.

    CLONES=… PYTHONPATH=benchmarks python benchmarks/adapt_harm.py --photographs PHOTOGRAPHS --work WORK
        [--out docs/results/adapt_harm.csv] [--only NAME …]

Registered in ``docs/results/adapt_harm_registration.txt``. PHOTOGRAPHS is of ``benchmarks/photographs.py``, CLONES as
in ``benchmarks/public_networks.py``; WORK gets networks, folders, and what the command writes. A pair is a network and
a folder of images at the size that the network sees. The row ``seg.adapt, today`` is of the command without labels;
``seg.adapt``, ``… by image`` and ``… by vote`` are of the frozen command (2ac2fe53), whose smaller views had any size;
the others are of rules that choose a share of batch norm's statistics, or average over shares, on the same images.
mIoU in per cent, against the labels that no rule reads. The same command continues.
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
import segmentation_models_pytorch as smp
import torch
from csv_rows import CsvRows, parser_of
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn
from torch.nn import functional as F

from dem_apps.errors import NotFiniteError
from dem_apps.report.intervals import mean_interval
from dem_apps.report.tables import markdown
from dem_apps.test_time_methods.network import find_logits
from seg.adapt import AdaptConfig, adapt
from seg.inference.adaptive_batch_norm import SHARES, re_estimated
from seg.scores.metrics import confusion

LITE0, LITE1 = "tu-tf_efficientnet_lite0", "tu-tf_efficientnet_lite1"
#: The families of our networks: head and encoder.
FAMILIES = [
    ("FPN", LITE1), ("Unet", LITE1), ("DeepLabV3Plus", LITE0), ("Linknet", LITE0), ("PAN", LITE1), ("MAnet", LITE0),
    ("UnetPlusPlus", LITE0), ("PSPNet", LITE1),
]  # fmt: skip
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
]  # fmt: skip
#: Our networks: number → family and set, each combination another one; net01 served to try the script.
OURS = {f"net{number:02}": (FAMILIES[number % 8], SETS[number % 10], number) for number in (0, *range(2, 33), 34)}
LARGE = OURS["net00"]  # of as many classes as the published ones
#: Trained after the looks were changed; their rows are in ``docs/results/adapt_harm_later.csv``.
LATER = ("net25", "net26", "net27", "net28", "net29", "net30", "net31", "net32", "net34")
#: Published networks of CamVid's classes, and images of each folder: the smaller are small folders.
PUBLIC = {
    "dicenet_05": 16, "dicenet_10": 16, "dicenet_15": 16,
    "espnetv2_05_small": 7, "espnetv2_10_small": 7, "espnetv2_20_small": 7,
}  # fmt: skip
#: The registered networks, in the order that halves them.
REGISTERED = [*(name for name in OURS if name not in LATER), *PUBLIC, "wnet_drive"]
SEQUENCES = ("0001TP", "0006R0", "0016E5", "Seq05VD")
MANY, SOME, SMALL = 16, 10, 6
#: Changes of images that are made: of other kinds than in ``photograph_networks.SHIFTS``, and of those between levels.
CHANGES: dict[str, A.BasicTransform] = {
    "jpeg": A.ImageCompression(quality_range=(8, 8), p=1), "motion": A.MotionBlur(blur_limit=(13, 13), p=1),
    "gamma 40": A.RandomGamma((40, 40), p=1), "gamma 220": A.RandomGamma((220, 220), p=1),
    "grey": A.ToGray(p=1), "coarse": A.Downscale(scale_range=(0.3, 0.3), p=1),
    "hue": A.HueSaturationValue((20, 20), (0, 0), (0, 0), p=1),
    "pale": A.HueSaturationValue((0, 0), (-90, -90), (30, 30), p=1),
    "fog 3.5": ours.SHIFTS["fog"](3.5), "dark 2.5": ours.SHIFTS["dark"](2.5), "noise 1.5": ours.SHIFTS["noise"](1.5),
    "contrast 3.5": ours.SHIFTS["contrast"](3.5),
}  # fmt: skip
STEPS, CROP, TRAINED = 150, 128, 0.5
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
            yield Pair(domain, sorted((root / "camvid" / domain / "images").iterdir()), PUBLIC[name], True)
    elif name == "wnet_drive":
        unseen = [root / "vessels/drive/images" / f"{number:02}.png" for number in range(1, 21)]
        yield Pair("unshifted", unseen, MANY, False)
        yield Pair("unshifted small", unseen, SMALL, False)
        for change in ("jpeg", "gamma 40"):
            yield Pair(change, unseen, SOME, True, CHANGES[change])
    else:
        _, (group, source, targets, *_), number = OURS[name]
        unseen = sorted(parts(root / group, source, number)[1])
        yield Pair("unshifted", unseen, MANY, False)
        yield Pair("unshifted small", unseen, SMALL, False)
        for target, images in zip(targets, (MANY, 8), strict=False):
            yield Pair(target, sorted((root / group / target / "images").iterdir()), images, True)
        for place in (number, number + 5):
            change = [*CHANGES][place % len(CHANGES)]
            yield Pair(change, unseen, SOME, True, CHANGES[change])


def trained(name: str, photographs: Path, networks: Path) -> Path:
    """The folder of one of our networks, trained where it is not there."""
    (head, encoder), (group, source, _, classes, size), number = OURS[name]
    place = networks / name
    if not place.exists():
        ours.STEPS, ours.CROP = STEPS, CROP
        torch.manual_seed(100 + number)
        model = ours.build(head, classes, encoder)
        print(name, head, encoder, group, source, flush=True)
        ours.train(model, parts(photographs / group, source, number)[0], size, 100 + number)
        model.save_pretrained(str(place))
    return place


def written(pair: Pair, size: tuple[int, int], place: Path) -> list[NDArray[np.uint8]]:
    """Write a pair's images at the size that the network sees; their labels at that size."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    number, labels = min(pair.images, len(pair.files)), []
    for index in range(number):
        file = pair.files[index * len(pair.files) // number]
        image, label = ours.load(file, size)
        if pair.change is not None:
            image = A.Compose([pair.change], seed=index)(image=image)["image"]
        cv2.imwrite(str(place / f"{index:02}.png"), image[..., ::-1])
        labels.append(np.asarray(cv2.resize(label, size, interpolation=cv2.INTER_NEAREST), np.uint8))
    return labels


def tables_of(classes: Sequence[Tensor], labels: Sequence[NDArray[np.uint8]], number: int) -> NDArray[np.int64]:
    """(N, C, C) of predicted classes (H, W) each."""
    tables = []
    for own, label in zip(classes, labels, strict=True):
        known = torch.from_numpy(label < number)
        tables.append(confusion(torch.from_numpy(label).long()[known], own.long()[known], number).numpy())
    return np.stack(tables)


def numbers(before: NDArray[np.int64], after: NDArray[np.int64]) -> dict[str, Any]:
    """mIoU before and after, and how many images lose and gain more than 0.5 of their own mIoU."""
    changes = [ours.miou(new[None]) - ours.miou(old[None]) for old, new in zip(before, after, strict=True)]
    return {
        "before": ours.miou(before), "after": ours.miou(after), "images": len(changes),
        "lose": sum(change < -0.5 for change in changes), "gain": sum(change > 0.5 for change in changes),
    }  # fmt: skip


def commanded(spec: str, pair: Pair, labels: Sequence[NDArray[np.uint8]], place: Path, number: int) -> dict[str, Any]:
    """The row of ``seg.adapt`` as a user calls it, without labels."""
    out = place.parent / "adapted"
    shutil.rmtree(out, ignore_errors=True)
    half = () if ":" in spec else ("0.5,0.5,0.5", "0.5,0.5,0.5")
    facts = {"mean": [0.5] * 3, "std": [0.5] * 3} if half else {}
    adapt(AdaptConfig(model=spec, images=str(place), out=str(out), **facts))
    said = json.loads((out / "adapt.json").read_text())
    files = [
        [out / stage / f"{index:02}_pred_labelIds.png" for index in range(len(labels))] for stage in ("before", "after")
    ]
    tables = [
        tables_of([torch.from_numpy(cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)) for file in each], labels, number)
        for each in files
    ]
    return {
        **numbers(*tables), "choice": said["share_of_statistics"], "accepted": said["adapted"],
        "halves": said["share_by_halves"],
    }  # fmt: skip


class Looks:
    """Predictions of a folder at every share, and the label-free scores of each, of the folder and of its images."""

    @torch.no_grad()
    def __init__(self, network: nn.Module, images: Sequence[Tensor]) -> None:
        batches = [torch.stack(list(images[first : first + 4])) for first in range(0, len(images), 4)]
        if len(batches) > 1 and len(batches[-1]) == 1:
            batches[-2:] = [torch.cat(batches[-2:])]
        self.probabilities: list[Tensor] = []  # (N, C, H, W) of each share
        self.scores: list[dict[str, float]] = []
        self.steady: list[Tensor] = []  # (N,) stability score of each share, by image
        size = images[0].shape[1:]
        for share in SHARES:
            adapted = re_estimated(network, batches, share).network.eval() if share else network
            views = [
                _predicted(adapted, [view(batch) for batch in batches], size) for view in (_same, _mirrored, _smaller)
            ]
            views[1] = views[1].flip(3)
            self.probabilities.append(views[0])
            found = [view.argmax(1) for view in views]
            tables = torch.stack([torch.stack([
                confusion(own, other, views[0].shape[1]).double() for own, other in zip(found[0], others, strict=True)
            ]) for others in found[1:]])  # fmt: skip
            if not self.scores:
                self.first = tables.sum((0, 1)).sum(1) / tables.sum()
            self.scores.append(self._scores(views[0], tables))
            self.steady.append(torch.stack([self._score(tables[:, [image]]) for image in range(len(images))]))

    def _scores(self, p: Tensor, tables: Tensor) -> dict[str, float]:
        classes, mean = p.shape[1], p.mean((0, 2, 3))
        entropy = float(torch.special.entr(p).sum(1).mean()) / np.log(classes)
        information = float(torch.special.entr(mean).sum()) / np.log(classes) - entropy
        flat = [image.flatten(1) for image in p]
        nuclear = np.mean(
            [float(torch.linalg.matrix_norm(each, "nuc")) / np.sqrt(min(each.shape) * each.shape[1]) for each in flat]
        )
        steady = self._stability(tables)
        return {
            "entropy": 1 - entropy, "information": information, "nuclear": float(nuclear),
            "density": float(np.mean([self._density(each.T) for each in flat])),
            "agreement": float(tables.diagonal(dim1=2, dim2=3).sum() / tables.sum()),
            "score": float(self._score(tables)), "information score": steady**2 * information,
        }  # fmt: skip

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
        p, steady = torch.stack(self.probabilities), torch.stack(self.steady)
        yield "average", "", p.mean(0).argmax(1)
        doubt = torch.special.entr(p).sum(2).mean((2, 3)) / np.log(p.shape[2])
        yield "InTEnt", "", (p * (1 - doubt)[..., None, None, None]).sum(0).argmax(1)
        yield "by image, average", "", (p * (steady / steady.sum(0))[..., None, None, None]).sum(0).argmax(1)
        best = steady.argmax(0)
        yield "by image, best", "", torch.stack([classes[share][image] for image, share in enumerate(best)])
        chosen = int(np.argmax([scores["score"] for scores in self.scores]))
        yield "by image, or none", SHARES[chosen], self.or_none(SHARES[chosen])

    def or_none(self, share: float) -> Tensor:
        """Classes (N, H, W) by a share, and by none for an image whose own stability score falls."""
        place = SHARES.index(share)
        fallen = self.steady[place] < self.steady[0]
        return torch.where(fallen[:, None, None], self.probabilities[0].argmax(1), self.probabilities[place].argmax(1))


def _same(images: Tensor) -> Tensor:
    return images


def _mirrored(images: Tensor) -> Tensor:
    return images.flip(3)


def _smaller(images: Tensor) -> Tensor:
    size = [max(32, round(0.75 * side / 32) * 32) for side in images.shape[2:]]
    return F.interpolate(images, size, mode="bilinear", antialias=True)


def _predicted(network: nn.Module, batches: Sequence[Tensor], size: Sequence[int]) -> Tensor:
    """(N, C, H, W) probabilities. Raises NotFiniteError."""
    logits = torch.cat([F.interpolate(find_logits(network(batch)), size, mode="bilinear") for batch in batches])
    if not bool(logits.isfinite().all()):
        raise NotFiniteError("the network's output is not finite")
    return logits.softmax(1)


#: Rows of the table, and how they are called there.
SHOWN = {
    "seg.adapt, today": "**seg.adapt**", "seg.adapt": "frozen, one share for all",
    "seg.adapt, by image": "frozen, by image",
    "share 0.3": "always 0.3", "share 1": "always 1", "entropy": "least entropy", "information": "information",
    "density": "SND", "nuclear": "nuclear norm", "agreement": "agreement",
    "information score": "stability² × information", "InTEnt": "InTEnt",
}  # fmt: skip
TODAY, BY_IMAGE, BY_VOTE = "seg.adapt, today", "seg.adapt, by image", "seg.adapt, by vote"
#: The networks on whose folders the least vote was chosen.
CHOSE_THE_VOTE = ("net00", "net02", "net03", "net04", "net05")
Rows = dict[tuple[str, str], dict[str, Mapping[str, Any]]]
HARM, DRAWS, ONE_SIDED = 0.5, 10_000, 0.95


def rows_of(rows: CsvRows) -> Rows:
    """The rows of every finished pair of network and folder, by rule."""
    found: Rows = {}
    for (_, network, folder, rule), row in rows.rows.items():
        found.setdefault((network, folder), {})[rule] = row
    return {pair: rules for pair, rules in found.items() if TODAY in rules}


def change(row: Mapping[str, Any]) -> float:
    """Of mIoU."""
    return float(row["after"]) - float(row["before"])


def best(rules: Mapping[str, Mapping[str, Any]]) -> float:
    """The change by the best share by all labels."""
    return max(change(rules[f"share {share:g}"]) for share in SHARES)


def bounds(accepted: Sequence[Mapping[str, Any]]) -> tuple[int, float, float]:
    """Harmful ones, and one-sided bounds of their rate: Clopper and Pearson's, and by a bootstrap of families."""
    harmful = [change(row) < -HARM for row in accepted]
    count, number = sum(harmful), len(harmful)
    exact = float(stats.beta.ppf(ONE_SIDED, count + 1, number - count)) if count < number else 1.0
    families = sorted({row["family"] for row in accepted})
    inside, lost = np.zeros((2, len(families)))
    for row, harm in zip(accepted, harmful, strict=True):
        inside[families.index(row["family"])] += 1
        lost[families.index(row["family"])] += harm
    drawn = np.random.default_rng(0).integers(len(families), size=(DRAWS, len(families)))
    return count, exact, float(np.quantile(lost[drawn].sum(1) / inside[drawn].sum(1), ONE_SIDED))


def table(rows: CsvRows) -> str:
    """Of each rule the change of mIoU, mean (worst; pairs that lose more than 0.5), and the images that lose."""
    pairs, lines = rows_of(rows), []
    for rule, title in SHOWN.items():
        cells = []
        for shifted in ("True", "False"):
            own = [rules[rule] for rules in pairs.values() if str(rules[rule]["shifted"]) == shifted]
            changes = [change(row) for row in own]
            cells.append(f"{np.mean(changes):+.1f} ({min(changes):+.1f}; {sum(each < -HARM for each in changes)})")
        every = [rules[rule] for rules in pairs.values()]
        images = sum(int(row["images"]) for row in every)
        kept = sum(map(change, every)) / sum(map(best, pairs.values()))
        lines.append(
            [title, *cells, f"{100 * kept:.0f}", f"{100 * sum(int(row['lose']) for row in every) / images:.0f}"]
        )
    shifted = sum(str(rules["seg.adapt"]["shifted"]) == "True" for rules in pairs.values())
    heads = [f"{shifted} shifted", f"{len(pairs) - shifted} unshifted", "kept %", "images that lose %"]
    return markdown(["share of the statistics", *heads], lines)


def groups_table(rows: CsvRows) -> str:
    """README's: mIoU as it is, and the changes by seg.adapt's answer and by AdaBN, with CIs over networks (worst)."""
    groups: dict[str, dict[tuple[str, str], dict[str, Mapping[str, Any]]]] = {
        "published, other streets": {}, "ours, other cameras": {}, "ours, made shifts": {},
        "no shift": {},
    }  # fmt: skip
    for (name, folder), rules in rows_of(rows).items():
        place = 0 if name in PUBLIC else 3 if "unshifted" in folder else 2 if folder in CHANGES else 1
        groups[[*groups][place]][name, folder] = rules
    lines = []
    for title, pairs in groups.items():
        cells = []
        for rule in (TODAY, "share 1"):
            by_network: dict[str, list[float]] = {}
            for (name, _), rules in pairs.items():
                by_network.setdefault(name, []).append(change(rules[rule]))
            ends = mean_interval([float(np.mean(each)) for each in by_network.values()])
            every = [each for own in by_network.values() for each in own]
            half = "" if ends.high is None else f"±{ends.high - ends.estimate:.1f}"
            cells.append(f"{ends.estimate:+.1f}{half} ({min(every):+.1f})")
        before = np.mean([float(rules["seg.adapt"]["before"]) for rules in pairs.values()])
        lines.append([title, f"{before:.1f}", *cells])
    return markdown(["networks", "as it is", "adapted", "AdaBN"], lines)


def said(accepted: Sequence[Mapping[str, Any]]) -> str:
    """A clause about accepted adaptations."""
    count, exact, by_family = bounds(accepted)
    gain = sum(change(row) > HARM for row in accepted)
    return (
        f"{gain} gain more than {HARM}, {count} lose as much (95 % bound {100 * exact:.0f} %, by families "
        f"{100 * by_family:.0f} %)"
    )


def short(accepted: Sequence[Mapping[str, Any]]) -> str:
    """Those that gain and lose, and the bounds."""
    count, exact, by_family = bounds(accepted)
    gain = sum(change(row) > HARM for row in accepted)
    return f"{gain} and {count} of {len(accepted)} ({100 * exact:.0f} %, {100 * by_family:.0f} %)"


def later(rows: CsvRows) -> str:
    """Sentence of docs/adaptation.md about the networks that were trained later."""
    pairs = rows_of(rows)
    cells = []
    for rule in (TODAY, BY_IMAGE):
        every = [rules[rule] for rules in pairs.values()]
        taken = [row for row in every if str(row["accepted"]) == "True"]
        cells.append(
            f"{short(taken)}, mean {np.mean([*map(change, every)]):+.1f}, worst {min(map(change, every)):+.1f}"
        )
    networks = len({name for name, _ in pairs})
    return f"{networks} networks trained later, {len(pairs)} pairs: {cells[0]}; by the frozen rule {cells[1]}"


def told(rows: CsvRows) -> str:
    """Sentences of docs/adaptation.md: accepted adaptations, harmful ones and bounds, today and when frozen."""
    pairs = rows_of(rows)

    def taken(rule: str) -> list[Mapping[str, Any]]:
        return [rules[rule] for rules in pairs.values() if str(rules[rule]["accepted"]) == "True"]

    voted = [row for row in taken(BY_VOTE) if row["network"] not in CHOSE_THE_VOTE]
    return (
        f"Of {len(pairs)} pairs {len(taken(TODAY))} are accepted: {said(taken(TODAY))}. By the frozen rule "
        f"{short(taken('seg.adapt'))}, by image {short(taken(BY_IMAGE))}, if three quarters of the images have to "
        f"become no less stable {short(voted)}"
    )


def by_image(rows: CsvRows) -> str:
    """Sentence of docs/adaptation.md: the images that lose, with and without a choice by image."""
    pairs = rows_of(rows).values()
    counts = [sum(int(rules[rule]["lose"]) for rules in pairs) for rule in ("score", "by image, or none")]
    means = [np.mean([change(rules[rule]) for rules in pairs]) for rule in ("score", "by image, or none")]
    return f"{counts[1]} images lose instead of {counts[0]}, the mean is {means[1] - means[0]:+.2f}"


def stricter(rows: CsvRows) -> str:
    """The registered stricter rules: accepted, harmful, bound and what is kept, on odd and on even places."""
    pairs, lines = rows_of(rows), list[list[str]]()

    def shares(own: Mapping[str, Any]) -> list[float]:
        return [float(each) for each in str(own["halves"]).split()] or [float(own["choice"])]

    def row_of(rules: Mapping[str, Mapping[str, Any]], rule: str) -> Mapping[str, Any] | None:
        own = rules["seg.adapt"]
        if str(own["accepted"]) != "True":
            return None
        share = float(own["choice"])
        if "both" in rule and min(shares(own)) == 0:
            return None
        if "smaller" in rule:
            share = min(shares(own))
        if "0.5" in rule:
            share = min(share, 0.5)
        if "classes" in rule and (own["network"] == "wnet_drive" or OURS.get(own["network"], LARGE)[1][3] < 5):
            return None
        if share == float(own["choice"]):
            return own
        return rules[f"share {share:g}"] if share else None

    for rule in ("as it is", "both above 0", "the smaller", "at most 0.5", "the smaller, at most 0.5", "five classes"):
        cells = []
        for odd in (True, False):
            part = [rules for (name, _), rules in pairs.items() if REGISTERED.index(name) % 2 == (not odd)]
            taken = [row for row in (row_of(rules, rule) for rules in part) if row is not None]
            count, exact, _ = bounds(taken)
            kept = sum(map(change, taken)) / sum(map(best, part))
            cells.append(f"{count} of {len(taken)} (≤ {100 * exact:.1f} %), {100 * kept:.0f} %")
        lines.append([rule, *cells])
    return markdown(["rule", "odd places: harmful, kept", "even places"], lines)


KEYS, SCORES = ("family", "network", "folder", "rule"), (
    "shifted", "choice", "halves", "accepted", "images", "before", "after", "lose", "gain"
)  # fmt: skip


def main() -> None:
    """The command."""
    parser = parser_of(__doc__, "photographs", "work", out="docs/results/adapt_harm.csv")
    parser.add_argument("--only", nargs="*", default=REGISTERED)
    options = parser.parse_args()
    rows = CsvRows(options.out, KEYS, SCORES)
    for name in options.only:
        if name in OURS:
            (head, encoder), (*_, number, size), _ = OURS[name]
            family, spec = f"{head} {encoder[-5:]}", str(trained(name, options.photographs, options.work / "networks"))
            network, moments = smp.from_pretrained(spec).eval(), torch.full((2, 3), 0.5)
        else:
            number, size = (2, (512, 512)) if name == "wnet_drive" else (11, (256, 192))
            family, spec, moments = name.split("_")[0], f"public_networks:{name}", public_networks.IMAGENET
            network = getattr(public_networks, name)()[0].eval()
        for pair in pairs_of(name, options.photographs):
            keys = {"family": family, "network": name, "folder": pair.name}
            if rows.get({**keys, "rule": TODAY}) is not None:
                continue
            place = options.work / "images"
            labels = written(pair, size, place)
            pixels = [torch.from_numpy(cv2.imread(str(file))[..., ::-1].copy()) for file in sorted(place.iterdir())]
            images = [
                (each.permute(2, 0, 1) / 255 - moments[0].view(3, 1, 1)) / moments[1].view(3, 1, 1) for each in pixels
            ]
            looks = Looks(network, images)
            arms = [*looks.arms()]
            before = tables_of(list(arms[0][2]), labels, number)
            tried = {rule: numbers(before, tables_of(list(classes), labels, number)) for rule, _, classes in arms}
            for rule, choice, _ in arms:
                rows.add({**keys, "rule": rule, "shifted": pair.shifted, "choice": choice, **tried[rule]})
            own = commanded(spec, pair, labels, place, number)
            rows.add({**own, **keys, "rule": TODAY, "shifted": pair.shifted})
            print(
                name, pair.name, *(f"{key} {own[key]}" for key in ("choice", "accepted", "before", "after")), flush=True
            )
    print(groups_table(rows), table(rows), told(rows), stricter(rows), by_image(rows), sep="\n")


if __name__ == "__main__":
    main()
