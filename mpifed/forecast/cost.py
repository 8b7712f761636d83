"""The costs measured in a rehearsal."""

from __future__ import annotations

from typing import NamedTuple

from mpifed.core.record import Record


class MeasuredCost(NamedTuple):
    """The costs measured in a rehearsal."""

    hosting: float  # seconds that grow with the number of clients the rank hosts
    opening: float  # seconds to open sums, independent of that number
    memory: float  # bytes, beyond those of the process before
    exchanges: dict[str, dict[str, float]]  # cost of each exchange, once, and of "keys"; see `mpifed.results.costs`
    accounts: dict[str, dict[str, float]]  # counters of each exchange, once; see `mpifed.job.time_model`
    broadcasts: dict[str, Record]  # by exchange
    partners: int = 0  # number of clients with whom each participating client shares masks
    extrapolated: tuple[str, ...] = ()  # what was rehearsed only in part, and how much of it

    @property
    def seconds(self) -> float:
        """Seconds in all."""
        return self.hosting + self.opening


NO_COST = MeasuredCost(0.0, 0.0, 0.0, {}, {}, {})
