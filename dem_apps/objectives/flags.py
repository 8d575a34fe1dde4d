"""The options of all objectives as settings of the commands.

:mod:`dem_apps` itself needs no parser of settings.
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any

from dem_apps.errors import InputError, refused
from dem_apps.runtime.settings import option


@dataclass(frozen=True)
class ObjectiveSettings:
    """The objective and its options, each None unless it is given."""

    loss: str | None = option("adadem", "objective")
    tau: float | None = option(None, "temperature, of --loss dem; default: 1")
    alpha: float | None = option(
        None,
        "weight α of the calibrator, for dem, adadem, adadem-norm and adadem-mec (default: 1)",
    )
    momentum: float | None = option(
        None, "weight of a batch in the class marginals, of --loss adadem, adadem-mec; default: 0.1"
    )
    norm: str | None = option(
        None,
        "norm of the reward that normalises it, of --loss adadem, adadem-norm; default: l1",
        value="{l1,l2,linf}",
    )
    delta: str | None = option(
        None,
        "reward that the norm measures, for adadem and adadem-norm (default: cadf)",
        value="{cadf,entropy}",
    )
    eta: float | None = option(None, "power of the penalty, of --loss robust-entropy; default: 2")


OPTION_NAMES = tuple(
    field.name for field in dataclasses.fields(ObjectiveSettings) if field.name != "loss"
)


def given_options(settings: ObjectiveSettings) -> dict[str, Any]:
    """The options of objectives that were given, as :func:`dem_apps.build_objective` takes them."""
    return {name: value for name in OPTION_NAMES if (value := getattr(settings, name)) is not None}


def check_options(settings: ObjectiveSettings, trained: bool = True) -> None:
    """Refuse options without effect, and values that the objective does not take.

    Args:
        settings: the objective and its options.
        trained: whether an objective trains; if not, no option has an effect.

    Raises:
        InputError: an option is refused; the error names the flag and what would be right.
    """
    options = given_options(settings)
    if not options:
        return
    # torch is imported for a given option only
    from dem_apps.objectives import OBJECTIVE_NAMES, build_objective, objective_options

    for name in options:
        if not trained:
            raise InputError(
                f"--{name}: is an option of --loss, and this --method trains without an objective"
            )
        owners = [owner for owner in OBJECTIVE_NAMES if name in objective_options(owner)]
        if settings.loss not in owners:
            raise InputError(
                f"--{name}: belongs to --loss {', '.join(owners)}, not to --loss {settings.loss}"
            )
    with warnings.catch_warnings(), refused(lambda why: f"--{why}", InputError):
        warnings.simplefilter("ignore")  # the objective that trains warns
        build_objective(str(settings.loss), num_classes=2, **options)
