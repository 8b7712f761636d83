"""The graph of clients that share pairwise masks, and the entries of a message that each pair masks.

Among few clients, every pair shares a mask. Among many, k neighbours for each client are enough, as long as the honest
clients that stay are connected: then their masks hide everything but their sum (Bell, Bonawitz, Gascon, Lepoint,
Raykova 2020, "Secure single-server aggregation with (poly)logarithmic overhead", CCS; eprint 2020/704). As there, the
graph is a Harary graph on the clients in random order: k/2 neighbours to each side of a ring. The order is public,
drawn once per run, and independent of who colludes and who leaves; pairs recur, and agree on keys only once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.core.round import SETUP, Round

if TYPE_CHECKING:  # forecasts compute the number of neighbours here, without importing cryptography
    from mpifed.comm.key_streams import Part


@lru_cache(maxsize=8)
def order(seed: int, clients: int) -> NDArray[np.int64]:
    """[N] position of each client on the ring; alike on all ranks."""
    nobody = np.zeros(0, dtype=bool)
    return Round(SETUP, seed, nobody).rng("masks").permutation(clients)


def neighbours(asked: NDArray[np.int64], k: int, places: NDArray[np.int64]) -> dict[int, NDArray[np.int64]]:
    """Neighbours, ascending, of each participating client; a symmetric relation.

    Parameters
    ----------
    asked : [n] participating clients, ascending
    k : number of neighbours, even; where n - 1 <= k, all other clients
    places : [N] positions on the ring
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
    """Smallest even number of neighbours that is secure among n clients; n - 1 where all are needed.

    Of the clients, `leaving` may leave, and a fraction `colluding` may collude with the server. Three conditions must
    hold, the first and the third but for a probability of `chance`.

    1. The honest clients that stay are connected. Let h = k/2, and let r of the n positions of the ring be removed. Two
       remaining clients that follow each other on the ring, with fewer than h removed between them, are neighbours. So
       the ring is cut only where h or more in a row are removed, and a single cut leaves a path: it takes two. Two
       given runs of h positions are both removed with probability (r)_k / (n)_k (falling factorials), which is at most
       (r/n)^k, since the order is random. There are fewer than n²/2 pairs of runs. (A bound by single runs, n (r/n)^h,
       needs nearly twice as many neighbours.)
    2. The remaining shares are a majority of each client's, whoever leaves: k >= 2 leaving + 1. So no two disjoint sets
       of them can reconstruct both of a client's secrets, of which each holder reveals only one.
    3. Colluding clients cannot reconstruct a secret by themselves: among no client's k neighbours is the number of
       colluding ones as large as the threshold, k - leaving. It is hypergeometric, and there are n clients.
    """
    corrupt = min(n, int(np.ceil(colluding * n)))
    removed = min(n, corrupt + leaving)
    for k in range(2 * leaving + 2, n - 1, 2):
        if n * n / 2 * np.exp(_log_comb(removed, k) - _log_comb(n, k)) > chance:
            continue
        if not leaving or n * _tail(n - 1, corrupt, k, k - leaving) <= chance:
            return k
    return max(n - 1, 0)


def _tail(population: int, marked: int, drawn: int, least: int) -> float:
    """Probability that at least `least` of those drawn are marked (hypergeometric)."""
    i = np.arange(least, min(marked, drawn) + 1)
    logs = _log_comb(marked, i) + _log_comb(population - marked, drawn - i) - _log_comb(population, drawn)
    return float(np.exp(logs).sum())


def _log_comb(n: int, k: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """Logarithm of the number of ways to choose k of n, which itself no float holds where clients are many."""
    from scipy.special import gammaln

    logs: NDArray[np.float64] = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - np.asarray(k) + 1)
    return logs


