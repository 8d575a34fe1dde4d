"""What a search tries: DEM*'s grid with TPE or the paper's quick way over it, and what it has found.

TPE is Optuna's (Bergstra et al., NeurIPS 2011). A plan looks at the trials of a study and names the next point; where
the trials are kept and who runs them is :mod:`dem_apps.jobs.study`'s business.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import optuna
from optuna.distributions import FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.trial import FrozenTrial, TrialState

Values = dict[str, float]

_DIGITS = 10  # 3 * 0.1 and 0.3 are the same point


@dataclass(frozen=True)
class Space:
    """A finite grid.

    Args:
        distributions: each parameter's range, with a step.
        allowed: which combinations exist; all where None.
    """

    distributions: Mapping[str, FloatDistribution]
    allowed: Callable[[Values], bool] = lambda values: True

    def points(self) -> list[Values]:
        """Every allowed combination."""
        axes = [_axis(distribution) for distribution in self.distributions.values()]
        every = (dict(zip(self.distributions, combination, strict=True)) for combination in product(*axes))
        return [values for values in every if self.allowed(values)]


def _axis(distribution: FloatDistribution) -> list[float]:
    if distribution.step is None:
        raise ValueError("a search space is a grid: its distributions need a step")
    steps = round((distribution.high - distribution.low) / distribution.step)
    return [round(distribution.low + index * distribution.step, _DIGITS) for index in range(steps + 1)]


def dem_allows(values: Values) -> bool:
    """Whether 0 < τ ≤ 2/α, Prop. A.1 of the paper."""
    # rounded, since 0.1 * 20 must not be above 2
    return values["tau"] > 0 and round(values["tau"] * values["alpha"], _DIGITS) <= 2


#: DEM*'s: τ and α from 0 to 2 in steps of 0.1 (paper, Sec. 3.2 and App. B) without what Prop. A.1 rules out.
DEM_SPACE = Space({"tau": FloatDistribution(0.1, 2.0, step=0.1), "alpha": FloatDistribution(0.0, 2.0, step=0.1)},
                  dem_allows)  # fmt: skip


class Plan(Protocol):
    """Says what to try next."""

    @property
    def most(self) -> int:
        """The largest number of trials that it will ask for."""
        ...

    def __call__(self, trials: Sequence[FrozenTrial]) -> Values | None:
        """A point that is in none of the trials so far; None when there is nothing to start now."""
        ...


@dataclass(frozen=True)
class TPEPlan:
    """TPE over a grid, no point twice.

    Args:
        space: the grid.
        trials: how many of the study's trials there may be, failed ones included.
        seed: with it and the trials so far, the next point is determined.
        first: points to try before TPE is asked.
    """

    space: Space
    trials: int
    seed: int = 0
    first: tuple[Values, ...] = ()

    @property
    def most(self) -> int:
        """The largest number of trials that it will ask for."""
        return min(self.trials, len(self.space.points()))

    def __call__(self, trials: Sequence[FrozenTrial]) -> Values | None:
        """The next point; None after the last."""
        taken = [trial.params for trial in trials]
        if len(trials) >= self.most:
            return None
        for values in self.first:
            if values not in taken:
                return values
        free = [values for values in self.space.points() if values not in taken]
        return self._suggested(trials, free)

    def _suggested(self, trials: Sequence[FrozenTrial], free: list[Values]) -> Values:
        """What TPE proposes, asked again until the point is allowed and new; a free point at random if it insists."""
        seed = random.Random(f"{self.seed}/{len(trials)}").randrange(2**31)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        # a copy in memory is asked, so that refused proposals leave no trace in the study
        copy = optuna.create_study(sampler=sampler, direction="maximize")
        copy.add_trials(trials)
        for _ in range(100):
            proposal = copy.ask(dict(self.space.distributions))
            values = {name: round(value, _DIGITS) for name, value in proposal.params.items()}
            if values in free:
                return values
            copy.tell(proposal, state=TrialState.FAIL)
        return random.Random(seed).choice(free)


def quick_trials(alpha: float | None = None) -> list[Values]:
    """The paper's quick way (App. B): every α with τ = 1, or, with the α found, every τ that it allows."""
    if alpha is None:
        return [values for values in DEM_SPACE.points() if values["tau"] == 1]
    return [values for values in DEM_SPACE.points() if values["alpha"] == alpha]


class QuickPlan:
    """α first, with τ = 1; then τ, with the best α. It waits for the last trial of α before it starts with τ."""

    @property
    def most(self) -> int:
        """The largest number of trials that it will ask for."""
        return len(quick_trials()) + max(len(quick_trials(values["alpha"])) for values in quick_trials()) - 1

    def __call__(self, trials: Sequence[FrozenTrial]) -> Values | None:
        """The next point; None while α is undecided and after the last."""
        taken = [trial.params for trial in trials]
        alphas = quick_trials()
        for values in alphas:
            if values not in taken:
                return values
        of_alpha = [trial for trial in trials if trial.params in alphas]
        best = best_trial(of_alpha)
        if best is None or any(trial.state == TrialState.RUNNING for trial in of_alpha):
            return None
        return next((values for values in quick_trials(best.params["alpha"]) if values not in taken), None)


def best_trial(trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """The highest score; the earliest of equals; None where nothing is scored."""
    return min(scored(trials), key=lambda trial: (-score(trial), trial.number), default=None)


def scored(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those that have a score."""
    return [trial for trial in trials if trial.state == TrialState.COMPLETE]


def score(trial: FrozenTrial) -> float:
    """The score of a trial that has one."""
    assert trial.value is not None
    return trial.value
