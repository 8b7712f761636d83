"""Which clients participate in a round, and which leave it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from mpifed.algorithms.algorithm import Algorithm
from mpifed.comm.sums import Arithmetic
from mpifed.core.exchange import Exchange
from mpifed.core.record import Integers
from mpifed.core.round import SETUP, Arrivals, Leaving, Round, below, secret_words, uniform
from mpifed.job.arrivals import answers, available, buffers
from mpifed.job.schema import JobSettings, Participation
from mpifed.job.trace import trace_of


def is_secure(job: JobSettings) -> bool:
    """Whether noise and keys are drawn from the system's entropy."""
    return job.privacy is not None and job.privacy.noise == "secure"


def is_secret(job: JobSettings, algorithm: Algorithm) -> bool:
    """Whether epsilon assumes that participation is secret; the algorithm must have its noise multiplier."""
    return job.privacy is not None and bool(algorithm.released().by_chance)


def round_of(job: JobSettings, clients: int, index: int, key: bytes | None = None) -> Round:
    """Round `index` with its participating clients, drawn by the job's seed, or by a secret key if given."""
    part, privacy, network = job.participation, job.privacy, job.simulated_network
    now = Round(index, job.seed, np.zeros(clients, dtype=bool), is_secure(job))
    if job.asynchrony is not None:
        answered, arrivals = arrived(job, clients, index)
        now.present[answered] = True
        return now._replace(drawn=answered, arrivals=arrivals)
    asked, secret = job.asked, None if key is None else uniform(secret_words(key, index)(clients))
    there = np.flatnonzero(available(network, job.seed, clients, index))
    if network is not None and network.unsteady and len(there) < needed(job):  # too few for a sum: nobody is asked
        there = there[:0]
    if asked is None or asked >= len(there):
        now.present[there] = True
        now = now._replace(drawn=there)
    elif privacy is not None and privacy.by_coins:
        coins = now.rng("participation").random(clients) if secret is None else secret
        now = now.only(coins < below(asked / clients))
    else:
        who = secret.argpartition(asked)[:asked] if secret is not None else None
        who = there[now.rng("participation").choice(len(there), asked, replace=False)] if who is None else who
        now.present[who] = True
        now = now._replace(drawn=np.sort(who))
    if not part.stragglers:
        return now
    slow, who = np.zeros_like(now.present), now.ids
    order = np.argsort(now.words_of_clients("stragglers", who))
    slow[who[order[: round(part.stragglers * len(who))]]] = True
    return now.only(now.present & ~slow) if part.drop_stragglers else now._replace(slow=slow)


def arrived(job: JobSettings, clients: int, index: int) -> tuple[Integers, Arrivals]:
    """Who answers in round `index` of a job with `[asynchrony]`, ascending, and their arrivals."""
    assert job.asynchrony is not None and job.simulated_network is not None  # as `check` says
    return buffers(job.asynchrony, job.simulated_network, job.seed, clients).at(index)


def needed(job: JobSettings) -> int:
    """How many must be asked for a sum that is opened, though as many leave as may."""
    most = job.participation.max_dropouts
    return max(job.min_clients + most, 2 * most + 2 if most else 1)  # as many as masks need, in every channel


@lru_cache(maxsize=4)
def _clock(job: str) -> list[float]:
    """Seconds after each round that was looked at, of a job given as text."""
    return [0.0]


def forget() -> None:
    """Read traces anew: an earlier run of this process may have had another one in the same file."""
    for cached in (trace_of, buffers, _clock):
        cached.cache_clear()


def virtual_seconds(job: JobSettings, clients: int, rounds: int) -> float:
    """Seconds of so many rounds by `[simulated_network] delay_s`."""
    if job.asynchrony is not None:
        return arrived(job, clients, rounds - 1)[1].at_s if rounds else 0.0
    clock = _clock(repr((job.participation, job.aggregation, job.simulated_network, job.seed, clients)))
    while len(clock) <= rounds:
        clock.append(clock[-1] + answers(job, round_of(job, clients, len(clock) - 1)).seconds)
    return clock[rounds]


def steps_in_time(job: JobSettings, clients: int) -> Integers | None:
    """[N] how many local steps clients have time for in a round; None without a deadline."""
    network = job.simulated_network
    if network is None or network.deadline_s is None or not network.speeds:
        return None
    speeds = np.array(network.speeds)
    if len(speeds) != clients:
        rng = Round(SETUP, job.seed, np.ones(clients, dtype=bool)).rng("speeds")
        speeds = speeds[rng.integers(len(speeds), size=clients)]
    # 0.29 s of 100 steps a second are 29; no more than fit
    steps: Integers = np.minimum(network.deadline_s * speeds * (1 + 1e-12), 2**31).astype(np.int64)
    return steps


