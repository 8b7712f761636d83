"""Small private problems in memory, whose clients' answers are looked at one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpifed import Privacy, StepSize
from mpifed.core.record import Record, leaves, map_leaves
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.job.schema import CLIENT, SERVER
from mpifed.maths.objectives import OBJECTIVES
from mpifed.maths.problem import Problem
from mpifed.testing import ALGORITHMS

Rows = tuple[Any, Any]  # X [s, p], y [s] of a client


def algorithm(
    table: dict[str, Any],
    privacy: dict[str, Any],
    counts: Sequence[int],
    features: int,
    outputs: int,
    objective: dict[str, Any],
    wrong: bool = False,
    **more: Any,
) -> Any:
    """One that passes its own check unless it is to be `wrong`; [privacy] has clip 1 and no noise unless it says so."""
    settings = {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 0.0, "noise": "test", **privacy}
    known = dict(objective)
    problem = Problem(
        OBJECTIVES[known.pop("name")](**known), "rows", np.array(counts), sum(counts), features, outputs,
        more.pop("dtype", "float64"), privacy=Privacy(**settings), **more,
    )  # fmt: skip
    hyper = {name: StepSize(*v) if isinstance(v, list) else v for name, v in table.items() if name != "name"}
    kind = ALGORITHMS[table["name"]]
    for marked in (CLIENT, SERVER):
        if marked.table in hyper and (optimizer := marked.of(kind)):
            hyper[marked.table] = optimizer.make({"name": "sgd", **hyper[marked.table]})
    found = kind(problem=problem, **hyper)
    assert wrong or found.check() == []
    return found


def block_of(rows: Sequence[Rows], shard: type, dtype: str = "float64", first: int = 0) -> Block:
    """Clients `first`, ... together."""
    return Block(tuple(shard(first + i, X, y) for i, (X, y) in enumerate(rows)), dtype)


def answers(one: Any, block: Block, now: Round, model: Any = None, states: Any = None) -> tuple[Any, Any]:
    """(what the clients keep, [n, d] what each uploads, its weight taken out), for a server at `model` [d].

    Parameters
    ----------
    model : zeros when absent
    states : what the clients keep before; their start when absent
    """
    everybody = now.only(np.ones(one.problem.clients, dtype=bool))._replace(index=-1)
    server = one.start_server(everybody)
    if model is not None:
        server = server._replace(model=filled(server.model, model))
    server = server._replace(steps=np.int64(now.index))
    (exchange,) = one.exchanges
    states = one.start_clients(block, everybody) if states is None else states
    states, answer = exchange.answer(states, exchange.ask(server, now), block, now)
    value, weight = flat(answer.value), answer.weight[:, None]
    if one.problem.privacy.whole:  # integers, in steps of the grid
        value = value * one.problem.privacy.bound * 2.0**-one.guard.how.exponent
    return states, value / weight


def sensitivity(one: Any, index: int = 0) -> float:
    """How far an upload of round `index` can move, in units of the model."""
    privacy = one.problem.privacy
    return float(one.guard.sensitivity(one.step_of(index + 1)) if privacy.by_paper else privacy.bound)


def filled(like: Record, numbers: Any) -> Record:
    """A record of the shapes of `like`, made of these numbers: [d] of a model, or [n, d] of what n clients keep."""
    clients = numbers.shape[:-1]
    widths = [leaf.size // int(np.prod(clients)) for _, leaf in leaves(like)]
    parts = iter(np.split(numbers, np.cumsum(widths)[:-1], axis=-1))
    return map_leaves(lambda leaf: next(parts).reshape(leaf.shape).astype(leaf.dtype), like)


def flat(record: Record) -> Any:
    """[n, d] of leaves [n, ...]."""
    return np.concatenate([leaf.reshape(len(leaf), -1) for _, leaf in leaves(record)], axis=1)
