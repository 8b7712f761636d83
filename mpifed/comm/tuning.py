"""Which way a long array is added up: each is tried on the first arrays of a length, and the fastest stays.

Integers are the same whichever it is. The bits of floats are not, so they go one way for each library, unless told
otherwise: a run should not depend on how busy a machine was.
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
LONG = 2**17  # bytes: shorter arrays take microseconds anyhow
_TRIES = 3  # of each way that is not far behind
_FAR = 2.0  # times the fastest: tried no more
_WORTH = 0.9  # of the library's own time, or it is not worth another way


class Trial:
    """Times of the ways for arrays of one length; alike on all ranks."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._times: dict[str, list[float]] = {name: [] for name in names}
        self.chosen: str | None = None

    def next(self) -> str:
        """What to try next."""
        return min(self._left(), key=lambda name: len(self._times[name]))

    def add(self, name: str, seconds: float) -> None:
        """So long it took."""
        self._times[name].append(seconds)
        if not self._left():
            found = self.seconds
            best = min(found, key=found.__getitem__)
            self.chosen = best if found[best] < _WORTH * found[DIRECT] else DIRECT

    @property
    def seconds(self) -> dict[str, float]:
        """The least time of each way tried."""
        return {name: min(times) for name, times in self._times.items() if times}

    def _left(self) -> list[str]:
        least = min(self.seconds.values(), default=np.inf)
        return [
            name
            for name, times in self._times.items()
            if len(times) < _TRIES and min(times, default=0.0) <= _FAR * least
        ]


class Tuned:
    """The `Way` of a transport, which follows from its length and kind. All calls are collective."""

    def __init__(self, comm: Any, mpi: Constants, nodes: NodeMap, way: str = AUTO, of_floats: str = DIRECT) -> None:
        """`way` is one of `WAYS`, or auto; then that `of_floats` holds for them."""
        if way not in (AUTO, *WAYS):
            raise UsageError(f"MPIFED_REDUCE={way}: known are {', '.join((AUTO, *WAYS))}")
        self._comm, self._mpi, self._nodes, self._asked = comm, mpi, nodes, way
        self._direct, self._everywhere = Direct(comm, mpi), Everywhere(comm, mpi)
        self._of_floats: Way = self._everywhere if of_floats == EVERYWHERE else self._direct
        self._ways: dict[str, Way] = {}  # made when an array is long enough
        self.trials: dict[tuple[str, int], Trial] = {}  # by call and bytes

    def reduce(self, array: Array, total: Array | None) -> None:
        """To rank 0."""
        self._play("reduce", array, lambda way: way.reduce(array, total))

    def reduce_all(self, array: Array, total: Array) -> None:
        """To every rank."""
        self._play("reduce_all", array, lambda way: way.reduce_all(array, total))

    def chosen(self) -> dict[str, dict[str, Any]]:
        """What was found, by call and length: the way, and the seconds of each."""
        return {
            f"{call}, {nbytes} bytes": {"way": trial.chosen, "seconds": trial.seconds}
            for (call, nbytes), trial in self.trials.items()
        }

    def _play(self, call: str, array: Array, act: Callable[[Way], None]) -> None:
        if self._comm.size == 1 or array.nbytes < LONG or self._asked == DIRECT:
            act(self._direct)
            return
        if array.dtype.kind == "f" and self._asked == AUTO:
            act(self._of_floats)
            return
        ways = self._made()
        if self._asked != AUTO:
            act(ways.get(self._asked, self._direct))
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

    def _made(self) -> Mapping[str, Way]:
        if not self._ways:
            self._ways = {DIRECT: self._direct, EVERYWHERE: self._everywhere}
            self._ways |= {"scatter": Scatter(self._comm, self._mpi), "pipelined": Pipelined(self._comm, self._mpi)}
            if self._nodes.many < len(self._nodes.nodes):
                layered = Layered(self._comm, self._mpi, self._nodes)
                self._ways |= {"nodes": layered} if layered.works else {}
        return self._ways
