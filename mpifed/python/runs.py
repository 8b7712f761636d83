"""`run` and `check`: a job from objects or a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.mpi import Comm
from mpifed.core.errors import Interrupted, MpifedError, NotCertified, UsageError
from mpifed.core.nearest import nearest
from mpifed.core.tables import Table
from mpifed.data.store import open_federation
from mpifed.job.job import Job, read_table
from mpifed.job.reading import check_data
from mpifed.job.schema import COMPRESSION, MODEL, REGULARIZER, TERM
from mpifed.job.settings import Wrong, table_of, tables_in
from mpifed.job.sweep import SweepPoint, points
from mpifed.maths.compression import Compression
from mpifed.maths.objectives import Objective
from mpifed.maths.regularizers import Regularizer
from mpifed.maths.terms import Term
from mpifed.observers import Observer
from mpifed.python import describe
from mpifed.python.arrays import FederatedDataset
from mpifed.python.ranks import alike, temporary, together
from mpifed.python.results import Run, read_run
from mpifed.python.values import integer
from mpifed.run.agreement import begin_call
from mpifed.run.agreement import settings as settings_of
from mpifed.run.observation import checked_observers
from mpifed.run.progress import reporter

Progress = Literal["auto", "bar", "lines", "none"] | bool
TABLES = tuple(name for name in tables_in(Job) if name != "data")  # by the name of the argument
ARGUMENTS = (
    "rounds", "name", "seed", "start", "block", "minimize", "constraints", "regularizer", "compression",
    "evaluate_every", "observers",
)  # fmt: skip
_PROGRESS = ("auto", "bar", "lines", "none")


def job(
    algorithm: Algorithm | Mapping[str, object],
    data: FederatedDataset | str | Path,
    model: Objective | Mapping[str, object],
    *,
    rounds: int | None = None,
    name: str = "run",
    seed: int = 1,
    start: Run | str | Path | None = None,
    block: int | Literal["auto"] = "auto",
    minimize: Term | None = None,
    constraints: Sequence[Mapping[str, object]] = (),
    regularizer: Regularizer | None = None,
    compression: Compression | None = None,
    evaluate_every: int | None = None,
    observers: Sequence[Observer | Mapping[str, object]] = (),
    **tables: object,
) -> Table:
    """The table of a job, as a file would have it.

    Parameters
    ----------
    algorithm, model, minimize, regularizer, compression
        Objects such as `mpifed.FedAvg(batch_size=32)`, or tables of a job.
    data
        A `FederatedDataset`, or its folder.
    start
        A `Run`, its folder or its model.safetensors, whose model is that of round 0.
    block
        Clients computed together; by default as many as rows and model make worth it, which the run's job.toml says.
    constraints
        Made by `mpifed.constraint(term, limit)`.
    evaluate_every
        Rounds between two rows of the history; by default that of a job.
    observers
        Who gets each row of the history when it is measured, as `mpifed.TensorBoard()`: objects, or tables of a job.
    tables
        privacy, participation, asynchrony, aggregation, record, server, compute, stop, audit and
        simulated_network: objects such as `mpifed.Privacy(clip=1.0, epsilon=8.0, delta=1e-5)`, or tables;
        participation also the share of the clients in a round, as 0.5.
    """
    unknown = [key for key in tables if key not in TABLES]
    if unknown:
        known = [*ARGUMENTS, *TABLES]
        raise UsageError(
            f"{unknown[0]}: no argument of that name{nearest(unknown[0], known)}; known are {', '.join(known)}"
        )
    if rounds is None:
        raise UsageError("rounds: missing; say how many, such as rounds=100")
    if not isinstance(data, (FederatedDataset, str, Path)):
        raise UsageError(
            f"data: a {type(data).__name__}; expected a mpifed.FederatedDataset, as of "
            "FederatedDataset.from_arrays(X, y, clients=10), or its folder; the order is algorithm, data, model"
        )
    path = data.path if isinstance(data, FederatedDataset) else Path(data)
    place = path if isinstance(path, str) else str(path.absolute())
    table: Table = {"name": name, "rounds": table_of(rounds), "seed": table_of(seed)}
    table |= {"data": {"path": place, "block": table_of(block)}}
    table |= {"model": describe.part(MODEL, "model", model)}
    if start is not None:
        if not isinstance(start, str | os.PathLike):
            raise UsageError(
                f"start: a {type(start).__name__}; expected a mpifed.Run, its folder, or its model.safetensors"
            )
        table["model"]["start"] = str(Path(start).absolute())
    table |= describe.method(algorithm)
    if minimize is not None:
        table["minimize"] = describe.part(TERM, "minimize", minimize)
    if constraints:
        if isinstance(constraints, Mapping):
            raise UsageError("constraints: expected a list, as in constraints=[mpifed.constraint(mpifed.Loss(), 0.5)]")
        table["constraint"] = [dict(one) for one in constraints]
    if regularizer is not None:
        table["regularizer"] = describe.part(REGULARIZER, "regularizer", regularizer)
    if compression is not None:
        table["compression"] = describe.part(COMPRESSION, "compression", compression)
    share = tables.get("participation")
    if isinstance(share, (int, float)) and 0 < share <= 1:
        clients = open_federation(data.path if isinstance(data, FederatedDataset) else data).clients
        tables["participation"] = {"clients_per_round": max(1, round(share * clients))}
    table |= {key: table_of(value) for key, value in tables.items() if value is not None}
    if evaluate_every is not None:
        table.setdefault("record", {})["evaluate_every"] = table_of(evaluate_every)
    if described := describe.observers(observers):
        table["observe"] = described
    return table


def points_of(table: Table, source: str) -> list[SweepPoint]:
    """The runs that the tables of objects describe; errors are in the words of Python."""
    try:
        return points(table, source)
    except Wrong as error:
        raise error.in_python() from None


def all_observers(checked: Job, given: Sequence[Observer | Mapping[str, object]]) -> list[Observer]:
    """The observers of a job whose last tables are those of the `given` ones; objects are taken as they are."""
    others = checked.observe[: len(checked.observe) - len(describe.observers(given))]
    tables = [*others, *(dict(observer) for observer in given if isinstance(observer, Mapping))]
    made = replace(checked, observe=tables).make_observers()
    return [*made, *(observer for observer in given if isinstance(observer, Observer))]


def run(
    algorithm: Algorithm | Mapping[str, object] | str | Path,
    data: FederatedDataset | str | Path | None = None,
    model: Objective | Mapping[str, object] | None = None,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    max_hours: float | None = None,
    progress: Progress = "auto",
    **settings: Any,  # those of `job`
) -> Run:
    """Train; the run, on every rank. Collective under MPI.

    Parameters
    ----------
    algorithm, data, model
        As `job` takes them with its other arguments, such as `rounds`; or the path of a job file alone, with no
        other argument than `observers`; or the tables of a whole job alone, as a dict.
    out
        The run's folder; by default a temporary one, which vanishes with the process.
    overwrite
        Remove a run that is in `out`.
    resume
        Go on from the checkpoint in `out`.
    max_hours
        Write a checkpoint and raise `Interrupted` at the first round boundary after so many hours.
    progress
        "bar" (or True), "lines" of measured rounds, "none" (or False); "auto" is a bar at a terminal and in a
        notebook, and lines elsewhere.

    Raises
    ------
    MpifedError
        In a single process; under MPI an error ends all ranks with its exit code.
    """
    observers: list[Observer] = []

    def described() -> Job:
        _progress_name(progress)
        check_resumed(out, overwrite, resume)
        checked = read_or_described("run", algorithm, data, model, settings)
        observers.extend(all_observers(checked, settings.get("observers", ())))
        return checked

    comm, checked = begin_call("run", described, lambda checked: {**settings_of(checked), "out": str(out)}, together)
    folder = run_folder(comm, out, "mpifed-run-")
    train(
        comm, checked, folder, observers, out, progress, overwrite=overwrite, resume=resume, max_hours=max_hours
    )  # fmt: skip
    trained: Run = comm.bcast(read_run(folder) if comm.rank == 0 else None)
    return trained


def check_resumed(out: str | Path | None, overwrite: bool, resume: bool) -> None:
    """UsageError for `resume` with nothing to resume."""
    if resume and (out is None or overwrite):
        raise UsageError(f"resume=True {'without out: name its folder' if out is None else 'with overwrite=True'}")


def _progress_name(progress: Progress) -> str:
    if isinstance(progress, bool):
        return "bar" if progress else "none"
    if progress not in _PROGRESS:
        raise UsageError(f"progress = {progress!r}: expected one of {', '.join(map(repr, _PROGRESS))}, True or False")
    return progress


def read_or_described(
    caller: str,
    algorithm: Any,  # as `run` takes it
    data: object,
    model: object,
    settings: Mapping[str, Any],  # and as its keywords
) -> Job:
    """The job of the arguments of `run` or `check`."""
    file = isinstance(algorithm, (str, Path))
    if file or (isinstance(algorithm, Mapping) and data is None and model is None):
        if data is not None or model is not None or settings.keys() - {"observers"}:
            raise UsageError(
                f"{caller}: {str(algorithm)!r:.60} is taken for {'the path of a job file' if file else 'a whole job'}, "
                "which has its data, model and settings; give it alone, or an algorithm such as mpifed.FedAvg(...)"
            )
        table = read_table(Path(algorithm)) if isinstance(algorithm, (str, Path)) else dict(algorithm)
        if described := describe.observers(settings.get("observers", ())):
            table["observe"] = [*table.get("observe", []), *described]
        return Job.check(table, str(algorithm) if file else "job")
    if data is None or model is None:
        raise UsageError(f"{caller}: needs algorithm, data and model, or the path of a job file alone")
    table = job(algorithm, data, model, **settings)  # type: ignore[arg-type]  # job says what is wrong
    return points_of(table, "job")[0].job


def train(
    comm: Comm, checked: Job, folder: Path, observers: Sequence[Observer], out: str | Path | None, progress: Progress,
    who: str = "", **how: Any,  # of `api.run`
) -> None:  # fmt: skip
    """Run a checked job into a folder. Collective. A limit that is not met is a warning of the run's summary.

    `out`: of the run or its sweep, as the caller gave it. `who`: which of several runs it is, for the message of an
    error that ends all ranks.
    """
    from mpifed.run import api

    def work() -> None:
        shown = reporter(comm.rank, _progress_name(progress))
        try:
            api.run(checked, comm, folder, reporter=shown, observers=observers, **how)
        except NotCertified as error:  # the model stands; `summary["exit"]` says so
            if comm.rank == 0:
                shown.warn(str(error))
        except Interrupted as error:
            again = "give out=..., to keep what is done" if out is None else f"go on with resume=True, out={str(out)!r}"
            error.args = (f"{error}; {again}",)
            raise
        except MpifedError as error:
            if who:
                error.args = (f"{who}: {error}; resume=True goes on with the other runs of the sweep",)
            raise

    together(comm, folder, work, checked.released_only)


def check(
    algorithm: Algorithm | Mapping[str, object] | str | Path,
    data: FederatedDataset | str | Path | None = None,
    model: Objective | Mapping[str, object] | None = None,
    *,
    ranks: int = 1,
    **settings: Any,  # those of `job`
) -> str:
    """What `mpifed check` says before a run: who learns what, bytes and privacy; raises the errors of a run."""
    from mpifed.forecast.disclosure import observer_statement
    from mpifed.forecast.job import forecast
    from mpifed.forecast.text import forecast_text

    comm, written = begin_call(
        "check", lambda: read_or_described("check", algorithm, data, model, settings), settings_of, together
    )

    def forecasted() -> str:
        if isinstance(algorithm, (str, Path)):
            check_data(Path(algorithm), Path(written.data.path))
        result = forecast(written, integer(ranks, "ranks"))
        objects = [each for each in settings.get("observers", ()) if isinstance(each, Observer)]
        unnamed = checked_observers([each for each in objects if not describe.observers([each])])
        result["who_learns"] += [observer_statement(observer, written) for observer in unnamed]
        return forecast_text(result)

    return alike(comm, forecasted)


def run_folder(comm: Comm, out: str | Path | None, prefix: str) -> Path:
    """The folder of a run, on every rank: a temporary one where none is given. Collective."""
    return Path(out) if out is not None else temporary(comm, prefix) / "run"
