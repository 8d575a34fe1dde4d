"""Starting from a zip of SB3's ``model.save``: only for who said with ``--trust-pickled-code`` that its code may run.

``load`` of SB3 unpickles what is in ``data``, and so does ``VecNormalize.load``; a pickle runs what it likes. Nothing
else in this package opens one. Checkpoints and ``--resume`` never do.
"""

from __future__ import annotations

import pickle
import stat
import zipfile
from pathlib import Path

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from dem_apps.errors import InputError
from dem_apps.runtime.checkpoint import load_state
from rl.training.build import running
from rl.training.entries import ALGORITHMS

#: Bytes of all that is in a zip, unpacked; a policy of hundreds of millions of weights has fewer.
_MOST_BYTES = 1 << 33
_OBJECTIVE = "entropy_objective."


def start_from_zip(model: OnPolicyAlgorithm, algo: str, file: Path) -> str:
    """Put weights, optimiser and normalisation of a saved model into a new one; the objective starts afresh.

    Args:
        model: has not trained yet.
        algo: a key of :data:`rl.training.entries.ALGORITHMS`, whose class saved the zip.
        file: the zip. The statistics of the environments are looked for in :func:`statistics_files`. **Code that is
            pickled in these files is run.**

    Returns:
        what was loaded, for a line of the log.

    Raises:
        InputError: no such zip, or one of another algorithm, network or environment, or without the statistics that
            the model's environments need.
    """
    _check_zip(file)
    try:
        saved = ALGORITHMS[algo].load(file, device=model.device)
    except Exception as error:  # code from the file runs, so anything may be raised
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(f"--start-from-zip: {file} cannot be loaded as a model of {algo} ({reason})") from error
    for name in ("observation_space", "action_space"):
        ours, theirs = getattr(model, name), getattr(saved, name)
        if ours.shape != theirs.shape or getattr(ours, "n", None) != getattr(theirs, "n", None):
            raise InputError(f"--start-from-zip: {file} has the {name} {theirs}, and this run {ours}")
    own = {name: value for name, value in model.policy.state_dict().items() if name.startswith(_OBJECTIVE)}
    theirs = {name: value for name, value in saved.policy.state_dict().items() if not name.startswith(_OBJECTIVE)}
    load_state(model.policy, {**theirs, **own}, f"--start-from-zip: {file}")
    load_state(model.policy.optimizer, saved.policy.optimizer.state_dict(), f"--start-from-zip: {file}, optimizer")
    envs = model.get_vec_normalize_env()
    normalisation = "no normalisation" if envs is None else f"statistics of {_take_statistics(envs, file)}"
    term = getattr(saved.policy, "objective", None)
    was = f" with the entropy term '{term}', whose state is left behind" if term else ""
    return (
        f"{file}: {type(saved).__name__} after {saved.num_timesteps:,} steps{was}; weights and optimiser "
        f"({len(theirs)} tensors), {normalisation}"
    )


def statistics_files(file: Path) -> list[Path]:
    """Where the statistics of a zip's VecNormalize may be: as ``rl.export`` writes them, and as the Zoo does."""
    return [
        file.with_suffix(".vecnormalize.pkl"),
        file.with_name("vecnormalize.pkl"),
        file.with_suffix("") / "vecnormalize.pkl",
    ]


def _check_zip(file: Path) -> None:
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise InputError(f"--start-from-zip: {file} is no file")
        with zipfile.ZipFile(file) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (OSError, zipfile.BadZipFile, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"--start-from-zip: {file} cannot be read as a zip ({reason})") from error
    if size > _MOST_BYTES:
        raise InputError(f"--start-from-zip: {file} unpacks into {size:,} bytes, which no model has")


def _take_statistics(envs: VecNormalize, file: Path) -> Path:
    found = next((path for path in statistics_files(file) if path.is_file()), None)
    if found is None:
        names = ", ".join(str(path) for path in statistics_files(file))
        raise InputError(
            f"--start-from-zip: the environments are normalised, and {file} is worth nothing without the statistics "
            f"that it was trained with; put VecNormalize's file at one of {names}"
        )
    try:
        saved = pickle.loads(found.read_bytes())
        observations, returns = vars(saved.obs_rms), vars(saved.ret_rms)
    except Exception as error:  # code from the file runs, so anything may be raised
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise InputError(f"--start-from-zip: {found} holds no statistics of VecNormalize ({reason})") from error
    shape = envs.observation_space.shape or ()
    # one array of observations, so one running mean (SB3's type allows for one per key)
    envs.obs_rms = running(observations, shape, str(found))  # type: ignore[assignment]
    envs.ret_rms = running(returns, (), str(found))
    return found
