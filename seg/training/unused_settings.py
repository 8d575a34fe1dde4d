"""Find given settings that have no effect beside the other settings."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable

from dem_apps.runtime.arguments import fields_of, flag
from seg.config import TrainConfig
from seg.methods import METHODS


def _on_target(config: TrainConfig) -> bool:
    return METHODS[config.method].uses_target


def _objective(config: TrainConfig) -> bool:
    return _on_target(config) and config.loss != "none"


def _re_estimates(config: TrainConfig) -> bool:
    after = config.batch_norm_after
    return after == "target" or (after is None and _on_target(config) and config.model.batch_norm is None)


def _auxiliary(config: TrainConfig) -> bool:
    name = config.model.resolved().name
    return str(name).startswith("deeplabv2") or name == "pretrained"


#: How keys begin, what these settings belong to, and whether a training makes use of them.
_USES: tuple[tuple[tuple[str, ...], str, Callable[[TrainConfig], bool]], ...] = (
    (("target.augmentation",), "a method that reads target images", _on_target),
    (
        ("weights.warm_up", "weights.back_off", "weights.relative", "weights.aux"), "a loss on target images",
        lambda config: _objective(config) or config.method not in ("source", "minent"),
    ),
    (("loss",), "a method that reads target images", lambda config: _on_target(config) or config.loss == "none"),
    (("reduction", "weights.target_"), "an objective on target images", _objective),
    (
        ("balance", "least_share"), "an objective with --reduction balanced",
        lambda config: _objective(config) and config.reduction == "balanced",
    ),
    (
        ("weights.seg_aux", "weights.aux"), "a network with an auxiliary head, deeplabv2", _auxiliary,
    ),
    (("optimizer.momentum",), "--optimizer.name sgd", lambda config: config.optimizer.name == "sgd"),
    (("source.style_beta",), "--source.style fourier", lambda config: config.source.style == "fourier"),
    (("source.style_probability",), "a --source.style", lambda config: config.source.style != "none"),
    (
        ("source.rare_class_pixels",), "--source.rare-class-temperature",
        lambda config: config.source.rare_class_temperature is not None,
    ),
    (("bn_alpha",), "--batch-norm-after target", _re_estimates),
    (
        ("self_training.threshold",), "--self-training.weighting image or pixel",
        lambda config: config.self_training.weighting != "adaptive",
    ),
)  # fmt: skip


def unused(config: TrainConfig) -> dict[str, str]:
    """Return the keys of settings that differ from the default and change nothing, each with its owner."""
    found, default = dict[str, str](), TrainConfig()
    for key, _, hint in fields_of(TrainConfig):
        read = operator.attrgetter(key)
        if dataclasses.is_dataclass(hint) or read(config) == read(default):
            continue
        section = key.partition(".")[0]
        owners = [
            method for method, row in METHODS.items() if section == row.section or key == f"weights.{row.weight}_main"
        ]
        if owners and config.method not in owners:
            found[key] = f"--method {', '.join(owners)}"
        for begins, belong_to, used in _USES:
            if key.startswith(begins) and not used(config):
                found.setdefault(key, belong_to)
    return found


def lines(config: TrainConfig) -> list[str]:
    """:func:`unused`, as a training says it, a line for each owner."""
    found = unused(config)
    keys = {owner: [flag(key) for key in found if found[key] == owner] for owner in found.values()}
    return [f"unused   {', '.join(flags)}: of {owner}" for owner, flags in keys.items()]
