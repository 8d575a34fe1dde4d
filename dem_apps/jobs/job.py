"""One training as a command, its run folder, and what its settings become on a command line."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from dem_apps.runtime.checkpoint import write_atomically
from dem_apps.runtime.load_state import required
from dem_apps.runtime.safe_io import read_json
from dem_apps.runtime.settings import to_dict


class JobFailed(Exception):
    """A training ended without a result, and would again. The message says how, and where its output is."""

    #: The word for it in the line about the job.
    outcome = "failed"


class JobKilled(JobFailed):
    """It was ended from outside, or never started: it may well have a result when it is run again."""

    outcome = "killed"


class JobPruned(JobFailed):
    """A search gave it up after some of its seeds."""

    outcome = "pruned"


@dataclass(frozen=True)
class Job:
    """One training: ``python -m MODULE FLAGS --run-dir RUN``.

    Args:
        name: how it is called in tables and messages.
        module: a training command, such as ``seg.train``.
        flags: all but ``--run-dir`` and ``--resume``.
        run: its run folder; beside it lie ``<run>.log``, ``<run>.lock`` and, after a failure, ``<run>.failed``.
        steps: of the whole training, in the unit of ``metrics.jsonl``.
        metric: the number in ``eval.json`` that the run is scored by; higher is better.
    """

    name: str
    module: str
    flags: tuple[str, ...]
    run: Path
    steps: int
    metric: str

    @property
    def log(self) -> Path:
        """The file that takes the command line and what the training prints, of all starts."""
        return self._beside("log")

    @property
    def lock(self) -> Path:
        """The file whose lock says that somebody runs this job."""
        return self._beside("lock")

    def scores(self) -> dict[str, Any] | None:
        """The run's ``eval.json``; None while it is not finished.

        Raises:
            InputError: it is damaged, or has no :attr:`metric` (which is null where nothing can be scored).
        """
        file = self.run / "eval.json"
        if not file.is_file():
            return None
        scores = read_json(file)
        required(scores, str(file), **{self.metric: (float, int, type(None))})
        return dict(scores)

    def score(self) -> float | None:
        """The :attr:`metric` of a finished run; None without one."""
        value = (self.scores() or {}).get(self.metric)
        return None if value is None else float(value)

    def step(self) -> int:
        """The step of the last whole line in ``metrics.jsonl``; 0 where there is none."""
        try:
            with open(self.run / "metrics.jsonl", "rb") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 8192, 0))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return 0
        for line in reversed(lines):
            try:
                return int(json.loads(line)["step"])
            except (ValueError, TypeError, LookupError, RecursionError):
                continue  # cut short, at either end
        return 0

    def command(self) -> list[str]:
        """What runs it from where it stands; a training that was killed before its first checkpoint begins again."""
        return self.command_from((self.run / "config.yaml").is_file())

    def command_from(self, resumed: bool) -> list[str]:
        """What begins it, or continues it."""
        more = ["--resume"] if resumed else []
        return [sys.executable, "-m", self.module, *self.flags, "--run-dir", str(self.run), *more]

    def failure(self) -> str | None:
        """When and how the last start failed; None if it did not."""
        try:
            return self._beside("failed").read_text()
        except FileNotFoundError:  # another command may take it back at any moment
            return None

    def note_failure(self, text: str | None) -> None:
        """Tell other commands in this folder that the job failed; None takes that back."""
        if text is None:
            self._beside("failed").unlink(missing_ok=True)
        else:
            write_atomically(self._beside("failed"), text.encode())

    def _beside(self, suffix: str) -> Path:
        return self.run.with_name(f"{self.run.name}.{suffix}")


def flat(settings: Mapping[str, Any], config_class: type, prefix: str = "") -> dict[str, Any]:
    """Settings with a dotted key for each that a nested dataclass holds, so that one of its keys can be given alone.

    Args:
        settings: as a YAML file holds them, dotted already or not.
        config_class: the command's settings; a mapping under a key that is no dataclass there is a value.
    """
    hints = get_type_hints(config_class) if dataclasses.is_dataclass(config_class) else {}
    plain: dict[str, Any] = {}
    for key, value in settings.items():
        hint = hints.get(key)
        if isinstance(value, Mapping) and isinstance(hint, type) and dataclasses.is_dataclass(hint):
            plain.update(flat(value, hint, f"{prefix}{key}."))
        else:
            plain[f"{prefix}{key}"] = value
    return plain


def flags(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings as flags; mappings and lists as JSON.

    >>> flags({"env": "CartPole-v1", "eval_freq": 500, "hyperparameters": {"n_steps": 64}, "source.root": "GTA5"})
    ('--env', 'CartPole-v1', '--eval-freq', '500', '--hyperparameters', '{"n_steps": 64}', '--source.root', 'GTA5')
    """
    parts: list[str] = []
    for name, value in settings.items():
        parts += [f"--{str(name).replace('_', '-')}", value if isinstance(value, str) else json.dumps(value)]
    return tuple(parts)


def settings_flags(config: Any) -> tuple[str, ...]:
    """The flags that make a training's settings again, from nothing but its defaults; those of its folder left out."""
    kind = type(config)
    values, defaults = (flat(to_dict(settings), kind) for settings in (config, kind()))
    given = {key: value for key, value in values.items() if value != defaults[key]}
    return flags({key: value for key, value in given.items() if key not in ("run_dir", "resume")})
