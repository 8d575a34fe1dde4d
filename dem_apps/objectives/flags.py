"""The options of all objectives as settings of the commands, made from the signatures of the objectives' classes.

A module of its own, since only commands need a parser of settings; :mod:`dem_apps` itself does without.
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

from dem_apps.errors import InputError
from dem_apps.objectives import OBJECTIVE_NAMES, OBJECTIVES, build_objective, objective_options
from dem_apps.runtime.settings import option

OPTION_NAMES = tuple(dict.fromkeys(option for name in OBJECTIVE_NAMES for option in objective_options(name)))
#: Option → the objectives that have it.
_OWNERS = {name: [owner for owner in OBJECTIVE_NAMES if name in objective_options(owner)] for name in OPTION_NAMES}


def _field(name: str) -> tuple[str, Any, Any]:
    """An option as a dataclass field that is None unless it is given; its line of help stands with its type."""
    owner = OBJECTIVES[_OWNERS[name][0]]
    default = inspect.signature(owner).parameters[name].default
    hint, text = get_type_hints(owner.__init__, include_extras=True)[name], name
    if get_origin(hint) is Annotated:
        hint, text = get_args(hint)
    # the objective itself refuses a wrong word, see check_options()
    words = get_args(hint) if get_origin(hint) is Literal else ()
    kind = str if words else hint
    shown = f"{default:g}" if isinstance(default, float) else default
    return name, kind | None, option(
        None, f"{text}, of --loss {', '.join(_OWNERS[name])}; default: {shown}",
        value="{" + ",".join(words) + "}" if words else None,
    )  # fmt: skip


if TYPE_CHECKING:

    class ObjectiveSettings:
        """What a type checker can know of the class below."""

        @property
        def loss(self) -> str | None:
            """A name of the table, which the training resolves where it is None."""

else:
    #: Base of a training's settings: ``loss``, which the training declares in its own words, and every option.
    ObjectiveSettings = dataclasses.make_dataclass(
        "ObjectiveSettings",
        [("loss", str, option("adadem", "objective")), *map(_field, OPTION_NAMES)],
        frozen=True,
        namespace={"__doc__": "The objective and its options.", "__module__": __name__},
    )


def given_options(settings: ObjectiveSettings) -> dict[str, Any]:
    """The options of objectives that were given, as :func:`dem_apps.build_objective` takes them."""
    return {name: value for name in OPTION_NAMES if (value := getattr(settings, name)) is not None}


def check_options(settings: ObjectiveSettings, trained: bool = True) -> None:
    """Refuse options that change nothing, and values that the objective does not take.

    Args:
        settings: ``loss`` is a name of the table, or ``none``.
        trained: whether the training has an objective at all; False refuses every option.

    Raises:
        InputError: naming the flag and what would be right.
    """
    given = given_options(settings)
    for name in given:
        if not trained:
            raise InputError(f"--{name}: is an option of --loss, and this --method trains without an objective")
        if settings.loss not in _OWNERS[name]:
            raise InputError(f"--{name}: belongs to --loss {', '.join(_OWNERS[name])}, not to --loss {settings.loss}")
    if given:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # said once, by the objective that trains
                build_objective(str(settings.loss), num_classes=2, **given)
        except InputError as error:
            raise InputError(f"--{error}") from error
