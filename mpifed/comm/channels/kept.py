"""Sums that keep last answers in the masked channel: clients upload changes, and the server stores the total.

Masks are valid for a single turn, so an upload of an earlier turn cannot be added again. Each client uploads the change
of its answer. Where the server receives the sum, it adds the opened change to its total. Where clients receive it, the
server stores the total sealed: entries with the same holders form a unit, and the first client that receives a unit's
sum seals the total again, with a key stream that the clients know and the server does not, and uploads it. In the next
turn the server adds it to the masked changes, and the receivers of the sum also remove that key stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channels.base import Plan
from mpifed.comm.sums import Positions
from mpifed.core.exchange import hearing
from mpifed.core.round import Round


class StoredUnit(NamedTuple):
    """Entries of a field that have the same holders."""

    number: int
    holders: NDArray[np.bool_]  # [N]
    at: Positions


class SealedTotal:
    """Sealed total of a `Kept`: on rank 0 the integers, on all ranks the turn in which each unit was sealed."""

    def __init__(self, plan: Plan) -> None:
        parts = [(unit.who, at) for unit in plan.message.units for _, at in unit.at]
        self.units = [StoredUnit(number, *part) for number, part in enumerate(parts)]
        self.total: np.ndarray = np.zeros_like(plan.sum.numbers)  # sealed, or open where the server receives it
        self.sealed_in = np.zeros(len(self.units), dtype=np.int64)  # turn; 0 where nothing is stored yet

    def known(self) -> Iterator[tuple[StoredUnit, int]]:
        """(unit, turn in which it was sealed) of each unit that is stored."""
        return ((unit, turn) for unit, turn in zip(self.units, self.sealed_in.tolist(), strict=True) if turn)

    def sealers(self, plan: Plan, now: Round) -> Iterator[tuple[StoredUnit, int]]:
        """(unit, the client that seals it) of each unit whose sum a client receives."""
        receiving = hearing(plan.exchange, now)
        for unit in self.units:
            who = np.flatnonzero(unit.holders & receiving)
            if len(who):
                yield unit, int(who[0])

    def nbytes(self, plan: Plan, now: Round) -> NDArray[np.int64]:
        """[N] bytes of sealed totals that each client uploads."""
        uploaded = np.zeros(plan.message.clients, dtype=np.int64)
        for unit, client in self.sealers(plan, now):
            uploaded[client] += plan.sum.numbers[unit.at].nbytes
        return uploaded
