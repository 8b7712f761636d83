"""The functions of `import mpifed`: each is given a job in one way, is collective in one way, and raises in one way."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.mpi import Comm
from mpifed.core.errors import (
    BudgetSpent,
    Interrupted,
    MpifedError,
    NotCertified,
    NumericalError,
    TooFewClients,
    UsageError,
)
from mpifed.core.tables import Table
from mpifed.data.store import open_federation
from mpifed.job.job import Job, read_table
from mpifed.job.reading import check_data
from mpifed.job.schema import COMPRESSION, MODEL, REGULARIZER, TERM
from mpifed.job.settings import Wrong, table_of, tables_in
from mpifed.job.sweep import SweepPoint, Tune, points
from mpifed.maths.compression import Compression
from mpifed.maths.objectives import Objective
from mpifed.maths.regularizers import Regularizer
from mpifed.maths.terms import Term
from mpifed.observers import Observer
from mpifed.python import describe
from mpifed.python.arrays import FederatedDataset
from mpifed.python.ranks import alike, spoken, temporary, together
from mpifed.python.results import Run, Submitted, Sweep, WrittenJob, read_run, read_sweep
from mpifed.python.values import integer
from mpifed.run.agreement import begin_call
from mpifed.run.agreement import settings as settings_of
from mpifed.run.observation import checked_observers
from mpifed.run.progress import reporter
from mpifed.run.sweep import Runs, on_server
from mpifed.text import counted, nearest, say

if TYPE_CHECKING:
    from mpifed.results.tuning import Tuning

Method: TypeAlias = Algorithm | Mapping[str, object]
Data: TypeAlias = FederatedDataset | str | Path
Model: TypeAlias = Objective | Mapping[str, object]
Progress = Literal["auto", "bar", "lines", "none"] | bool
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., object])
_PROGRESS: dict[object, str] = {name: name for name in ("auto", "bar", "lines", "none")} | {True: "bar", False: "none"}
_ENDS_OF_A_RUN = (NumericalError, BudgetSpent, TooFewClients)  # which say nothing of the other runs


# --- a job ----------------------------------------------------------------------------------------------------------


def job(
    algorithm: Method,
    data: Data,
    model: Model,
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
    if rounds is None:
        raise UsageError("rounds: missing; say how many, such as rounds=100")
    if not isinstance(data, (FederatedDataset, str, Path)):
        raise UsageError(
            f"data: a {type(data).__name__}; expected a mpifed.FederatedDataset, as of "
            "FederatedDataset.from_arrays(X, y, clients=10), or its folder; the order is algorithm, data, model"
        )
    path = data.path if isinstance(data, FederatedDataset) else Path(data)
    table: Table = {"name": name, "rounds": rounds, "seed": seed}
    table["data"] = {"path": path if isinstance(path, str) else str(path.absolute()), "block": block}
    table["model"] = describe.part(MODEL, "model", model)
    if start is not None:
        if not isinstance(start, str | os.PathLike):
            came = type(start).__name__
            raise UsageError(f"start: a {came}; expected a mpifed.Run, its folder, or its model.safetensors")
        table["model"]["start"] = str(Path(start).absolute())
    table |= describe.method(algorithm)
    for place, kind, value in (
        ("minimize", TERM, minimize), ("regularizer", REGULARIZER, regularizer),
        ("compression", COMPRESSION, compression),
    ):  # fmt: skip
        if value is not None:
            table[place] = describe.part(kind, place, value)
    if isinstance(constraints, Mapping):
        raise UsageError("constraints: expected a list, as in constraints=[mpifed.constraint(mpifed.Loss(), 0.5)]")
    share = tables.get("participation")
    if isinstance(share, (int, float)) and 0 < share <= 1:
        tables["participation"] = {"clients_per_round": max(1, round(share * open_federation(path).clients))}
    table |= {key: value for key, value in tables.items() if value is not None}
    table = table_of(table)
    if evaluate_every is not None:
        table.setdefault("record", {})["evaluate_every"] = table_of(evaluate_every)
    lists = {"constraint": [dict(each) for each in constraints], "observe": describe.observers(observers)}
    return table | {name: listed for name, listed in lists.items() if listed}


_SETTINGS = [each for each in inspect.signature(job).parameters.values() if each.kind is each.KEYWORD_ONLY]
_SETTINGS += [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="object")
    for name in tables_in(Job) if name != "data"
]  # fmt: skip


def _takes_a_job(function: F) -> F:
    """Show the settings of `job` in a function's signature, and name the nearest of an argument that it has not."""
    own = inspect.signature(function)
    known = {name: each for name, each in own.parameters.items() if each.kind is not each.VAR_KEYWORD}
    known |= {each.name: each for each in _SETTINGS if each.name not in known}
    if function.__name__ in ("sweep", "tune"):
        known["name"] = known["name"].replace(default=function.__name__)
    listed = [name for name, each in known.items() if each.kind is each.KEYWORD_ONLY]

    @wraps(function)
    def call(*arguments: object, **named: object) -> object:
        unknown = sorted(named.keys() - known.keys())

        def refused() -> object:
            near = f"{nearest(unknown[0], listed)}; known are {', '.join(listed)}"
            raise UsageError(f"{unknown[0]}: no argument of that name{near}")

        if unknown:
            begin_call(function.__name__, refused, vars, together)
        return function(*arguments, **named)

    shown = spoken()(call)
    shown.__signature__ = own.replace(parameters=list(known.values()))  # type: ignore[attr-defined]
    return shown  # type: ignore[return-value]  # it takes what the function does


