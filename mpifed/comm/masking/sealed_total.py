"""Sums of last answers in the masked channel: changes travel, and the server keeps the total.

Masks are of one turn, so what a client sent in an earlier one cannot be added again. Each client sends how its answer
has changed. Where the server hears the sum, it adds the opened change to its total. Where clients hear it, the server
keeps the total sealed: places that have the same holders are one unit, and of those who hear a unit's sum, the first
seals the total anew, with a key stream that the clients know and the server does not, and hands it over. In the next
turn the server adds it to the masked changes, and whoever hears the sum takes that stream away too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import hearing
from mpifed.comm.line import Line, places
from mpifed.comm.streams import Part
from mpifed.core.round import Round


class Unit(NamedTuple):
    """Places of a message that have the same holders."""

    number: int
    holders: NDArray[np.bool_]  # [N]
    at: Part  # positions in the message


class SealedTotal:
    """The sealed total of one memory: on rank 0 the integers, on all ranks the turn in which each unit was sealed."""

    def __init__(self, line: Line) -> None:
        everybody = np.ones(len(line.cells.rows.groups), dtype=bool)
        found: list[tuple[NDArray[np.bool_], Part]] = []
        for place in line.sum.places:
            held = line.cells.along(place.field)
            if held is None:
                found.append((everybody, slice(place.start, place.stop)))
            else:
                found += [(who, places(place, at)) for who, at in held.shared]
        self.units = [Unit(number, *one) for number, one in enumerate(found)]
        self.total: NDArray[Any] = np.zeros_like(line.sum.message)  # sealed, or open where the server hears it
        self.sealed_in = np.zeros(len(self.units), dtype=np.int64)  # turn; 0 where nothing is kept yet

    def known(self) -> Iterator[tuple[Unit, int]]:
        """(unit, turn in which it was sealed) of those of which anything is kept."""
        return ((unit, turn) for unit, turn in zip(self.units, self.sealed_in.tolist(), strict=True) if turn)

    def sealers(self, line: Line, now: Round) -> Iterator[tuple[Unit, int]]:
        """(unit, the first client who holds it) of those whose sum anybody hears."""
        told = hearing(line.exchange, now)
        for unit in self.units:
            who = np.flatnonzero(unit.holders & told)
            if len(who):
                yield unit, int(who[0])

    def nbytes(self, line: Line, now: Round) -> NDArray[np.int64]:
        """[N] bytes that each client hands over."""
        found = np.zeros(len(line.cells.rows.groups), dtype=np.int64)
        for unit, client in self.sealers(line, now):
            length = unit.at.stop - unit.at.start if isinstance(unit.at, slice) else len(unit.at)
            found[client] += length * line.sum.message.itemsize
        return found
