"""The output during a run: a progress bar at a terminal or in a notebook, a line per measured round elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from mpifed.core.io_errors import say
from mpifed.core.tables import Table
from mpifed.files.columns import column_of, shown

if TYPE_CHECKING:
    from rich.progress import TextColumn

_REFRESH_S = 0.1
_NOTEBOOK_REFRESH_S = 0.5
_CELLS = 40  # of a bar


class Reporter:
    """Receives the progress of a run, on rank 0; this one prints nothing."""

    def start(self, done: int, rounds: int, title: str) -> None:
        """The run begins or is resumed, with `done` of `rounds` completed."""

    def advance(self, done: int) -> None:
        """`done` rounds are completed."""

    def row(self, columns: Table) -> None:
        """A round was measured."""

    def warn(self, text: str) -> None:
        """Print a warning."""

    def note(self, text: str) -> None:
        """Print a note."""

    def end(self) -> None:
        """The run has ended."""


class Printing(Reporter):
    """A reporter that prints warnings and notes as lines of the standard error."""

    def warn(self, text: str) -> None:
        say(f"mpifed: warning: {text}", file=sys.stderr)

    def note(self, text: str) -> None:
        say(f"mpifed: note: {text}", file=sys.stderr)


class Lines(Printing):
    """A reporter that prints a line for every measured round."""

    def start(self, done: int, rounds: int, title: str) -> None:
        say(title)

    def row(self, columns: Table) -> None:
        say(f"round {columns['round']:>7}  {columns['elapsed_s']:9.2f} s  {_numbers(columns)}")


class Bar(Reporter):
    """A reporter with a progress bar: rounds, loss, accuracy, time left."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
        from rich.table import Column

        self._progress = Progress(
            _cut_text("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),  # at a narrow terminal all others are cut first
            _cut_text("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(force_terminal=True),  # a launcher may put a pipe before the terminal
        )
        self._next = 0.0

    def start(self, done: int, rounds: int, title: str) -> None:
        self._progress.start()
        self._progress.console.print(title, highlight=False)
        self._task = self._progress.add_task("rounds", total=rounds, completed=done, numbers="")

    def advance(self, done: int) -> None:
        if (now := time.monotonic()) >= self._next:
            self._next = now + _REFRESH_S
            self._progress.update(self._task, completed=done)

    def row(self, columns: Table) -> None:
        self._progress.update(self._task, completed=columns["round"], numbers=_numbers(columns))

    def warn(self, text: str) -> None:
        self._progress.console.print(f"mpifed: warning: {text}", highlight=False, markup=False)

    def note(self, text: str) -> None:
        self._progress.console.print(f"mpifed: note: {text}", highlight=False, markup=False)

    def end(self) -> None:
        self._progress.stop()


class NotebookBar(Printing):
    """A reporter with a bar in a notebook: a single output, which is replaced, and needs no widgets."""

    def start(self, done: int, rounds: int, title: str) -> None:
        from IPython.display import display

        self._title, self._rounds, self._row = title, rounds, ""
        self._done, self._next = done, time.monotonic() + _NOTEBOOK_REFRESH_S
        self._handle = display(self._shown(), raw=True, display_id=True)

    def advance(self, done: int) -> None:
        self._done = done
        if (now := time.monotonic()) >= self._next:
            self._next = now + _NOTEBOOK_REFRESH_S
            self._handle.update(self._shown(), raw=True)

    def row(self, columns: Table) -> None:
        self._row = _numbers(columns)

    def end(self) -> None:
        if hasattr(self, "_handle"):  # it has started
            self._handle.update(self._shown(), raw=True)

    def _shown(self) -> dict[str, str]:
        full = _CELLS * self._done // self._rounds
        bar = f"{'█' * full}{'░' * (_CELLS - full)}"
        return {"text/plain": f"{self._title}\nrounds {bar} {self._done}/{self._rounds}  {self._row}"}


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


def _cut_text(form: str) -> TextColumn:
    """A column of a bar whose text stays on one line, and is cut where there is no room."""
    from rich.progress import Task, TextColumn
    from rich.table import Column
    from rich.text import Text

    class Cut(TextColumn):
        def render(self, task: Task) -> Text:
            text = super().render(task)
            text.no_wrap = True
            return text

    return Cut(form, table_column=Column(overflow="ellipsis"))


def reporter(rank: int, progress: str = "auto") -> Reporter:
    """The reporter of this process; `progress`: bar, lines, none, or auto, a bar at a terminal and in a notebook."""
    if rank or progress == "none":
        return Reporter()
    if progress == "auto":
        progress = "bar" if sys.stdout.isatty() or in_notebook() else "lines"
    if progress == "bar":
        return NotebookBar() if in_notebook() else Bar()
    return Lines()


def number_text(name: str, value: float) -> str:
    """A number of a column, in few characters."""
    if column_of(name).unit == "%":
        return f"{value:.2%}"
    return f"{value:.4f}" if name.endswith("loss") or name.startswith("constraint_") else f"{value:.2e}"


def _numbers(columns: Table) -> str:
    texts = []
    for column in shown("progress"):
        value = columns.get(column.name)
        if value is not None:
            texts.append(f"{column.label} {number_text(column.name, value)}")
    limited = [number_text(name, value) for name, value in columns.items() if name.startswith("constraint_")]
    if limited:
        texts.append(f"constraints {' '.join(limited)}")
    return "  ".join(texts)