def _is_job(algorithm: object, data: object, model: object) -> bool:
    """Whether what is given is the file of a whole job, or its table alone."""
    return isinstance(algorithm, str | Path) or (isinstance(algorithm, Mapping) and data is None and model is None)


def _table(
    call: str, algorithm: object, data: object, model: object, given: Mapping[str, Any],  # as `run` takes them
) -> tuple[Table, str]:  # fmt: skip
    """(the table of a job, its file or "job"): of objects, of a file alone, or of a whole table alone."""
    if not _is_job(algorithm, data, model):
        if data is None or model is None:
            raise UsageError(f"{call}: needs algorithm, data and model, or the path of a job file alone")
        return job(algorithm, data, model, **given), "job"  # type: ignore[arg-type]  # job says what is wrong
    whole = isinstance(algorithm, Mapping)
    beside = {"data": data, "model": model, **given, "observers": None}
    if names := [name for name, value in beside.items() if value is not None]:
        raise UsageError(
            f"{call}: {'a dict' if whole else repr(str(algorithm))} is taken for {'' if whole else 'the path of '}a "
            f"whole job, which has its settings: give it without {', '.join(names)}, and write these there; or give an "
            "algorithm such as mpifed.FedAvg(...)"
        )
    table = dict(algorithm) if isinstance(algorithm, Mapping) else read_table(Path(str(algorithm)))
    if described := describe.observers(given.get("observers", ())):
        table["observe"] = [*table.get("observe", []), *described]
    return table, "job" if isinstance(algorithm, Mapping) else str(algorithm)


def _checked(read: Callable[[Table, str], T], table: Table, source: str) -> T:
    """What a table describes, read by a function; errors of what came from no file are in the words of Python."""
    try:
        return read(table, source)
    except Wrong as error:
        if source != "job":
            raise
        raise error.in_python() from None


def _observers(checked: Job, given: Sequence[Observer | Mapping[str, object]]) -> list[Observer]:
    """The observers of a job whose last tables are those of the `given` ones; objects are taken as they are."""
    others = checked.observe[: len(checked.observe) - len(describe.observers(given))]
    tables = [*others, *(dict(observer) for observer in given if isinstance(observer, Mapping))]
    made = replace(checked, observe=tables).make_observers()
    return [*made, *(observer for observer in given if isinstance(observer, Observer))]


# --- run it ---------------------------------------------------------------------------------------------------------


