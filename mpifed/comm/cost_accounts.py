"""Costs of exchanges: bytes as a deployment would send them, seconds of cryptography, arithmetic and waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from mpifed.comm.transport import Transport
from mpifed.core.record import Array

_PER_RANK = ("crypto_s", "answer_s", "work_s", "tell_s", "sum_s")  # measured on every rank


class Spent(NamedTuple):
    """Cost of running an exchange once, or of all its runs so far, as in a deployment; on rank 0."""

    up_bytes: int = 0
    down_bytes: int = 0
    up_most: int = 0  # bytes uploaded by the client who uploads most, each time
    down_most: int = 0  # bytes received by the client who receives most
    sealed_most: int = 0  # values of the largest upload, where uploads are masked or encrypted
    opened_most: int = 0  # values unmasked or decrypted by the party who opens most
    up_clear: int = 0  # bytes of an opened sum sent to the server by the client who opened it
    down_clear: int = 0  # bytes of the broadcast, to the client who receives most of it
    added: int = 0  # values that the server sums


class CostAccount:
    """Accumulated cost of an exchange."""

    up_bytes: int
    down_bytes: int

    def __init__(self) -> None:
        self.played = 0
        vars(self).update(Spent()._asdict())
        self.crypto_s = 0.0  # of this rank
        self.answer_s = 0.0  # of this rank: arithmetic of the slowest client, each time
        self.server_s = 0.0  # on rank 0: `ask` and `absorb`
        self.work_s = 0.0  # of this rank: all its clients' arithmetic and summing; gathered, the maximum
        self.idle_s = 0.0  # gathered: maximum minus mean of `work_s` over ranks
        self.tell_s = 0.0  # of this rank: until the broadcast is there; gathered, the minimum
        self.sum_s = 0.0  # of this rank: until the reduction is done; gathered, the minimum
        self.wait_s = 0.0  # gathered: mean minus minimum of `sum_s`: waiting for the last rank

    def add(self, spent: Spent) -> None:
        totals = vars(self)
        for name, value in zip(Spent._fields, spent, strict=True):
            totals[name] += value

    def numbers(self) -> dict[str, float]:
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
    transport: Transport, accounts: Mapping[str, CostAccount], before: Mapping[str, Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """The accounts, by name, combined over all ranks and added to `before`; complete on rank 0 only. Collective."""
    rows = transport.gather([[getattr(account, name) for name in _PER_RANK] for account in accounts.values()])
    seconds = np.array(rows or np.zeros((1, len(accounts), len(_PER_RANK))))  # [ranks, accounts, kinds]
    totals = {name: dict(cost) for name, cost in before.items()}
    for i, (name, account) in enumerate(accounts.items()):
        cost = account.numbers() | _over_ranks(*seconds[:, i].T)
        totals[name] = {key: value + totals.get(name, {}).get(key, 0) for key, value in cost.items()}
    return totals


def _over_ranks(crypto: Array, answer: Array, work: Array, tell: Array, sum_: Array) -> dict[str, float]:
    """Seconds of the run from those [ranks] of each rank; cryptography is summed over all ranks."""
    return {
        "crypto_s": float(crypto.sum()),
        "answer_s": float(answer.max()),
        "work_s": float(work.max()),
        "idle_s": float(work.max() - work.mean()),
        "tell_s": float(tell.min()),
        "sum_s": float(sum_.min()),
        "wait_s": float(sum_.mean() - sum_.min()),
    }
