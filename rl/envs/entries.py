"""Hyperparameter entries in the RL Baselines3 Zoo's format: finding, checking and reading them without running code."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from dem_apps.errors import InputError, nearest, passed_on, refused, shown
from dem_apps.runtime.arguments import CONFIGS
from dem_apps.runtime.documents import is_a, read_yaml, required
from dem_apps.runtime.setting_checks import out_of_range
from rl.envs.families import family_of, own_id
from rl.envs.make import is_picture, make_env, named_wrappers

#: Hyperparameters by name.
Entry = Mapping[str, Any]
ALGORITHMS: dict[str, type[PPO] | type[A2C]] = {"ppo": PPO, "a2c": A2C}
#: Keys of an entry that describe the environment; all others are arguments of the algorithm.
ENVIRONMENT_KEYS = ("env_wrapper", "normalize", "n_envs", "n_timesteps", "policy")
#: Arguments of the algorithm that have a flag of their own, or none.
_NOT_IN_ENTRIES = (
    "env",
    "seed",
    "device",
    "verbose",
    "tensorboard_log",
    "_init_setup_model",
)
_WHOLE_NUMBERS = ("n_envs", "n_timesteps", "n_steps", "batch_size", "n_epochs")
#: Steps of an environment without an entry.
DEFAULT_TIMESTEPS = 1e5
#: Weight of the entropy term where an entry of ours has none: the paper's.
DEFAULT_WEIGHT = 0.001
_SHARE = {"at_least": 0.0, "at_most": 1.0}
#: Bounds of every other argument that is a number.
_RANGES: dict[str, dict[str, float]] = {
    "learning_rate": {"at_least": 0},
    "gamma": _SHARE,
    "gae_lambda": _SHARE,
    "clip_range": {"above": 0},
    "clip_range_vf": {"above": 0},
    "ent_coef": {"at_least": 0},
    "vf_coef": {"at_least": 0},
    "max_grad_norm": {"above": 0},
    "target_kl": {"above": 0},
    "sde_sample_freq": {"at_least": -1},
    "stats_window_size": {"at_least": 1},
    "rms_prop_eps": {"above": 0},
}
#: Arguments that may fall with the progress of training.
_SCHEDULES = ("learning_rate", "clip_range", "clip_range_vf", "ent_coef")
#: Names that an expression may use, with any module in front (``nn.Tanh``, ``th.nn.Tanh``).
NAMES: dict[str, type[nn.Module]] = {
    name: getattr(nn, name) for name in ("Tanh", "ReLU", "ELU", "GELU", "LeakyReLU", "SiLU")
}


def find_entry(
    env_id: str, algo: str, file: str | None, overrides: Entry
) -> tuple[dict[str, Any], str]:
    """The environment's entry with the ``overrides``, and where it was found.

    Without ``file`` it is of ``configs/rl/ALGO.yaml``, of the environment's family, or SB3's defaults with the fitting
    policy. Only our own files' ``ent_coef`` is kept: the Zoo's is mostly 0. Raises InputError: no entry, or no file.
    """
    path = Path(file or CONFIGS / "rl" / f"{algo}.yaml")
    entries = required(read_yaml(path), str(path))
    name, family = own_id(env_id), family_of(env_id)
    if file is None and name not in entries:
        name = family.entry_of or name
    if name in entries:
        entry, where = entries[name], f"{path}, {name}"
    elif file is not None:
        known = ", ".join(map(str, entries))
        raise InputError(f"{path}: has no entry for '{name}', only for {known}; write one")
    elif algo in family.hyperparameters:
        entry, where = family.hyperparameters[algo], f"the hyperparameters of {name}'s family"
    else:
        entry = _sb3_defaults(env_id, overrides)
        where = f"SB3's defaults, since neither {path.name} nor a family of environments has {name}"
    values = dict(required(entry, where))
    if file is not None or name not in entries:
        values.pop("ent_coef", None)
    return {**values, **overrides}, where


def _sb3_defaults(env_id: str, overrides: Entry) -> dict[str, Any]:
    space = make_env(env_id, overrides.get("env_wrapper")).observation_space
    # normalised ones are floats, for which there is no CNN
    normalised, _ = normalisation(overrides.get("normalize", False)) or (False, False)
    policy = "MlpPolicy"
    if isinstance(space, spaces.Dict):
        policy = "MultiInputPolicy"
    elif is_picture(space) and not normalised:
        policy = "CnnPolicy"
    return {"policy": policy, "n_timesteps": DEFAULT_TIMESTEPS}


def check_entry(entry: Entry, algo: str, where: str) -> None:
    """Raise an InputError if a key of an entry is missing, unknown or has a wrong value."""
    check_values(entry, algo, f"{where}: ")
    required(entry, where, n_timesteps=Any, policy=Any)


def check_values(entry: Entry, algo: str, where: str) -> None:
    """Check keys and values of an entry; SB3 checks the rest when the model is made.

    Args:
        entry: keys and values.
        algo: a key of :data:`ALGORITHMS`.
        where: what stands before a key in errors.

    Raises:
        InputError: an unknown key or a wrong value.
    """
    arguments = {
        name: parameter.default
        for name, parameter in inspect.signature(ALGORITHMS[algo]).parameters.items()
        if name not in _NOT_IN_ENTRIES
    }
    known = {*ENVIRONMENT_KEYS, *arguments}
    for key, value in entry.items():
        if key not in known:
            raise InputError(f"{where}{key}: unknown key '{key}'{nearest(key, known)}")
        with passed_on(f"{where}{key}", InputError):
            check_number(key, hyperparameter(key, value), arguments.get(key))
            if key == "env_wrapper":
                named_wrappers(value)
            elif key == "normalize":
                normalisation(value)


def check_number(key: str, value: Any, default: Any = None) -> None:
    """Raise an InputError for a value that :func:`hyperparameter` returned; ``default`` is SB3's."""
    number = value.start if isinstance(value, LinearSchedule) else value
    if is_a(default, float) and not is_a(number, float):
        raise InputError(f"expected a number, not {shown(value)}")
    if problem := out_of_range([number], **_RANGES.get(key, {})):
        raise InputError(problem)