@_takes_a_job
def run(
    algorithm: Method | str | Path,
    data: Data | None = None,
    model: Model | None = None,
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
        _check_how(out, overwrite, resume, progress)
        checked = _checked(Job.check, *_table("run", algorithm, data, model, settings))
        observers.extend(_observers(checked, settings.get("observers", ())))
        return checked

    comm, checked = begin_call("run", described, lambda checked: {**settings_of(checked), "out": str(out)}, together)
    folder = _folder(comm, out, "run")
    _train(comm, checked, folder, observers, out, progress, overwrite=overwrite, resume=resume, max_hours=max_hours)
    trained: Run = comm.bcast(read_run(folder) if comm.rank == 0 else None)
    return trained


@_takes_a_job
def check(
    algorithm: Method | str | Path,
    data: Data | None = None,
    model: Model | None = None,
    *,
    ranks: int = 1,
    **settings: Any,  # those of `job`
) -> str:
    """What `mpifed check` says before a run: who learns what, bytes and privacy; raises the errors of a run."""
    from mpifed.forecast.disclosure import observer_statement
    from mpifed.forecast.job import forecast
    from mpifed.forecast.text import forecast_text

    def described() -> Job:
        return _checked(Job.check, *_table("check", algorithm, data, model, settings))

    comm, written = begin_call("check", described, settings_of, together)

    def forecasted() -> str:
        if isinstance(algorithm, (str, Path)):
            check_data(Path(algorithm), Path(written.data.path))
        result = forecast(written, integer(ranks, "ranks"))
        objects = [each for each in settings.get("observers", ()) if isinstance(each, Observer)]
        unnamed = checked_observers([each for each in objects if not describe.observers([each])])
        result["who_learns"] += [observer_statement(observer, written) for observer in unnamed]
        return forecast_text(result)

    return alike(comm, forecasted)


@_takes_a_job
def sweep(
    methods: Mapping[str, Method],
    data: Data,
    model: Model,
    *,
    rounds: int | None = None,
    seeds: int | Sequence[int] = 1,
    out: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    max_hours: float | None = None,
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
    max_hours
        As `run`, of each run.
    settings
        As `job` takes them, the same for all; an observer gets one run after another.

    Raises
    ------
    MpifedError
        The error of the first run where all have failed; of any other kind, at once.
    """
    observers: list[Observer] = []

    def described() -> list[SweepPoint]:
        if not isinstance(methods, Mapping) or not methods:
            came = "no method" if isinstance(methods, Mapping) else f"methods: a {type(methods).__name__}"
            raise UsageError(f"sweep: {came}; give algorithms by label, as {{'FedAvg': mpifed.FedAvg(...)}}")
        _check_how(out, overwrite, resume, progress)
        base = job(next(iter(methods.values())), data, model, **{"name": "sweep", **settings, "rounds": rounds})
        grid: Table = {"methods": [{"label": str(key), **describe.method(one)} for key, one in methods.items()]}
        if isinstance(seeds, Iterable) and not isinstance(seeds, str):
            grid["seed"] = [integer(seed, "seeds") for seed in seeds]
        else:
            grid["seeds"] = integer(seeds, "seeds")
        listed = _checked(points, {**base, "sweep": grid}, "job")
        observers.extend(_observers(listed[0].job, settings.get("observers", ())))
        return listed

    def facts(listed: list[SweepPoint]) -> Table:
        each = {f"{k}, {_named(point)}": settings_of(point.job) for k, point in enumerate(listed)}
        return {"out": str(out), "resume": resume, **each}

    comm, jobs = begin_call("sweep", described, facts, together)
    folder = _folder(comm, out, "sweep")

    def play(point: SweepPoint, run_dir: Path, begun: bool, replace: Callable[[], None]) -> None:
        how = {"resume": begun, "overwrite": overwrite, "replace": replace, "max_hours": max_hours}
        _train(comm, point.job, run_dir, observers, out, progress, _named(point) if comm.size > 1 else "", **how)

    runs = Runs(comm, together, folder, play, resume, overwrite, lambda error: isinstance(error, _ENDS_OF_A_RUN))
    ends = runs.points(jobs, jobs, not resume)
    failed = [(point, error) for point in jobs if isinstance(error := ends[point.name].error, MpifedError)]

    def report() -> None:
        if len(failed) == len(jobs):
            _, first = failed[0]
            first.args = (f"sweep: all of {counted(len(jobs), 'run')} failed, the first by: {first}",)
            raise first
        for point, error in failed if comm.rank == 0 else ():
            say(f"mpifed: warning: sweep: {_named(point)} failed, exit {error.exit_code}: {error}", file=sys.stderr)

    alike(comm, report)
    found: Sweep = comm.bcast(read_sweep(folder, jobs, ends) if comm.rank == 0 else None)
    return found


@_takes_a_job
def tune(
    algorithm: Method | str | Path,
    data: Data | None = None,
    model: Model | None = None,
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
    from mpifed.results.points import told
    from mpifed.results.tuning import tuned

    def described() -> tuple[Tune, list[SweepPoint]]:
        _check_how(out, overwrite, resume)
        plan = {"trials": trials, "metric": metric, "keep": keep, "space": space or {}}
        changed = {key: value for key, value in plan.items() if value != getattr(Tune(), key)}
        is_job = _is_job(algorithm, data, model)
        given = {**settings, **changed} if is_job else {"name": "tune", **settings}
        table, source = _table("tune", algorithm, data, model, given)
        table = {"tune": {}, **table} if is_job else {**table, "tune": plan}
        return _checked(Tune.of, table, source), _checked(points, table, source)

    comm, (plan, listed) = begin_call(
        "tune",
        described,
        lambda found: {"out": str(out), **{point.name: settings_of(point.job) for point in found[1]}},
        together,
    )
    folder = _folder(comm, out, "tune")

    def play(point: SweepPoint, run_dir: Path, begun: bool, replace: Callable[[], None]) -> None:
        if progress and comm.rank == 0:
            say(f"{point.name}, to round {point.job.rounds}: {told(point.settings)}")
        how = {"resume": begun, "overwrite": overwrite and not begun, "replace": replace}
        _train(comm, point.job, run_dir, point.job.make_observers(), out, "none", point.name, **how)

    runs = Runs(comm, together, folder, play, resume, overwrite, lambda error: isinstance(error, NumericalError))
    runs.trials(plan, listed)
    return on_server(comm, together, lambda: tuned(folder, plan, listed))


@_takes_a_job
def submit(
    algorithm: Method | str | Path,
    data: Data | None = None,
    model: Model | None = None,
    *,
    out: str | Path,
    sbatch: Mapping[str, object],
    array: bool = False,
    **settings: object,
) -> Submitted:
    """Submit a job to Slurm, as `mpifed submit` does; not collective.

    Parameters
    ----------
    algorithm, data, model
        As `run` takes them, with data in a folder; or the path of a job file alone, also of one with [sweep].
    out
        The run's folder. What is no file yet is written as a job beside it, OUT.toml.
    sbatch
        Options of sbatch by name, as {"nodes": 2, "ntasks-per-node": 4, "time": "1:00:00"}.
    array
        Submit a sweep as a job array, a task a point.
    settings
        Those of `job`.

    Raises
    ------
    UsageError
        The job is queued, running or finished already, or its data are in memory.
    MpifedError
        With Slurm's words, where the cluster does not take it.
    """
    from mpifed.batch.submit import SubmitRequest
    from mpifed.batch.submit import submit as submitted

    table, source = _table("submit", algorithm, data, model, settings)
    path, folder = Path(source), Path(out)
    if not isinstance(algorithm, str | Path):
        folder.parent.mkdir(parents=True, exist_ok=True)
        checked = _checked(Job.check, table, source)
        path = WrittenJob(checked).to_toml(folder.with_name(f"{folder.name}.toml"))
    options = tuple(f"--{name}={value}" for name, value in sbatch.items())
    command = ("submit", str(path), "--out", str(out), *["--array"] * array, *options)
    for line in submitted(SubmitRequest(path, (), folder, array, None, False, options, command)):
        say(line)
    return Submitted(folder)


def _named(point: SweepPoint) -> str:
    return f"{point.settings['label']}, seed {point.job.seed}"


def _check_how(out: str | Path | None, overwrite: bool, resume: bool, progress: Progress = "none") -> None:
    """UsageError for `resume` with nothing to resume, and a `progress` that there is not."""
    if resume and (out is None or overwrite):
        raise UsageError(f"resume=True {'without out: name its folder' if out is None else 'with overwrite=True'}")
    if progress not in _PROGRESS:
        raise UsageError(f"progress = {progress!r}: expected one of {', '.join(map(repr, _PROGRESS))}")


def _folder(comm: Comm, out: str | Path | None, call: str) -> Path:
    """The folder of a run, on every rank: a temporary one where none is given. Collective."""
    return Path(out) if out is not None else temporary(comm, f"mpifed-{call}-") / "run"


def _train(
    comm: Comm, checked: Job, folder: Path, observers: Sequence[Observer], out: str | Path | None, progress: Progress,
    who: str = "", **how: Any,  # of `api.run`
) -> None:  # fmt: skip
    """Run a checked job into a folder. Collective. A limit that is not met is a warning of the run's summary.

    `out`: of the run or its sweep, as the caller gave it. `who`: which of several runs it is, for the message of an
    error that ends all ranks.
    """
    from mpifed.run import api

    def work() -> None:
        shown = reporter(comm.rank, _PROGRESS[progress])
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
