"""`sweep`: methods compared over equal seeds, and what their runs have left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.mpi import Comm
from mpifed.core.errors import BudgetSpent, MpifedError, NumericalError, TooFewClients, UsageError
from mpifed.core.tables import Table
from mpifed.files.run_folder import RUN, SUMMARY
from mpifed.job.sweep import SweepPoint
from mpifed.maths.objectives import Objective
from mpifed.python import comparing, describe
from mpifed.python.arrays import FederatedDataset
from mpifed.python.ranks import alike, together
from mpifed.python.results import Run, frame, read_run
from mpifed.python.runs import Progress, all_observers, check_resumed, job, points_of, run_folder, train
from mpifed.python.values import integer
from mpifed.run.agreement import begin_call
from mpifed.run.agreement import settings as settings_of
from mpifed.run.sweep import Runs
from mpifed.text import counted, say

_ENDS_OF_A_RUN = (NumericalError, BudgetSpent, TooFewClients)  # which say nothing of the other runs

if TYPE_CHECKING:
    from pandas import DataFrame


def sweep(
    methods: Mapping[str, Algorithm | Mapping[str, object]],
    data: FederatedDataset | str | Path,
    model: Objective | Mapping[str, object],
    *,
    rounds: int | None = None,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: Progress = "none",
    **settings: Any,  # those of `job`
) -> Sweep:
    """Train each method with each seed, on the same data. Collective under MPI.

    A run that diverges, spends its privacy budget or loses too many clients does not end the others: `Sweep.failed`
    has it, and a warning at the end.

    Parameters
    ----------
    methods
        Algorithms by the label that tables and figures give them.
    seeds
        How many, from `seed` on, or which.
    out
        The folder, which `mpifed compare` and `mpifed plot` read too; by default a temporary one.
    overwrite
        Remove a sweep that is in `out`.
    resume
        Go on with the same sweep in `out`: runs that have ended are read, not run again.
    settings
        As `job` takes them, the same for all; an observer gets one run after another.

    Raises
    ------
    MpifedError
        The error of the first run where all have failed; of any other kind, at once.
    """

    def described() -> list[SweepPoint]:
        if not isinstance(methods, Mapping) or not methods:
            came = "no method" if isinstance(methods, Mapping) else f"methods: a {type(methods).__name__}"
            raise UsageError(f"sweep: {came}; give algorithms by label, as {{'FedAvg': mpifed.FedAvg(...)}}")
        check_resumed(out, overwrite, resume)
        first = integer(settings.get("seed", 1), "seed")
        tables = [describe.method(one) for one in methods.values()]
        base = job(next(iter(methods.values())), data, model, **{"name": "sweep", **settings, "rounds": rounds})
        labelled = [{"label": str(label), **table} for label, table in zip(methods, tables, strict=True)]
        grid: Table = {"methods": labelled}
        if isinstance(seeds, Iterable) and not isinstance(seeds, str):
            grid["seed"] = [integer(seed, "seeds") for seed in seeds]
        else:
            grid["seeds"] = integer(seeds, "seeds")
        return points_of({**base, "seed": first, "sweep": grid}, "sweep")

    how = {"out": str(out), "resume": resume}
    comm, all_points = begin_call(
        "sweep",
        described,
        lambda listed: {**how, **{f"{k}, {_named(at)}": settings_of(at.job) for k, at in enumerate(listed)}},
        together,
    )
    observers = alike(comm, lambda: all_observers(all_points[0].job, settings.get("observers", ())))
    folder = run_folder(comm, out, "mpifed-sweep-")

    def play(point: SweepPoint, run_dir: Path, begun: bool, replace: Callable[[], None]) -> None:
        who = _named(point) if comm.size > 1 else ""
        train(
            comm, point.job, run_dir, observers, out, progress, who, resume=begun, overwrite=overwrite, replace=replace,
        )  # fmt: skip

    runs = Runs(
        comm, together, folder, play, resume, overwrite, lambda error: isinstance(error, _ENDS_OF_A_RUN)
    )  # fmt: skip
    ends = runs.points(all_points, all_points, not resume)
    failed = {name: end.error for name, end in ends.items() if isinstance(end.error, MpifedError)}
    alike(comm, lambda: _report(comm, all_points, failed))
    found: Sweep = comm.bcast(_of(folder, all_points, failed) if comm.rank == 0 else None)
    return found


def _report(comm: Comm, all_points: list[SweepPoint], failed: Mapping[str, MpifedError]) -> None:
    """Say which runs have failed; raise the first error where all have."""
    first = next(iter(failed.values()), None)
    if first is not None and len(failed) == len(all_points):
        first.args = (f"sweep: all of {counted(len(all_points), 'run')} failed, the first by: {first}",)
        raise first
    for point in all_points if comm.rank == 0 else ():
        if (error := failed.get(point.name)) is not None:
            say(f"mpifed: warning: sweep: {_named(point)} failed, exit {error.exit_code}: {error}", file=sys.stderr)


def _named(point: SweepPoint) -> str:
    return f"{point.settings['label']}, seed {point.job.seed}"


@dataclass(frozen=True)
class Sweep:
    """What the runs of a sweep have left.

    Attributes
    ----------
    path : its folder
    runs : by label, one for each seed, those that failed included; `exit` is the exit code of each
    seeds : of the runs of a label, in order
    failed : the messages of the runs that failed, by label and seed
    """

    path: Path
    runs: dict[str, list[Run]]
    seeds: tuple[int, ...]
    failed: dict[tuple[str, int], str] = field(default_factory=dict)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        warned = [f"; {label}, seed {seed}: {text}" for label, seed, run in self._each() for text in run.warnings]
        failed = f"; {counted(len(self.failed), 'run')} failed" if self.failed else ""
        labels, seeds = ", ".join(self.runs), counted(len(self.seeds), "seed")
        return f"Sweep({str(self.path)!r}: {labels}; {seeds}{failed}{''.join(warned)})"

    @property
    def history(self) -> DataFrame:
        """The rows of all histories, with columns `label` and `seed`; needs pandas."""
        from pandas import concat

        each = [run.history.assign(label=label, seed=seed) for label, seed, run in self._each() if run.columns]
        return concat(each, ignore_index=True)

    @property
    def summary(self) -> DataFrame:
        """A row for each run: label, seed, what `Run.summary` has, and `warnings`, a text; needs pandas."""
        return frame(
            [
                {"label": label, "seed": seed, **run.summary, "warnings": "; ".join(run.warnings)}
                for label, seed, run in self._each()
            ]
        )

    plot = comparing.plot  # of which `what` is this

    def _each(self) -> list[tuple[str, int, Run]]:
        return [(label, seed, run) for label, runs in self.runs.items()
                for seed, run in zip(self.seeds, runs, strict=True)]  # fmt: skip


def _of(folder: Path, all_points: list[SweepPoint], failed: Mapping[str, MpifedError]) -> Sweep:
    runs: dict[str, list[Run]] = {}
    messages: dict[tuple[str, int], str] = {}
    for point in all_points:
        label, error = str(point.settings["label"]), failed.get(point.name)
        early = Run(folder / point.name, {**dict.fromkeys(SUMMARY), "exit": error and error.exit_code})
        runs.setdefault(label, []).append(read_run(early.path) if (early.path / RUN).exists() else early)
        if error is not None:
            messages[label, point.job.seed] = str(error)
    return Sweep(folder, runs, tuple(dict.fromkeys(point.job.seed for point in all_points)), messages)
