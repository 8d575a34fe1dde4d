"""Printing with rich: tables, and progress as a bar with rate and remaining time, plain lines without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any, TypeVar

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Table
from rich.text import Text

from dem_apps.errors import printable_lines

Item = TypeVar("Item")
#: The longest time without a plain line.
_SILENT_SECONDS = 15.0


class _Console(Console):
    """Escapes what it is given, and writes colours of its own."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable_lines(text), **options)


def console() -> Console:
    """Return a console of the standard output.

    ``[red]`` and ``:car:`` in a name are that name and nothing else.
    """
    return _Console(file=getattr(sys.stdout, "stream", None), markup=False, emoji=False)


def print_table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Collection[str] = (),
    caption: str | None = None,
) -> None:
    """Print a table, columns of words (the first, and those named ``left``) left-aligned; an empty row is a line."""
    table = Table(title=title, caption=caption)
    for name in header:
        table.add_column(name, justify="left" if name in (header[0], *left) else "right")
    for row in rows:
        table.add_row(*row) if row else table.add_section()
    console().print(table)


class Progress:
    """A display of the steps done of ``total``, their rate and the remaining time.

    ``done`` steps were made before.
    """

    def __init__(
        self, total: int, done: int = 0, title: str = "training", unit: str = "steps"
    ) -> None:
        self.total, self._title, self._unit = total, title, unit
        self._before = self._done = done
        self._started = self._spoke = time.monotonic()
        screen = console()
        self._bar = rich.progress.Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[outlook]}"),
            console=screen,
            disable=not screen.is_interactive,
        )
        self._task = self._bar.add_task("", total=total, completed=done, outlook="")
        self._bar.start()

    def update(self, done: int) -> None:
        """So many steps are done: moves the bar, or prints a line if the last one is long ago."""
        self._done = done
        self._bar.update(self._task, completed=min(done, self.total), outlook=self._outlook())
        self.between_steps(f"{done:,}/{self.total:,}  {self._outlook()}")

    def between_steps(self, text: str) -> None:
        """Work that makes no steps, such as scoring: a plain line if the last one is long ago."""
        if self._bar.disable and time.monotonic() - self._spoke > _SILENT_SECONDS:
            self._print(f"{self._title}: {text}")

    def note(self, step: int, text: str) -> None:
        """Show news of a training, such as the latest evaluation, as a line of its own."""
        self._done = step
        self._print(f"step {step:,}/{self.total:,}  {text}  {self._outlook()}")

    def ended(self, line: str) -> None:
        """One more step is done, as a line of its own says."""
        self._print(line)
        self.update(self._done + 1)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if not self._bar.disable:  # else it prints an empty line
            self._bar.stop()

    def _print(self, line: str) -> None:
        """Print a line above the bar."""
        self._spoke = time.monotonic()
        self._bar.console.print(line, highlight=False, soft_wrap=True)

    def _outlook(self) -> str:
        """Rate and remaining time."""
        rate = (self._done - self._before) / max(time.monotonic() - self._started, 1e-9)
        if not rate:
            return ""
        left = timedelta(seconds=round(max(self.total - self._done, 0) / rate))
        speed = f"{rate:,.3g} {self._unit}/s"
        if rate < 1:
            speed = f"{1 / rate:,.3g} s/{self._unit.removesuffix('s')}"
        return f"{speed}  {left} left"


def track(items: Iterable[Item], total: int, title: str, unit: str = "images") -> Iterator[Item]:
    """The items one by one, with their progress."""
    with closing(Progress(total, title=title, unit=unit)) as progress:
        for done, item in enumerate(items, start=1):
            yield item
            progress.update(done)
