"""``python -m rl.evaluate --run DIR``: returns of a run's policy over whole episodes, and a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dem_apps.runtime.command import run_command
from dem_apps.runtime.files import refuse_used_file, write_json
from dem_apps.runtime.settings import LARGEST_SEED, option, parse_config
from rl.config import PolicyConfig, settings_of_run

_EXAMPLES = """\
python -m rl.evaluate --run runs/doorkey
python -m rl.evaluate --run runs/doorkey --video doorkey.gif
python -m rl.evaluate --run runs/doorkey --episodes 1000 --out scores.json"""


@dataclass(frozen=True)
class EvaluateConfig(PolicyConfig):
    """Evaluate the policy of a run over whole episodes."""

    episodes: int | None = option(
        None,
        "number of episodes; default: as many as the run was scored on",
        group="episodes",
        at_least=1,
        at_most=10**6,
    )
    seed: int | None = option(
        None,
        "seed of the episodes (default: the run's, which repeats its eval.json)",
        at_least=0,
        at_most=LARGEST_SEED,
    )
    device: str = option("cpu", "torch device")
    video: str | None = option(
        None,
        "write a .gif of episodes with sampled actions, best and worst among them",
        value="FILE",
        group="what is written",
    )
    out: str | None = option(
        None, "write the figures to this JSON file; without it nothing is written", value="FILE"
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command: read a run, play, print, and write the files that flags name."""
    config = parse_config(
        EvaluateConfig,
        "python -m rl.evaluate",
        _EXAMPLES,
        argv,
    )
    if config.out is not None:
        refuse_used_file(Path(config.out), "--out")
    if config.video is not None:
        refuse_used_file(Path(config.video), "--video", ".gif")
    training = settings_of_run(Path(config.run), config.import_modules)

    from dem_apps.runtime.device import torch_device
    from rl.results.evaluator import FINAL, print_results
    from rl.results.video import record_episodes
    from rl.training.run import build_evaluator, model_of_run
    from rl.training.state import evaluate_checkpoint

    torch_device(config.device)
    model = model_of_run(training, config.device)
    seed = training.seed if config.seed is None else config.seed
    episodes = config.episodes or training.final_episodes or training.eval_episodes
    evaluator = build_evaluator(replace(training, seed=seed), FINAL, episodes)
    result = evaluate_checkpoint(
        model, Path(config.run) / "checkpoints", config.checkpoint, evaluator
    )
    print_results(f"{training.env}, {training.loss}", episodes, [result])
    if config.out is not None:
        document = {
            **result,
            "episodes": episodes,
            "env": training.env,
            "loss": training.loss,
            "seed": seed,
        }
        write_json(Path(config.out), document, "--out")
        print(f"written to {config.out}")
    # last, for an environment may not be rendered
    if config.video is not None:
        about = f"{training.env}, {training.loss}, {config.checkpoint} policy"
        record_episodes(
            evaluator, model, evaluator.episodes(model, False), Path(config.video), about
        )
        print(f"video {config.video}")


if __name__ == "__main__":
    run_command(main)
