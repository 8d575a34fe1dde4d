"""Run the published tests of SB3 or sb3-contrib, unchanged, on the plain and on the hooked algorithms.

    git clone --depth 1 https://github.com/DLR-RM/stable-baselines3 /tmp/sb3
    python tests/rl/run_sb3_suite.py /tmp/sb3 --arms plain entropy adadem-where-possible@0.01

The installed packages are tested: the checkout's ``tests`` folder is copied to a place of its own, since beside the
checkout's package python would import that one, and the run stops if it finds another than the installed one. Take the
tag of the installed version; tests of a newer one may fail in every arm alike.

Before a test file is read, PPO, A2C, MaskablePPO and RecurrentPPO are replaced by ``with_entropy_objective`` of them in
every public module. Arms: ``plain`` replaces nothing; an objective's name hooks it, and action spaces that it refuses
(Box, MultiBinary) fail; ``NAME-where-possible`` takes ``entropy`` there instead. No test of the suites gives PPO or A2C
an ``ent_coef``, whose default is 0: with ``@WEIGHT`` behind an arm that is the default, so the objective's gradient
reaches the weights in every test that trains. Tests of algorithms that have no hook are left out. pandas and ale-py are
needed by some files (``pip install pandas ale-py``).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Where tests find the four algorithms.
_PUBLIC = {
    "PPO": ("stable_baselines3", "stable_baselines3.ppo", "stable_baselines3.ppo.ppo"),
    "A2C": ("stable_baselines3", "stable_baselines3.a2c", "stable_baselines3.a2c.a2c"),
    "MaskablePPO": ("sb3_contrib", "sb3_contrib.ppo_mask", "sb3_contrib.ppo_mask.ppo_mask"),
    "RecurrentPPO": ("sb3_contrib", "sb3_contrib.ppo_recurrent", "sb3_contrib.ppo_recurrent.ppo_recurrent"),
}
_WITH_HOOK = "not (DQN or SAC or TD3 or DDPG or TRPO or TQC or CrossQ)"
_ARM = "SB3_SUITE_ARM"
_REFUSED = "the entropy objectives act on logits over choices"


def pytest_configure(config: Any) -> None:
    """As a pytest plugin (``-p run_sb3_suite``): put the hooked classes where the tests import them from."""
    _check_installed()
    arm, _, weight = os.environ.get(_ARM, "plain").partition("@")
    for name, modules in _PUBLIC.items():
        algorithm = getattr(importlib.import_module(modules[-1]), name)
        replaced = algorithm if arm == "plain" else _hooked(algorithm, arm)
        if weight:
            replaced = _weighted(replaced, float(weight))
        for module in modules:
            setattr(importlib.import_module(module), name, replaced)


def _check_installed() -> None:
    """Stop where python finds a checkout's package and not the installed one."""
    for package in ("stable_baselines3", "sb3_contrib"):
        found = Path(str(importlib.import_module(package).__file__))
        if not {"site-packages", "dist-packages"} & set(found.parts):
            raise SystemExit(f"{package} comes from {found}, which is not the installed one")


def _weighted(algorithm: type[Any], weight: float) -> type[Any]:
    """The class with ``ent_coef`` by default at ``weight`` instead of 0."""

    class Weighted(algorithm):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{"ent_coef": weight, **kwargs})

    Weighted.__name__ = algorithm.__name__
    return Weighted


def _hooked(algorithm: type[Any], arm: str) -> type[Any]:
    from rl import with_entropy_objective
    from rl.hook.logits import action_sizes

    objective = arm.removesuffix("-where-possible")
    hooked = with_entropy_objective(algorithm, objective)
    if objective == arm:
        return hooked

    class WherePossible(hooked):  # type: ignore[misc, valid-type]
        def _setup_model(self) -> None:
            try:
                action_sizes(self.action_space)
            except ValueError:
                self.objective = "entropy"
            super()._setup_model()

    WherePossible.__name__ = hooked.__name__
    return WherePossible


def main() -> None:
    """Run the arms one after another and print their counts and the tests whose outcome differs from the first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder that holds the published tests in tests/")
    parser.add_argument(
        "--arms", nargs="+", default=["plain", "entropy", "adadem-where-possible", "adadem-where-possible@0.01"]
    )
    parser.add_argument("--files", nargs="+", default=["tests"], help="files below the checkout")
    parser.add_argument("--select", default=_WITH_HOOK, help="pytest's -k; default: all but algorithms without a hook")
    parser.add_argument("--out", type=Path, default=Path("sb3_suite"), help="folder for one junit file per arm")
    arguments = parser.parse_args()
    if not (arguments.checkout / "tests").is_dir():
        parser.error(f"{arguments.checkout}: has no folder tests")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for package in ("stable-baselines3", "sb3-contrib"):
        print(f"installed: {package} {importlib.metadata.version(package)}", flush=True)
    outcomes = {}
    for arm in arguments.arms:
        report = (arguments.out / f"{arm}.xml").resolve()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(arguments.checkout / "tests", Path(folder) / "tests")
            _run(arm, Path(folder), arguments.files, arguments.select, report)
        outcomes[arm] = _outcomes(report)
        _print_counts(arm, outcomes[arm])
    first = outcomes[arguments.arms[0]]
    for arm in arguments.arms[1:]:
        for test in sorted(first.keys() | outcomes[arm].keys()):
            before, after = first.get(test, "absent"), outcomes[arm].get(test, "absent")
            if before != after:
                print(f"{arm}: {test}: {before} -> {after}")


def _run(arm: str, folder: Path, files: list[str], select: str, report: Path) -> None:
    python_path = os.pathsep.join([str(ROOT), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, _ARM: arm, "PYTHONPATH": python_path, "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0"}
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", Path(__file__).stem, "--durations=10",
        "-k", select, "--junit-xml", str(report), *files,
    ]  # fmt: skip
    subprocess.run(command, cwd=folder, env=environment, check=False)  # a failed test is a result, no error


def _outcomes(report: Path) -> dict[str, str]:
    cases = xml.etree.ElementTree.parse(report).iter("testcase")
    return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}


def _outcome(case: xml.etree.ElementTree.Element) -> str:
    for kind in ("failure", "error"):
        if (trouble := case.find(kind)) is not None:
            return "refused" if _REFUSED in (trouble.text or "") else "failed"
    return "skipped" if case.find("skipped") is not None else "passed"


def _print_counts(arm: str, outcomes: dict[str, str]) -> None:
    kinds = list(outcomes.values())
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("passed", "failed", "refused", "skipped"))
    print(f"{arm}: {counts}", flush=True)


if __name__ == "__main__":
    main()
