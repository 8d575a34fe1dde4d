"""Where the numbers of a run go beside ``metrics.jsonl``: TensorBoard, and the tracker of ``--tracker``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dem_apps.errors import InputError, first_words, passed_on
from dem_apps.runtime.documents import read_json
from dem_apps.runtime.files import write_atomically
from dem_apps.runtime.run_reader import read_config
from dem_apps.runtime.settings import option

#: accelerate's, whose packages are called so, without two: clearml sets random seeds, dvclive replaces what it wrote.
TRACKERS = ("wandb", "mlflow", "trackio", "swanlab", "comet_ml", "aim")
#: Of those with runs that can be continued: options that name a new run of a folder, and that open the same again.
_RUNS: dict[str, tuple[Callable[[str], dict[str, str]], Callable[[Any], dict[str, str]]]] = {
    "wandb": (lambda path: {"name": path, "dir": path}, lambda run: {"id": run.id, "resume": "allow"}),
    "mlflow": (lambda path: {"run_name": path}, lambda run: {"run_id": run.info.run_id}),
    "trackio": (lambda path: {"name": path}, lambda _: {"resume": "allow"}),
}


def tracker_option() -> Any:
    """``--tracker NAME``: a field of every command that trains."""
    return option(None, f"log to it as to TensorBoard: {', '.join(TRACKERS)}", TRACKERS, value="NAME")


def check_tracker(name: str | None) -> None:
    """Refuse a tracker that is not installed."""
    if name is not None and find_spec(name) is None:
        raise InputError(f"--tracker: needs {name}, not installed here; pip install {name}")


class Trackers:
    """The open trackers of a run folder that has its ``config.yaml``, by accelerate's classes.

    A run that goes on after ``start_step`` goes on in its run of wandb, mlflow or trackio. Raises InputError: a tracker
    that cannot be opened; one that fails later is left out, with a line on stderr.
    """

    def __init__(self, path: Path, start_step: int | None) -> None:
        from accelerate import PartialState
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, TensorBoardTracker

        PartialState()  # without it accelerate's logging fails
        config, opened = read_config(path), path / "tracker.json"
        self._other: GeneralTracker | None = None
        if (name := config.get("tracker")) is not None:
            check_tracker(name)
            kind, again = LOGGER_TYPE_TO_CLASS[name], read_json(opened) if opened.is_file() else {}
            named, same_run = _RUNS.get(name, (lambda _: {}, lambda _: {}))
            folder = [path] if kind.requires_logging_directory else []
            with passed_on(f"--tracker {name}"):
                self._other = kind("dem-apps", *folder, **named(str(path)), **again)
                self._other.start()
                if not again:
                    self._other.store_init_configuration(config)
                    write_atomically(opened, json.dumps(same_run(self._other.tracker)).encode())
        self.tensorboard = TensorBoardTracker("", path, purge_step=None if start_step is None else start_step + 1)
        self.tensorboard.start()

    def log(self, numbers: dict[str, int | float], step: int) -> None:
        """Scalars by their names."""
        self.tensorboard.log(numbers, step=step)
        self._do(lambda other: other.log(numbers, step=step))

    def log_image(self, name: str, image_hwc: Any, step: int) -> None:
        """An (H, W, 3) uint8 image, in TensorBoard, wandb and swanlab."""
        self.tensorboard.log_images({name: image_hwc[None]}, step=step, dataformats="NHWC")
        if self._other is not None and self._other.name in ("wandb", "swanlab"):
            self._do(lambda other: other.log_images({name: image_hwc[None]}, step=step))

    def close(self) -> None:
        """Safe to call twice."""
        self._do(lambda other: other.finish())
        self._other = None
        self.tensorboard.finish()

    def _do(self, call: Callable[[Any], None]) -> None:
        try:
            if self._other is not None:
                call(self._other)
        except Exception as error:  # of any library; hours of training do not end for it
            self._other = None
            lost = f"--tracker: {first_words(error)}; the run goes on without it, and TensorBoard has everything"
            print(lost, file=sys.stderr, flush=True)
