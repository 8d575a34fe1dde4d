"""The training loop of every method. Reads top-down: set up, train, score, save."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from dem_apps.errors import NotFiniteError
from dem_apps.runtime.signals import command_line, going_on_with, resume_command
from seg.config import TrainConfig
from seg.methods.optimization import MicroBatch, leave_group
from seg.scores.report_scores import print_checkpoints, print_scores
from seg.trained.trained_network import RE_ESTIMATED_ON, Training
from seg.training.run import TrainingRun
from seg.training.setup import set_up
from seg.training.step import training_step


def train(config: TrainConfig) -> Path:
    """Run one training of checked settings and return its run folder."""
    setup = set_up(config)
    with _closed_at_the_end(setup.run):
        _train(setup.run, setup.steps)
        result = setup.run.final_scores()
        _finish(setup.run, result, setup.describe)
    leave_group()
    return setup.run.path


def _train(run: TrainingRun, steps: Iterable[list[MicroBatch]]) -> None:
    """Make the remaining steps, with scores and checkpoints between them."""
    if run.saved_step is None:
        run.save()  # a run can be resumed from its first step on
    run.score_if_due()
    for micro_batches in steps:
        run.report(training_step(run.state, micro_batches))
        run.stop_if_asked()
        run.score_if_due()


@contextmanager
def _closed_at_the_end(run: TrainingRun) -> Iterator[None]:
    """Wrap the training so that signals end it between two steps and errors say how to continue."""
    try:
        with going_on_with(f"continue with: {resume_command('seg.train', run.path)}"), run.stop:
            yield
    except NotFiniteError as error:
        last = f"the checkpoint {run.path / 'checkpoints' / 'last'} of step {run.saved_step}"
        raise NotFiniteError(
            f"{error}; {last} is from before, and --resume continues from it"
        ) from error
    finally:
        run.close()


def _finish(
    run: TrainingRun,
    result: dict[str, Any],
    describe: Callable[[Training, nn.Module], dict[str, Any]],
) -> None:
    """Write ``eval.json`` with the protocol of ``describe``, and print tables and answer; in the main process."""
    if run.folder is None:
        return
    run.close_progress()
    state, pair = run.state, run.pair
    checkpoints = run.selector.table(state.step, result["miou"])
    re_estimated = state.result().get(RE_ESTIMATED_ON)
    protocol = describe(Training(run.path, "last", state.step, re_estimated), state.model)
    protocol["labelled_images"] = {
        "source": len(pair.source_train or ()),
        "target": len(pair.target_labelled or ()),
    }
    shares = zip(pair.classes.names, state.source_shares(), strict=True)
    result["source_label_share"] = dict(shares)
    document = {
        **result,
        "checkpoint": "last",
        "checkpoints": checkpoints,
        "protocol": protocol,
    }
    run.folder.write_json("eval.json", document)
    print_scores(result, f"target validation, {len(pair.target_val)} images, last checkpoint")
    print_checkpoints(checkpoints)
    _print_answer(run, result, protocol["batch_norm"])


def _print_answer(run: TrainingRun, result: dict[str, Any], batch_norm: str) -> None:
    """Print the result in a line, then what it assumes, the files and the next commands."""
    images = f"on {len(run.pair.target_val)} target images"
    entropy = f"mean entropy {result['mean_entropy_normalised']:.3f} of log C {images}"
    answer = f"Trained, not measured without labels: {entropy}"
    if result["miou"] is not None:
        answer = f"Trained: mIoU {100 * result['miou']:.1f} % {images}"
    print(answer)
    print(f"assumes:      last checkpoint, batch norm {batch_norm}")
    if run.schedule.maps:
        print(f"entropy maps: {run.path / 'entropy_maps'}")
    print(f"scores:       {run.path / 'eval.json'}")
    export = ["--run", str(run.path), "--images", "DIR", "--out", "predictions"]
    print(f"new images:   {command_line('seg.export', export)}")
    print(f"report:       {command_line('dem_apps.report', [str(run.path)])}")
