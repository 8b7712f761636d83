"""`tune`: the best settings of a method, by trials of which the best get more rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpifed.algorithms.algorithm import Algorithm
from mpifed.core.errors import NumericalError, UsageError
from mpifed.job.job import read_table
from mpifed.job.settings import Wrong
from mpifed.job.sweep import SweepPoint, Tune
from mpifed.maths.objectives import Objective
from mpifed.python.arrays import FederatedDataset
from mpifed.python.ranks import together
from mpifed.python.runs import job, points_of, run_folder, train
from mpifed.results.points import told
from mpifed.results.tuning import Tuning, tuned
from mpifed.run.agreement import begin_call
from mpifed.run.agreement import settings as settings_of
from mpifed.run.sweep import Runs, on_server
from mpifed.text import say


def tune(
    algorithm: Algorithm | Mapping[str, object] | str | Path,
    data: FederatedDataset | str | Path | None = None,
    model: Objective | Mapping[str, object] | None = None,
    *,
    trials: int = 16,
    metric: str | None = None,
    keep: int = 3,
    space: Mapping[str, object] | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool = True,
    **settings: Any,  # those of `job`
) -> Tuning:
    """Run trials of a method; the best settings. Collective under MPI.

    Parameters
    ----------
    algorithm, data, model
        As `job` takes them with its other arguments, such as `rounds`; or the path of a job file alone, whose [tune]
        says what follows.
    trials, metric, keep, space
        Those of [tune]: how many settings, the column of the history that decides, of how many one goes on to more
        rounds, and what is varied, as {"client_optimizer.learning_rate": {"log": [1e-3, 1.0]}}.
    out
        The folder of the trials; by default a temporary one.
    overwrite, resume
        Remove what is in `out`; or go on with the trials there.
    progress
        Print a line for each trial that begins.

    Raises
    ------
    MpifedError
        As `run`; NumericalError where no trial has finite numbers.
    """

    def described() -> tuple[Tune, list[SweepPoint]]:
        plan = {"trials": trials, "metric": metric, "keep": keep, "space": space or {}}
        if data is None and isinstance(algorithm, (str, Path)):
            if given := [*settings, *(key for key, value in plan.items() if value != getattr(Tune(), key))]:
                raise UsageError(
                    f"tune: {str(algorithm)!r} is taken for the path of a job file, which has its settings; give it "
                    f"without {', '.join(given)}, and write these there"
                )
            table = {"tune": {}, **read_table(Path(algorithm))}
        else:
            table = {**job(algorithm, data, model, **{"name": "tune", **settings}), "tune": plan}  # type: ignore[arg-type]
        try:
            return Tune.of(table, "tune"), points_of(table, "tune")
        except Wrong as error:
            raise error.in_python() from None

    comm, (plan, points) = begin_call(
        "tune",
        described,
        lambda found: {"out": str(out), **{f"trial {k}": settings_of(point.job) for k, point in enumerate(found[1])}},
        together,
    )
    folder = run_folder(comm, out, "mpifed-tune-")

    def play(point: SweepPoint, run_dir: Path, begun: bool, replace: Callable[[], None]) -> None:
        if progress and comm.rank == 0:
            say(f"{point.name}, to round {point.job.rounds}: {told(point.settings)}")
        how = {"resume": begun, "overwrite": overwrite and not begun, "replace": replace}
        train(comm, point.job, run_dir, point.job.make_observers(), out, "none", point.name, **how)

    runs = Runs(
        comm, together, folder, play, resume, overwrite, lambda error: isinstance(error, NumericalError)
    )  # fmt: skip
    runs.trials(plan, points)
    return on_server(comm, together, lambda: tuned(folder, plan, points))
