"""What is wrong with a run that has ended, whatever its exit code: the one place that says so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import NumericalError
from mpifed.core.record import Array
from mpifed.core.tables import ReadOnlyTable
from mpifed.files.history import history_so_far
from mpifed.files.run_folder import job_of, read_run
from mpifed.results.text import value_of

DIVERGED = "diverged"  # a kind
_ROUNDING = 1e-9  # relative: sums of a loss in another order
_WORSE = 0.01  # relative to the best: what a mean over minibatches moves from one round to the next
_LEARNT = 0.05  # of test accuracy
_REMEDY = "smaller steps may help"


class RunWarning(NamedTuple):
    """Something that is wrong with a run."""

    kind: str  # the same words for all runs
    text: str  # with the numbers of this one

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def run_warnings(folder: Path, job: ReadOnlyTable | None = None) -> list[RunWarning]:
    """Whether a run has diverged, ended worse than a model that it has measured, or has an unsafe sigma.

    Parameters
    ----------
    folder : of a run, with run.json
    job : its job, where that has been read already

    Returns
    -------
    list
        of warnings; empty for a run that has not ended yet.
    """
    run = read_run(folder)
    if run["exit"] is None:
        return []
    job = job_of(folder) if job is None else job
    rows = history_so_far(folder)
    worse = worse_than_measured(job, rows, run.get("returned_round"))
    return [*_diverged(run, job, rows), *worse, *_drowned(job, rows)]


def _drowned(job: ReadOnlyTable, rows: Mapping[str, Array]) -> Iterator[RunWarning]:
    """Whether a model with noise of each client's own is hardly better than the one it began with."""
    accuracy = rows.get("test_accuracy", np.full(1, np.nan))
    private = "privacy" in job and job["privacy"].get("trust", "local") == "local"
    if private and (accuracy[-1:] < accuracy[:1] + _LEARNT).any():
        texts = (value_of("test_accuracy", float(accuracy[at])) for at in (-1, 0))
        remedy = '[privacy] trust = "distributed" adds the noise once for all clients of a round'
        yield RunWarning("noise hides what was learnt", f"test_accuracy {', at first '.join(texts)}; {remedy}")


def _diverged(run: ReadOnlyTable, job: ReadOnlyTable, ends: Mapping[str, Array]) -> Iterator[RunWarning]:
    """A regularizer may be infinite, where it says which models are allowed."""
    measured = ["train_loss"] if job.get("regularizer") else ["objective", "train_loss"]
    infinite = [name for name in measured if name in ends and np.isinf(ends[name][-1])]
    if run["exit"] == NumericalError.exit_code:
        yield RunWarning(
            DIVERGED, f"a number was not finite, or outside its bound, after round {run['rounds']}; {_REMEDY}"
        )
    elif infinite:
        yield RunWarning(DIVERGED, f"{infinite[0]} is infinite after round {run['rounds']}; {_REMEDY}")


def worse_than_measured(
    job: ReadOnlyTable, rows: Mapping[str, Array], returned: int | None = None
) -> Iterator[RunWarning]:
    """Whether a run has ended above its start, or worse than a model that it has measured with all limits met.

    The objective decides or, where it was not measured, the training loss. It may have to grow from a start that breaks
    a limit, where that is w = 0 and the norm is minimized, or the model of another run.

    Parameters
    ----------
    rows : of the history; without a [[constraint]] the first and the last do
    returned : the round whose model the run has returned; the last where it is None
    """
    names = [name for name in ("objective", "train_loss") if name in rows and np.isfinite(rows[name][:1]).any()]
    if not names:
        return
    name, objective, rounds = names[0], rows[names[0]], rows["round"]
    limits = {f"constraint_{m}": constraint["limit"] for m, constraint in enumerate(job.get("constraint", []), 1)}
    met = rounds >= 0
    for constraint, limit in limits.items():
        met = met & (rows.get(constraint, np.full(len(rounds), np.nan)) <= limit)
    end = -1 if returned is None else int(np.flatnonzero(rounds == returned)[0])
    first, last = float(objective[0]), float(objective[end])
    grows = job.get("minimize", {}).get("name") == "norm" or "start" in job.get("model", {})
    above = rounds[0] == 0 and last > first + _ROUNDING * abs(first) and (met[0] or not grows)
    if above:
        texts = value_of(name, last), value_of(name, first)
        yield RunWarning("ended above where it started", f"{name} {texts[0]}, in round 0 {texts[1]}; {_REMEDY}")
    allowed = np.where(met, objective, np.nan)
    if not limits or math.isnan(last) or not np.isfinite(allowed).any():
        return
    best = int(np.nanargmin(allowed))
    if above and not best:
        return
    if not met[end] or last > objective[best] + _WORSE * abs(objective[best]):
        what = f"{name} {value_of(name, last)}" if met[end] else "a limit is not met"
        seen = f"in round {rounds[best]} all limits were, with {name} {value_of(name, objective[best])}"
        if job["algorithm"]["name"] == "ssca":
            seen += '; [algorithm] returns = "best feasible" gives that model'
        yield RunWarning("ended worse than a model that met all limits", f"{what}, and {seen}")
