"""Run the authors' published code of test-time methods beside ours, on the same batches.

    git clone --depth 1 https://github.com/DequanWang/tent /tmp/tent    # and so on; any of them may be missing
    python benchmarks/run_authors_code.py --tent /tmp/tent --eata /tmp/EATA --sar /tmp/SAR \\
        --deyo /tmp/DeYO --cotta /tmp/cotta --come /tmp/COME --tpt /tmp/TPT --toolkit /tmp/test-time-adaptation

The checkouts are of DequanWang/tent, mr-eggplant/EATA, mr-eggplant/SAR, Jhyun17/DeYO, qinenergy/cotta,
BlueWhaleLab/COME and azshue/TPT (their losses alone), mariodoebler/test-time-adaptation (the toolkit); DeYO's code
needs ``pip install einops``. None of their code is in this repository, and none of their files is changed: what they
import besides (data sets, model zoos) is replaced by empty modules, ``.cuda()`` stays on the CPU, DeYO's patches get
our permutations, and CoTTA's random views are the image and its mirror image in turn.

A network of two convolutions around a batch or group norm, float64, SGD with momentum 0.9, five classes; thresholds are
given to both. Printed: the largest difference of a parameter after the last batch, relative to the largest number of
its tensor, and how far the parameters have moved, so that nothing agrees by standing still. "goes back": a network so
sure that SAR returns to the first weights; "as theirs": ours keeps what theirs keeps then; "mended": their code with
what it forgets to forget.
"""

import argparse
import ast
import copy
import importlib.util
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from dem_apps import TestTimeAdapter, build_objective
from dem_apps.report.tables import markdown
from dem_apps.test_time_methods.tpt import TPT, log_mean

CLASSES, BATCHES = 5, 10
#: CoTTA's network and teacher agree but for mirror images, so its gradients are small.
LRS = {"cotta": 2.0}
MARGIN, DEYO_MARGIN, SIMILARITY, BETA, PLPD = 0.4 * math.log(CLASSES), 0.5 * math.log(CLASSES), 0.95, 20.0, 0.0
TEACHER, RESTORE, SURE = 0.9, 0.1, 0.8
#: Ours, with the same numbers as theirs.
OURS: dict[str, dict[str, Any]] = {
    "tent": {},
    "eta": {"entropy_margin": MARGIN, "similarity": SIMILARITY},
    "eata": {"entropy_margin": MARGIN, "similarity": SIMILARITY, "fisher_weight": BETA},
    "sar": {"entropy_margin": MARGIN, "reset_below": None},
    "sar, goes back": {"entropy_margin": MARGIN, "reset_below": 0.2},
    "sar, goes back as theirs": {"entropy_margin": MARGIN, "reset_below": 0.2, "returning_keeps": "both"},
    "sar, goes back, mended": {"entropy_margin": MARGIN, "reset_below": 0.2},
    "deyo": {"entropy_margin": DEYO_MARGIN, "weight_margin": MARGIN, "plpd_above": PLPD},
    "cotta": {"momentum": TEACHER, "restore": RESTORE, "augment_below": SURE, "parameters": "all"},
}


