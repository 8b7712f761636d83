"""The graph of clients that share pairwise masks, and the entries of a message that each pair masks.

Among few clients, every pair shares a mask. Among many, k neighbours for each client are enough, as long as the honest
clients that stay are connected: then their masks hide everything but their sum (Bell, Bonawitz, Gascon, Lepoint,
Raykova 2020, "Secure single-server aggregation with (poly)logarithmic overhead", CCS; eprint 2020/704). As there, the
graph is a Harary graph on the clients in random order: k/2 neighbours to each side of a ring. The order is public,
drawn once per run, and independent of who colludes and who leaves; pairs recur, and agree on keys only once.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.sums import Message
from mpifed.core.record import Integers
from mpifed.core.round import SETUP, Round


@lru_cache(maxsize=8)
def order(seed: int, clients: int) -> Integers:
    """[N] position of each client on the ring; alike on all ranks."""
    nobody = np.zeros(0, dtype=bool)
    return Round(SETUP, seed, nobody).rng("masks").permutation(clients)


def neighbours(asked: Integers, k: int, places: Integers) -> dict[int, Integers]:
    """Neighbours, ascending, of each participating client; a symmetric relation.

    Parameters
    ----------
    asked : [n] participating clients, ascending
    k : number of neighbours, even; where n - 1 <= k, all other clients
    places : [N] positions on the ring
    """
    n = len(asked)
    if n - 1 <= k:
        return {client: asked[asked != client] for client in asked.tolist()}
    ring = asked[np.argsort(places[asked])]
    steps = np.r_[-(k // 2) : 0, 1 : k // 2 + 1]
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
        cut = n * n / 2 * np.exp(_log_comb(removed, k) - _log_comb(n, k))
        i = np.arange(k - leaving, min(corrupt, k) + 1 if leaving else 0)
        rebuilt = n * np.exp(_log_comb(corrupt, i) + _log_comb(n - 1 - corrupt, k - i) - _log_comb(n - 1, k)).sum()
        if max(cut, rebuilt) <= chance:
            return k
    return max(n - 1, 0)


def _log_comb(n: int, k: int | Integers) -> NDArray[np.float64]:
    """Logarithm of the number of ways to choose k of n, which itself no float holds where clients are many."""
    from scipy.special import gammaln

    logs: NDArray[np.float64] = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - np.asarray(k) + 1)
    return logs


class MaskGraph:
    """Pairwise masks of a message among the participating clients; alike on all ranks.

    Entries that all clients fill are masked along the graph. Columns, or rows, that not all clients hold are masked by
    all pairs of their holders, since these are few; the entries of a single client cannot be hidden from the receiver
    of the sum.
    """

    def __init__(self, message: Message, asked: Integers, k: int, places: Integers) -> None:
        self._message, self.asked, self.near = message, asked, neighbours(asked, k, places)
        self._others = [None if unit.by_all else asked[unit.who[asked]] for unit in message.units]
        self._partners: dict[int, dict[int, tuple[int, ...]]] = {}

    @cached_property
    def degrees(self) -> Integers:
        """[n] with how many others each participating client shares masks."""
        along = all(others is None for others in self._others)
        return np.array([len(self.near[client] if along else self.partners(client)) for client in self.asked.tolist()])

    def partners(self, client: int) -> dict[int, tuple[int, ...]]:
        """By client with whom it shares a mask, ascending, the numbers of the units that both mask."""
        if client not in self._partners:
            shared: dict[int, tuple[int, ...]] = {}
            for number in self._message.units_of(client):
                others = self._others[number]
                for other in (self.near[client] if others is None else others).tolist():
                    shared[other] = *shared.get(other, ()), number
            shared.pop(client, None)
            self._partners[client] = dict(sorted(shared.items()))
        return self._partners[client]
