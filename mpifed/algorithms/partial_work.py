"""How much local work each client does in a round, where that differs: by draws, as stragglers, by time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mpifed.core.exchange import Method
from mpifed.core.record import Array, beside
from mpifed.core.round import Round, uniform


def repeats_of(method: Method, now: Round, clients: Array) -> Array:
    """[n] how many local passes, or steps, clients do in a round; a straggler from one to all but one.

    They depend on the seed, the round and the client alone, on who is a straggler, and on what time allows.
    """
    high = np.full(len(clients), method.repeats)
    if method.problem.steps_in_time is not None:
        of_one = method.steps_of(method.problem.counts[clients], np.int64(1))
        high = (method.problem.steps_in_time[clients] // of_one).clip(1, high)
    low = np.minimum(method.local_least or method.repeats, high)
    if now.slow is not None:
        low[now.slow[clients]] = 1
        high -= now.slow[clients]
    level = uniform(now.words_of_clients("local work", clients).view(np.uint64))
    repeats: Array = low + (level * (high - low + 1)).astype(np.int64)
    return repeats


def by_steps(local: Method, given: Callable[[float, int], float]) -> Array:
    """[n, 1] what is given of the step size and each client's number of steps."""
    each = [given(local.step, count) for count in local.method.taken(local.now, local.block.clients).tolist()]
    return beside(local.block.shards[0].y, np.array(each, local.problem.dtype)[:, None])