class Net(nn.Module):
    """Its layers' names are none that SAR and DeYO leave out."""

    def __init__(self, norm: str, dense: bool, sure: float) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, CLASSES, 1)
        self.affine = nn.BatchNorm2d(6) if norm == "batch" else nn.GroupNorm(2, 6)
        self.dense = dense
        self.double()
        generator = torch.Generator().manual_seed(0)
        for name, value in self.named_parameters():
            drawn = torch.randn(value.shape, generator=generator, dtype=torch.float64)
            value.data = drawn * (0.0 if name == "last.bias" else sure if "last" in name else 0.7)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, C), or (B, C, H, W)."""
        logits: Tensor = self.last(self.affine(self.first(images)).relu())
        # the right counts most, so that a mirror image is another one
        ramp = torch.linspace(0, 2, logits.shape[3], dtype=logits.dtype)
        return logits if self.dense else (logits * ramp).mean((2, 3))


def prepared(model: Net, everything: bool) -> Net:
    """A copy as their ``configure_model`` makes it, which knows batch norm alone in Tent and EATA."""
    model = copy.deepcopy(model).train().requires_grad_(everything)
    model.affine.requires_grad_(True)
    if isinstance(model.affine, nn.BatchNorm2d):
        model.affine.track_running_stats = False
        model.affine.running_mean = model.affine.running_var = None
    return model


def sgd(parameters: list[nn.Parameter], method: str) -> torch.optim.SGD:
    """As ours."""
    return torch.optim.SGD(parameters, lr=LRS.get(method, 0.02), momentum=0.9)


@contextmanager
def imports(
    folder: Path, packages: tuple[str, ...], stubs: dict[str, dict[str, Any]]
) -> Iterator[Callable[[str], Any]]:
    """Yields a reader of ``package.module`` of a checkout; stubs stand for what the package imports besides."""
    before, path = dict(sys.modules), list(sys.path)
    for name in packages:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(folder / name)]
    for name, content in stubs.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)
    sys.path.insert(0, str(folder))

    def read(name: str) -> Any:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            raise SystemExit(f"{folder}: there is no module {name}")
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]

    try:
        yield read
    finally:
        sys.path[:] = path
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
        sys.modules.update(before)


def mirrored_in_turn(*_: Any, **__: Any) -> Callable[[Tensor], Tensor]:
    """A transform that is the image, then its mirror image, and so on."""
    calls = iter(range(10**9))
    return lambda images: images.flip(3) if next(calls) % 2 else images


class OurPermutations:
    """``torch`` for DeYO's module, whose random numbers sort into what our ``randperm`` draws."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def rand(self, rows: int, patches: int) -> Tensor:
        """Numbers whose ``argsort`` is a permutation of ours."""
        order = torch.stack([torch.randperm(patches, generator=self.generator) for _ in range(rows)])
        return order.argsort(1).double()


class Mended:
    """Their SAR whose going back forgets the momentum of SGD and the moving average of the entropy too."""

    def __init__(self, adapter: Any) -> None:
        self.adapter, self.reset, self.gone_back = adapter, adapter.reset, False
        adapter.reset = self.forget

    def forget(self) -> None:
        """In place of ``reset``."""
        self.reset()
        self.adapter.optimizer.base_optimizer.state.clear()
        self.gone_back = True

    def __call__(self, images: Tensor) -> None:
        """One step."""
        self.gone_back = False
        self.adapter(images)
        if self.gone_back:
            self.adapter.ema = None


def fishers(model: Net, learning: list[nn.Parameter], sources: list[Tensor]) -> dict[str, list[Tensor]]:
    """EATA's Fisher information, by the formula of its main.py: mean squared gradients, and the first weights."""
    squares = [torch.zeros_like(parameter) for parameter in learning]
    for images in sources:
        logits = model(images)
        loss = nn.functional.cross_entropy(logits, logits.argmax(1))
        for square, gradient in zip(squares, torch.autograd.grad(loss, learning), strict=True):
            square += gradient**2 / len(sources)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    kept = zip(names, squares, learning, strict=True)
    return {name: [square, parameter.detach().clone()] for name, square, parameter in kept}


def theirs(folders: dict[str, Path], method: str, model: Net, sources: list[Tensor]) -> Any:
    """The authors' adapter of a model that is prepared already."""
    what = method.partition(",")[0]
    folder = folders["eata" if what == "eta" else what]
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if what == "tent":
        with imports(folder, (), {}) as read:
            return read("tent").Tent(model, sgd(learning, what))
    if what in ("eta", "eata"):
        with imports(folder, (), {}) as read:
            weights = fishers(model, learning, sources) if what == "eata" else None
            return read("eata").EATA(model, sgd(learning, what), weights, BETA, e_margin=MARGIN, d_margin=SIMILARITY)
    if what == "sar":
        with imports(folder, (), {}) as read:
            optimizer = read("sam").SAM(learning, torch.optim.SGD, lr=0.02, momentum=0.9)
            adapter = read("sar").SAR(model, optimizer, margin_e0=MARGIN)
            return Mended(adapter) if "mended" in method else adapter
    if what == "deyo":
        arguments = SimpleNamespace(wandb_log=0, filter_ent=1, filter_plpd=1, plpd_threshold=PLPD, aug_type="patch",
                                    patch_len=4, reweight_ent=1, reweight_plpd=1)  # fmt: skip
        with imports(folder, ("methods",), {}) as read:
            module = read("methods.deyo")
            module.torch = OurPermutations()
            adapter = module.DeYO(model, arguments, sgd(learning, what), deyo_margin=DEYO_MARGIN, margin_e0=MARGIN)
            return lambda images: adapter(images, 0)
    with imports(folder / "cifar", (), {"my_transforms": {}}) as read:
        module = read("cotta")
        module.get_tta_transforms = mirrored_in_turn
        return module.CoTTA(model, sgd(learning, what), mt_alpha=TEACHER, rst_m=RESTORE, ap=SURE)


