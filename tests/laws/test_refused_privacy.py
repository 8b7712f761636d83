"""Combinations without a proof are refused, each with what to do; those beside them are not."""

from __future__ import annotations

from typing import Any

import pytest
from small import algorithm

from mpifed import Privacy
from mpifed.core.refusals import messages
from mpifed.maths.privacy.settings import conflicts

PAPER, SUMS = {"noise": "paper"}, {"level": "client", "trust": "distributed"}
COINS = {"level": "client", "trust": "central", "sampling": "poisson"}
AVG = {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
PDM = {"name": "fedpdm", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}, "rho": 2.0, "local_steps": 2}
PLAIN = {"name": "softmax", "bias": False}
CONCAVE = PLAIN | {"nonconvex_penalty": 0.1}
# algorithm, [privacy], [model], what the message says; nothing where there is none
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = {
    "epochs": (AVG | {"local_epochs": 1}, {}, PLAIN, ["local_epochs", "give local_steps"]),
    "a record twice": (
        AVG | {"local_steps": 6}, PAPER, PLAIN, ["6 local steps of batch 4 take 24 records", "client 1 has 20"],
    ),
    "steps that tell": (PDM | {"tolerance": 0.1}, PAPER, PLAIN, ["tolerance = 0", 'noise = "secure"']),
    "models that remember": (PDM | {"start": "own"}, PAPER, PLAIN, ['start = "server"']),
    "two gradients a step": (AVG | {"name": "fedsam", "local_steps": 2}, {}, PLAIN, ['take level = "client"']),
    "two gradients, upload": (AVG | {"name": "delta-sgd"}, PAPER, PLAIN, ['take level = "client"']),
    "own start, gradients": (PDM | {"start": "own", "tolerance": 0.1}, {}, CONCAVE, []),
    "own start, clients": (PDM | {"start": "own"}, SUMS, PLAIN, []),
    "all records once": (AVG | {"local_steps": 5}, PAPER, PLAIN, []),
    "public and concave": (PDM, PAPER, CONCAVE, []),
    "sums": (AVG | {"local_steps": 2}, SUMS, PLAIN, []),
    "two gradients, clients": (AVG | {"name": "fedsam", "local_steps": 2}, SUMS, PLAIN, []),
    "one gradient": (AVG | {"name": "fedspeed", "alpha": 0.1, "rho": 0.0}, PAPER, PLAIN, []),
}  # fmt: skip


@pytest.mark.parametrize(("table", "privacy", "objective", "said"), CASES.values(), ids=CASES)
def test_a_method_with_privacy(table: Any, privacy: Any, objective: Any, said: list[str]) -> None:
    found = algorithm(table, privacy, [40, 20], 3, 3, objective, wrong=True).check()
    assert len(found) == bool(said)
    assert all(message.startswith(("[algorithm] ", "[privacy] ")) for message in found)
    assert all(part in message for part in said for message in found)


NOT_LOCAL = 'use trust = "local", or level = "client"'


@pytest.mark.parametrize(("settings", "said"), [
    ({}, None), (COINS, None), (SUMS, None), (PAPER, None),
    ({"trust": "central"}, NOT_LOCAL), ({"trust": "distributed"}, NOT_LOCAL),
    (COINS | {"trust": "local"}, 'with trust = "central"'), (SUMS | {"sampling": "poisson"}, 'with trust = "central"'),
    ({"sampling": "poisson"}, 'use level = "client" with trust = "central"'),
    (PAPER | {"level": "client"}, 'stated for level = "sample"'),
])  # fmt: skip
def test_settings_of_privacy(settings: dict[str, Any], said: str | None) -> None:
    found = messages(conflicts(Privacy(delta=1e-5, clip=1.0, epsilon=1.0, **settings)))
    assert len(found) == (said is not None)
    assert all(message.startswith("[privacy] ") and str(said) in message for message in found)