def left_out(part: Participation, present: int) -> int:
    """How many of a round's clients are absent as stragglers, of so many."""
    return round((part.stragglers or 0) * present) if part.drop_stragglers else 0


def arithmetic(job: JobSettings, algorithm: Algorithm) -> Arithmetic:
    """How the sums of a run are made.

    The largest number of clients whose uploads are summed bounds the size of integers: all clients, unless a fixed
    number is drawn for each round. Evaluation and set-up take all clients, the last answers of absent clients go on
    counting, and with Poisson sampling the number of participants has no smaller bound.
    """
    problem, per_round, most = algorithm.problem, job.per_round, dict[str, int]()
    if per_round is not None and not (job.privacy is not None and job.privacy.by_coins):
        most = {
            exchange.name: min(per_round, problem.clients) for exchange in algorithm.exchanges if not exchange.keeps
        }
    by_blocks = job.aggregation.arithmetic == "exact-blocks"
    return Arithmetic(job.compute.dtype, job.aggregation.bounds, problem.target_scale, by_blocks, most)


def returning(job: JobSettings, now: Round, key: bytes | None = None) -> Round:
    """The round, with the participating clients who did not participate in the round before."""
    if now.index == 0:
        return now._replace(rejoining=np.zeros_like(now.present))
    before = round_of(job, len(now.present), int(now.index) - 1, key)
    return now._replace(rejoining=now.present & ~before.present)


def next_round(
    job: JobSettings,
    clients: int,
    exchanges: Sequence[Exchange],
    index: int,
    attempt: int = 0,
    key: bytes | None = None,
) -> Round:
    """Round `index` after `attempt` void attempts, with the clients who participate, leave, and return."""
    now = leaving(job, round_of(job, clients, index, key), len(exchanges), attempt)
    # last answers of absent clients, which alone need `rejoining`, are refused together with clients who leave
    return returning(job, now, key) if any(exchange.keeps or exchange.who for exchange in exchanges) else now


def next_attempt(job: JobSettings, now: Round, exchanges: Sequence[Exchange], attempt: int) -> int | None:
    """The number of the next attempt after a void one; None if the round counts, `attempts` if none may follow.

    What the network has made void passes as it is: the model stays.
    """
    if not now.at(len(exchanges) - 1).void or job.unsteady:
        return None
    # once a sum of the round was opened, another sum with a few clients fewer would reveal the difference
    return attempt + 1 if now.at(0).void else job.participation.attempts


def first_rounds(job: JobSettings, clients: int, exchanges: Sequence[Exchange]) -> Iterator[Round]:
    """The first 200 rounds without dropouts, where not all clients participate; empty where participation is secret."""
    per_round, privacy = job.per_round, job.privacy
    everybody = (per_round is None or per_round >= clients) and not job.participation.drop_stragglers
    if (everybody and not job.unsteady) or (privacy is not None and privacy.by_coins):
        return
    for index in range(min(job.rounds, 200)):
        yield next_round(job, clients, exchanges, index)._replace(leaving=None)


def leaving(job: JobSettings, now: Round, exchanges: int, attempt: int = 0) -> Round:
    """The round with the clients who leave in its course, in either half of any of its `exchanges`.

    They are drawn by the job's seed; where participation is secret, nobody may leave. `attempt` is how many attempts
    at the round were void before. Over an unsteady network those leave at once whose answers do not count.
    """
    table, network = job.participation, job.simulated_network
    if network is not None and job.unsteady and job.asynchrony is None and (network.loses or not now.present.any()):
        here, late = np.zeros_like(now.present), np.zeros_like(now.present)
        came = answers(job, now)
        here[now.ids], late[now.ids] = came.counted, came.late
        most = table.max_dropouts or len(now.ids)  # alike in every channel
        return now._replace(leaving=Leaving(now.present, np.where(here, 2 * exchanges, 0), most, late))
    if not table.dropout_rate:
        return now
    rng = now.rng(f"leaving {attempt}")
    gone, halves = rng.random(len(now.present)) < table.dropout_rate, rng.integers(2 * exchanges, size=len(now.present))
    return now._replace(leaving=Leaving(now.present, np.where(gone, halves, 2 * exchanges), table.max_dropouts))
