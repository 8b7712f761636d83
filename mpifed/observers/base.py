"""The base class of observers, and what their calls get."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, NamedTuple

from mpifed.core.tables import Table
from mpifed.hyperparameters import MadeByKeywords


class ObservedRun(NamedTuple):
    """A run that begins, or goes on."""

    name: str
    """Of the job."""
    settings: Table
    """The tables of the job with all defaults, without `observe`."""
    folder: Path
    """Of the run. Files of your own in it keep `overwrite=True` from removing it."""
    rounds: int
    """That the job has."""
    resumed_after: int | None
    """The round of the checkpoint from which it goes on; None of a new run."""

    @property
    def full_name(self) -> str:
        """The name of the job; of a point of a sweep, with that of its folder."""
        in_sweep = (self.folder.parent / "sweep.csv").exists()
        return f"{self.name}/{self.folder.name}" if in_sweep else self.name


class RunOutcome(NamedTuple):
    """How a run has ended."""

    exit: int
    """Its exit code."""
    summary: Table
    """What `mpifed show RUN --json` prints; None where a value is not known."""


class Observer(MadeByKeywords):
    """Gets what a run measures, when it is measured. Derive your own from it, as a dataclass if jobs are to name it.

    The calls are made on rank 0 alone, off the clock. An exception in one is a warning, after which the run goes on
    without the observer. The other ranks wait meanwhile, so a call should not: what it waits for, the run waits for.
    """

    requires: ClassVar[Mapping[str, str]] = {}
    """Modules that it imports, and the package that each is in; a run is refused where one is missing."""

    def destination(self) -> str:
        """Where what it gets will be, as `mpifed check` prints it."""
        return "wherever its code brings them"

    def begin(self, run: ObservedRun) -> None:
        """The run begins, or goes on; before the first row."""

    def measured(self, row: Mapping[str, float]) -> None:
        """A row of the history was measured.

        Parameters
        ----------
        row
            By column: `round`, `elapsed_s` (seconds of training), `train_loss` and so on. Empty cells are left out.
        """

    def end(self, outcome: RunOutcome) -> None:
        """The run has ended, by itself, by a signal or by an error on this rank; not if its process was killed."""
