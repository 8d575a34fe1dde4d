"""Values as the RL Baselines3 Zoo writes them in its hyperparameter files, read without running any code.

The Zoo keeps Python expressions in strings, such as ``"dict(net_arch=[64, 64], activation_fn=nn.ReLU)"``, and evaluates
them. Here such a string is parsed, and only what :func:`parsed_expression` lists is made of it.
"""

from __future__ import annotations

import ast
import math
from typing import Any

from stable_baselines3.common.utils import LinearSchedule
from torch import nn

from dem_apps.errors import InputError, nearest

#: Names that an expression may use, with any module in front (``nn.Tanh``, ``th.nn.Tanh``).
NAMES: dict[str, type[nn.Module]] = {
    name: getattr(nn, name) for name in ("Tanh", "ReLU", "ELU", "GELU", "LeakyReLU", "SiLU")
}
_WHOLE_NUMBERS = ("n_steps", "batch_size", "n_epochs")


def hyperparameter(key: str, value: Any) -> Any:
    """An entry's value as SB3 takes it.

    ``lin_2.5e-4`` falls linearly to 0 with the progress of training, ``!!float 128`` is a whole number where one is
    due, and ``policy_kwargs`` may be an expression.

    Raises:
        InputError: naming the key and what was expected.
    """
    if isinstance(value, str) and value.startswith("lin_"):
        try:
            start = float(value[4:])
        except ValueError:
            start = math.nan
        if not math.isfinite(start):
            raise InputError(f"hyperparameters, {key}: expected lin_ and a number, not '{value}'")
        return LinearSchedule(start, 0.0, 1.0)
    if isinstance(value, float) and key in _WHOLE_NUMBERS:
        return int(value)
    if key == "policy_kwargs":
        parsed = parsed_expression(key, value) if isinstance(value, str) else value
        if not isinstance(parsed, dict):
            raise InputError(f"hyperparameters, {key}: expected a mapping or dict(…), not {value!r}")
        return {name: _named_class(name, each) for name, each in parsed.items()}
    return value


def _named_class(name: str, value: Any) -> Any:
    """The class for ``activation_fn: nn.ReLU`` of a YAML mapping, where it is a text; other values as they are."""
    if name != "activation_fn" or not isinstance(value, str):
        return value
    known = {f"nn.{each}": each for each in NAMES}
    if value not in known:
        raise InputError(
            f"hyperparameters, policy_kwargs: activation_fn '{value}' is not one of {', '.join(known)}"
            f"{nearest(value, known)}"
        )
    return NAMES[known[value]]


def normalisation(value: Any) -> tuple[bool, bool] | None:
    """Whether observations and rewards are normalised; None if neither.

    Args:
        value: of the entry's ``normalize``: a truth value, or a mapping with ``norm_obs`` and ``norm_reward``, both
            true where they are not given; it may be an expression too.

    Raises:
        InputError: anything else.
    """
    given = parsed_expression("normalize", value) if isinstance(value, str) else value
    if isinstance(given, bool):
        return (True, True) if given else None
    if not isinstance(given, dict) or not set(given) <= {"norm_obs", "norm_reward"}:
        raise InputError(
            f"hyperparameters, normalize: expected true, false or dict(norm_obs=…, norm_reward=…), not {value!r}"
        )
    wanted = bool(given.get("norm_obs", True)), bool(given.get("norm_reward", True))
    return wanted if any(wanted) else None


def parsed_expression(key: str, text: str) -> Any:
    """The value of an expression of numbers, strings, lists, tuples, ``dict(…)``, ``{…}`` and the :data:`NAMES`.

    Raises:
        InputError: the text holds anything else, which is not run.
    """
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        given = text if len(text) <= 200 else f"{text[:200]}…"
        raise InputError(
            f"hyperparameters, {key}: '{given}' is not an expression of numbers, strings, lists, dict(…) and "
            f"{', '.join(f'nn.{name}' for name in NAMES)}"
        ) from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return {_value(_given(key)): _value(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {_given(keyword.arg): _value(keyword.value) for keyword in node.keywords}
    if isinstance(node, ast.Attribute) and node.attr in NAMES:
        return NAMES[node.attr]
    return ast.literal_eval(node)


def _given(key: Any) -> Any:
    """A key; there is none in ``dict(**other)`` and ``{**other}``."""
    if key is None:
        raise ValueError("no key")
    return key
