"""``python -m seg.adapt``: a trained network and a folder of images without labels, and whether adapting it helps."""

from __future__ import annotations

import dataclasses
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dem_apps import OBJECTIVE_NAMES, TestTimeAdapter
from dem_apps.errors import InputError, Interrupted
from dem_apps.objectives.flags import ObjectiveSettings, check_options, given_options
from dem_apps.report.text_tables import write_csv
from dem_apps.runtime.checkpoint import write_atomically
from dem_apps.runtime.command import run_command
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.processes import Processes, launched_processes
from dem_apps.runtime.run_claim import new_run_dir
from dem_apps.runtime.seeds import LARGEST_SEED
from dem_apps.runtime.settings import option, parse_config, to_dict
from dem_apps.runtime.terminal import console
from dem_apps.runtime.validate import check_settings
from dem_apps.test_time_methods import METHODS
from dem_apps.test_time_methods.learner import REDUCTIONS
from dem_apps.test_time_methods.normalisation import NORMALISATIONS, batch_norms
from seg.adaptation.flow import MODES, Flow, Plan
from seg.adaptation.image_folder import ImageFolder, same_size_batches
from seg.adaptation.labelled import Labels
from seg.adaptation.network_check import check_network, classes_of
from seg.adaptation.page import adaptation_page
from seg.adaptation.predictions import PredictionWriter
from seg.adaptation.result import Result, shares_table
from seg.adaptation.source import colours_of_source
from seg.adaptation.work import RESULT, Work
from seg.data.image_io import LARGEST_SIDE
from seg.inference.run_prediction import is_out_of_memory
from seg.models.trained import SPEC_HELP, TrainedNetwork, open_trained

#: Methods that need images of the kind that the network was trained for.
NEED_SOURCE = ("lab", "eata")
_SOURCE_IMAGES = 64
#: bn where batch norm is what normalises, else tent: its statistics are most of what can be had, and learning is slow.
AUTO = "auto"
#: What learning does where nothing is said; docs/appendix.md has what other objectives and rates do.
LEARNING: dict[str, Any] = {"loss": "entropy", "reduction": "balanced", "lr": 1e-2}


