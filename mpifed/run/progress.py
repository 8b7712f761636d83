"""The output during a run: tqdm's bar at a terminal or in a notebook, a line per measured round elsewhere."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Literal

from mpifed.core.tables import Table
from mpifed.files.columns import shown
from mpifed.text import say


class Reporter:
    """Receives the progress of a run, on rank 0, and prints nothing; or a line for each measured row, or a bar."""

    def __init__(self, shows: Literal["none", "lines", "bar"] = "none") -> None:
        self.shows = shows
        self._bar: Any = None  # of tqdm

    def start(self, done: int, rounds: int, title: str) -> None:
        """The run begins or is resumed, with `done` of `rounds` completed."""
        if self.shows != "none":
            say(title)
        if self.shows == "bar":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a notebook without ipywidgets has a bar of text
                from tqdm.auto import tqdm  # of the terminal or the notebook; slow to import

            tqdm.monitor_interval = 0  # no thread of its own: rounds come often, or the bar may wait
            self._bar = tqdm(initial=done, total=rounds, desc="rounds", unit="", dynamic_ncols=True)

    def advance(self, done: int) -> None:
        """`done` rounds are completed."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def row(self, columns: Table) -> None:
        """A round was measured."""
        if self._bar is not None:
            self._bar.set_postfix_str(_numbers(columns), refresh=False)
        elif self.shows == "lines":
            say(f"round {columns['round']:>7}  {columns['elapsed_s']:9.2f} s  {_numbers(columns)}")

    def warn(self, text: str, what: str = "warning") -> None:
        """Print a warning on the standard error."""
        if self._bar is not None:
            self._bar.clear()  # it is drawn anew below
        if self.shows != "none":
            say(f"mpifed: {what}: {text}", file=sys.stderr)

    def end(self) -> None:
        """The run has ended."""
        if self._bar is not None:
            self._bar.close()


def reporter(rank: int, progress: str = "auto", many: bool = False) -> Reporter:
    """The reporter of this process; `progress`: bar, lines, none, or auto, a bar at a terminal and in a notebook.

    Elsewhere that is lines, and none for one of `many` runs.
    """
    if rank or progress == "none":
        return Reporter()
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    draws = progress == "bar" or (progress == "auto" and (sys.stdout.isatty() or hasattr(shell, "kernel")))
    lines: Literal["none", "lines"] = "none" if many and progress == "auto" else "lines"
    return Reporter("bar" if draws else lines)


def _numbers(columns: Table) -> str:
    values = {column.label: columns.get(column.name) for column in shown("progress")}
    texts = [f"{label} {value:.4g}" for label, value in values.items() if value is not None]
    limited = [f"{value:.4g}" for name, value in columns.items() if name.startswith("constraint_")]
    return "  ".join([*texts, *([f"constraints {' '.join(limited)}"] if limited else [])])
