"""What exchanges have cost: bytes as a deployment would send them, seconds of cryptography, arithmetic and waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from mpifed.comm.transport import Transport
from mpifed.core.record import Array

_OF_RANKS = ("crypto_s", "answer_s", "work_s", "tell_s", "sum_s")  # which every rank counts for itself


class Spent(NamedTuple):
    """What one play of an exchange costs, or all so far, as a deployment would have it; on rank 0."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_most: int = 0  # bytes of the client who sends most, each time
    down_most: int = 0  # of the client who is told most
    sealed_most: int = 0  # values that the client who sends most sends, where they are to be sealed
    opened_most: int = 0  # values that who opens most opens
    up_clear: int = 0  # bytes of a sum that is opened for the server, by whoever opens it
    down_clear: int = 0  # bytes of the question, of the client who is asked most
    added: int = 0  # values that the server adds up


class Account:
    """What an exchange has cost so far."""

    up_bytes: int
    down_bytes: int

    def __init__(self) -> None:
        self.played = 0
        vars(self).update(Spent()._asdict())
        self.crypto_s = 0.0  # of this rank
        self.answer_s = 0.0  # of this rank: the slowest client's arithmetic, each time
        self.server_s = 0.0  # on rank 0: asking and absorbing
        self.work_s = 0.0  # of this rank: all that its clients do, and adding it up; gathered, the most of a rank
        self.idle_s = 0.0  # gathered: what the mean rank did less than that
        self.tell_s = 0.0  # of this rank: until it has the question; gathered, the least: that of who comes last
        self.sum_s = 0.0  # of this rank: until the sum over the ranks is there; gathered, the least
        self.wait_s = 0.0  # gathered: what the mean rank took longer, waiting for the last

    def add(self, spent: Spent) -> None:
        """One play more."""
        mine = vars(self)
        for name, value in zip(Spent._fields, spent, strict=True):
            mine[name] += value

    def numbers(self) -> dict[str, float]:
        """By name."""
        return dict(vars(self))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds within as cryptography."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.crypto_s += time.perf_counter() - start


def gathered(
    transport: Transport, found: Mapping[str, Account], before: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """What accounts by name say of all ranks, and `before`; whole on rank 0. Collective."""
    told = transport.gather([[getattr(account, name) for name in _OF_RANKS] for account in found.values()])
    seconds = np.array(told or np.zeros((1, len(found), len(_OF_RANKS))))  # [ranks, accounts, kinds]
    totals = {name: dict(cost) for name, cost in before.items()}
    for i, (name, account) in enumerate(found.items()):
        cost = account.numbers() | _over_ranks(*seconds[:, i].T)
        totals[name] = {key: value + totals.get(name, {}).get(key, 0) for key, value in cost.items()}
    return totals


def _over_ranks(crypto: Array, answer: Array, work: Array, tell: Array, sum_: Array) -> dict[str, float]:
    """From the seconds [ranks] of each rank, those of the run: cryptography is that of all ranks together."""
    return {
        "crypto_s": float(crypto.sum()),
        "answer_s": float(answer.max()),
        "work_s": float(work.max()),
        "idle_s": float(work.max() - work.mean()),
        "tell_s": float(tell.min()),
        "sum_s": float(sum_.min()),
        "wait_s": float(sum_.mean() - sum_.min()),
    }
