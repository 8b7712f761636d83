"""Messages between ranks, on worlds of 1 to 4 ranks made by splitting one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sub_worlds import worlds

from mpifed.comm import allreduce as module
from mpifed.comm.transport import MPITransport, connect
from mpifed.core.errors import DataError, MpifedError, NumericalError, UsageError

pytestmark = pytest.mark.mpi(min_size=2)
SIZES = [0, 1, 7, 1000]
DTYPES = ["float32", "float64", "int64", "uint8"]


def worlds_and(sizes: list[int]) -> Iterator[tuple[MPITransport, int]]:
    """Every world with every size."""
    for transport in worlds():
        for size in sizes:
            yield transport, size


def part(rank: int, size: int, dtype: str) -> Any:
    """What a rank contributes: small integers, whose sums are exact in every dtype but differ by rank and place."""
    return ((np.arange(size) * 7 + 3 * rank) % 50).astype(dtype)


def around_a_piece(dtype: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of values just below, at and above one and two pieces, with pieces made small."""
    monkeypatch.setattr(module, "PIECE", 4096)
    step = 4096 // np.dtype(dtype).itemsize
    return [step - 1, step, step + 1, 2 * step - 1, 2 * step, 2 * step + 1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_broadcast(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for transport, size in worlds_and(SIZES + around_a_piece(dtype, monkeypatch)):
        array = part(transport.rank, size, dtype)
        transport.broadcast(array)
        np.testing.assert_array_equal(array, part(0, size, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for transport, size in worlds_and(SIZES + around_a_piece(dtype, monkeypatch)):
        mine = part(transport.rank, size, dtype)
        total = np.full(size, 77, dtype=dtype) if transport.rank == 0 else None
        transport.reduce(mine, total)
        expected = sum(part(rank, size, dtype) for rank in range(transport.size))
        if total is not None:
            assert total.dtype == dtype
            np.testing.assert_array_equal(total, expected)
        np.testing.assert_array_equal(mine, part(transport.rank, size, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_reduce_all(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for transport, size in worlds_and(SIZES + around_a_piece(dtype, monkeypatch)):
        mine, total = part(transport.rank, size, dtype), np.full(size, 77, dtype=dtype)
        transport.reduce_all(mine, total)
        np.testing.assert_array_equal(total, sum(part(rank, size, dtype) for rank in range(transport.size)))
        np.testing.assert_array_equal(mine, part(transport.rank, size, dtype))


def test_integers_are_added_modulo_2_to_the_64() -> None:
    for transport in worlds():
        mine, total = np.array([2**62, -(2**62)]), np.empty(2, dtype=np.int64)
        transport.reduce_all(mine, total)
        expected = [(transport.size * x + 2**63) % 2**64 - 2**63 for x in (2**62, -(2**62))]
        assert total.tolist() == expected


def test_share_and_gather() -> None:
    for transport in worlds():
        assert transport.share({"of": transport.rank}) == {"of": 0}
        gathered = transport.gather(("rank", transport.rank))
        expected = [("rank", rank) for rank in range(transport.size)]
        assert gathered == (expected if transport.rank == 0 else None)


@pytest.mark.parametrize("kind", [UsageError, DataError, NumericalError, MpifedError])
def test_agree_raises_the_same_error_everywhere(kind: type[MpifedError]) -> None:
    for transport in worlds():
        for failing in range(transport.size):
            error = kind(f"of rank {transport.rank}") if transport.rank >= failing else None
            with pytest.raises(MpifedError) as caught:
                transport.agree(error)
            assert type(caught.value) is kind
            assert str(caught.value) == f"of rank {failing}"  # the first in order of ranks
            assert caught.value.agreed
            assert caught.value.exit_code == kind.exit_code


@pytest.mark.parametrize("per_node", ["", "1"])
def test_all_ranks_have_joined_before_that_is_said(per_node: str, shared_tmp_path: Path) -> None:
    from mpi4py import MPI

    joined = shared_tmp_path / "joined"
    given = {**os.environ, "MPIFED_RANKS_PER_NODE": per_node, "MPIFED_JOINED": str(joined)}
    if MPI.COMM_WORLD.rank == MPI.COMM_WORLD.size - 1:
        time.sleep(0.3)
        assert not joined.exists()
    connect(given).barrier()
    assert joined.exists()


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
    comm = world.Split(0 if world.rank < 2 else MPI.UNDEFINED, world.rank)
    if comm == MPI.COMM_NULL:
        return
    transport = MPITransport(comm)
    marks = [0, 1, 2**30 - 1, 2**30, 2**31 - 1, 2**31, size - 1]
    array = np.full(size, transport.rank, dtype=np.uint8)
    if transport.rank == 0:
        array[marks] = np.arange(10, 10 + len(marks))
    transport.broadcast(array)
    assert array[marks].tolist() == list(range(10, 10 + len(marks)))
    assert np.count_nonzero(array) == len(marks)
    total = np.empty_like(array) if transport.rank == 0 else None
    transport.reduce(array, total)
    if total is not None:
        assert total[marks].tolist() == [2 * mark for mark in range(10, 10 + len(marks))]
        assert np.count_nonzero(total) == len(marks)
    comm.Free()
