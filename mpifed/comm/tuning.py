"""Choice of the reduction algorithm for long arrays: all are timed on the first of a length, the fastest is kept.

Sums of integers have the same bits with each. Those of floats do not, so for floats the algorithm is fixed for each MPI
library, unless set by the user: results should not depend on the load of a machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mpifed.comm.nodes import NodeMap
from mpifed.comm.reductions import Array, Constants, Direct, Everywhere, Layered, Pipelined, Scatter, Way
from mpifed.core.errors import UsageError

AUTO, DIRECT = "auto", "direct"
EVERYWHERE = "everywhere"
WAYS = (DIRECT, EVERYWHERE, "scatter", "pipelined", "nodes")
LONG = 2**17  # bytes: shorter arrays take microseconds with any algorithm
_TRIES = 3  # of each algorithm that is not much slower
_MUCH_SLOWER = 2.0  # times the fastest: not tried again
_WORTHWHILE = 0.9  # of the time of `direct`: an algorithm must be at least this fast to replace it


class Trial:
    """Timings of the algorithms for arrays of one length; alike on all ranks."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._times: dict[str, list[float]] = {name: [] for name in names}
        self.chosen: str | None = None

    def next(self) -> str:
        """The algorithm to try next."""
        return min(self._left(), key=lambda name: len(self._times[name]))

    def add(self, name: str, seconds: float) -> None:
        """Register a timing; choose an algorithm once all tries are done."""
        self._times[name].append(seconds)
        if not self._left():
            shortest = self.seconds
            best = min(shortest, key=shortest.__getitem__)
            self.chosen = best if shortest[best] < _WORTHWHILE * shortest[DIRECT] else DIRECT

    @property
    def seconds(self) -> dict[str, float]:
        """Shortest time of each algorithm tried."""
        return {name: min(times) for name, times in self._times.items() if times}

    def _left(self) -> list[str]:
        least = min(self.seconds.values(), default=np.inf)
        return [
            name
            for name, times in self._times.items()
            if len(times) < _TRIES and min(times, default=0.0) <= _MUCH_SLOWER * least
        ]


class Tuned:
    """The `Way` of a transport: the algorithm depends on an array's length and dtype. All calls are collective."""

    def __init__(self, comm: Any, mpi: Constants, nodes: NodeMap, way: str = AUTO, of_floats: str = DIRECT) -> None:
        """`way` is in `WAYS`, or "auto": then `of_floats` is used for floats."""
        if way not in (AUTO, *WAYS):
            raise UsageError(f"MPIFED_REDUCE={way}: known are {', '.join((AUTO, *WAYS))}")
        self._comm, self._mpi, self._nodes, self._requested = comm, mpi, nodes, way
        self._direct, self._everywhere = Direct(comm, mpi), Everywhere(comm, mpi)
        self._of_floats: Way = self._everywhere if of_floats == EVERYWHERE else self._direct
        self._ways: dict[str, Way] = {}  # created when the first long array comes
        self.trials: dict[tuple[str, int], Trial] = {}  # by call and bytes

    def reduce(self, array: Array, total: Array | None) -> None:
        self._reduce("reduce", array, lambda way: way.reduce(array, total))

    def reduce_all(self, array: Array, total: Array) -> None:
        self._reduce("reduce_all", array, lambda way: way.reduce_all(array, total))

    def chosen(self) -> dict[str, dict[str, Any]]:
        """By call and length: the algorithm chosen, and the seconds of each."""
        return {
            f"{call}, {nbytes} bytes": {"way": trial.chosen, "seconds": trial.seconds}
            for (call, nbytes), trial in self.trials.items()
        }

    def _reduce(self, call: str, array: Array, act: Callable[[Way], None]) -> None:
        if self._comm.size == 1 or array.nbytes < LONG or self._requested == DIRECT:
            act(self._direct)
            return
        if array.dtype.kind == "f" and self._requested == AUTO:
            act(self._of_floats)
            return
        ways = self._all_ways()
        if self._requested != AUTO:
            act(ways.get(self._requested, self._direct))
            return
        names = [name for name in ways if name != EVERYWHERE or call == "reduce"]
        trial = self.trials.setdefault((call, array.nbytes), Trial(tuple(names)))
        if trial.chosen is not None:
            act(ways[trial.chosen])
            return
        name = trial.next()
        self._comm.Barrier()
        start = time.perf_counter()
        act(ways[name])
        slowest = np.array([time.perf_counter() - start])
        self._comm.Allreduce(slowest.copy(), slowest, op=self._mpi.largest)
        trial.add(name, float(slowest[0]))

    def _all_ways(self) -> Mapping[str, Way]:
        if not self._ways:
            self._ways = {DIRECT: self._direct, EVERYWHERE: self._everywhere}
            self._ways |= {"scatter": Scatter(self._comm, self._mpi), "pipelined": Pipelined(self._comm, self._mpi)}
            if self._nodes.many < len(self._nodes.nodes):
                layered = Layered(self._comm, self._mpi, self._nodes)
                self._ways |= {"nodes": layered} if layered.works else {}
        return self._ways
