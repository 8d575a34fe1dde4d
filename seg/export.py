"""``python -m seg.export``: what one or several runs predict on any folder of images, and how sure they are.

Per image: prediction, overlay, entropy map and a panel of them at one fixed scale; per folder: two CSV tables. Several
runs get a folder each and a comparison, one row per run. Shapes: C classes, H × W pixels.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from accelerate import PartialState
from accelerate.utils import gather_object

from dem_apps.errors import InputError, NotFiniteError
from dem_apps.runtime.command import run_command
from dem_apps.runtime.device import torch_device
from dem_apps.runtime.files import claim
from dem_apps.runtime.processes import launched_processes
from dem_apps.runtime.progress import track
from dem_apps.runtime.settings import option, parse_config
from dem_apps.runtime.validate import check_settings
from seg.data.image_io import LARGEST_SIDE, distinct, find_images, output_names
from seg.data.image_pixels import first_header, left_out, read_pixels
from seg.data.rasters import Header
from seg.inference.run_prediction import is_out_of_memory, predict, with_statistics_of
from seg.maps import panels
from seg.maps.entropy_tables import ENTROPY_TABLE, EntropyTables
from seg.maps.run_pictures import RAW_FORMATS, RunPictures, output_path
from seg.models.load_model import open_trained
from seg.models.tiles import LEAST_TILE, OVERLAP_HELP, TILE_HELP, Tiling, tiling
from seg.scores.protocol import batch_norm_statistics
from seg.training.summary import title

CHECKPOINTS = ("auto", "last", "selected", "best")

#: An image that is made smaller by this factor or more is a thumbnail, which is said.
_SHRUNK = 4


@dataclass(frozen=True)
class ExportConfig:
    """Write prediction, overlay and entropy map of every image in a folder."""

    run: list[str] = option(
        [], "run folder; several (--run A B) are compared side by side as well", value="RUN [RUN ...]",
        group="what is read and written", needed=True,
    )  # fmt: skip
    images: str = option("", "folder of images, searched with its subfolders, or one image", value="DIR", needed=True)
    out: str = option("", "folder to write to, new or empty", value="DIR", needed=True)
    checkpoint: str = option("auto", "auto: selected where there is one, else last", CHECKPOINTS, group="network")
    size: list[int] | str | None = option(
        "auto",
        "size that the network sees; run: its target size; null: the image's; auto: run, with --tile null",
        value="W,H",
    )
    tile: int | None = option(None, TILE_HELP, at_least=LEAST_TILE)
    tile_overlap: int | None = option(None, OVERLAP_HELP, at_least=0)
    batch_norm_after: str = option(
        "none", "images: batch norm statistics re-estimated on --images; none: the checkpoint's", ("none", "images")
    )
    device: str = option("auto", "cpu, cuda, or auto")
    raw: list[str] = option(
        [], "entropy as numbers as well: png16 (0 to 65535 is 0 to 1; --raw alone), npz (nats), or both", RAW_FORMATS,
        value="{png16,npz}", group="more pictures and numbers",
    )  # fmt: skip
    label_ids: bool = option(False, "predictions as label ids as well, as the class set's label images hold them")
    legend: bool = option(True, "list the predicted classes below each panel")


def export(config: ExportConfig) -> int:
    """Do what the command does; the processes of a launcher share the images.

    Returns:
        how many images could not be read, did not fit into memory or have no finite prediction; the others are
        exported.

    Raises:
        InputError: a folder, run or flag that does not fit.
    """
    with launched_processes(config.device) as processes:
        return _exported(config, processes)


def _exported(config: ExportConfig, processes: PartialState) -> int:
    source, out = _checked(config)
    cut = tiling(config.tile, config.tile_overlap)
    files = find_images(source)
    root = source if source.is_dir() else source.parent
    runs = _open_runs(config, out)
    first = first_header(files)
    for note in _notes(config, runs[0], first) if first is not None and processes.is_main_process else ():
        print(note, flush=True)
    if config.batch_norm_after == "images":
        runs = [
            dataclasses.replace(run, loaded=with_statistics_of(run.loaded, run.title, files, run.size, processes))
            for run in runs
        ]
    images = [file.relative_to(root) for file in files]
    pieces = list(zip(files, images, output_names(images), strict=True))
    processes.wait_for_everyone()  # until all have seen that the folder is empty
    if processes.is_main_process:
        _claim(out, runs[0].folder)
    processes.wait_for_everyone()
    try:
        own = _export_share(runs, pieces, out, cut, processes)
        failed = sum(gather_object([own]))
        for run in runs:
            run.tables.join(gather_object([run.tables]), [image.as_posix() for image in images])
    finally:
        # also of an export that is interrupted: its pictures are there, so are their numbers
        for run in runs if processes.is_main_process else ():
            run.tables.write(run.folder)
    if processes.is_main_process:
        _say(runs, len(files), failed)
    return failed


def _claim(out: Path, first: Path) -> None:
    """Make the folder; of two exports that found it empty one has it."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise InputError(f"--out: {out} cannot be made ({error.strerror}); give another folder") from error
    first.mkdir(exist_ok=True)
    claim(first / ENTROPY_TABLE, "--out")