@dataclass(frozen=True)
class AdaptConfig(ObjectiveSettings):
    """Adapt a trained network to a folder of images without labels, and say whether that helped."""

    loss: str | None = option(
        None, f"objective that is minimised; default: {LEARNING['loss']}", OBJECTIVE_NAMES, value="NAME",
        group="objective",
    )  # fmt: skip
    reduction: str | None = option(None, f"how pixels are averaged; default: {LEARNING['reduction']}", REDUCTIONS)
    model: str | None = option(
        None, f"{SPEC_HELP}; default: a network of the built-in demo", value="SPEC", group="what is read and written"
    )
    weights: str | None = option(None, "file of weights for package.module:function", value="FILE")
    images: str | None = option(None, "folder of images, searched with its subfolders", value="DIR")
    out: str | None = option(
        None, "new folder; the same command goes on in it after a kill; default: a new one under runs/", value="DIR"
    )
    classes: str | None = option(
        None,
        "YAML file of the classes' names, colours and ids, or names such as background,crop,weed; default: the "
        "network's own",
        value="FILE",
    )
    labels: str | None = option(
        None, "folder with label images of some of the images, a.png of a.jpg: a score decides", value="DIR"
    )
    source: str | None = option(
        None, f"folder of images the network was trained for, of --method {' and '.join(NEED_SOURCE)}", value="DIR"
    )
    method: str = option(
        AUTO,
        f"one of {', '.join(METHODS)}; {AUTO}: bn, or tent where little is batch norm or learning is asked for",
        (AUTO, *METHODS),
        value="NAME",
        group="how it is adapted",
    )
    lr: float | None = option(None, f"learning rate; default: {LEARNING['lr']:g}", at_least=0)
    mode: str = option(
        "epochs", "epochs: learn from the folder, then predict it; online: predict each batch, then learn from it; "
        "episodic: begin anew with every image", MODES,
    )  # fmt: skip
    epochs: int = option(1, "passes over the folder; of episodic: steps per image", at_least=1, at_most=10_000)
    batch_size: int = option(4, "images per step", at_least=1)
    size: list[int] | None = option(
        None, "width and height that the network sees; default: a run's own, else each image's", at_least=1,
        at_most=LARGEST_SIDE, value="W,H",
    )  # fmt: skip
    seed: int = option(0, "of the order of images and of what a method draws", at_least=0, at_most=LARGEST_SEED)
    device: str = option("auto", "cpu, cuda, or auto")

    def check(self) -> None:
        """What parsing could not check.

        Raises:
            InputError: naming the flag and what would be right.
        """
        check_settings(self)
        if (self.model is None) != (self.images is None):
            missing = "model" if self.model is None else "images"
            raise InputError(
                f"--{missing}: is missing; give --model SPEC and --images DIR, or none of them for the demo"
            )
        if self.size is not None and len(self.size) != 2:
            raise InputError(f"--size: expected W,H such as 1024,512, got {self.size}")
        if self.method in NEED_SOURCE and self.source is None:
            raise InputError(
                f"--source: --method {self.method} needs a folder of images of the kind that the network was trained "
                "for, without labels"
            )
        if self.method not in NEED_SOURCE and self.source is not None:
            raise InputError(
                f"--source: is for --method {' and '.join(NEED_SOURCE)}, and {self.method} reads no source images; "
                "leave it out"
            )
        asked = self._of_learning()
        if asked and not self._may_learn:
            raise InputError(
                f"--{asked[0]}: --method {self.method} learns nothing; leave it out, or take --method tent"
            )
        check_options(dataclasses.replace(self, loss=self.loss or LEARNING["loss"]), trained=self._may_learn)

    def _of_learning(self) -> list[str]:
        """The settings that were given and say how something learns."""
        given = [name for name in LEARNING if getattr(self, name) is not None]
        return given + ["mode"] * (self.mode == "online") + ["epochs"] * (self.epochs > 1)

    @property
    def _may_learn(self) -> bool:
        return self.method == AUTO or METHODS[self.method].parameters is not None

    def resolved(self, network: nn.Module) -> AdaptConfig:
        """With the method that ``auto`` stands for, and with what learning does; for the others this stays None."""
        method = self.method
        if method == AUTO:
            asked = given_options(self) or self._of_learning()
            method = "tent" if asked or not _batch_norm_normalises(network) else "bn"
        if METHODS[method].parameters is None:
            return dataclasses.replace(self, method=method)
        filled = {name: default for name, default in LEARNING.items() if getattr(self, name) is None}
        return dataclasses.replace(self, method=method, **filled)

    def plan(self, trained: TrainedNetwork, source: list[torch.Tensor]) -> Plan:
        """How the network is adapted; ``source`` are batches of the images it was trained for."""
        learns = METHODS[self.method].parameters is not None
        options: dict[str, Any] = {}
        if learns:
            given = given_options(self)
            options = {"objective": self.loss, "lr": self.lr, "reduction": self.reduction, "seed": self.seed}
            options |= {"objective_options": given, "num_classes": trained.num_classes}
        if self.method == "eata":
            options["source_images"] = source
        if self.mode == "episodic":
            options["predict"] = "after"
        lab = self.method == "lab"
        prepare = colours_of_source(source, trained.preprocessing) if lab else None
        make = partial(TestTimeAdapter, trained.network, "none" if lab else self.method, **options)
        return Plan(make, self.mode, learns, self.epochs, self.batch_size, self.seed, prepare)


def _batch_norm_normalises(network: nn.Module) -> bool:
    """Whether most layers that normalise are batch norm with statistics; SegFormer has one, beside 30 of layer norm."""
    layers = [layer for layer in network.modules() if isinstance(layer, NORMALISATIONS)]
    kept = [layer for layer in batch_norms(network) if layer.running_mean is not None]
    return 2 * len(kept) > len(layers)


def adapt(config: AdaptConfig) -> Result:
    """Do what the command does; the processes of a launcher share the images of ``episodic`` adaptation.

    Raises:
        InputError: a network, folder or flag that does not fit.
    """
    config.check()
    with launched_processes(joint=False) as processes:
        if processes.number > 1 and (config.mode != "episodic" or config.model is None):
            raise InputError(
                "--mode: several processes can share images that are adapted to one by one; give --mode episodic with "
                "--model and --images, or start the command without torchrun"
            )
        return _adapted(config, processes)


