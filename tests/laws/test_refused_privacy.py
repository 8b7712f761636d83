"""Combinations of algorithm and [privacy] without a proof are refused, each with what to do."""

from __future__ import annotations

from typing import Any

import pytest
from small import algorithm

PAPER = {"noise": "paper"}
AVG = {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
PDM = {"name": "fedpdm", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}, "rho": 2.0, "local_steps": 2}
SUMS = {"level": "client", "trust": "distributed"}
PLAIN = {"name": "softmax", "bias": False}
# algorithm, [privacy], [model], what the message says
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = {
    "epochs": (AVG | {"local_epochs": 1}, {}, PLAIN, ["local_epochs", "give local_steps"]),
    "a record twice": (
        AVG | {"local_steps": 6}, PAPER, PLAIN, ["6 local steps of batch 4 take 24 records", "client 1 has 20"],
    ),
    "steps that tell": (PDM | {"tolerance": 0.1}, PAPER, PLAIN, ["tolerance = 0", 'noise = "secure"']),
    "models that remember": (PDM | {"start": "own"}, PAPER, PLAIN, ['start = "server"']),
    "two gradients a step": (AVG | {"name": "fedsam", "local_steps": 2}, {}, PLAIN, ['take level = "client"']),
    "two gradients, upload": (AVG | {"name": "delta-sgd"}, PAPER, PLAIN, ['take level = "client"']),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_what_is_refused(case: Any) -> None:
    table, privacy, objective, said = case
    (message,) = algorithm(table, privacy, [40, 20], 3, 3, objective, wrong=True).check()
    assert message.startswith(("[algorithm] ", "[privacy] "))
    assert all(part in message for part in said)


ALLOWED: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "own start, gradients": (PDM | {"start": "own", "tolerance": 0.1}, {}, PLAIN | {"nonconvex_penalty": 0.1}),
    "own start, clients": (PDM | {"start": "own"}, SUMS, PLAIN),
    "all records once": (AVG | {"local_steps": 5}, PAPER, PLAIN),
    "public and concave": (PDM, PAPER, PLAIN | {"nonconvex_penalty": 0.1}),
    "sums": (AVG | {"local_steps": 2}, SUMS, PLAIN),
    "two gradients, clients": (AVG | {"name": "fedsam", "local_steps": 2}, SUMS, PLAIN),
    "one gradient": (AVG | {"name": "fedspeed", "alpha": 0.1, "rho": 0.0}, PAPER, PLAIN),
}


@pytest.mark.parametrize("case", ALLOWED.values(), ids=ALLOWED)
def test_what_is_next_to_it_is_not(case: Any) -> None:
    table, privacy, objective = case
    assert algorithm(table, privacy, [40, 20], 3, 3, objective, wrong=True).check() == []