def _export_share(
    runs: list[RunPictures], pieces: Sequence[tuple[Path, Path, Path]], out: Path, cut: Tiling | None,
    processes: PartialState,
) -> int:  # fmt: skip
    """This process's images, each a file, its path in the folder and its output's name; how many cannot be had."""
    failed = 0
    with processes.split_between_processes(list(pieces)) as own:
        for file, image, name in track(own, len(own), "export") if processes.is_main_process else own:
            problem = _export_image(runs, file, image, name, out, cut)
            if problem is not None:
                failed += 1
                print(f"skipped: {problem}", file=sys.stderr, flush=True)
    return failed


def _say(runs: list[RunPictures], images: int, failed: int) -> None:
    for run in runs:
        mean = run.tables.mean_entropy()
        said = "nothing exported" if mean is None else f"mean entropy {mean:.3f}"
        own = run.loaded
        whose = batch_norm_statistics(own.config, own.model, own.step, own.re_estimated_on)
        how = f"checkpoint {own.checkpoint}, step {own.step:,}; batch norm statistics {whose}"
        print(f"{run.folder}: {run.title} ({how}), {said}")
    print(f"exported {images - failed} of {images} images" + (f", skipped {failed}" if failed else ""))


def _checked(config: ExportConfig) -> tuple[Path, Path]:
    """The folders to read and to write, after a look at every flag that needs no run."""
    check_settings(config)
    source, out = Path(config.images), Path(config.out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"--out: {out} holds files already, which are never overwritten; give a new or empty folder")
    if source.is_dir() and out.resolve().is_relative_to(source.resolve()):
        raise InputError(f"--out: {out} lies in --images, where a later export would take its pictures for images")
    return source, out


def _notes(config: ExportConfig, run: RunPictures, first: tuple[Path, Header]) -> Iterator[str]:
    """What is done to the images, as far as the first one tells, that nobody may have expected."""
    file, header = first
    bands = left_out(file, header, run.loaded.pixels)
    if bands is not None:
        yield bands
    trained = run.loaded.config.target.size
    if config.size == "auto" and config.tile is not None and trained is not None:
        yield f"--tile: images at their own size; this run was trained at {trained[0]}×{trained[1]} (--size run)"
    if run.size is not None and min(header.size[0] / run.size[0], header.size[1] / run.size[1]) >= _SHRUNK:
        width, height = header.size
        yield (
            f"{file.name} has {width}×{height} pixels, and the network sees it at {run.size[0]}×{run.size[1]}; "
            "--tile 512 shows it all of them"
        )


