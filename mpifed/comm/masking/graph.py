"""Who shares masks with whom, and for which places of a message.

Among few clients every pair does. Among many it is enough that each does with k others, as long as those who can be
relied on stay connected among themselves: then their masks hide everything but their sum (Bell, Bonawitz, Gascon,
Lepoint, Raykova 2020, "Secure single-server aggregation with (poly)logarithmic overhead", CCS; eprint 2020/704). As
there, the graph is a Harary graph, on the clients in a random order: k/2 neighbours to each side of a ring. The order
is public, drawn once a run, and independent of who colludes and who leaves; pairs meet again, and agree on keys once.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.line import Line
from mpifed.core.round import SETUP, Round

if TYPE_CHECKING:  # forecasts ask here for the number of neighbours, and need no cryptography for that
    from mpifed.comm.streams import Part


@lru_cache(maxsize=8)
def order(seed: int, clients: int) -> NDArray[np.int64]:
    """[N] each client's place on the ring; on every rank alike."""
    nobody = np.zeros(0, dtype=bool)
    found: NDArray[np.int64] = Round(SETUP, seed, nobody).rng("masks").permutation(clients)
    return found


def neighbours(asked: NDArray[np.int64], k: int, places: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """The neighbours, ascending, of each of the clients asked; it is one of theirs as well.

    Parameters
    ----------
    asked : [n] clients, ascending
    k : even; all others where there are no more than that
    places : [N] on the ring
    """
    n = len(asked)
    if n - 1 <= k:
        return {client: np.delete(asked, i) for i, client in enumerate(asked.tolist())}
    ring = asked[np.argsort(places[asked])]
    steps = np.concatenate([np.arange(-(k // 2), 0), np.arange(1, k // 2 + 1)])
    near = np.sort(ring[(np.arange(n)[:, None] + steps) % n], axis=1)
    return dict(zip(ring.tolist(), near, strict=True))


@lru_cache(maxsize=1024)
def enough(n: int, leaving: int, colluding: float = 1 / 3, chance: float = 2.0**-40) -> int:
    """The least even number of neighbours that is safe among n clients; n - 1 where it takes them all.

    Of the clients, `leaving` may leave, and a share of `colluding` may tell the server all they know. Three things are
    asked for, the first and last of them but for a chance of `chance`.

    1. The others, who are honest and stay, are connected. Let h = k/2, and let r of the n places of the ring be gone.
       Two who are left and follow each other on the ring, with fewer than h gone between them, are neighbours. So going
       around, the ring is cut only where h or more in a row are gone, and one cut leaves a path: it takes two. Two
       given runs of h places are both gone with chance (r)_k / (n)_k, the falling powers, which is at most (r/n)^k,
       since the order is random. There are fewer than n²/2 pairs of runs. (A bound by single runs, n (r/n)^h,
       asks for nearly twice as many neighbours.)
    2. The shares of those who stay are a majority of each client's, whoever leaves: k >= 2 leaving + 1. So no two
       halves of them can open both of a client's secrets, of which each may be given only one.
    3. Those who collude cannot open anything by themselves: of nobody's k neighbours do as many as the threshold,
       k - leaving, collude. Their number is hypergeometric, and there are n clients.
    """
    bad = min(n, int(np.ceil(colluding * n)))
    gone = min(n, bad + leaving)
    for k in range(2, n - 1, 2):
        falls_apart = n * n / 2 * comb(gone, k) / comb(n, k)
        if falls_apart > chance or k < 2 * leaving + 1:
            continue
        if not leaving or n * _tail(n - 1, bad, k, k - leaving) <= chance:
            return k
    return max(n - 1, 0)


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """The chance that at least `least` of those drawn are marked."""
    ways = sum(comb(marked, i) * comb(population - marked, drawn - i) for i in range(least, min(marked, drawn) + 1))
    return ways / comb(population, drawn)


class Common:
    """Which places of an exchange's message two clients both fill.

    What everybody fills is masked along the graph. Columns, or rows, that not all clients hold are masked by all pairs
    of those who do, since they are few; what a single client fills, nothing can hide from who hears the sum.
    """

    def __init__(self, line: Line) -> None:
        self._line = line
        held = [(place, line.cells.along(place.field)) for place in line.sum.places]
        split = [(place, one) for place, one in held if one is not None and len(one.members) > 1]
        self._split = [place for place, _ in split]
        groups = np.stack([np.zeros_like(line.cells.rows.groups), *(one.groups for _, one in split)])
        self._groups: NDArray[np.int64] = np.unique(groups, axis=1, return_inverse=True)[1].ravel()
        whole = [place for place in line.sum.places if place.field.sender is None and place not in self._split]
        self.everybody = _joined([slice(place.start, place.stop) for place in whole])
        self._alike = len(whole) == len(line.sum.places)
        self._own: dict[int, list[Part]] = {}
        self._both: dict[tuple[int, int], list[Part]] = {}
        self._meeting: dict[int, NDArray[np.int64]] = {}
        self._first = {int(group): int(np.flatnonzero(self._groups == group)[0]) for group in np.unique(self._groups)}

    def own(self, client: int) -> list[Part]:
        """All that the client fills."""
        if self._alike:
            return self.everybody
        found = self._own.get(client)
        if found is None:
            at = [self._line.positions(place, client) for place in self._line.sum.places]
            found = self._own[client] = _joined([part for part in at if part is not None])
        return found

    def holders(self, client: int, asked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of the clients asked who fill parts that the client fills as well, but not all do; ascending."""
        if not self._split:
            return asked[:0]
        group = int(self._groups[client])
        if group not in self._meeting:
            self._meeting[group] = np.array([other for other in self._first if self._shared(group, other)], np.int64)
        meets = np.isin(self._groups[asked], self._meeting[group]) & (asked != client)
        found: NDArray[np.int64] = asked[meets]
        return found

    def parts(self, i: int, j: int, near: bool) -> list[Part]:
        """What clients `i` and `j` mask together; `near`, whether they are neighbours in the graph."""
        together = self._shared(int(self._groups[i]), int(self._groups[j])) if self._split else []
        if not near:
            return together
        return [*self.everybody, *together] if together else self.everybody

    def _shared(self, g: int, h: int) -> list[Part]:
        """Where what both groups hold lies."""
        pair = (g, h) if g < h else (h, g)
        found = self._both.get(pair)
        if found is None:
            found = []
            for place in self._split:
                ours, theirs = (self._line.positions(place, self._first[group]) for group in pair)
                both = _intersection(ours, theirs)
                if both is not None:
                    found.append(both)
            self._both[pair] = found
        return found


class Partner(NamedTuple):
    """One with whom a client shares a mask."""

    client: int
    sign: int  # with which the client adds it; the partner adds it with the other one
    parts: list[Part]  # of the message


class Plan:
    """Who shares masks with whom among those who are asked; on every rank alike."""

    def __init__(self, common: Common, asked: NDArray[np.int64], k: int, places: NDArray[np.int64]) -> None:
        self.common, self.asked, self.near = common, asked, neighbours(asked, k, places)
        self._partners: dict[int, list[Partner]] = {}

    def partners(self, client: int) -> list[Partner]:
        """Those with whom the client masks anything, ascending."""
        found = self._partners.get(client)
        if found is None:
            near = set(self.near[client].tolist()) if self.common.everybody else set()
            others = sorted(near.union(self.common.holders(client, self.asked).tolist()))
            found = self._partners[client] = [
                Partner(other, 1 if client < other else -1, self.common.parts(client, other, other in near))
                for other in others
            ]
        return found


def _intersection(one: Part | None, other: Part | None) -> Part | None:
    """The positions in both, ascending; None where there are none."""
    assert one is not None and other is not None
    if isinstance(one, slice) and isinstance(other, slice):
        start, stop = max(one.start, other.start), min(one.stop, other.stop)
        return slice(start, stop) if start < stop else None
    ours, theirs = (np.arange(part.start, part.stop) if isinstance(part, slice) else part for part in (one, other))
    if not len(ours) or not len(theirs) or ours[0] > theirs[-1] or theirs[0] > ours[-1]:
        return None
    both = np.intersect1d(ours, theirs, assume_unique=True)
    return both if len(both) else None


def _joined(parts: list[Part]) -> list[Part]:
    """The same, slices that follow each other in one."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, slice) and isinstance(last, slice) and last.stop == part.start:
            found[-1] = slice(last.start, part.stop)
        else:
            found.append(part)
    return found
