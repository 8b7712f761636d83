"""Costs of exchanges: bytes as a deployment would send them, seconds of cryptography, arithmetic and sums."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from mpifed.comm.mpi import Comm

# how numbers of the ranks become those of a run: seconds of cryptography and gradients are summed, of other seconds the
# slowest rank's count, and of a reduction, in which ranks wait for one another, the least
OVER_RANKS: dict[str, Callable[..., float]] = {
    "crypto_s": sum,
    "answer_s": max,
    "work_s": max,
    "sum_s": min,
    "gradients": sum,
}


class Spent(NamedTuple):
    """Cost of running an exchange once, as in a deployment; on rank 0."""

    up_bytes: int
    down_bytes: int
    up_most: int  # bytes uploaded by the client who uploads most, each time
    down_most: int  # bytes received by the client who receives most
    sealed_most: int  # integers of the largest upload, where uploads are masked or encrypted
    opened_most: int  # integers unmasked or decrypted by the party who opens most
    up_clear: int  # bytes of an opened sum sent to the server by the client who opened it
    down_clear: int  # bytes of the broadcast, to the client who receives most of it
    added: int  # integers that the server sums


class Account:
    """What an exchange has cost so far.

    Besides `Spent`: `played`, how often; seconds of this rank: `crypto_s`; `answer_s`, of the slowest block of clients
    each time, divided by their number; `work_s`, of all its clients: arithmetic, rounding and sealing; `sum_s`, until
    the reduction is done; `gradients`, rows of the minibatches that its clients have drawn; and on rank 0 `server_s`,
    `ask` and `absorb`.
    """

    def __init__(self) -> None:
        self.costs: dict[str, float] = dict.fromkeys((*Spent._fields, "played", *OVER_RANKS, "server_s"), 0)

    def add(self, spent: Spent) -> None:
        for name, value in zip(Spent._fields, spent, strict=True):
            self.costs[name] += value

    @contextmanager
    def timed(self, what: str = "crypto_s") -> Iterator[None]:
        """Count the seconds within, of cryptography by default."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.costs[what] += time.perf_counter() - start


def of_all_ranks(
    comm: Comm, costs: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """This rank's costs, by exchange, with those of the others, added to `before`; complete on rank 0. Collective."""
    rows, totals = comm.gather(costs) or [costs], {name: dict(cost) for name, cost in before.items()}
    for name, own in costs.items():
        cost = {**own} | {key: float(combine(row[name][key] for row in rows)) for key, combine in OVER_RANKS.items()}
        totals[name] = {key: value + totals.get(name, {}).get(key, 0) for key, value in cost.items()}
    return totals