def _adapted(config: AdaptConfig, processes: Processes) -> Result:
    config = _with_demo(config)
    device = torch_device(config.device)
    trained = open_trained(str(config.model), config.weights)
    config = config.resolved(trained.network)
    pixels = trained.preprocessing.pixels
    if config.method == "lab" and not pixels.is_rgb:
        raise InputError(
            f"--method: lab knows the colours of 8-bit RGB, and {trained.spec} sees {pixels.described}; take another"
        )
    classes = classes_of(trained, config.classes)
    trained.network.to(device)
    size = trained.preprocessing.size if config.size is None else (config.size[0], config.size[1])
    folder = ImageFolder(Path(str(config.images)), trained.preprocessing, size, device)
    labels = None if config.labels is None else Labels(Path(config.labels), folder.relative, classes)
    check_network(trained, folder.first())
    source = _source_batches(config, trained, size, device)
    out = processes.gathered(_out(config) if processes.first else Path())[0]
    work = Work(out, _kept_settings(config), [path.as_posix() for path in folder.relative], processes)
    if processes.first:
        print(f"{'continuing' if work.resumed else 'adapting'}: {_counted(folder)}, results in {out}", flush=True)
    try:
        writer = PredictionWriter(work, folder, classes, labels, trained.align_corners)
        outcome = Flow(trained, folder, writer, work, config.plan(trained, source), processes).run()
        processes.wait()  # until all rows are there
        result = Result(
            _kept_settings(config), classes, outcome, work.rows("before"), work.rows("after"), folder.skipped
        )
        processes.wait()  # until all have read them
        if processes.first:
            _write(result, writer, trained, out)
            work.finish(result.document())
    except KeyboardInterrupt as stopped:
        number = stopped.number if isinstance(stopped, Interrupted) else signal.SIGINT
        raise Interrupted(number, f"stopped; the same command with --out {out} goes on from here") from stopped
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            "--size: the images do not fit into memory; give a smaller --size W,H or a smaller --batch-size, and "
            "another --out"
        ) from error
    finally:
        work.close()
    return result


def _with_demo(config: AdaptConfig) -> AdaptConfig:
    if config.model is not None:
        return config
    from seg.adaptation.demo import demo_network, foggy_target  # trains, and so needs what training needs

    images, labels = foggy_target()
    return dataclasses.replace(
        config, model=str(demo_network()), images=str(images), labels=config.labels or str(labels)
    )


def _source_batches(
    config: AdaptConfig, trained: TrainedNetwork, size: tuple[int, int] | None, device: torch.device
) -> list[torch.Tensor]:
    if config.method not in NEED_SOURCE:
        return []
    source = Path(str(config.source))
    if not source.is_dir():
        raise InputError(f"--source: {source} is no folder")
    folder = ImageFolder(source, trained.preprocessing, size, device)
    return same_size_batches(folder, folder.spread(_SOURCE_IMAGES), config.batch_size)


def _out(config: AdaptConfig) -> Path:
    """The folder to write to, which is not among the images."""
    if config.out is None:
        return new_run_dir("adapt", config.method)
    out, source = Path(config.out), Path(str(config.images))
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"--out: {out} lies in --images, where its pictures would be taken for images; give another")
    return out


def _kept_settings(config: AdaptConfig) -> dict[str, Any]:
    """What another call has to agree in to go on: all but where it writes and computes; what decides others first."""
    kept = {key: value for key, value in to_dict(config).items() if key not in ("out", "device")}
    return {"method": kept["method"], **kept}


def _counted(folder: ImageFolder) -> str:
    found = len(folder) + len(folder.skipped)
    return f"{len(folder)} of {found} images" if folder.skipped else f"{found} images"


def _write(result: Result, writer: PredictionWriter, trained: TrainedNetwork, out: Path) -> None:
    """Tables, weights and the page; the result itself comes last, by whoever has the folder."""
    shares = result.shares()
    write_csv(out / "shares.csv", shares)
    write_csv(out / "images.csv", result.images())
    if not (out / "adapted").exists():
        trained.network.cpu()
        trained.save(out / "adapted")
    write_atomically(out / "report.html", adaptation_page(result, writer))
    console().print(shares_table(shares))
    print(result.answer)
    if result.score is not None:
        print(f"with labels: {result.score.sentence}")
    print(f"weights:     {out / 'adapted'}")
    print(f"page:        {out / 'report.html'}")
    if result.skipped:
        print(f"skipped:     {result.left_out}; {out / RESULT} names them")


def main() -> None:
    """The command."""
    example = "python -m seg.adapt --model runs/my-run --images photos --out adapted"
    if adapt(parse_config(AdaptConfig, "python -m seg.adapt", example)).skipped:
        sys.exit(1)


if __name__ == "__main__":
    run_command(main)