def toolkit(folder: Path, method: str, model: Net, sources: list[Tensor]) -> Any:
    """The adapter of mariodoebler/test-time-adaptation, of a model as it was."""
    what = method.partition(",")[0]
    optim = SimpleNamespace(
        METHOD="SGD", LR=LRS.get(what, 0.02), MOMENTUM=0.9, DAMPENING=0.0, WD=0.0, NESTEROV=False, STEPS=1, BETA=0.9
    )
    cfg = SimpleNamespace(
        OPTIM=optim, MIXED_PRECISION=False, DATA_DIR="",
        MODEL=SimpleNamespace(EPISODIC=False, RESET_AFTER_NUM_UPDATES=0, ARCH="net", ADAPTATION=what, CKPT_PATH=""),
        CORRUPTION=SimpleNamespace(DATASET="cifar10_c"),
        TEST=SimpleNamespace(WINDOW_LENGTH=1, BATCH_SIZE=8, N_AUGMENTATIONS=2),
        SOURCE=SimpleNamespace(NUM_SAMPLES=len(sources), PERCENTAGE=1.0, NUM_WORKERS=0),
        EATA=SimpleNamespace(MARGIN_E0=0.4, D_MARGIN=SIMILARITY, FISHER_ALPHA=BETA if what == "eata" else 0.0),
        SAR=SimpleNamespace(RESET_CONSTANT_EM=0.2 if "goes back" in method else -1.0),
        DEYO=SimpleNamespace(REWEIGHT_ENT=1, REWEIGHT_PLPD=1, PLPD=PLPD, MARGIN=0.5, AUG_TYPE="patch", PATCH_LEN=4,
                             OCCLUSION_SIZE=1, ROW_START=0, COLUMN_START=0),
        M_TEACHER=SimpleNamespace(MOMENTUM=TEACHER), COTTA=SimpleNamespace(RST=RESTORE, AP=SURE),
    )  # fmt: skip
    model = copy.deepcopy(model)
    model.__dict__["model_preprocess"] = None
    name = "eata" if what == "eta" else what
    stubs: dict[str, dict[str, Any]] = {
        "models": {}, "models.model": {"ResNetDomainNet126": type("ResNetDomainNet126", (), {})}, "datasets": {},
        "datasets.data_loading": {"get_source_loader": lambda **_: (None, [(images,) for images in sources])},
        "augmentations": {}, "augmentations.transforms_cotta": {"get_tta_transforms": mirrored_in_turn},
    }  # fmt: skip
    with imports(folder / "classification", ("methods", "utils"), stubs) as read:
        module = read(f"methods.{name}")
        if name == "deyo":
            module.torch = OurPermutations()
        known = {"tent": "Tent", "eata": "EATA", "sar": "SAR", "deyo": "DeYO", "cotta": "CoTTA"}
        return getattr(module, known[name])(cfg, model, CLASSES)


def adapter_of(
    folders: dict[str, Path], code: str, method: str, start: Net, sources: list[Tensor]
) -> tuple[Any, nn.Module]:
    """Their adapter, and the network that it adapts."""
    if code == "toolkit":
        adapter = toolkit(folders[code], method, start, sources)
        return Mended(adapter) if "mended" in method else adapter, adapter.model
    model = prepared(start, everything=method == "cotta")
    return theirs(folders, method, model, sources), model


def images(number: int) -> list[Tensor]:
    """Batches of 16 images of 8 × 8 pixels, each of a colour of its own, so that their classes differ."""
    generator = torch.Generator().manual_seed(1)
    drawn = []
    for _ in range(number):
        colour = torch.randn(16, 3, 1, 1, generator=generator, dtype=torch.float64)
        drawn.append(2.0 * colour + torch.randn(16, 3, 8, 8, generator=generator, dtype=torch.float64))
    return drawn


