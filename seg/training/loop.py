"""The training loop of every method. Reads top-down: set up, train, score, save."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dem_apps.errors import NotFiniteError
from dem_apps.runtime.documents import Document
from dem_apps.runtime.run_folder import RunFolder
from dem_apps.runtime.signals import command_line, going_on_with, resume_command
from seg.config import TrainConfig
from seg.inference.protocol import protocol
from seg.methods.optimization import leave_group
from seg.scores.report_scores import main_score, print_checkpoints, print_scores
from seg.trained.trained_network import RE_ESTIMATED_ON, Training
from seg.training.run import TrainingRun
from seg.training.setup import set_up
from seg.training.step import training_step


def train(config: TrainConfig) -> Path:
    """Run one training of checked settings and return its run folder."""
    run = set_up(config)
    with _closed_at_the_end(run):
        if run.saved_step is None:
            run.save()  # a run can be resumed from its first step on
        run.score_if_due()
        for micro_batches in run.steps:
            run.report(training_step(run.state, micro_batches))
            run.stop_if_asked()
            run.score_if_due()
        result = run.final_scores()
        if run.folder is not None:
            _finish(run, run.folder, result)
    leave_group()
    return run.path


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


def _finish(run: TrainingRun, folder: RunFolder, result: Document) -> None:
    """Write ``eval.json``, with the protocol of the scores, and print tables and answer."""
    state = run.state
    pair = run.pair
    checkpoints = run.selector.table(state.step, result["miou"])
    training = Training(run.path, "last", state.step, state.result().get(RE_ESTIMATED_ON))
    labelled = {
        "source": len(pair.source_train or ()),
        "target": len(pair.target_labelled or ()),
    }
    how = protocol(run.settings, training, state.model) | {"labelled_images": labelled}
    more = {
        "source_label_share": state.source_shares(pair.classes.names),
        "checkpoint": "last",
        "checkpoints": checkpoints,
        "protocol": how,
    }
    folder.write_json("eval.json", result | more)
    run.close()
    images = f"{len(pair.target_val)} images"
    print_scores(result, f"target validation, {images}, last checkpoint")
    print_checkpoints(checkpoints)
    print(f"Trained: {main_score(result)} on {images} of the target")
    print(f"assumes:      last checkpoint, batch norm {how['batch_norm']}")
    if run.maps:
        print(f"entropy maps: {run.path / 'entropy_maps'}")
    print(f"scores:       {run.path / 'eval.json'}")
    print(f"report:       {command_line('dem_apps.report', [str(run.path)])}")
