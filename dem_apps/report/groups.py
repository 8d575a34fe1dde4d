"""Runs side by side: which of them are seeds of one setting, and what differs between settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dem_apps.report.settings_text import flat
from dem_apps.runtime.run_reader import Run

#: Settings in which two runs of one group may differ.
_NO_SETTINGS = ("seed", "run_dir", "resume")
_ABSENT = "(not in config.yaml)"


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone.

    Args:
        name: what the report calls them.
        runs: in the order given.
        settings: their common settings, flat.
    """

    name: str
    runs: tuple[Run, ...]
    settings: Mapping[str, str]

    @property
    def seeds(self) -> list[str]:
        """The seed of each run; the names of the runs where two have one seed."""
        seeds = [str(run.seed) for run in self.runs]
        return seeds if len(set(seeds)) == len(seeds) else [run.name for run in self.runs]

    def by_seed(self, value_of: Callable[[Run], float | None]) -> dict[str, float]:
        """A value of each run that has it, by seed."""
        values = {seed: value_of(run) for seed, run in zip(self.seeds, self.runs, strict=True)}
        return {seed: value for seed, value in values.items() if value is not None}


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Runs of equal settings together, groups and runs in the order given."""
    members: dict[tuple[tuple[str, str], ...], list[Run]] = {}
    for position, run in enumerate(runs):
        settings = {key: text for key, text in flat(run.config).items() if key not in _NO_SETTINGS}
        # a run whose settings are lost may be anything, and is put with nobody
        key = tuple(sorted(settings.items())) if run.config else (("", str(position)),)
        members.setdefault(key, []).append(run)
    names = _names(list(members.values()), differing([dict(key) for key in members]))
    return [
        Group(name, tuple(runs), dict(key) if runs[0].config else {})
        for name, (key, runs) in zip(names, members.items(), strict=True)
    ]


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """By key, the value in each of ``settings``, for the keys in which they differ."""
    keys = dict.fromkeys(key for one in settings for key in one if key)
    rows = {key: [one.get(key, _ABSENT) for one in settings] for key in keys}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def without_seed(name: str) -> str:
    """A run's name without what tells seeds of one setting apart; may be empty."""
    return re.sub(r"[-_./]*seed[-_=]*\d+", "", name)


def _names(members: Sequence[Sequence[Run]], differences: Mapping[str, Sequence[str]]) -> list[str]:
    """The runs' own name without the seed where that tells the groups apart, else the settings that differ."""
    names = []
    for position, runs in enumerate(members):
        bare = {without_seed(run.name) for run in runs}
        if len(runs) == 1:
            names.append(runs[0].name)
        elif len(bare) == 1 and bare != {""}:
            names.append(bare.pop())
        else:
            names.append(", ".join(f"{key} {values[position]}" for key, values in list(differences.items())[:4]))
    names = [name or "all runs" for name in names]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]
