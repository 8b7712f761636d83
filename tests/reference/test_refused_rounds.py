"""What is refused of methods with local steps: settings that contradict each other, the method, or other tables."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from loops import PRIVATE, local_job

from mpifed.core.errors import UsageError
from mpifed.testing import rounds

LEAVING = {"participation": {"dropout_rate": 0.2, "max_dropouts": 1}}
MOMENTUM = {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.5}}
MASKED_FEW = {
    "participation": {"dropout_rate": 0.2, "max_dropouts": 2, "clients_per_round": 7},
    "aggregation": {"security": "masked"},
}
SLOW = {"participation": {"clients_per_round": 6, "stragglers": 0.5}}
DROPPED = {"participation": {"stragglers": 0.5, "drop_stragglers": True}}
TIMED = {
    "participation": {"clients_per_round": 6},
    "simulated_network": {"deadline_s": 0.29, "speeds": [100.0, 13.0, 0.5]},
}
L1 = {"regularizer": {"name": "l1", "weight": 0.01}}
UPLOAD = {"privacy": {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "noise": "paper"}}
SSCA: dict[str, Any] = {"rho": [0.5], "gamma": [0.5], "client_optimizer": None}
TWO, SGD, ADAMW = {"local_steps": 2}, {"learning_rate": 0.1}, {"name": "adamw", "learning_rate": 0.02}


def client(**settings: Any) -> dict[str, Any]:
    return {"client_optimizer": settings}


# name, [algorithm], other tables, what is said
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    # as many steps as a coin says, several exchanges, a baseline
    ("proxskip", {"p": 0.3, **TWO}, {}, "local_steps: a coin ends the local steps"),
    ("proxskip", {"p": 1e-8}, {}, "[algorithm] p: a client would draw 8000000000 rows"),
    ("proxskip", {"p": 0.3} | MOMENTUM, {}, "momentum = 0.5: control variates are of plain steps"),
    ("proxskip", {"p": 0.3}, LEAVING, "must hear what became of their uploads"),
    ("proxskip", {"p": 0.3}, PRIVATE["gradients"], "as many local steps as a coin says"),
    ("tamuna", {"p": 0.3, "senders": 4}, {"participation": {"clients_per_round": 3}}, "4 clients are to send each"),
    ("fedlin", MOMENTUM, {}, "K_i steps are of eta / K_i each"),
    ("fedlin", {}, PRIVATE["gradients"], "a gradient of all rows travels"),
    ("mime", {}, PRIVATE["upload"], "a gradient of all rows travels"),
    ("alone", {"server_optimizer": {"learning_rate": 0.5}}, {}, "the model is the mean of the clients', who take none"),
    ("mime", {}, MASKED_FEW, "masked sums need 8"),
    ("alone", {}, {"regularizer": {"name": "l1", "weight": 0.1}}, "[regularizer] L1: "),
    # a part of the work
    ("fedavg", {**TWO, "local_least": 3}, {}, "local_least = 3: more than local_steps = 2; lower it"),
    ("fedavg", {}, SLOW, "[algorithm] local_steps = 1: there is none that a client could leave out"),
    ("fedavg", {}, {"participation": {"stragglers": 1.0, "drop_stragglers": True}}, "all clients of a round would"),
    (
        "fedavg",
        TWO,
        {"simulated_network": {"deadline_s": 1.0, "name": "lte"}},
        "a deadline is of answers that take delay_s, or",
    ),
    ("fedavg", TWO, {"simulated_network": {"speeds": [1.0]}}, "at these speeds, which need one"),
    ("fedavg", TWO, {"simulated_network": {"deadline_s": 1.0, "speeds": [1.0] * 99}}, "speeds: 99 numbers for"),
    ("proxskip", {"p": 0.3}, TIMED, "speeds or [participation] stragglers: a coin ends the steps of all clients"),
    ("proxskip", {"p": 0.3}, SLOW, "speeds or [participation] stragglers: a coin ends the steps of all clients"),
    ("ssca", SSCA, TIMED, '[simulated_network] speeds: "ssca" takes no local'),
    ("ssca", SSCA, SLOW, '"ssca" takes no local steps on rows'),
    ("fedsplit", {"s": 1.0}, DROPPED, "needs all"),
    ("fedavg", TWO, SLOW | UPLOAD, "[participation] stragglers = 0.5: with [privacy] all clients take the local steps"),
    ("fedavg", {"local_epochs": 3, "local_least": 1}, L1, "with a [regularizer] all clients must take as many steps"),
    # optimizers
    ("scaffold", client(**ADAMW), {}, '[client_optimizer] name = "adamw": control variates are of plain steps'),
    ("fedpdm", {"rho": 1.0, **client(**ADAMW)}, {}, '[client_optimizer] name = "adamw": the dual variables are those'),
    ("fedavg", client(**ADAMW), L1, "[client_optimizer] name: with a [regularizer]"),
    ("fedavg", client(**ADAMW), UPLOAD, '[client_optimizer] name = "adamw": the paper'),
    ("fedavg", client(**SGD, clip_norm=0.7), UPLOAD, "[client_optimizer] clip_norm = 0.7: the paper's"),
    ("scaffold", client(**SGD, local_schedule={"name": "cosine", "initial": 1.0, "rounds": 1}), {}, "rate: ends at 0"),
    ("fedavg", client(name="adam"), {}, '[client_optimizer] name = "adam": is not known'),
    ("fedavg", client(**ADAMW, local_schedule={"initial": 1.0, "every": 2}), {}, "every: unknown key"),
    ("fedavg", client(**ADAMW, momentum=0.9), {}, "[client_optimizer] momentum: unknown key"),
]


@pytest.mark.parametrize(("name", "settings", "tables", "said"), REFUSED)
def test_it_is_refused(digits: Path, name: str, settings: dict[str, Any], tables: dict[str, Any], said: str) -> None:
    hyper = {"name": name, "batch_size": 4, "client_optimizer": SGD, **settings}
    hyper = {key: value for key, value in hyper.items() if value is not None}
    with pytest.raises(UsageError, match=re.escape(said)):
        next(rounds(local_job(digits, hyper, **tables)))
