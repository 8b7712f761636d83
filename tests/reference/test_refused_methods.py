"""What is refused of methods with local steps: settings that contradict each other, the method, or other tables."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loops import PRIVATE, local_job

from mpifed.algorithms.fedavg import FedAvg
from mpifed.core.errors import UsageError
from mpifed.core.round import Round
from mpifed.testing import rounds


class Longer(FedAvg):
    """One step in the first round, two in the second, and so on."""

    def in_round(self, now: Round) -> FedAvg:
        return replace(self, local_steps=now.index + 1)


def client(**settings: Any) -> dict[str, Any]:
    return {"client_optimizer": settings}


def part(**settings: Any) -> dict[str, Any]:
    return {"participation": settings}


def network(**settings: Any) -> dict[str, Any]:
    return {"simulated_network": settings}


def late(buffer: int = 3, concurrency: int = 5, **settings: float) -> dict[str, Any]:
    return {"asynchrony": {"buffer": buffer, "concurrency": concurrency}} | network(delay_s=2.0, **settings)


TWO, SGD, ADAMW = {"local_steps": 2}, {"learning_rate": 0.1}, {"name": "adamw", "learning_rate": 0.02}
MOMENTUM, L1 = client(learning_rate=0.1, momentum=0.5), {"regularizer": {"name": "l1", "weight": 0.1}}
LEAVING = part(dropout_rate=0.2, max_dropouts=1)
SLOW, DROPPED = part(clients_per_round=6, stragglers=0.5), part(stragglers=0.5, drop_stragglers=True)
TIMED = part(clients_per_round=6) | network(deadline_s=0.29, speeds=[100.0, 13.0, 0.5])
DELAYS = {"delay_s": 1.0, "delay_spread": 0.5, "deadline_s": 2.0}
MASKED = {"aggregation": {"security": "masked"}}
NOISY = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "public_preparation": True}
GRADIENTS, UPLOAD, PEOPLE = ({"privacy": NOISY | more} for more in ({}, {"noise": "paper"}, {"level": "client"}))
BY_CHANCE = {"privacy": NOISY | {"level": "client", "trust": "central", "sampling": "poisson"}}
SSCA: dict[str, Any] = {"rho": [0.5], "gamma": [0.5], "client_optimizer": None}
EF21 = {"compression": {"name": "top-k", "k": 3, "memory": "ef21"}}
AWAY = network(availability=0.5)

# name, [algorithm], other tables, what is said
REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    # as many steps as a coin says, several exchanges, a baseline
    ("proxskip", {"p": 0.3, **TWO}, {}, "local_steps: a coin ends the local steps"),
    ("proxskip", {"p": 1e-8}, {}, "[algorithm] p: a client would draw 8000000000 rows"),
    ("proxskip", {"p": 0.3} | MOMENTUM, {}, "momentum = 0.5: control variates are of plain steps"),
    ("proxskip", {"p": 0.3}, LEAVING, "must hear what became of their uploads"),
    ("proxskip", {"p": 0.3}, PRIVATE["gradients"], "as many local steps as a coin says"),
    ("tamuna", {"p": 0.3, "senders": 4}, part(clients_per_round=3), "4 clients are to send each"),
    ("fedlin", MOMENTUM, {}, "K_i steps are of eta / K_i each"),
    ("fedlin", {}, PRIVATE["gradients"], "a gradient of all rows travels"),
    ("mime", {}, PRIVATE["upload"], "a gradient of all rows travels"),
    ("mime", {}, MASKED | part(dropout_rate=0.2, max_dropouts=2, clients_per_round=7), "masked sums need 8"),
    ("alone", {"server_optimizer": {"learning_rate": 0.5}}, {}, "the model is the mean of the clients', who take none"),
    ("alone", {}, L1, "[regularizer] L1: "),
    # a part of the work
    ("fedavg", {**TWO, "local_least": 3}, {}, "local_least = 3: more than local_steps = 2; lower it"),
    ("fedavg", {}, SLOW, "[algorithm] local_steps = 1: there is none that a client could leave out"),
    ("fedavg", {}, part(stragglers=1.0, drop_stragglers=True), "all clients of a round would"),
    ("fedavg", TWO, network(deadline_s=1.0, name="lte"), "a deadline is of answers that take delay_s, or"),
    ("fedavg", TWO, network(speeds=[1.0]), "at these speeds, which need one"),
    ("fedavg", TWO, network(deadline_s=1.0, speeds=[1.0] * 99), "speeds: 99 numbers for"),
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
    # answers in virtual time
    ("fedavg", {}, {"asynchrony": {"buffer": 3, "concurrency": 5}}, "[asynchrony]: says nothing of when answers come"),
    ("fedavg", {}, late() | GRADIENTS, "[asynchrony]: no sensitivity of answers"),
    ("fedavg", {}, late() | part(clients_per_round=3), "[participation] clients_per_round: with"),
    ("fedavg", {}, late(3, 99), "[asynchrony] concurrency = 99: "),
    ("fedavg", {}, late(99, 3), "[asynchrony] buffer = 99: "),
    ("scaffold", {}, late(), "[asynchrony]: what clients of this method keep"),
    ("fedlin", {}, late(), "[asynchrony]: what clients of this method keep"),
    ("test_refused_methods:Longer", {}, late(), "`in_round`, or send and hear"),
    ("ssca", SSCA, late(), '[asynchrony]: "ssca" takes no local steps'),
    ("fedavg", {}, late(delay_spread=11.0), "delay_spread = 11.0: expected a number of at most 10"),
    ("fedavg", {}, late(loss=0.999), "loss = 0.999: expected a number of at most 0.99"),
    ("fedavg", {}, late(deadline_s=1.0), "the first answers fill the buffer"),
    # an unsteady network
    ("fedavg", {}, network(availability=0.0), "availability = 0.0: expected a number of at least 0.01"),
    ("fedavg", {}, network(availability=1.1), "availability = 1.1: expected a number of at most 1"),
    ("fedavg", {}, network(availability=float("nan")), "availability"),
    ("fedavg", {}, network(availability=0.5, mean_absence=1.5), "who is away is so for 2 rounds at least"),
    ("fedavg", {}, network(availability=0.5, mean_absence=101.0), "mean_absence = 101.0: expected a number of at most"),
    ("fedavg", {}, network(mean_absence=5.0, delay_s=1.0), "give availability below 1"),
    ("fedavg", {}, network(availability=0.5, trace="trace.csv"), "trace and availability: each says who is there"),
    ("fedavg", {}, network(trace=""), "trace"),
    ("fedavg", {}, network(delay_s=1.0, name="lte"), "delay_s and latency_s"),
    ("fedavg", {}, network(availability=0.5, latency_s=0.1), "up_bytes_per_s, down_bytes_per_s: missing"),
    ("fedavg", {}, network(availability=0.5, loss=0.1), "of delays, of which there are none"),
    ("fedavg", {}, network(delay_s=1.0, loss=0.1), "a round would wait for ever"),
    ("fedavg", {}, network(delay_s=1.0, deadline_s=0.0), "deadline_s = 0.0"),
    ("fedavg", {}, network(**DELAYS, speeds=[1.0]), "delay_s and speeds: a delay has the whole time"),
    ("fedavg", {}, network(**DELAYS, over_selection=1.5), "all clients are asked already"),
    ("fedavg", {}, network(**DELAYS, over_selection=0.5), "over_selection = 0.5: expected a number of at least 1"),
    ("fedavg", {}, network(**DELAYS, over_selection=4.0) | part(clients_per_round=4), "lower it, or over_selection"),
    ("fedavg", {}, network(**DELAYS) | LEAVING, "says whose answers do not come"),
    ("fedavg", {}, network(**DELAYS) | MASKED, "of which there will be 1 or more"),
    ("fedavg", {}, network(**DELAYS, over_selection=2.0) | MASKED | part(clients_per_round=4, max_dropouts=3),
     "of which there will be 4 or more"),
    ("fedavg", {}, network(**DELAYS) | GRADIENTS, "no accounting is proven of clients who are away"),
    ("fedavg", {}, AWAY | GRADIENTS, "no accounting is proven of clients who are away"),
    ("fedavg", {}, network(delay_s=1.0) | part(clients_per_round=3) | BY_CHANCE, "the time of a round"),
    ("fedsplit", {"s": 1.0}, AWAY, "needs all"),
    ("proxskip", {"p": 0.5}, network(**DELAYS), "must hear what became of their uploads"),
    ("tamuna", {"p": 0.5}, AWAY, "must have equally many clients"),
    ("scaffold", {}, AWAY | EF21, "that of all is known"),
    # methods of one's own
    ("own_pages:Unsaid", {}, L1, "must say `prox_step"),
    ("own_pages:Stretched", {}, L1, "no prox step"),
    ("own_pages:Stretched", {}, UPLOAD, "for uploads of one part"),
    ("own_pages:Stretched", {}, PEOPLE, "for uploads of one part"),
    ("own_pages:Unlike", {}, {}, "3 arrays, the fields declare 2: changes.value, changes.weight"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "settings", "tables", "said"), REFUSED)
def test_it_is_refused(digits: Path, name: str, settings: dict[str, Any], tables: dict[str, Any], said: str) -> None:
    hyper = {"name": name, "batch_size": 4, "client_optimizer": SGD, **settings}
    hyper = {key: value for key, value in hyper.items() if value is not None}
    with pytest.raises(UsageError, match=re.escape(said)):
        list(rounds(local_job(digits, hyper, **{"rounds": 1} | tables)))
