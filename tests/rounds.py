"""Runs of HyFDCA and the bundle method, round by round, for tests: what the states are, and what is measured."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from records import record_of

from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.testing import Job, rounds


class Seen(NamedTuple):
    """After a round."""

    w: Any  # [p] of the server's state
    model: Any  # [p]
    alpha: Any  # [N] of the clients' states; None for the bundle method
    told: list[Any]  # of every client [s_i], what it knows of alpha
    columns: dict[str, float | None]  # measured
    server: Any


def rounds_of(job: Job, measured: int = 1) -> list[Seen]:
    """All rounds of a job on one rank; the last ones of every so many are measured, with 0 none."""
    _, *played = rounds(job, measured=measured)
    data = open_federation(job.data.path)
    held = [shard_of(data, i).rows for i in range(data.clients)]
    found = []
    for after in played:
        w = after.server["w" if "w" in after.server else "best"]
        alpha, told = alpha_of(data.samples, held, job, after) if "w" in after.server else (None, [])
        found.append(Seen(w, after.model["first"][:, 0], alpha, told, after.columns, record_of(after.server)))
    return found


def alpha_of(N: int, held: list[Any], job: Job, after: Any) -> tuple[Any, list[Any]]:
    """What the clients of HyFDCA keep: the sum of the steps they have sent, or alpha, which all holders know alike."""
    summed, known, told = np.zeros(N), np.full(N, np.nan), []
    searches = job.algorithm.get("rule", "line-search") == "line-search"
    for rows, state in zip(held, after.clients, strict=True):
        own = slice(0, len(rows))
        alpha = state["alpha"][own].astype(float)
        if searches:
            alpha = alpha + float(after.server["part"]) * state["other"][own]
        told.append(alpha)
        if "sent" in state:
            summed[rows] += state["sent"][own]
        else:
            before = known[rows]
            assert (np.isnan(before) | (before == alpha)).all()  # whoever holds a sample knows the same
            known[rows] = alpha
    return (summed if np.isnan(known).any() else known), told
