"""Every option of every objective is a setting of both trainings, given on the command line or read from a run."""

import dataclasses
import inspect

import pytest
from support.refusals import refuses

import rl.config
import seg.config
from dem_apps import OBJECTIVE_NAMES, build_objective
from dem_apps.errors import InputError
from dem_apps.objectives import objective_class, objective_options
from dem_apps.objectives.flags import OPTION_NAMES, ObjectiveSettings, check_options, given_options
from dem_apps.runtime.settings import from_dict, parse_config

CONFIGS = [seg.config.TrainConfig, rl.config.TrainConfig]
GIVEN = {"tau": 0.5, "alpha": 0.7, "momentum": 0.3, "norm": "l2", "delta": "entropy", "eta": 1.5}


@pytest.mark.parametrize("config_class", CONFIGS)
@pytest.mark.parametrize("name", OBJECTIVE_NAMES)
def test_every_option_is_a_flag_and_reaches_the_objective(config_class, name):
    defaults = inspect.signature(objective_class(name)).parameters
    options = {option: GIVEN.get(option, defaults[option].default) for option in objective_options(name)}
    flags = [part for option, value in options.items() for part in (f"--{option}", str(value))]
    config = parse_config(config_class, "", "", ["--loss", name, *flags])
    check_options(config)
    assert given_options(config) == options
    build_objective(config.loss, num_classes=3, **given_options(config))
    assert from_dict(config_class, dataclasses.asdict(config), "config.yaml") == config


def test_the_settings_are_the_options_of_the_objectives():
    assert set(OPTION_NAMES) == {option for name in OBJECTIVE_NAMES for option in objective_options(name)}
    for field in dataclasses.fields(ObjectiveSettings):
        if field.name != "loss":
            owners = [name for name in OBJECTIVE_NAMES if field.name in objective_options(name)]
            declared = {inspect.signature(objective_class(name)).parameters[field.name].default for name in owners}
            (default,) = declared
            shown = f"{default:g}" if isinstance(default, float) else default
            assert field.metadata["help"].endswith(f", of --loss {', '.join(owners)}; default: {shown}")


def test_what_an_objective_does_not_have_is_refused():
    config = seg.config.TrainConfig(loss="cadf", tau=0.5)
    refuses(r"^--tau: belongs to --loss dem, not to --loss cadf$", check_options, config)
    with pytest.raises(InputError, match=r"^--tau: is an option of --loss, and this --method trains without"):
        check_options(dataclasses.replace(config, loss="dem"), trained=False)
    with pytest.raises(InputError, match=r"^--tau: expected a number from 1e-06 to 1e\+06, got -1\.0$"):
        check_options(seg.config.TrainConfig(loss="dem", tau=-1.0))
