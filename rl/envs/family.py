"""Families of environments, with the facts that :mod:`rl` needs beyond their ids."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dem_apps.errors import passed_on


@dataclass(frozen=True)
class Family:
    """Environments that are imported, wrapped and trained alike; ``module`` is imported when the first one is made."""

    #: Beginnings of the ids, such as ``MiniGrid-``.
    #: The family with the longest one that fits has the id.
    prefixes: tuple[str, ...]
    #: Importing it registers the ids with gymnasium; as ``module:function`` this function is called as well.
    module: str | None = None
    #: a wrapper, as ``module:Class``, that every environment of the family needs
    innermost: str | None = None
    #: Names that an entry's ``env_wrapper`` may have, as the Zoo writes them, and the class behind each, as
    #: ``module:Class``. An entry of any environment may use those of all families.
    wrappers: Mapping[str, str] = field(default_factory=dict)
    #: An id of ``configs/rl/ALGO.yaml``; its entry serves the ids that have none in the file.
    entry_of: str | None = None
    #: An entry for ``ppo`` and one for ``a2c``, in the Zoo's format, for the ids without one there.
    #: Without any they have SB3's defaults.
    hyperparameters: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    #: Mean return at which a task counts as reached, by the beginning of its id.
    #: The longest beginning that fits counts.
    #: Without one the return is gymnasium's ``reward_threshold``.
    #: :func:`goal_return` looks it up.
    goals: Mapping[str, float] = field(default_factory=dict)
    #: An episode's return is 0 unless it was solved, so any return above 0 is a success (:func:`counts_as_success`).
    unit_returns: bool = False


def import_modules(names: Iterable[str], flag: str) -> None:
    """Import modules that register environments, which runs their code; an InputError naming ``flag`` if one fails."""
    for name in names:
        # the module's own code may raise anything
        with passed_on(f"{flag}: {name} cannot be imported", Exception, SystemExit):
            importlib.import_module(name)
