"""How far a training run is: a bar with rate and remaining time in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column


class TrainingProgress:
    """Shows steps done, steps per second, remaining time and the news.

    Args:
        total: steps of the whole run.
        done: steps that an earlier part of the run has made.
    """

    def __init__(self, total: int, done: int = 0) -> None:
        self.total = total
        self._done_before = done
        self._started = time.monotonic()
        self._bar: Progress | None = None
        console = Console()
        # a dumb terminal, such as an editor's, cannot move its cursor: rich would show nothing until the end
        if sys.stdout.isatty() and not console.is_dumb_terminal:
            whole = Column(no_wrap=True)  # in a narrow terminal the bar gives way, and no number
            self._bar = Progress(
                TextColumn("training"), BarColumn(None, table_column=Column(max_width=40)),
                MofNCompleteColumn(table_column=whole), TextColumn("{task.fields[rate]}"), TextColumn("left"),
                TimeRemainingColumn(table_column=whole.copy()), console=console,
            )  # fmt: skip
            self._task = self._bar.add_task("", total=total, completed=done, rate="")
            self._bar.start()

    def update(self, step: int) -> None:
        """Show that ``step`` steps are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=min(step, self.total), rate=self._rate_text(step))

    def note(self, step: int, text: str) -> None:
        """Show news, such as the latest evaluation, as a line of its own."""
        if self._bar is not None:
            # above the bar, which has no room for more in a narrow terminal
            self._bar.console.print(f"step {step:,}  {text}", markup=False, highlight=False)
            return
        rate = self._rate(step)
        left = str(timedelta(seconds=round(max(self.total - step, 0) / rate))) if rate else "?"
        print(f"step {step:,}/{self.total:,}  {text}  {self._rate_text(step)}  {left} left", flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._bar is not None:
            self._bar.stop()

    def _rate(self, step: int) -> float:
        return (step - self._done_before) / max(time.monotonic() - self._started, 1e-9)

    def _rate_text(self, step: int) -> str:
        rate = self._rate(step)
        return f"{rate:,.0f} steps/s" if rate >= 20 else f"{rate:.2f} steps/s"
