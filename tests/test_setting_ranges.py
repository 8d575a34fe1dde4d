"""Every number that a command takes has a range, and every option of an objective is a setting of both trainings."""

import dataclasses
import importlib
import inspect
import math
import re
from pathlib import Path
from typing import get_args

import pytest
from support import ROOT, cases, refuses
from torch import nn

import rl.config
import seg.config
from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.errors import InputError
from dem_apps.objectives import objective_class, objective_options
from dem_apps.objectives.flags import OPTION_NAMES, ObjectiveSettings, check_options, given_options
from dem_apps.runtime.arguments import fields_of
from dem_apps.runtime.setting_checks import check_settings, out_of_range
from dem_apps.runtime.settings import from_dict, option, parse_config
from rl.envs.entries import _NOT_IN_ENTRIES, _RANGES, _WHOLE_NUMBERS, ALGORITHMS, check_entry
from seg.config import TrainConfig
from seg.inference.protocol import protocol
from seg.trained.trained_network import Training

COMMANDS = [file for package in ("seg", "rl") for file in (ROOT / package).glob("[a-z]*.py")]
MODULES = [importlib.import_module(f"{file.parent.name}.{file.stem}") for file in COMMANDS]
#: What the commands read their settings into.
SETTINGS = {
    value for module in MODULES for name, value in vars(module).items() if name.endswith("Config")
}
#: Checked where they are used: a coefficient may be a schedule, objectives check their own, a scale is one of two;
#: a return and a mean may be any.
_ELSEWHERE = {"ent_coef", "goal_return", "size", "mean", "scale", *OPTION_NAMES}


def numbers(config_class):
    """Key and range of every setting that is a number, or a list of them."""

    def kinds(hint):
        return {hint, *(kind for part in get_args(hint) for kind in kinds(part))}

    return [
        (key, field.metadata["range"])
        for key, field, hint in fields_of(config_class)
        if not dataclasses.is_dataclass(hint)
        and {int, float} & kinds(hint)
        and dict not in kinds(hint)
    ]


@pytest.mark.parametrize("config_class", sorted(SETTINGS, key=str))
def test_every_number_has_a_lower_bound(config_class):
    unbounded = [
        key for key, bounds in numbers(config_class) if not {"at_least", "above"} & bounds.keys()
    ]
    assert set(unbounded) <= _ELSEWHERE


@dataclasses.dataclass(frozen=True)
class Bounded:
    """Open and closed ends."""

    share: float = option(0.5, "a share", above=0, below=1)
    parts: list[int] = option([], "several", at_least=1, at_most=3)


def test_ends_are_open_or_closed():
    for share in (0.0, 1.0, -1.0, 2.0, math.nan):
        refuses(r"^--share: expected ", check_settings, Bounded(share=share))
    check_settings(Bounded(share=1e-9, parts=[1, 3]))
    refuses(r"^--parts: expected at most 3, got 4$", check_settings, Bounded(parts=[1, 4]))
    assert out_of_range([None, "text"], at_least=0) is None


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_number_of_an_entry_has_a_range(algo):
    parameters = inspect.signature(ALGORITHMS[algo]).parameters
    takes_a_number = {
        name
        for name, parameter in parameters.items()
        if name not in _NOT_IN_ENTRIES
        and isinstance(parameter.default, (int, float))
        and not isinstance(parameter.default, bool)
    }
    assert takes_a_number <= {*_RANGES, *_WHOLE_NUMBERS}


@cases(
    ("gamma", 2),
    ("gamma", -0.1),
    ("gae_lambda", 1.5),
    ("clip_range", -1),
    ("clip_range", 0),
    ("clip_range", "lin_-1"),
    ("learning_rate", -1e-3),
    ("learning_rate", "lin_-1e-3"),
    ("vf_coef", -1),
    ("max_grad_norm", 0),
    ("target_kl", -1),
    ("stats_window_size", -1),
    ("sde_sample_freq", -2),
    ("gamma", "lin_0.9"),
    ("clip_range_vf", -0.1),
)
def test_an_entry_beyond_its_range_is_one_sentence(key, value):
    entry = {
        "policy": "MlpPolicy",
        "n_timesteps": 1e5,
        "gamma": 0.99,
        "learning_rate": "lin_2.5e-4",
        "clip_range": 0.2,
    }
    check_entry(entry, "ppo", "here")
    refuses(rf"^here: {key}", check_entry, {**entry, key: value}, "ppo", "here")


def test_a_protocol_names_no_objective_where_none_is_trained_with():
    config = TrainConfig(method="source", loss="dem", reduction="balanced")
    names = ("loss", "reduction", "balance")
    said = protocol(config.protocol(), Training(Path("run"), "last", 1), nn.Conv2d(3, 2, 1))
    assert [said[name] for name in names] == [None] * 3
    said = protocol(
        TrainConfig(loss="dem").protocol(), Training(Path("run"), "last", 1), nn.Conv2d(3, 2, 1)
    )
    assert said["loss"] == "dem"


CONFIGS = [seg.config.TrainConfig, rl.config.TrainConfig]
GIVEN = {"tau": 0.5, "alpha": 0.7, "momentum": 0.3, "norm": "l2", "delta": "entropy", "eta": 1.5}


@pytest.mark.parametrize("config_class", CONFIGS)
@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_every_option_is_a_flag_and_reaches_the_objective(config_class, name):
    defaults = inspect.signature(objective_class(name)).parameters
    options = {
        option: GIVEN.get(option, defaults[option].default) for option in objective_options(name)
    }
    flags = [part for option, value in options.items() for part in (f"--{option}", str(value))]
    config = parse_config(config_class, "", "", ["--loss", name, *flags])
    check_options(config)
    assert given_options(config) == options
    build_objective(config.loss, num_classes=3, **given_options(config))
    assert from_dict(config_class, dataclasses.asdict(config), "config.yaml") == config


def test_the_settings_are_the_options_of_the_objectives():
    assert set(OPTION_NAMES) == {
        option for name in OBJECTIVE_NAMES for option in objective_options(name)
    }
    for field in dataclasses.fields(ObjectiveSettings):
        if field.name != "loss":
            owners = [name for name in OBJECTIVE_NAMES if field.name in objective_options(name)]
            declared = {
                inspect.signature(objective_class(name)).parameters[field.name].default
                for name in owners
            }
            (default,) = declared
            shown = f"{default:g}" if isinstance(default, float) else default
            about, _, said = field.metadata["help"].partition("default: ")
            assert said.strip(")") == str(shown)
            named = re.findall(r"[a-z]+(?:-[a-z]+)*", about)
            assert [name for name in OBJECTIVE_NAMES if name in named] == owners


def test_what_an_objective_does_not_have_is_refused():
    config = seg.config.TrainConfig(loss="cadf", tau=0.5)
    refuses(r"^--tau: belongs to --loss dem, not to --loss cadf$", check_options, config)
    with pytest.raises(
        InputError, match=r"^--tau: is an option of --loss, and this --method trains without"
    ):
        check_options(dataclasses.replace(config, loss="dem"), trained=False)
