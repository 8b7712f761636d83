"""Messages between ranks, on worlds of 1 to 4 ranks made by splitting one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sub_worlds import worlds

from mpifed.comm import mpi as module
from mpifed.comm.mpi import Intracomm, connect
from mpifed.core.errors import DataError, MpifedError, NumericalError, UsageError
from mpifed.core.record import leaves

pytestmark = pytest.mark.mpi(min_size=2)


def part(rank: int, size: int, dtype: str) -> Any:
    """What a rank contributes: small integers, whose sums are exact in every dtype but differ by rank and place."""
    return ((np.arange(size) * 7 + 3 * rank) % 50).astype(dtype)


def sizes(dtype: str) -> list[int]:
    """Numbers of values that are few, and just below, at and above one and two pieces of 4,096 bytes."""
    step = 4096 // np.dtype(dtype).itemsize
    return [0, 1, 7, 1000, step - 1, step, step + 1, 2 * step - 1, 2 * step, 2 * step + 1]


@pytest.mark.parametrize("long", [1, 2**17])  # MPICH takes MPI_Allreduce where rank 0 alone needs a long sum
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
def test_arrays_are_sent_and_summed(dtype: str, long: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 4096)
    monkeypatch.setattr(module, "LONG", long)
    for comm in worlds():
        for size in sizes(dtype):
            expected = sum(part(rank, size, dtype) for rank in range(comm.size))
            for add in (comm.Reduce, comm.Allreduce):
                mine = part(comm.rank, size, dtype)
                add(mine)
                if comm.rank == 0 or add == comm.Allreduce:
                    np.testing.assert_array_equal(mine, expected)
            mine = part(comm.rank, size, dtype)
            comm.Bcast(mine)
            np.testing.assert_array_equal(mine, part(0, size, dtype))


def test_integers_are_added_modulo_2_to_the_64() -> None:
    for comm in worlds():
        mine = np.array([2**62, -(2**62)])
        comm.Allreduce(mine)
        assert mine.tolist() == [(comm.size * x + 2**63) % 2**64 - 2**63 for x in (2**62, -(2**62))]


class Question(NamedTuple):
    """Short and long arrays, in rows or in columns, numbers, and what is absent."""

    model: Any
    step: Any
    nothing: Any
    inner: Any


def test_questions_are_broadcast_in_any_shapes() -> None:
    """Long ones are the same in memory, and change their shapes as they like."""
    for comm in worlds():
        for size in (3, 2**14, 2**13 + 1, 0):
            numbers = np.arange(3 * size, dtype="f4").reshape(3, size)
            asked = Question(numbers, np.float64(0.1), (), Question(numbers.T, numbers > 7, numbers[:, ::2], size))
            order, question = comm.bcast((75, asked) if comm.rank == 0 else None)
            assert order == 75 and [name for name, _ in leaves(question)] == [name for name, _ in leaves(asked)]
            for (_, found), (_, expected) in zip(leaves(question), leaves(asked), strict=True):
                assert np.asarray(found).dtype == np.asarray(expected).dtype
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", [UsageError, DataError, NumericalError, MpifedError])
def test_an_error_is_raised_on_all_ranks(kind: type[MpifedError]) -> None:
    for comm in worlds():
        comm.raise_on_all_ranks()
        for failing in range(comm.size):
            error = kind(f"of rank {comm.rank}") if comm.rank >= failing else None
            with pytest.raises(MpifedError) as caught:
                comm.raise_on_all_ranks(error)
            assert type(caught.value) is kind
            assert str(caught.value) == f"of rank {failing}"  # the first in order of ranks
            assert caught.value.agreed
            assert caught.value.exit_code == kind.exit_code


def test_all_ranks_have_joined_before_that_is_said(shared_tmp_path: Path) -> None:
    from mpi4py import MPI

    joined = shared_tmp_path / "joined"
    given = {**os.environ, "MPIFED_JOINED": str(joined)}
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        time.sleep(0.3)
        assert not joined.exists()
    comm = connect(given)
    comm.Barrier()
    assert joined.exists()
    assert (comm.node_rank, comm.node_size) == (comm.rank, comm.size)


@pytest.mark.large
@pytest.mark.long
def test_more_than_2_gib_and_2_to_the_31_values() -> None:
    """One byte a value: counts and bytes both pass 2^31."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    size = 2**31 + 4321
    free = world.bcast(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if free < 6 * size:
        pytest.skip(f"needs {6 * size >> 30} GiB of free memory, here are {free >> 30}")
    half = world.Split(0 if world.rank < 2 else MPI.UNDEFINED, world.rank)
    if half == MPI.COMM_NULL:
        return
    comm = Intracomm(half)
    marks = [0, 1, 2**30 - 1, 2**30, 2**31 - 1, 2**31, size - 1]
    array = np.full(size, comm.rank, dtype=np.uint8)
    if comm.rank == 0:
        array[marks] = np.arange(10, 10 + len(marks))
    comm.Bcast(array)
    assert array[marks].tolist() == list(range(10, 10 + len(marks)))
    assert np.count_nonzero(array) == len(marks)
    comm.Reduce(array)
    if comm.rank == 0:
        assert array[marks].tolist() == [2 * mark for mark in range(10, 10 + len(marks))]
        assert np.count_nonzero(array) == len(marks)
    half.Free()
