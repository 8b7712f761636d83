"""Classes of the user's own: a run compares shapes, `mpifed check` and `mpifed.testing` try laws.

Features, classes and targets are random, from a stream of their own, and the global generators are restored: no
bit of the run depends on it, no record is read, and all ranks find the same.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

import mpifed.laws as laws
from mpifed.comm.mpi import Comm, agreed
from mpifed.contract import remembered
from mpifed.core.device import Device
from mpifed.core.errors import UsageError
from mpifed.core.record import map_leaves
from mpifed.job.job import Job
from mpifed.job.own_sources import sources_of
from mpifed.maths.problem import Problem
from mpifed.maths.terms import Loss, Term


class JobPart(NamedTuple):
    """A model, term or regularizer of a job."""

    table: str  # as "constraint 1"
    name: str  # as the job has it, "mine:Rate"
    part: object

    @property
    def place(self) -> str:
        """The table and name of the part in the job."""
        return f'[{self.table}] name = "{self.name}"'


def parts_of(job: Job, problem: Problem) -> list[JobPart]:
    """The model, terms and regularizer."""
    limits = zip(job.constraint, problem.constraints, strict=True)
    parts = [
        ("model", job.model, problem.objective),
        ("minimize", job.minimize, problem.minimize),
        *((f"constraint {number}", table, limit.term) for number, (table, limit) in enumerate(limits, 1)),
        ("regularizer", job.regularizer or {}, problem.regularizer),
    ]
    return [JobPart(place, table["name"], part) for place, table, part in parts if part is not None]


def check_shapes(part: JobPart, job: Job, problem: Problem, device: Device | None = None) -> Generator:
    """AssertionError where shapes, dtypes or the start are wrong; the generator of what was tried."""
    rng = np.random.default_rng(job.seed)
    if part.table == "model":
        laws.check_start(problem, rng)
    at = laws.trial(problem, rng, problem.dtype)
    if part.table == "regularizer":
        laws.check_prox_shapes(part.part, map_leaves(lambda leaf: leaf[0], at.model))
    else:
        laws.check_shapes(_function(part, problem), at if device is None else device.record(at))
    return rng


def check_by_laws(part: JobPart, job: Job, problem: Problem) -> None:
    """AssertionError where shapes are wrong, or a law does not hold."""
    rng = check_shapes(part, job, problem)
    if part.table == "regularizer":
        laws.check_prox(part.part, problem.objective.start(problem.features, problem.outputs, rng, "float64"), rng)
    else:
        laws.check_function(_function(part, problem), problem, rng)


def _function(part: JobPart, problem: Problem) -> laws.ModelFunction:
    return laws.ModelFunction(problem.objective, part.part if isinstance(part.part, Term) else Loss())


def refuse_own(job: Job, problem: Problem, check: Callable[[JobPart, Job, Problem], object]) -> None:
    """UsageError with all that `check` finds wrong with the user's classes."""
    wrong = list[str]()
    with restored_generators(), np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for part in parts_of(job, problem):
            try:
                if type(part.part).__module__.partition(".")[0] != "mpifed":
                    check(part, job, problem)
            except NotImplementedError:  # a method that this job does not need, as a gradient where duals suffice
                continue
            except AssertionError as error:
                wrong.append(f"{part.place}: {error}")
    if wrong:
        raise UsageError("\n".join(wrong))


def refuse_other_sources(job: Job, comm: Comm) -> None:
    """UsageError on every rank where one has imported other own modules than rank 0, as of its node's disk. Collective.

    What this process alone knows was compared before.
    """
    here = {name: digest for name, digest in sources_of(job).files.items() if name not in remembered}
    there = comm.bcast(here)
    with agreed(comm):
        for name in sorted(name for name in here.keys() | there if here.get(name) != there.get(name)):
            what = f"{name}: SHA-256 {there.get(name)} on rank 0, {here.get(name)} on rank {comm.rank}"
            raise UsageError(f"{what}; own classes must be of the same files on all nodes")


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the states of the global generators of NumPy and Python afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(numpy_state)  # noqa: NPY002
        random.setstate(python_state)
