"""Settings that were given and that a training, as the others are, makes nothing of."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import NamedTuple

from dem_apps.runtime.arguments import fields_of, flag
from seg.config import TrainConfig
from seg.methods import METHODS


class _Use(NamedTuple):
    """What the settings whose keys begin so belong to."""

    keys: tuple[str, ...]
    belong_to: str
    used: Callable[[TrainConfig], bool]


def _on_target(config: TrainConfig) -> bool:
    return METHODS[config.method].uses_target


def _objective(config: TrainConfig) -> bool:
    return _on_target(config) and config.loss != "none"


def _auxiliary(config: TrainConfig) -> bool:
    name = config.model.decided().name
    return str(name).startswith("deeplabv2") or name == "pretrained"


_USES = (
    _Use(("target.augmentation",), "a method that reads target images", _on_target),
    _Use(
        ("weights.warm_up", "weights.back_off", "weights.relative"), "a loss on target images",
        lambda config: _objective(config) or config.method not in ("source", "minent"),
    ),
    _Use(("loss",), "a method that reads target images", lambda config: _on_target(config) or config.loss == "none"),
    _Use(("reduction", "weights.target_"), "an objective on target images", _objective),
    _Use(
        ("balance", "least_share"), "an objective with --reduction balanced",
        lambda config: _objective(config) and config.reduction == "balanced",
    ),
    _Use(
        (
            "weights.seg_aux", "weights.target_aux", "weights.pseudo_aux", "weights.adversarial_aux", "weights.vat_aux",
            "weights.mixed_aux",
        ),
        "a network with an auxiliary head, deeplabv2", _auxiliary,
    ),
    _Use(("optimizer.momentum",), "--optimizer.name sgd", lambda config: config.optimizer.name == "sgd"),
    _Use(("source.style_beta",), "--source.style fourier", lambda config: config.source.style == "fourier"),
    _Use(("source.style_probability",), "a --source.style", lambda config: config.source.style != "none"),
    _Use(
        ("source.rare_class_pixels",), "--source.rare-class-temperature",
        lambda config: config.source.rare_class_temperature is not None,
    ),
    _Use(("bn_alpha",), "--batch-norm-after target", TrainConfig.after_training),
    _Use(
        ("self_training.threshold",), "--self-training.weighting image or pixel",
        lambda config: config.self_training.weighting != "adaptive",
    ),
)  # fmt: skip


def unused(config: TrainConfig) -> dict[str, str]:
    """The keys of settings that are not the default's and change nothing, and what each belongs to."""
    found, default, methods = dict[str, str](), TrainConfig(), _of_methods()
    for key, _, hint in fields_of(TrainConfig):
        read = operator.attrgetter(key)
        if dataclasses.is_dataclass(hint) or read(config) == read(default):
            continue
        if key in methods and config.method not in methods[key]:
            found[key] = f"--method {', '.join(methods[key])}"
        for use in _USES:
            if key.startswith(use.keys) and not use.used(config):
                found.setdefault(key, use.belong_to)
    return found


def lines(config: TrainConfig) -> list[str]:
    """:func:`unused`, as a training says it, a line for each owner."""
    found = unused(config)
    keys = {owner: [flag(key) for key in found if found[key] == owner] for owner in found.values()}
    return [f"unused   {', '.join(flags)}: of {owner}" for owner, flags in keys.items()]


def _of_methods() -> dict[str, list[str]]:
    """The methods that declare a key."""
    owners = dict[str, list[str]]()
    for method, row in METHODS.items():
        for section, declared in row.sections:
            for field in dataclasses.fields(declared):
                owners.setdefault(f"{section}.{field.name}", []).append(method)
    return owners
