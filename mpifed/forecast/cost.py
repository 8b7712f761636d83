"""What was seen of a rehearsal."""

from __future__ import annotations

from typing import NamedTuple

from mpifed.core.record import Record


class Cost(NamedTuple):
    """What was seen of a rehearsal."""

    hosting: float  # seconds, the longer the more clients the rank hosts
    opening: float  # seconds to open sums, however many clients it hosts
    memory: float  # bytes, from an empty federation on
    exchanges: dict[str, dict[str, float]]  # what each costs once, and "keys"; see `mpifed.run.costs`
    accounts: dict[str, dict[str, float]]  # of each when it is played once; see `mpifed.run.network`
    questions: dict[str, Record]  # by exchange
    partners: int = 0  # with how many others each client present shares masks
    extrapolated: tuple[str, ...] = ()  # from what less, where it was not rehearsed whole

    @property
    def seconds(self) -> float:
        """In all."""
        return self.hosting + self.opening


NOTHING = Cost(0.0, 0.0, 0.0, {}, {}, {})
