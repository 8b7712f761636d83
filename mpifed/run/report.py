"""What a person sees while a run goes on: a live bar at a terminal, a line per measured round elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol

from mpifed.core.io_errors import say
from mpifed.run.columns import shown

_REFRESH_S = 0.1


class Reporter(Protocol):
    """Hears how the run goes; on rank 0."""

    def start(self, done: int, rounds: int, title: str) -> None:
        """The run begins or goes on, with `done` of `rounds` behind it."""

    def advance(self, done: int) -> None:
        """Another round is done."""

    def row(self, columns: dict[str, Any]) -> None:
        """A round was measured."""

    def warn(self, text: str) -> None:
        """Something may surprise."""

    def note(self, text: str) -> None:
        """Something is worth knowing."""

    def end(self) -> None:
        """No more rounds."""


class Silent:
    """Says nothing."""

    def start(self, done: int, rounds: int, title: str) -> None:
        """Nothing."""

    def advance(self, done: int) -> None:
        """Nothing."""

    def row(self, columns: dict[str, Any]) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Lines(Silent):
    """One plain line for every measured round."""

    def start(self, done: int, rounds: int, title: str) -> None:
        """The title."""
        say(title)

    def row(self, columns: dict[str, Any]) -> None:
        """Round, time and numbers."""
        say(f"round {columns['round']:>7}  {columns['elapsed_s']:9.2f} s  {_numbers(columns)}")

    def warn(self, text: str) -> None:
        """One line on the standard error."""
        say(f"mpifed: warning: {text}", file=sys.stderr)

    def note(self, text: str) -> None:
        """One line on the standard error."""
        print(f"mpifed: note: {text}", file=sys.stderr, flush=True)


class Bar:
    """A line that is kept up to date: rounds, loss, accuracy, time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(force_terminal=True),  # a launcher may put a pipe before the terminal
        )
        self._next = 0.0

    def start(self, done: int, rounds: int, title: str) -> None:
        """The title above, the bar below."""
        self._progress.start()
        self._progress.console.print(title, highlight=False)
        self._task = self._progress.add_task("rounds", total=rounds, completed=done, numbers="")

    def advance(self, done: int) -> None:
        """At most ten times a second."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + _REFRESH_S
            self._progress.update(self._task, completed=done)

    def row(self, columns: dict[str, Any]) -> None:
        """The last numbers beside the bar."""
        self._progress.update(self._task, completed=columns["round"], numbers=_numbers(columns))

    def warn(self, text: str) -> None:
        """Above the bar."""
        self._progress.console.print(f"mpifed: warning: {text}", highlight=False, markup=False)

    def note(self, text: str) -> None:
        """Above the bar."""
        self._progress.console.print(f"mpifed: note: {text}", highlight=False, markup=False)

    def end(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


def reporter(rank: int, progress: str = "auto") -> Reporter:
    """The one for this process: `progress` is bar, lines, none, or auto: a bar where the output is a terminal."""
    if rank or progress == "none":
        return Silent()
    if progress == "auto":
        progress = "bar" if sys.stdout.isatty() else "lines"
    return Bar() if progress == "bar" else Lines()


def _numbers(columns: dict[str, Any]) -> str:
    told = []
    for column in shown("progress"):
        value = columns.get(column.name)
        if value is not None:
            form = ".2%" if column.unit == "%" else ".4f" if column.name.endswith("loss") else ".2e"
            told.append(f"{column.label} {value:{form}}")
    limited = [f"{value:.4f}" for name, value in columns.items() if name.startswith("constraint_")]
    if limited:
        told.append(f"constraints {' '.join(limited)}")
    return "  ".join(told)
