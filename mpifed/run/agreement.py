"""What all ranks must know of each other: that the work of one has failed, and whether their settings are the same."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import numpy as np

from mpifed.comm.gate import enter
from mpifed.comm.mpi import Comm, connect, launched_ranks
from mpifed.contract import remembered
from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table, dotted
from mpifed.data.store import open_federation
from mpifed.job.job import Job

T = TypeVar("T")
_RUNNING = threading.RLock()


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Refuse what another thread of this process does at the same time; not what this one does within it.

    Signals, the threads of BLAS, generators of random numbers and MPI's messages belong to the whole process.
    """
    if not _RUNNING.acquire(blocking=False):
        raise UsageError(
            "another thread of this process is in a call of mpifed; call this after it, or in a process of its own"
        )
    try:
        yield
    finally:
        _RUNNING.release()


def begin_call(
    call: str, describe: Callable[[], T], facts: Callable[[T], Mapping[str, object]], guard: Callable[..., T]
) -> tuple[Comm, T]:
    """The ranks, and what `describe` gives on this rank: the first step of every collective function of users.

    By `guard(comm, None, function)` all ranks end, or raise, where `describe` fails on any, where they are in
    different calls, or where the `facts` differ. Collective; where a rank has left the program, all end.
    """
    described, text, error = list[T](), "", None
    try:
        described.append(describe())
        if launched_ranks() > 1:
            told = {"call": call, **facts(described[0])}
            text = json.dumps(told, default=partial(_plain, {}), skipkeys=True, check_circular=False)
    except (Exception, SystemExit) as failed:
        error = failed
    with in_one_thread():
        texts = enter(call, text)
        if texts and "" not in texts:  # where a rank has an error, that will be raised
            error = _difference([dict(dotted(json.loads(each))) for each in texts])
        comm = connect()

    def agree() -> T:
        comm.raise_on_all_ranks(error)
        return described[0]

    return comm, guard(comm, None, agree)


def _difference(facts: list[Table]) -> UsageError:
    first = facts[0]
    rank, other = next((rank, each) for rank, each in enumerate(facts) if each != first)
    key = next(key for key in {**first, **other} if first.get(key) != other.get(key))
    return UsageError(
        f"{first['call']}: {key}: {first.get(key)!r} on rank 0, {other.get(key)!r} on rank {rank}; all ranks must make "
        "the same calls with the same settings and data: draw numbers from a fixed seed, or on one rank for all"
    )


def settings(job: Job) -> Table:
    """What decides the bits of a run: its tables, data, own sources and objects. Observers may be those of rank 0."""
    from mpifed.job.own_sources import sources_of

    table = job.table()
    table.pop("observe", None)
    with contextlib.suppress(DataError):  # no data, as the run says, or those of an earlier version
        table["data"]["path"] = open_federation(table["data"]["path"]).sha256
    files, text = sources_of(job).files, str(table)
    table["sources"] = {
        name: remembered.get(name, files[name]) for name in files if name not in remembered or f"'{name}'" in text
    }
    return table


def _plain(seen: dict[int, object], value: object) -> object:
    """What is equal on two ranks where a value is: of arrays the digest, of functions the source and variables.

    `seen`: what has come already, and ends a circle, such as functions that name each other.
    """
    if isinstance(value, np.ndarray):
        digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()  # without another copy of the data
        return f"{value.dtype} {list(value.shape)}, SHA-256 {digest[:12]}"
    if isinstance(value, set | frozenset):  # whose order is not the same in two processes
        return sorted(map(repr, value))
    if id(value) in seen:
        return None
    seen[id(value)] = value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if hasattr(value, "indptr"):
        return vars(value)
    from mpifed.job.own_sources import source_of

    held = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
    held += getattr(value, "__defaults__", None) or ()
    if hasattr(value, "state_dict") and not isinstance(value, type):  # of PyTorch
        held += [tensor.cpu().double().numpy() for tensor in value.state_dict().values()]
    return [source_of(value)[:12], *held]
