"""How far some work is: a bar with rate and remaining time in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TypeVar

import rich.progress
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

Item = TypeVar("Item")

#: Between the plain lines of work that has no news of its own.
_SECONDS_BETWEEN_LINES = 15.0
#: Of work that has news now and then, which says that it is alive at least once a minute.
_LONGEST_SILENCE = 30.0


class Progress:
    """Shows what is done, the rate, the remaining time and the news.

    Args:
        total: steps of the whole work.
        done: steps that were made before, which took none of the time.
        title: stands before the bar.
        unit: what the steps are called.
        silence: seconds after which a plain line says how far it is, where there was none.
    """

    def __init__(
        self,
        total: int,
        done: int = 0,
        title: str = "training",
        unit: str = "steps",
        silence: float = _LONGEST_SILENCE,
    ) -> None:
        self.total, self._title, self._unit, self._longest_silence = total, title, unit, silence
        self._done_before = done
        self._started = self._spoke = time.monotonic()
        self._bar: rich.progress.Progress | None = None
        console = Console()
        # a dumb terminal, such as an editor's, cannot move its cursor: rich would show nothing until the end
        if sys.stdout.isatty() and not console.is_dumb_terminal:
            whole = Column(no_wrap=True)  # in a narrow terminal the bar gives way, and no number
            self._bar = rich.progress.Progress(
                TextColumn(title), BarColumn(None, table_column=Column(max_width=40)),
                MofNCompleteColumn(table_column=whole), TextColumn("{task.fields[rate]}"), TextColumn("left"),
                TimeRemainingColumn(table_column=whole.copy()), console=console,
            )  # fmt: skip
            self._task = self._bar.add_task("", total=total, completed=done, rate="")
            self._bar.start()

    def update(self, done: int) -> None:
        """Show in the bar that so many steps are done; without one by a line, if there was none for long."""
        if self._bar is not None:
            self._bar.update(self._task, completed=min(done, self.total), rate=self._rate_text(done))
        elif self._silence() > self._longest_silence:
            self.line(done)

    def between_steps(self, text: str) -> None:
        """Work that makes no steps, such as scoring, is under way: a plain line, if there was none for long."""
        if self._bar is None and self._silence() > self._longest_silence:
            self._say(f"{self._title}: {text}")

    def note(self, step: int, text: str) -> None:
        """Show news of a training, such as the latest evaluation, as a line of its own."""
        if self._bar is not None:
            # above the bar, which has no room for more in a narrow terminal
            self._bar.console.print(f"step {step:,}  {text}", markup=False, highlight=False)
        else:
            self._say(f"step {step:,}/{self.total:,}  {text}  {self._outlook(step)}")

    def line(self, done: int) -> None:
        """A plain line where there is no bar."""
        if self._bar is None:
            self._say(f"{self._title}: {done:,}/{self.total:,}  {self._outlook(done)}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    def _silence(self) -> float:
        """Seconds since the last line."""
        return time.monotonic() - self._spoke

    def _say(self, line: str) -> None:
        self._spoke = time.monotonic()
        print(line, flush=True)

    def _rate(self, done: int) -> float:
        return (done - self._done_before) / max(time.monotonic() - self._started, 1e-9)

    def _rate_text(self, done: int) -> str:
        rate = self._rate(done)
        return f"{rate:,.0f} {self._unit}/s" if rate >= 20 else f"{rate:.2f} {self._unit}/s"

    def _outlook(self, done: int) -> str:
        rate = self._rate(done)
        left = str(timedelta(seconds=round(max(self.total - done, 0) / rate))) if rate else "?"
        return f"{self._rate_text(done)}  {left} left"


def track(items: Iterable[Item], total: int, title: str, unit: str = "images") -> Iterator[Item]:
    """The items one by one, with the progress of whoever takes them; without a terminal a line now and then."""
    progress = Progress(total, title=title, unit=unit, silence=_SECONDS_BETWEEN_LINES)
    try:
        for done, item in enumerate(items, start=1):
            yield item
            progress.update(done)
    finally:
        progress.close()
