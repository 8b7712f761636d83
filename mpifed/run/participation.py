"""Who takes part in a round, and who leaves it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Exchange
from mpifed.core.round import Leaving, Round, below, secret_rng

if TYPE_CHECKING:
    from mpifed.run.config import Job


def is_secure(job: Job) -> bool:
    """Whether what privacy rests on is drawn from the system's entropy."""
    return job.privacy is not None and job.privacy.noise == "secure"


def is_secret(job: Job, algorithm: Algorithm) -> bool:
    """Whether epsilon rests on that nobody knows who takes part; the algorithm's noise multiplier is settled."""
    return job.privacy is not None and bool(algorithm.released(0).by_chance)


def round_of(job: Job, clients: int, index: int, key: int | None = None) -> Round:
    """Round `index`, with its choice of who takes part: by the job's seed, or by a secret key where there is one."""
    some, privacy = job.participation.clients_per_round, job.privacy
    now = Round(index, job.seed, np.ones(clients, dtype=bool), is_secure(job))
    if some is None or some >= clients:
        return now
    rng = now.rng("participation") if key is None else secret_rng(key, index)
    if privacy is not None and privacy.by_coins:
        return now._replace(present=rng.random(clients) < below(some / clients))
    now.present[:] = False
    now.present[rng.choice(clients, some, replace=False)] = True
    return now


def most_summed(job: Job, algorithm: Algorithm, exchange: Exchange) -> int:
    """How many clients' answers an exchange adds up at most; on it rests what its integers must hold.

    All clients, unless so many are drawn for each round: what is measured and set up takes all, so do last answers of
    those who are absent, and nobody knows how many a coin for each client will bring.
    """
    some, clients = job.participation.clients_per_round, algorithm.problem.clients
    by_coins = job.privacy is not None and job.privacy.by_coins
    if some is None or by_coins or exchange.off_clock or exchange.stale:
        return clients
    if exchange.name in {one.name for one in algorithm.setup}:
        return clients
    return min(some, clients)


def returning(job: Job, now: Round, key: int | None = None) -> Round:
    """The round with those who are back after one without them."""
    if now.index == 0:
        return now._replace(returning=np.zeros_like(now.present))
    before = round_of(job, len(now.present), int(now.index) - 1, key)
    return now._replace(returning=now.present & ~before.present)


def next_round(
    job: Job, clients: int, exchanges: Sequence[Exchange], index: int, attempt: int = 0, key: int | None = None
) -> Round:
    """Round `index` as it is played, after so many attempts at it that were void: who takes part, leaves, is back."""
    now = leaving(job, round_of(job, clients, index, key), len(exchanges), attempt, key)
    # last answers of who is absent, which alone tell who was away before, do not go with clients who leave
    return returning(job, now, key) if any(exchange.stale or exchange.returning for exchange in exchanges) else now


def next_attempt(job: Job, now: Round, exchanges: Sequence[Exchange], attempt: int) -> int | None:
    """Which attempt follows on one that was void; None where the round counts, `attempts` where none may follow."""
    if not now.at(len(exchanges) - 1).void:
        return None
    # once a sum of the round was opened, one of the same answers but a few would tell the difference
    return attempt + 1 if now.at(0).void else job.participation.attempts


def first_rounds(job: Job, clients: int, exchanges: Sequence[Exchange], most: int = 200) -> Iterator[Round]:
    """The first rounds if nobody leaves, of a job in which not all take part; none where who does is secret."""
    some, privacy = job.participation.clients_per_round, job.privacy
    if some is None or some >= clients or (privacy is not None and (privacy.by_coins or is_secure(job))):
        return
    for index in range(min(job.rounds, most)):
        yield next_round(job, clients, exchanges, index)._replace(leaving=None)


def leaving(job: Job, now: Round, exchanges: int, attempt: int = 0, key: int | None = None) -> Round:
    """The round with those who leave in the course of so many exchanges, at any half of any of them.

    They are drawn by the job's seed, or by the secret key that draws who takes part. Then K of N clients are drawn
    uniformly, each leaves with the same chance whoever it is, and whether a round is void depends on how many leave.
    So given that a round counts, and that m have left, those who stay are a uniform draw of K - m of all N: a client is
    among them with a chance of at most K / N, the rate that the accountant takes. A void round releases nothing
    but that it was void, which depends on no data. (By coins K is secret, and clients who leave are refused.)

    Parameters
    ----------
    attempt : how often the round has been played before, and was void
    key : where who takes part is secret
    """
    table = job.participation
    if not table.dropout_rate:
        return now
    purpose = f"leaving {attempt}"
    rng = now.rng(purpose) if key is None else secret_rng(key, int(now.index), purpose)
    gone, halves = rng.random(len(now.present)) < table.dropout_rate, rng.integers(2 * exchanges, size=len(now.present))
    return now._replace(leaving=Leaving(now.present, np.where(gone, halves, 2 * exchanges), table.max_dropouts))
