"""What an upload after local steps reveals: the mean gradient of the loss, whatever else has moved the clients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked

from mpifed.algorithms.reveals import Received
from mpifed.audit.reveals import revealed
from mpifed.core.record import map_leaves
from mpifed.core.round import Round
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.maths.problem import Weighted
from mpifed.run.setup import prepare
from mpifed.testing import Solo, minibatches

STEP = 1e-6  # so small that gradients are the same on the way
STEPS = {"batch_size": 1000, "local_steps": 3}  # of all rows
METHODS: dict[str, dict[str, Any]] = {
    "momentum": STEPS | {"name": "fedavg", "client_optimizer": {"momentum": 0.6, "weight_decay": 0.3}},
    "nesterov": STEPS | {"name": "fedavg", "client_optimizer": {"momentum": 0.6, "nesterov": True}},
    "pull": STEPS | {"name": "fedprox", "mu": 0.4 / STEP},
    "twice the change": STEPS | {"name": "fedpdm", "rho": 0.4 / STEP, "local_rule": "paper"},
    "a drift": STEPS | {"name": "fedcm", "alpha": 0.3},
    "a whole gradient": STEPS | {"name": "mime-lite", "alpha": 0.3},
    "a whole gradient beside clipped ones": STEPS | {"name": "mime-lite", "client_optimizer": {"clip_norm": 0.01}},
    "steps until a coin": {"name": "proxskip", "batch_size": 1000, "p": 0.3},
    "a gradient before": STEPS | {"name": "mime"},
    "a gradient before, and steps": STEPS | {"name": "fedlin"},
    "uneven steps": {"name": "scaffold", "batch_size": 16, "local_epochs": 2},
    "a drawn number": {"name": "fedavg", "batch_size": 16, "local_epochs": 3, "local_least": 1},
    "normalized": {"name": "fednova", "batch_size": 16, "local_epochs": 2},
}


@pytest.mark.parametrize("clients", [(3,), (1, 4, 6)], ids=["one", "sum"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_it_is_the_mean_gradient(skewed: Path, method: dict[str, Any], clients: tuple[int, ...]) -> None:
    """Of several clients the mean by their rows and steps, or normalized by rows alone."""
    data, who = open_federation(skewed), np.array(clients)
    job = checked(
        {
            "name": "revealed", "rounds": 1, "data": {"path": str(skewed), "block": data.clients},
            "algorithm": method | {"client_optimizer": {"learning_rate": STEP, **method.get("client_optimizer", {})}},
            "model": {"name": "softmax", "bias": True, "l2": 0.2}, "compute": {"dtype": "float64"},
        }
    )  # fmt: skip
    ready, now = prepare(job, Solo()), Round(0, job.seed, np.ones(data.clients, dtype=bool))
    one, (block,), (states,) = ready.algorithm, ready.ranks.blocks, ready.clients
    exchange = one.exchanges[0]
    at = np.random.default_rng(1).normal(size=ready.server.model.shape)
    memory = ready.server.memory if one.guard.work.remembers else map_leaves(lambda m: m + at, ready.server.memory)
    question = exchange.ask(ready.server._replace(model=at, memory=memory), now)
    sent = exchange.answer(states, question, block, now)[1]
    answer = Weighted(map_leaves(lambda leaf: leaf[who].sum(axis=0), sent.value), sent.weight[who].sum())
    received = Received(exchange, 1, question, answer, clients, np.arange(0), np.arange(data.features), now)
    found = revealed(one.in_round(now), received)

    total, weight, model = 0.0, 0.0, one.record(at)
    for i in clients:
        shard = shard_of(data, i)
        X = np.empty((shard.samples, shard.features))
        shard.take(np.arange(shard.samples), X)
        batches = minibatches(job, 1, i)
        counted = shard.samples / (len(batches) if method["name"] == "fednova" else 1)
        for rows in batches:
            mean = np.full((1, len(rows)), 1 / len(rows))
            gradient = one.problem.objective.gradient(model, X[None, rows], shard.y[None, rows], mean)
            total, weight = total + counted * one.layout.flat(gradient)[0], weight + counted
    clips = "clip_norm" in method.get("client_optimizer", {})
    assert len(found) == (2 if method["name"] == "mime-lite" and not clips else 1)
    for mean in found:
        np.testing.assert_allclose(one.layout.flat(mean.gradient), total / weight, rtol=0, atol=1e-4)
    assert np.abs(total / weight).max() > 0.1
