"""What clients of each algorithm send gives the gradient of the row that they drew, and so the row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attacked import digits

from mpifed import SGD, PowerDecay, ServerSGD, StepSize
from mpifed.algorithms.revealed import fedpdm_moved, of_statistics, of_step, wide
from mpifed.algorithms.ssca_horizontal import SSCAHorizontal
from mpifed.audit.attacks.matching import match
from mpifed.audit.attacks.reconstruction import direction, reconstruct
from mpifed.core.block import Block
from mpifed.core.exchange import Problem
from mpifed.core.record import leaves, map_leaves, zeros
from mpifed.core.round import SETUP, Round
from mpifed.maths.objectives import Softmax
from mpifed.testing import ALGORITHMS

X, Y = digits()
COUNTS = (9, 5)
SHARDS = [slice(0, 9), slice(9, 14)]
CONCAVE = Softmax(l2=0.05, bias=True, nonconvex_penalty=0.02)
STEP = SGD(PowerDecay(0.4, 0.1))
HYPER: dict[str, dict[str, Any]] = {
    "fedavg": {"client_optimizer": STEP, "server_optimizer": ServerSGD(momentum=0.5)},
    "fedprox": {"client_optimizer": STEP, "mu": 0.7},
    "scaffold": {"client_optimizer": STEP, "server_optimizer": ServerSGD(0.8)},
    "fedpdm": {"client_optimizer": STEP, "rho": 2.0},
    "ssca-horizontal": {"rho": StepSize(0.9, 0.3), "gamma": StepSize(0.9, 0.35), "tau": 2.0},
}


class Heard:
    """What one client sent in one round, and what stood behind it."""

    def __init__(self, question: Any, value: Any, weight: float, row: int) -> None:
        self.question, self.value, self.weight = question, value, weight
        self.moved = map_leaves(lambda leaf: leaf / weight, value)
        self.row = row  # among all rows


def played(name: str, shard: Any, rounds: int, batch_size: int = 1, **more: Any) -> tuple[Any, list[list[Heard]]]:
    """(algorithm, what each client sent in each round), the server going on by itself."""
    objective = Softmax(l2=0.05, bias=True) if name.startswith("ssca") else CONCAVE
    problem = Problem(objective, "rows", np.array(COUNTS), sum(COUNTS), 64, 10)
    kind = SSCAHorizontal if name == "ssca-horizontal" else ALGORITHMS[name]
    one: Any = kind(problem=problem, batch_size=batch_size, **HYPER[name], **more)
    assert one.check() == []
    block = Block(tuple(shard(i, X[part], Y[part]) for i, part in enumerate(SHARDS)))
    everybody = Round(SETUP, 3, np.ones(2, dtype=bool))
    server, states = one.start_server(everybody), one.start_clients(block, everybody)
    (exchange,), heard = one.exchanges, []
    for index in range(rounds):
        now = everybody._replace(index=index)
        question = exchange.ask(server, now)
        states, answer = exchange.answer(states, question, block, now)
        rows = block.draw(now, "minibatch", batch_size)
        sent = [
            Heard(question, map_leaves(lambda leaf, i=i: leaf[i], answer.value), answer.weight[i], start + rows[i, 0])
            for i, start in enumerate((0, COUNTS[0]))
        ]
        heard.append(sent)
        server = exchange.absorb(server, map_leaves(lambda leaf: leaf.sum(axis=0), answer), now)
    return one, heard


def by_hand(model: Any, row: int) -> Any:
    """(first, bias) of softmax regression at one row, written out."""
    z = X[row] @ model.first + model.head.bias
    slope = np.exp(z) / np.exp(z).sum() - (np.arange(10) == Y[row])
    return np.outer(X[row], slope), slope


def check(one: Any, heard: Heard, gradient: Any) -> None:
    """It is that of the row, and gives the row."""
    for (name, seen), true in zip(leaves(gradient), by_hand(heard.question.model, heard.row), strict=True):
        np.testing.assert_allclose(seen, true, atol=3e-6, err_msg=name)
    tried = reconstruct(one.problem.objective, heard.question.model, gradient)
    found = match(tried.row, X)
    assert (found.at, found.verdict, tried.label) == (heard.row, "row", Y[heard.row])
    assert tried.claimed


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_a_step_of(name: str, array_shard: Any) -> None:
    one, heard = played(name, array_shard, rounds=3)
    for sent in heard:
        for upload in sent:
            step = float(upload.question.step)
            check(one, upload, of_step(one.problem.objective, upload.question.model, upload.moved, step))


def test_a_step_of_scaffold(array_shard: Any) -> None:
    """The server follows the clients' control variates; who does not cannot take them off."""
    one, heard = played("scaffold", array_shard, rounds=3)
    for client in range(2):
        own = zeros(heard[0][client].moved)
        for index, sent in enumerate(heard):
            upload = sent[client]
            common, step = upload.question.control, float(upload.question.step)
            blind = of_step(one.problem.objective, upload.question.model, upload.moved, step)
            check(one, upload, map_leaves(lambda g, c_i, c: g + (c_i - c), blind, own, common))
            if index:
                assert not reconstruct(one.problem.objective, upload.question.model, blind).claimed
            own = map_leaves(lambda c_i, c, d, step=step: c_i - c - d / step, own, common, wide(upload.moved))


def test_a_step_of_fedpdm(array_shard: Any) -> None:
    one, heard = played("fedpdm", array_shard, rounds=3)
    for client in range(2):
        dual = zeros(heard[0][client].moved)
        for sent in heard:
            upload = sent[client]
            moved, step = fedpdm_moved(upload.moved, dual, one.rho), float(upload.question.step)
            blind = of_step(one.problem.objective, upload.question.model, moved, step)
            check(one, upload, map_leaves(np.add, blind, dual))
            dual = map_leaves(lambda own, y: (own - one.rho * y) / 2, dual, wide(upload.moved))


def test_statistics_of_ssca(array_shard: Any) -> None:
    one, heard = played("ssca-horizontal", array_shard, rounds=3)
    for sent in heard:
        for upload in sent:
            check(one, upload, of_statistics(upload.value.gradient, upload.weight))


def test_recursive_statistics_keep_the_direction(array_shard: Any) -> None:
    _, heard = played("ssca-horizontal", array_shard, rounds=3, variance_reduction="recursive")
    for sent in heard:
        for upload in sent:
            along, rank_one = direction(of_statistics(upload.value.gradient, upload.weight).first)
            found = match(along, X)
            assert rank_one < 1e-5
            assert (found.at, found.verdict) == (upload.row, "direction")


@pytest.mark.parametrize("settings", [{"batch_size": 5}, {"local_steps": 5}])
def test_more_rows_give_none(settings: dict[str, Any], array_shard: Any) -> None:
    """A batch of five, and five steps of one, are more than one row."""
    one, heard = played("fedavg", array_shard, rounds=2, **settings)
    for sent in heard:
        for upload in sent:
            gradient = of_step(one.problem.objective, upload.question.model, upload.moved, float(upload.question.step))
            tried = reconstruct(one.problem.objective, upload.question.model, gradient)
            assert not tried.claimed
            assert match(tried.row, X).verdict != "row"
