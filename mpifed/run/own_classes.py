"""Tests of the user's own model, terms and regularizer before a run begins.

The rank that hosts the first client runs them, and all ranks end alike, so the result does not depend on the number of
ranks. Samples are the first rows of that client, with random classes, since a loss must be right for each. In a private
run, and where sums are masked or encrypted, the rows are random too: otherwise whether a run begins, and its error,
would depend on the records, which no epsilon covers. So are the features of columns and cells, where no client has all.
Random numbers come from a stream of their own, and the global generators are restored: no bit of the run depends on the
tests. What is tested, and how often, depends on shapes alone.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from mpifed.comm.transport import Transport
from mpifed.core.device import Device
from mpifed.core.errors import UsageError
from mpifed.core.exchange import Problem
from mpifed.core.protocols import Model
from mpifed.core.record import Array
from mpifed.core.roster import Roster
from mpifed.core.round import SETUP, Round
from mpifed.job.job import Job
from mpifed.maths.checks.examined import Broken, Examined, belongs_to_mpifed
from mpifed.maths.checks.networks import examine_network
from mpifed.maths.checks.objectives import Task, examine_objective, examine_term
from mpifed.maths.checks.points import SAMPLES
from mpifed.maths.checks.regularizers import examine_regularizer
from mpifed.maths.objectives import NeuralNetwork
from mpifed.maths.sparse import DeviceRows
from mpifed.run.agreement import agreed

_PURPOSE = "checks of own classes"
_STORED = 8  # values of a random sparse row
UNTRIED = "{}: was tested before the run, but nothing could be compared, so it may be right or wrong"


class Own(NamedTuple):
    """A part of the job whose class is the user's."""

    table: str  # as "constraint 1"
    name: str  # as the job has it, "mine:Rate"
    part: object

    @property
    def place(self) -> str:
        """The table and name of the part in the job."""
        return f'[{self.table}] name = "{self.name}"'


def own_parts(job: Job, problem: Problem) -> list[Own]:
    """The model, terms and regularizer whose classes are not mpifed's."""
    parts = [Own("model", job.model["name"], problem.objective)]
    parts.append(Own("minimize", job.minimize["name"], problem.minimize))
    for number, (table, constraint) in enumerate(zip(job.constraint, problem.constraints, strict=True), 1):
        parts.append(Own(f"constraint {number}", table["name"], constraint.term))
    if job.regularizer is not None:
        parts.append(Own("regularizer", job.regularizer["name"], problem.regularizer))
    return [own for own in parts if own.part is not None and not belongs_to_mpifed(type(own.part))]


def check_own_classes(job: Job, problem: Problem, transport: Transport, blocks: Roster, device: Device) -> list[str]:
    """Test the user's classes; notes on what could not be tested, on every rank. Collective.

    Raises
    ------
    UsageError
        on every rank, when a class fails a test.
    """
    own = own_parts(job, problem)
    if not own:
        return []
    with agreed(transport):
        hosts_first = len(blocks) > 0 and int(blocks.first[0]) == 0
        task = _task(job, problem, blocks) if hosts_first else None
        notes = _tried(own, problem.objective, task, device) if task is not None else []
    gathered = transport.gather(notes)
    all_notes: list[str] = transport.share(None if gathered is None else [note for part in gathered for note in part])
    return all_notes


def _tried(parts: list[Own], objective: Model, task: Task, device: Device) -> list[str]:
    """Notes on what could not be tested; UsageError with all errors."""
    wrong, notes, placed = [], [], _placed(device)
    with restored_generators(), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for own in parts:
            examined = Examined(own.part, placed)
            try:
                compared = _examine(own.table, examined, Examined(objective, placed), task)
            except NotImplementedError:  # a method that this job does not need, as a gradient where duals suffice
                compared = 0
            except Broken as broken:
                methods = " or ".join(f"{method}()" for method in broken.methods)
                wrong.append(f"{own.place}: {broken.what}; correct {methods}")
                if own.table == "model":
                    break  # the other tests use it
                continue
            if not compared:
                notes.append(UNTRIED.format(own.place))
    if wrong:
        raise UsageError("\n".join(wrong))
    return notes


def _examine(table: str, examined: Examined, objective: Examined, task: Task) -> int:
    """Test a part; how many numbers could be compared."""
    if table == "model":
        network = isinstance(examined.target, NeuralNetwork)
        return examine_network(examined, task) if network else examine_objective(examined, task)
    start = objective.target.start(task.features, task.outputs, task.rng(), task.dtype)
    if table == "regularizer":
        return examine_regularizer(examined, start, task.rng())
    return examine_term(examined, objective, start, task)


def _placed(device: Device) -> Callable[[Any], Any]:  # as below
    """A function that moves arguments to the device of the clients."""

    def placed(value: Any) -> Any:  # a record, or CSR matrices, which are moved to the same on the device
        if not device.on_host and isinstance(value, tuple) and value and not hasattr(value, "_fields"):
            xp: Any = getattr(device, "xp")  # noqa: B009 - every device but the host has it
            return tuple(DeviceRows.of(rows, xp) for rows in value)
        return device.record(value)

    return placed


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the states of the global generators of NumPy and Python afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def _task(job: Job, problem: Problem, blocks: Roster) -> Task:
    """The rows for the tests: of this rank's first client, or random."""
    now = Round(SETUP, job.seed, np.ones(problem.clients, dtype=bool))
    secret = job.privacy is not None or job.channel != "plain"
    rng = now.rng(f"{_PURPOSE}, rows")
    block = blocks.visit(0, keep=False).only(np.array([0]))
    sparse, kind = block.sparse, block.shards[0].y.dtype
    secret |= block.shards[0].samples == 0
    rows = np.arange(SAMPLES) % max(1, block.shards[0].samples)  # repeated where there are fewer
    if secret or problem.split != "rows":
        X: Any = _random_rows(SAMPLES, problem.features, sparse, rng)  # as its block has them
        targets = rng.uniform(0.05, 0.95, SAMPLES).astype(kind) if secret else block.shards[0].y[rows]
    else:
        batch = block.take(rows[None])
        targets = batch.y[0]
        X = batch.X
        X = tuple(x.astype("f8") for x in X) if sparse else X.astype("f8")
    lead = (1,) if problem.split == "rows" else ()
    return Task(
        problem.features, problem.outputs, problem.dtype, problem.objective.classifies, X, targets, lead,
        lambda: now.rng(_PURPOSE),
    )  # fmt: skip


def _random_rows(count: int, features: int, sparse: bool, rng: Generator) -> Array | tuple[Array, ...]:
    """[1, s, p] normal numbers, or a tuple of one CSR matrix [s, p]."""
    if not sparse:
        return rng.standard_normal((1, count, features))
    from scipy.sparse import csr_matrix

    stored = min(_STORED, features)
    columns = np.concatenate([np.sort(rng.choice(features, stored, replace=False)) for _ in range(count)])
    bounds = np.arange(count + 1) * stored
    return (csr_matrix((rng.standard_normal(count * stored), columns, bounds), shape=(count, features)),)
