"""Runs of HyFDCA and the bundle method, round by round, for tests: what the states are, and what is measured."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpifed.comm.transport import Alone
from mpifed.core.exchange import play
from mpifed.core.round import SETUP, Round
from mpifed.job.job import Job
from mpifed.job.participation import returning, round_of
from mpifed.run.evaluation import measure
from mpifed.run.setup import prepare


class Seen(NamedTuple):
    """After a round."""

    w: Any  # [p] of the server's state
    model: Any  # [p]
    alpha: Any  # [N] of the clients' states; None for the bundle method
    told: list[Any]  # of every client [s_i], what it knows of alpha
    columns: dict[str, float]  # measured
    server: Any


def rounds_of(job: Job, measured: int = 1) -> list[Seen]:
    """All rounds of a job on one rank; the last ones of every so many are measured, with 0 none."""
    at = prepare(job, Alone())
    clients, aggregator = at.aggregator.clients, at.aggregator
    everybody = Round(SETUP, job.seed, np.ones(clients, dtype=bool))
    server, states = play(at.algorithm.setup, at.server, at.clients, everybody, aggregator)
    found = []
    for index in range(job.rounds):
        now = returning(job, round_of(job, clients, index))
        server, states = play(at.algorithm.exchanges, server, states, now, aggregator)
        columns: dict[str, Any] = {}
        if measured and (index + 1) % measured == 0:
            here = everybody._replace(index=index)
            columns, _ = measure(
                at.algorithm.measures, at.algorithm, server, aggregator.blocks, states, here, aggregator, None
            )
        w = server.w if hasattr(server, "w") else server.best
        model = at.algorithm.model(server).first[:, 0]
        alpha, told = alpha_of(at, server, states) if hasattr(server, "w") else (None, [])
        found.append(Seen(np.array(w), np.array(model), alpha, told, columns, server))
    return found


def alpha_of(at: Any, server: Any, states: list[Any]) -> tuple[Any, list[Any]]:
    """What the clients of HyFDCA keep: the sum of the steps they have sent, or alpha, which all holders know alike."""
    N = at.algorithm.problem.samples
    summed, known, told = np.zeros(N), np.full(N, np.nan), []
    for block, state in zip(at.aggregator.blocks, states, strict=True):
        for i, shard in enumerate(block.shards):
            own = slice(0, shard.samples)
            alpha = state.alpha[i, own].astype(float)
            if np.size(server.part):
                alpha = alpha + float(server.part) * state.other[i, own]
            told.append(alpha)
            if len(state.sent):
                summed[shard.rows] += state.sent[i, own]
            else:
                before = known[shard.rows]
                assert (np.isnan(before) | (before == alpha)).all()  # whoever holds a sample knows the same
                known[shard.rows] = alpha
    return (summed if np.isnan(known).any() else known), told
