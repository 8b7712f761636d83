"""The user's own objective, terms and regularizer, tried before a run begins: do they keep their promises?

The rank that hosts the first client does it, and all end alike; so what is said does not depend on the number of ranks.
Samples are the first rows of that client, with classes at random: a loss is to be right for each of them. In a private
run, and where sums are masked or encrypted, they are made up: whether a run begins, and what its error says, would tell
of the records otherwise, and no epsilon covers that. So are the features of columns and cells, where no client has all.
Random numbers are of a stream that nothing else draws from, and the global generators stay as they were: no bit of the
run depends on it. What is tried, and how often, follows from shapes alone.
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
from mpifed.core.roster import Roster
from mpifed.core.round import SETUP, Round
from mpifed.maths.checks.examined import Broken, Examined, belongs_to_mpifed
from mpifed.maths.checks.objectives import Task, examine_objective, examine_term
from mpifed.maths.checks.points import SAMPLES
from mpifed.maths.checks.regularizers import examine_regularizer
from mpifed.maths.objectives import Objective
from mpifed.maths.sparse import DeviceRows
from mpifed.run.config import Job
from mpifed.run.together import together

_PURPOSE = "checks of own classes"
_STORED = 8  # values of a made-up sparse row
NOT_CHECKED = "--no-check: {} tried before the run, whose results stand or fall with it"
UNTRIED = "{}: was tried before the run, but nothing could be compared, so it may be right or wrong"


class Own(NamedTuple):
    """A part of the job that is an object of the user's class."""

    table: str  # as "constraint 1"
    name: str  # as the job has it, "mine:Rate"
    part: Any

    @property
    def place(self) -> str:
        """Where it stands in the job."""
        return f'[{self.table}] name = "{self.name}"'


def own_parts(job: Job, problem: Problem) -> list[Own]:
    """The objective, terms and regularizer whose classes are not mpifed's."""
    found = [Own("model", job.model["name"], problem.objective)]
    found.append(Own("minimize", job.minimize["name"], problem.minimize))
    for number, (table, one) in enumerate(zip(job.constraint, problem.constraints, strict=True), 1):
        found.append(Own(f"constraint {number}", table["name"], one.term))
    if job.regularizer is not None:
        found.append(Own("regularizer", job.regularizer["name"], problem.regularizer))
    return [own for own in found if own.part is not None and not belongs_to_mpifed(type(own.part))]


def check_own_classes(job: Job, problem: Problem, transport: Transport, blocks: Roster, device: Device) -> list[str]:
    """Try the user's classes; what could not be tried, in words for a person, on every rank. Collective.

    Raises
    ------
    UsageError
        on every rank, when a class does not keep what it promises.
    """
    own = own_parts(job, problem)
    if not own:
        return []
    task = together(transport, lambda: _task(job, problem, blocks) if _tries(blocks) else None)
    notes = together(transport, lambda: _tried(own, problem.objective, task, device) if task is not None else [])
    gathered = transport.gather(notes)
    everywhere: list[str] = transport.share(None if gathered is None else [note for part in gathered for note in part])
    return everywhere


def not_checked(job: Job, problem: Problem) -> list[str]:
    """What run.json says of a run that was begun without."""
    named = [own.place for own in own_parts(job, problem)]
    return [NOT_CHECKED.format(f"{' and '.join(named)} {'was' if len(named) == 1 else 'were'} not")] if named else []


def _tries(blocks: Roster) -> bool:
    """Whether this rank hosts the first client."""
    return len(blocks) > 0 and int(blocks.first[0]) == 0


def _tried(own: list[Own], objective: Objective, task: Task, device: Device) -> list[str]:
    """What could not be told; raises UsageError with all that are wrong."""
    wrong, notes, placed = [], [], _placed(device)
    with _as_it_was(), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in own:
            examined = Examined(one.part, placed)
            try:
                known = _examine(one.table, examined, Examined(objective, placed), task)
            except NotImplementedError:  # of what this job does not need, as a slope where duals are enough
                known = 0
            except Broken as broken:
                methods = " or ".join(f"{method}()" for method in broken.methods)
                wrong.append(f"{one.place}: {broken.what}; correct {methods}, or run with --no-check")
                if one.table == "model":
                    break  # what rests on it would be wrong as well
                continue
            if not known:
                notes.append(UNTRIED.format(one.place))
    if wrong:
        raise UsageError("\n".join(wrong))
    return notes


def _examine(table: str, examined: Examined, objective: Examined, task: Task) -> int:
    """How many numbers say that a part is right."""
    if table == "model":
        return examine_objective(examined, task)
    start = objective.target.start(task.features, task.outputs, task.rng(), task.dtype)
    if table == "regularizer":
        return examine_regularizer(examined, start, task.rng())
    return examine_term(examined, objective, start, task)


def _placed(device: Device) -> Callable[[Any], Any]:
    """What brings arguments to where the clients compute."""

    def placed(value: Any) -> Any:
        if not device.on_host and isinstance(value, tuple) and value and not hasattr(value, "_fields"):
            xp: Any = getattr(device, "xp")  # noqa: B009 - a device that is none of the processor has it
            return tuple(DeviceRows.of(rows, xp) for rows in value)
        return device.record(value)

    return placed


@contextmanager
def _as_it_was() -> Iterator[None]:
    """The global generators of NumPy and Python afterwards are what they were before."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)


def _task(job: Job, problem: Problem, blocks: Roster) -> Task:
    """The rows, of this rank's first client, or made up."""
    now = Round(SETUP, job.seed, np.ones(problem.clients, dtype=bool))
    secret = job.privacy is not None or job.channel != "plain"
    rng = now.rng(f"{_PURPOSE}, rows")
    block = blocks.visit(0, keep=False).only(np.array([0]))
    sparse, kind = block.sparse, block.shards[0].y.dtype
    secret |= block.shards[0].samples == 0
    rows = np.arange(SAMPLES) % max(1, block.shards[0].samples)  # again and again where there are fewer
    if secret or problem.split != "rows":
        X = _made_up(SAMPLES, problem.features, sparse, rng)
        targets = rng.uniform(0.05, 0.95, SAMPLES).astype(kind) if secret else block.shards[0].y[rows]
    else:
        batch = block.take(rows[None])
        X, targets = batch.X, batch.y[0]
        X = tuple(x.astype("f8") for x in X) if sparse else X.astype("f8")
    lead = (1,) if problem.split == "rows" else ()
    return Task(
        problem.features, problem.outputs, problem.dtype, problem.objective.classifies, X, targets, lead,
        lambda: now.rng(_PURPOSE),
    )  # fmt: skip


def _made_up(count: int, features: int, sparse: bool, rng: Generator) -> Any:
    """[1, s, p] normal numbers, or a tuple of one CSR matrix [s, p]."""
    if not sparse:
        return rng.standard_normal((1, count, features))
    from scipy.sparse import csr_matrix

    each = min(_STORED, features)
    columns = np.concatenate([np.sort(rng.choice(features, each, replace=False)) for _ in range(count)])
    bounds = np.arange(count + 1) * each
    return (csr_matrix((rng.standard_normal(count * each), columns, bounds), shape=(count, features)),)
