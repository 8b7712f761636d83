"""Several ranks as threads of one process: what a channel says to other ranks, and who gets to see it."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np


class _World:
    def __init__(self, size: int) -> None:
        self.size, self.barrier, self.slots = size, threading.Barrier(size), [None] * size


class Threads:
    """The ranks as one thread has them; it keeps all that this rank was given, as bytes, in `heard`."""

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self.rank, self.size, self.nodes = world, rank, world.size, world.size
        self.heard: list[bytes] = []

    def _meet(self, value: Any) -> list[Any]:
        world = self._world
        world.slots[self.rank] = value
        world.barrier.wait(300)
        found = list(world.slots)
        world.barrier.wait(300)
        return found

    def _hear(self, value: Any) -> Any:
        self.heard.append(value.tobytes() if isinstance(value, np.ndarray) else pickle.dumps(value))
        return value

    def Bcast(self, array: Any) -> None:
        array[...] = self._hear(self._meet(array.copy())[0])

    def Reduce(self, array: Any, total: Any) -> None:
        found = self._meet(array.copy())
        if total is not None and self.rank == 0:
            total[...] = self._hear(np.sum(found, axis=0, dtype=array.dtype))

    def Allreduce(self, array: Any, total: Any) -> None:
        total[...] = self._hear(np.sum(self._meet(array.copy()), axis=0, dtype=array.dtype))

    def bcast(self, value: Any, root: int = 0) -> Any:
        return self._hear(self._meet(value)[root])

    def gather(self, value: Any) -> list[Any] | None:
        found = self._meet(value)
        return [self._hear(one) for one in found] if self.rank == 0 else None

    def allgather(self, value: Any) -> list[Any]:
        return [self._hear(one) for one in self._meet(value)]

    def reduce(self, value: Any, op: Callable[[Any, Any], Any]) -> Any:
        found = self.gather(value)
        return functools.reduce(op, found) if found is not None else None

    def raise_on_all_ranks(self, error: BaseException | None = None) -> None:
        for one in self._meet(error):
            if one is not None:
                raise one


def on_ranks(size: int, play: Callable[[Threads], Any]) -> list[Any]:
    """What `play` gives on each rank; the first error of a rank that did not just wait for another."""
    world = _World(size)
    found: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            found[rank] = play(Threads(world, rank))
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            errors.append(error)
            world.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return found
