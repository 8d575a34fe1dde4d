"""``python -m seg.evaluate``: the scores of a run on its target's validation images, of any network on a folder."""

from __future__ import annotations

from dem_apps.runtime.command import run_command
from dem_apps.runtime.setting_checks import check_paths
from dem_apps.runtime.settings import parse_config
from seg.inference.settings import EvaluateConfig

_EXAMPLES = """\
python -m seg.evaluate --run runs/my-run
python -m seg.evaluate --run runs/my-run --checkpoint last --save-predictions predictions
python -m seg.evaluate --model models/unet --images photos --labels labels"""


def main() -> None:
    """The command."""
    config = parse_config(EvaluateConfig, "python -m seg.evaluate", _EXAMPLES)
    check_paths(config)
    config.check()
    from seg.inference.evaluate_run import evaluate_run

    evaluate_run(config)


if __name__ == "__main__":
    run_command(main)
