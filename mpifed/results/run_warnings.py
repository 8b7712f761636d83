"""What is wrong with a run that has ended, whatever its exit code: the one place that says so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.cocoa import UNSAFE_SIGMA
from mpifed.core.errors import NumericalError
from mpifed.core.record import Array
from mpifed.core.tables import ReadOnlyTable
from mpifed.files.history import read_ends, read_history
from mpifed.files.history_csv import HISTORY
from mpifed.files.run_folder import job_of, read_run
from mpifed.results.text import value_of

DIVERGED = "diverged"  # a kind
_ROUNDING = 1e-9  # relative: sums of a loss in another order
_ROUNDING_OF_DUAL = 1e-5  # relative: of products in float32
_REMEDY = "smaller steps may help"


class RunWarning(NamedTuple):
    """Something that is wrong with a run."""

    kind: str  # the same words for all runs
    text: str  # with the numbers of this one

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def run_warnings(folder: Path, job: ReadOnlyTable | None = None) -> list[RunWarning]:
    """Whether a run has diverged, ended above where it started, or has an unsafe sigma.

    A run ends above where it started if the objective of the last measured round is above that of round 0; where no
    objective was measured, the training loss decides. It is no fault where round 0 breaks a limit, since whatever is
    minimized may then have to grow.

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
    ends = read_ends(folder) if (folder / HISTORY).exists() else {}
    return [*_diverged(run, job, ends), *_above_the_start(job, ends), *_unsafe_sigma(run, job, folder)]


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


def _above_the_start(job: ReadOnlyTable, ends: Mapping[str, Array]) -> Iterator[RunWarning]:
    if not ends or ends["round"][0] != 0:
        return
    limits = [constraint["limit"] for constraint in job.get("constraint", [])]
    values = [float(ends[f"constraint_{m}"][0]) for m in range(1, len(limits) + 1) if f"constraint_{m}" in ends]
    if limits and not (len(values) == len(limits) and all(v <= u for v, u in zip(values, limits, strict=True))):
        return
    for name in ("objective", "train_loss"):
        first, last = (float(ends[name][at]) if name in ends else math.nan for at in (0, -1))
        if math.isfinite(first) and not math.isnan(last):
            if last > first + _ROUNDING * abs(first):
                texts = (value_of(name, value) for value in (last, first))
                yield RunWarning(
                    "ended above where it started", f"{name} {{}}, in round 0 {{}}; {_REMEDY}".format(*texts)
                )
            return


def _unsafe_sigma(run: ReadOnlyTable, job: ReadOnlyTable, folder: Path) -> Iterator[RunWarning]:
    kind = "unsafe sigma"
    said = [text for text in run.get("warnings") or [] if text.startswith(UNSAFE_SIGMA)]
    if said:
        yield RunWarning(kind, said[0])
    if job.get("algorithm", {}).get("name") != "cocoa" or not (folder / HISTORY).exists():
        return
    columns = read_history(folder)
    if "dual" not in columns:
        return
    at = np.flatnonzero(np.isfinite(columns["dual"]))  # with a sigma that is large enough, no round lowers the dual
    dual, rounds = columns["dual"][at], columns["round"][at]
    falls = np.flatnonzero(np.diff(dual) < -_ROUNDING_OF_DUAL * np.abs(dual[:-1]))
    if len(falls):
        k = falls[0]
        yield RunWarning(
            kind,
            f"the dual value fell from {dual[k] + 0.0:.6g} to {dual[k + 1]:.6g} between the rounds {rounds[k]} and "
            f"{rounds[k + 1]}, as it does where sigma is too small; leave it out, or raise it",
        )
