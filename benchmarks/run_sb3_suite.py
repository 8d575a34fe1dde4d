"""Run the published tests of SB3 or sb3-contrib, unchanged, on plain and on hooked algorithms: docs/appendix.md.

    git clone --depth 1 https://github.com/DLR-RM/stable-baselines3 /tmp/sb3
    python benchmarks/run_sb3_suite.py /tmp/sb3 --arms plain entropy adadem-where-possible@0.01

The installed packages are tested: the checkout's ``tests`` folder is copied, and the run stops if Python finds another
package than the installed one. Take the tag of the installed version.

Before a test file is read, PPO, A2C, MaskablePPO and RecurrentPPO are replaced by ``with_entropy_objective`` of them in
every public module. Arms: ``plain`` replaces nothing; an objective's name hooks it, and action spaces that it refuses
(Box, MultiBinary) fail; ``NAME-where-possible`` takes ``entropy`` there instead. ``@WEIGHT`` behind an arm is the
default ``ent_coef`` instead of SB3's 0. Tests of algorithms without a hook are left out. Some files need
pandas and ale-py.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: Where tests find the four algorithms.
_PUBLIC = {
    "PPO": ("stable_baselines3", "stable_baselines3.ppo", "stable_baselines3.ppo.ppo"),
    "A2C": ("stable_baselines3", "stable_baselines3.a2c", "stable_baselines3.a2c.a2c"),
    "MaskablePPO": ("sb3_contrib", "sb3_contrib.ppo_mask", "sb3_contrib.ppo_mask.ppo_mask"),
    "RecurrentPPO": (
        "sb3_contrib",
        "sb3_contrib.ppo_recurrent",
        "sb3_contrib.ppo_recurrent.ppo_recurrent",
    ),
}
_WITH_HOOK = "not (DQN or SAC or TD3 or DDPG or TRPO or TQC or CrossQ)"
_ARM = "SB3_SUITE_ARM"


def pytest_configure(config: Any) -> None:
    """As a pytest plugin (``-p run_sb3_suite``): put the hooked classes where the tests import them from."""
    for package in ("stable_baselines3", "sb3_contrib"):
        found = Path(str(importlib.import_module(package).__file__))
        if not {"site-packages", "dist-packages"} & set(found.parts):
            raise SystemExit(f"{package} comes from {found}, which is not the installed one")
    arm, _, weight = os.environ.get(_ARM, "plain").partition("@")
    for name, modules in _PUBLIC.items():
        algorithm = getattr(importlib.import_module(modules[-1]), name)
        replaced = algorithm if arm == "plain" else _hooked(algorithm, arm, float(weight or 0))
        for module in modules:
            setattr(importlib.import_module(module), name, replaced)


def _hooked(algorithm: type[Any], arm: str, weight: float) -> type[Any]:
    from rl import with_entropy_objective
    from rl.hook.logits import action_sizes

    objective = arm.removesuffix("-where-possible")
    hooked = with_entropy_objective(algorithm, objective)

    class Replaced(hooked):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{"ent_coef": weight, **kwargs})

        def _setup_model(self) -> None:
            try:
                action_sizes(self.action_space)
            except ValueError:
                self.objective = objective if objective == arm else "entropy"
            super()._setup_model()

    Replaced.__name__ = algorithm.__name__
    return Replaced


def main() -> None:
    """Run the arms one after another; pytest's own summaries are to be compared."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "checkout", type=Path, help="folder that holds the published tests in tests/"
    )
    parser.add_argument(
        "--arms", nargs="+", default=["plain", "entropy", "adadem-where-possible@0.01"]
    )
    arguments = parser.parse_args()
    python_path = os.pathsep.join(
        [str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    )
    plugin = ["-p", "no:cacheprovider", "-p", Path(__file__).stem]
    for arm in arguments.arms:
        print(f"arm {arm}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(arguments.checkout / "tests", Path(folder) / "tests")
            own = {_ARM: arm, "PYTHONPATH": python_path, "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}
            command = [sys.executable, "-m", "pytest", "-q", *plugin, "-k", _WITH_HOOK, "tests"]
            # a failure is a result
            subprocess.run(command, cwd=folder, env=os.environ | own, check=False)


if __name__ == "__main__":
    main()
