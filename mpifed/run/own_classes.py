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
from mpifed.maths.sparse import DeviceRows
from mpifed.run.config import Job
from mpifed.run.together import together

_PURPOSE = "checks of own classes"
_STORED = 8  # values of a made-up sparse row
NOT_CHECKED = "--no-check: {} tried before the run, whose results stand or fall with it"


class Own(NamedTuple):
    """A part of the job that is an object of the user's class."""

    place: str  # as "[objective] name = "mine:Huber""
    part: Any
    examine: Callable[[Examined, Task], int | None]  # how many derivatives could be compared, where there are any


def own_parts(job: Job, problem: Problem) -> list[Own]:
    """The objective, terms and regularizer whose classes are not mpifed's."""
    objective, start = problem.objective, problem.objective.start

    def of_term(examined: Examined, task: Task) -> int:
        return examine_term(examined, objective, task)

    def of_regularizer(examined: Examined, task: Task) -> None:
        examine_regularizer(examined, start(task.features, task.outputs, task.rng(), task.dtype), task.rng())

    found = [Own(_place("objective", job.objective), objective, examine_objective)]
    found.append(Own(_place("minimize", job.minimize), problem.minimize, of_term))
    for number, (table, one) in enumerate(zip(job.constraint, problem.constraints, strict=True), 1):
        found.append(Own(_place(f"constraint {number}", table), one.term, of_term))
    found.append(Own(_place("regularizer", job.regularizer or {}), problem.regularizer, of_regularizer))
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
    notes = together(transport, lambda: _tried(own, task, device) if task is not None else [])
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


def _tried(own: list[Own], task: Task, device: Device) -> list[str]:
    wrong, notes = [], []
    with _as_it_was(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one in own:
            try:
                known = one.examine(Examined(one.part, _placed(device)), task)
            except NotImplementedError:
                continue
            except Broken as broken:
                methods = " or ".join(f"{method}()" for method in broken.methods)
                wrong.append(f"{one.place}: {broken.what}; correct {methods}, or run with --no-check")
            else:
                if known == 0:
                    notes.append(f"{one.place}: its derivatives could be compared with finite differences nowhere")
    if wrong:
        raise UsageError("\n".join(wrong))
    return notes


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
    count = SAMPLES if secret else min(SAMPLES, block.shards[0].samples)
    if secret or problem.split != "rows":
        X = _made_up(count, problem.features, sparse, rng)
        targets = rng.uniform(0.05, 0.95, count).astype(kind) if secret else block.shards[0].y[:count].copy()
    else:
        batch = block.take(np.arange(count)[None])
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


def _place(table: str, settings: Any) -> str:
    return f'[{table}] name = "{settings.get("name")}"'