class Common:
    """The entries of an exchange's message that two clients both fill.

    Entries that all clients fill are masked along the graph. Columns, or rows, that not all clients hold are masked by
    all pairs of their holders, since these are few; the entries of a single client cannot be hidden from the receiver
    of the sum.
    """

    def __init__(self, plan: ExchangePlan) -> None:
        self._plan = plan
        held = [(place, plan.cells.along(place.field)) for place in plan.sum.places]
        split = [(place, holdings) for place, holdings in held if holdings is not None and len(holdings.members) > 1]
        self._split = [place for place, _ in split]
        groups = np.stack([np.zeros_like(plan.cells.rows.groups), *(holdings.groups for _, holdings in split)])
        self._groups: NDArray[np.int64] = np.unique(groups, axis=1, return_inverse=True)[1].ravel()
        whole = [place for place in plan.sum.places if place.field.sender is None and place not in self._split]
        self.everybody = _joined([slice(place.start, place.stop) for place in whole])
        self._alike = len(whole) == len(plan.sum.places)
        self._own: dict[int, list[Part]] = {}
        self._both: dict[tuple[int, int], list[Part]] = {}
        self._meeting: dict[int, NDArray[np.int64]] = {}
        self._first = {int(group): int(np.flatnonzero(self._groups == group)[0]) for group in np.unique(self._groups)}

    def own(self, client: int) -> list[Part]:
        """All entries that the client fills."""
        if self._alike:
            return self.everybody
        parts = self._own.get(client)
        if parts is None:
            at = [self._plan.positions(place, client) for place in self._plan.sum.places]
            parts = self._own[client] = _joined([part for part in at if part is not None])
        return parts

    def holders(self, client: int, asked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Participating clients that share entries with the client which not all clients fill; ascending."""
        if not self._split:
            return asked[:0]
        group = int(self._groups[client])
        if group not in self._meeting:
            self._meeting[group] = np.array([other for other in self._first if self._shared(group, other)], np.int64)
        meets = np.isin(self._groups[asked], self._meeting[group]) & (asked != client)
        others: NDArray[np.int64] = asked[meets]
        return others

    def parts(self, i: int, j: int, near: bool) -> list[Part]:
        """The entries that clients `i` and `j` mask together; `near`: whether they are neighbours in the graph."""
        together = self._shared(int(self._groups[i]), int(self._groups[j])) if self._split else []
        if not near:
            return together
        return [*self.everybody, *together] if together else self.everybody

    def _shared(self, g: int, h: int) -> list[Part]:
        """The entries that clients of both groups fill."""
        pair = (g, h) if g < h else (h, g)
        shared = self._both.get(pair)
        if shared is None:
            shared = []
            for place in self._split:
                ours, theirs = (self._plan.positions(place, self._first[group]) for group in pair)
                both = _intersection(ours, theirs)
                if both is not None:
                    shared.append(both)
            self._both[pair] = shared
        return shared


class Partner(NamedTuple):
    """A client with which another one shares a mask."""

    client: int
    sign: int  # with which the client adds the mask; the partner adds it with the opposite sign
    parts: list[Part]  # of the message


class MaskGraph:
    """Pairwise masks among the participating clients; alike on all ranks."""

    def __init__(self, common: Common, asked: NDArray[np.int64], k: int, places: NDArray[np.int64]) -> None:
        self.common, self.asked, self.near = common, asked, neighbours(asked, k, places)
        self._partners: dict[int, list[Partner]] = {}

    def partners(self, client: int) -> list[Partner]:
        """All clients with which the client shares a mask, ascending."""
        partners = self._partners.get(client)
        if partners is None:
            near = set(self.near[client].tolist()) if self.common.everybody else set()
            others = sorted(near.union(self.common.holders(client, self.asked).tolist()))
            partners = self._partners[client] = [
                Partner(other, 1 if client < other else -1, self.common.parts(client, other, other in near))
                for other in others
            ]
        return partners


def _intersection(part: Part | None, other: Part | None) -> Part | None:
    """Positions in both parts, ascending; None where there are none."""
    assert part is not None and other is not None
    if isinstance(part, slice) and isinstance(other, slice):
        start, stop = max(part.start, other.start), min(part.stop, other.stop)
        return slice(start, stop) if start < stop else None
    ours, theirs = (np.arange(p.start, p.stop) if isinstance(p, slice) else p for p in (part, other))
    if not len(ours) or not len(theirs) or ours[0] > theirs[-1] or theirs[0] > ours[-1]:
        return None
    both = np.intersect1d(ours, theirs, assume_unique=True)
    return both if len(both) else None


def _joined(parts: list[Part]) -> list[Part]:
    """The same parts, with adjacent slices joined."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, slice) and isinstance(last, slice) and last.stop == part.start:
            joined[-1] = slice(last.start, part.stop)
        else:
            joined.append(part)
    return joined