def compared(
    make: Callable[[Net, list[Tensor]], tuple[Any, nn.Module]], code: str, method: str, norm: str, dense: bool
) -> tuple[float, float]:
    """The largest relative difference of the parameters after the batches, and how far what learns has moved."""
    drawn = images(BATCHES + 3)
    batches, sources = drawn[:BATCHES], drawn[BATCHES:]
    start = Net(norm, dense, {"sar": 1.0}.get(method, 3.0 if "goes back" in method else 1.5))
    what = method.partition(",")[0]
    options = dict(OURS[method], **({"source_images": sources} if method == "eata" else {}))
    if code == "toolkit" and "returning_keeps" in options:
        options["returning_keeps"] = "momentum"  # it forgets the average
    adapter = TestTimeAdapter(
        copy.deepcopy(start), what, lr=LRS.get(what, 0.02), num_classes=CLASSES, bn_alpha=1.0, **options
    )
    with mock.patch.object(Tensor, "cuda", lambda self: self):
        their_step, their_model = make(start, sources)
        torch.manual_seed(0)  # CoTTA's draws of what is restored; ours come from a generator of the same seed
        for batch in batches:
            adapter(batch)
            their_step(batch)
    own, other, first = (dict(model.named_parameters()) for model in (adapter.model, their_model, start))
    apart = max(float((own[name] - other[name]).abs().max() / other[name].abs().max()) for name in own)
    still = sum(float(first[name].square().sum()) for name in adapter.learning)
    moved = sum(float((own[name] - first[name]).square().sum()) for name in adapter.learning)
    return apart, math.sqrt(moved / still)


def objective_of_come(folder: Path) -> str:
    """The largest difference of values and of gradients on 64 × 1,000 logits, whose 1,000 is in their code.

    Theirs adds 1e-7 to every mass; its part of the value is taken out.
    """
    drawn = 3 * torch.randn(64, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with imports(folder, (), {}) as read:
        their_values = read("tent_come").dirichlet_entropy
    own, other = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    ours, theirs = build_objective("come", 1000)(own, reduction="none"), their_values(other)
    ours.sum().backward()
    theirs.sum().backward()
    mass = torch.cat([drawn, torch.full((64, 1), math.log(1000))], 1).softmax(1)
    added = -((mass + 1e-7) * (mass + 1e-7).log() - mass * mass.log()).sum(1)
    assert own.grad is not None
    assert other.grad is not None
    apart = float((own.grad - other.grad).abs().max() / other.grad.abs().max())
    plain, without = (float((theirs - ours - part).detach().abs().max()) for part in (0, added))
    return f"COME: values differ by {plain:.0e}, {without:.0e} without the 1e-7 of theirs; gradients by {apart:.0e}"


def loss_of_tpt(folder: Path) -> str:
    """The largest difference of the loss of 64 views, and of its gradient; their script is not imported."""
    tree = ast.parse((folder / "tpt_classification.py").read_text(encoding="utf-8"))
    wanted = ("select_confident_samples", "avg_entropy")
    own_code = [part for part in tree.body if isinstance(part, ast.FunctionDef) and part.name in wanted]
    names: dict[str, Any] = {"torch": torch, "np": np}
    exec(compile(ast.Module(own_code, []), "tpt_classification.py", "exec"), names)
    drawn = 3 * torch.randn(64, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own, other = drawn.clone().requires_grad_(), drawn.clone().requires_grad_()
    ours = build_objective("entropy", 1000)(log_mean(own[TPT().best(own.detach())])[None])
    theirs = names["avg_entropy"](names["select_confident_samples"](other, 0.1)[0])
    gradients = [torch.autograd.grad(loss, leaf)[0] for loss, leaf in ((ours, own), (theirs, other))]
    apart = float((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max())
    return f"TPT: losses differ by {abs(float(ours - theirs)):.0e}, gradients by {apart:.0e}"


def main() -> None:
    """One row per method, code and network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tent", "eata", "sar", "deyo", "cotta", "come", "tpt", "toolkit"):
        parser.add_argument(f"--{name}", type=Path, metavar="CHECKOUT")
    folders = {name: folder for name, folder in vars(parser.parse_args()).items() if folder is not None}
    if "come" in folders:
        print(objective_of_come(folders["come"]))
    if "tpt" in folders:
        print(loss_of_tpt(folders["tpt"]))
    rows = []
    for method in OURS:
        own = "eata" if method == "eta" else method.partition(",")[0]
        for code in [name for name in (own, "toolkit") if name in folders]:
            for norm, dense in itertools.product(("batch", "group"), (False, True) if method == "sar" else (False,)):
                make = partial(adapter_of, folders, code, method)
                apart, moved = compared(make, code, method, norm, dense)
                shape = "(B, C, H, W)" if dense else "(B, C)"
                rows.append([method, code, norm, shape, f"{apart:.0e}", f"{moved:.1%}"])
    print(markdown(["method", "code", "norm", "logits", "largest relative difference", "moved"], rows), end="")


if __name__ == "__main__":
    main()