def _open_runs(config: ExportConfig, out: Path) -> list[RunPictures]:
    device = torch_device(config.device)
    paths = [Path(run) for run in config.run]
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise InputError(f"--run: {path} is given more than once")
    opened = [open_trained(path, config.checkpoint, device) for path in paths]
    for path, loaded in zip(paths, opened, strict=True):
        if loaded.classes != opened[0].classes:
            raise InputError(f"--run: {path} does not predict the classes of {paths[0]}; compare runs of one class set")
        if (loaded.pixels.bands, loaded.pixels.dtype) != (opened[0].pixels.bands, opened[0].pixels.dtype):
            raise InputError(
                f"--run: {path} sees {loaded.pixels.described}, and {paths[0]} {opened[0].pixels.described}; export "
                "them one after the other"
            )
    titles = [title(loaded.config) for loaded in opened]
    # a run named like the folder of the comparison gives way to it
    folders = distinct(["comparison", *(path.resolve().name for path in paths)])[1:]
    return [
        RunPictures(
            own if titles.count(own) == 1 else f"{folder}: {own}",
            loaded,
            _size(config, loaded.config.target.size),
            out / folder if len(paths) > 1 else out,
            EntropyTables(loaded.classes.names),
            frozenset(config.raw),
            config.label_ids,
            config.legend,
        )
        for own, loaded, folder in zip(titles, opened, folders, strict=True)
    ]


def _size(config: ExportConfig, of_run: list[int] | None) -> tuple[int, int] | None:
    wanted = config.size
    if wanted == "auto":
        wanted = "run" if config.tile is None else None
    if wanted == "run":
        wanted = of_run
    if wanted is None:
        return None
    numbers = wanted.split(",") if isinstance(wanted, str) else wanted
    try:
        width, height = (int(number) for number in numbers)
    except ValueError as error:
        raise InputError(f"--size: expected W,H such as 1024,512, or run, or null, got '{wanted}'") from error
    if min(width, height) < 1 or max(width, height) > LARGEST_SIDE:
        raise InputError(f"--size: width and height must be 1 to {LARGEST_SIDE:,}, got '{wanted}'")
    return width, height


def _export_image(
    runs: list[RunPictures], file: Path, relative: Path, name: Path, out: Path, cut: Tiling | None
) -> str | None:
    """Everything of one image; a sentence if it cannot be had."""
    try:
        image = read_pixels(file, runs[0].loaded.pixels)
        predictions = [predict(run.loaded, image, run.size, cut) for run in runs]
    except NotFiniteError as error:
        return f"{file}: {error}"
    except InputError as error:
        return str(error)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return f"{file}: does not fit into memory; a smaller --size W,H or --tile N may help"
    shown, place = runs[0].loaded.pixels.preview(image.values, image.valid), image.place
    del image  # of a large scene the largest
    rows, pixels = [], np.zeros(len(runs[0].loaded.classes), np.int64)
    for run, prediction in zip(runs, predictions, strict=True):
        own = run.tables.add(relative.as_posix(), prediction)
        rows.append(run.write(name, shown, prediction, own, place))
        pixels += own
    if len(runs) > 1:
        picture = panels.comparison(shown, rows, runs[0].names(pixels))
        panels.save_panel(output_path(out / "comparison", name, "comparison.png"), picture)
    return None


def _gathered(arguments: Sequence[str]) -> list[str]:
    """``--run A B`` and ``--run A --run B`` as the one list that the parser takes; so for ``--raw``, alone png16."""
    lists: dict[str, list[str]] = {"--run": [], "--raw": []}
    rest: list[str] = []
    current: list[str] | None = None
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        if argument.startswith("--"):
            current = lists.get(flag)
            if current is None:
                rest.append(argument)
            elif equals:
                current.append(value)
        else:
            (rest if current is None else current).append(argument)
    if "--raw" in arguments and not lists["--raw"]:
        lists["--raw"].append(RAW_FORMATS[0])
    return rest + [f"{flag}={json.dumps(values)}" for flag, values in lists.items() if values]


def _main() -> None:
    example = "python -m seg.export --run runs/entropy runs/adadem --images photos --out export"
    if export(parse_config(ExportConfig, "python -m seg.export", example, _gathered(sys.argv[1:]))):
        sys.exit(1)


if __name__ == "__main__":
    run_command(_main)