def hyperparameter(key: str, value: Any) -> Any:
    """An entry's value as SB3 takes it; an InputError says what was expected.

    ``lin_2.5e-4`` falls linearly to 0, ``!!float 128`` may be a whole number, ``policy_kwargs`` an expression.
    """
    if key in _SCHEDULES and isinstance(value, str):
        wrong = f"expected a number, or lin_ and a number, not '{value}'"
        with refused(lambda _: wrong, ValueError):
            start = float(value[4:] if value.startswith("lin_") else "")
        return LinearSchedule(start, 0.0, 1.0)
    if key in _WHOLE_NUMBERS:
        if not (is_a(value, float) and 1 <= value < 1 << 40 and value % 1 == 0):
            raise InputError(f"expected a whole number above 0, not {shown(value)}")
        return int(value)  # perhaps written as 1e5
    return _policy_arguments(value) if key == "policy_kwargs" else value


def _policy_arguments(value: Any) -> dict[str, Any]:
    parsed = parsed_expression(value)
    if not isinstance(parsed, dict):
        raise InputError(f"expected a mapping or dict(…), not {value!r}")
    if isinstance(activation := parsed.get("activation_fn"), str):  # in a mapping of YAML
        return {**parsed, "activation_fn": parsed_expression(activation)}
    return parsed


def normalisation(value: Any) -> tuple[bool, bool] | None:
    """Read an entry's ``normalize``.

    Returns:
        whether observations are normalised, and whether rewards are; None if neither.

    Raises:
        InputError: another value than true, false or ``dict(norm_obs=…, norm_reward=…)``.
    """
    parsed = parsed_expression(value)
    if isinstance(parsed, bool):
        return (True, True) if parsed else None
    if not isinstance(parsed, dict) or not set(parsed) <= {"norm_obs", "norm_reward"}:
        raise InputError(f"expected true, false or dict(norm_obs=…, norm_reward=…), not {value!r}")
    wanted = bool(parsed.get("norm_obs", True)), bool(parsed.get("norm_reward", True))
    return wanted if any(wanted) else None


def parsed_expression(text: Any) -> Any:
    """Evaluate an expression without running code; what is no text is a value already.

    Args:
        text: numbers, strings, lists, tuples, ``dict(…)``, ``{…}`` and :data:`NAMES`.

    Raises:
        InputError: any other expression.
    """
    if not isinstance(text, str):
        return text
    names = ", ".join(f"nn.{name}" for name in NAMES)
    wrong = f"'{text:.200}' is not an expression of numbers, strings, lists, dict(…) and {names}"
    with refused(lambda _: wrong, SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ast.literal_eval(_Literals().visit(ast.parse(text.strip(), mode="eval")))


class _Literals(ast.NodeTransformer):
    """Turns ``dict(…)`` into ``{…}``, and a known name into its value.

    The known names are those of :data:`NAMES`. All else stays.
    """

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if ast.unparse(node.func) == "dict" and not node.args and all(k.arg for k in node.keywords):
            return ast.Dict(
                [ast.Constant(k.arg) for k in node.keywords],
                [self.visit(k.value) for k in node.keywords],
            )
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return ast.Constant(NAMES[node.attr]) if node.attr in NAMES else node  # type: ignore[arg-type]
