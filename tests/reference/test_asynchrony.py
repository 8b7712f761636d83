"""Rounds in virtual time against a simulation of events that shares the draws alone."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import long_unless
from loops import away, gradient_of, local_job, minibatches, played, rows_of, start_of
from paper import step_size
from whole_runs import run

import mpifed as mf
from mpifed.algorithms.fedavg import FedAvg
from mpifed.core.errors import UsageError
from mpifed.core.round import Round, uniform
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.files.json_file import read_json
from mpifed.forecast.job import forecast
from mpifed.job.arrivals import delays
from mpifed.job.participation import virtual_seconds
from mpifed.testing import Job, Solo, participants, rounds

DELAYS: dict[str, dict[str, float]] = {
    "constant": {},
    "heavy tails": {"delay_spread": 1.5, "loss": 0.2},
    "slow clients": {"client_spread": 1.0, "delay_spread": 0.1},
    "away": {"availability": 0.3, "mean_absence": 5.0, "delay_spread": 0.5},
    "away, of equal delays": {"availability": 0.3, "loss": 0.1},
}


def late(buffer: int, concurrency: int, rounds: int = 4, max_staleness: int = 20, **network: float) -> dict[str, Any]:
    """Tables of a job."""
    return {
        "rounds": rounds,
        "asynchrony": {"buffer": buffer, "concurrency": concurrency, "max_staleness": max_staleness},
        "simulated_network": {"delay_s": 2.0, **network},
    }


def simulated(task: Job, clients: int) -> tuple[list[tuple[float, list[int], list[int]]], Counter[str]]:
    """(seconds, who, models) of each round, and how many answers were lost or late, by an event at a time."""
    network, table, seed = task.simulated_network, task.asynchrony, task.seed
    assert network is not None and table is not None
    events: list[tuple[float, int, int, int, bool]] = []
    idle, buffer, rounds, asked, counted = set(range(clients)), dict[int, int](), [], 0, Counter[str]()
    clock, there, unit = 0.0, away(task, clients), network.delay_s or 0.0
    while len(rounds) < task.rounds:
        period = int(Fraction(clock) / Fraction(unit))
        while (some := sorted(idle & there(period))) and len(events) < table.concurrency:
            turn = Round(asked, seed, np.zeros(0, bool))
            who = some[int(uniform(turn.words("who starts", -1)(1))[0] * len(some))]
            (delay,) = delays(network, seed, asked, np.array([who])).tolist()
            gone = uniform(turn.words("loss", -1)(1))[0] < network.loss
            heappush(events, (clock + delay, asked, who, len(rounds), gone))
            idle.remove(who)
            asked += 1
        assert len(events) <= table.concurrency
        began, clock = clock, min([event[0] for event in events[:1]] + [(period + 1) * unit])
        assert clock >= began
        while events and events[0][0] == clock:
            _, _, who, version, gone = heappop(events)
            if gone or len(rounds) - version > table.max_staleness:
                counted["lost" if gone else "late"] += 1
                idle.add(who)
                continue
            buffer[who] = version
            if len(buffer) == table.buffer:
                rounds.append((clock, sorted(buffer), [buffer[i] for i in sorted(buffer)]))
                idle |= set(buffer)
                buffer.clear()
    return rounds[: task.rounds], counted  # an instant may end several rounds


def weight_of(task: Job, missed: int) -> float:
    """s(t)"""
    table = task.algorithm
    if table["name"] == "fedbuff":
        return (1 + missed) ** -0.5
    if table["name"] == "fedavg" or table["staleness"] == "constant":
        return 1.0
    if table["staleness"] == "polynomial":
        return float((missed + 1) ** -table["a"])
    return 1.0 if missed <= table["b"] else 1 / (table["a"] * (missed - table["b"]) + 1)


@pytest.mark.parametrize("delay", long_unless(lambda delay: delay == "heavy tails", DELAYS))
@pytest.mark.parametrize(("name", "settings"), [
    ("fedbuff", {}), ("fedasync", {"staleness": "constant"}), ("fedasync", {"staleness": "polynomial", "a": 0.7}),
    ("fedbuff", {"client_optimizer": {"learning_rate": {"initial": 0.5, "exponent": 0.6}}}),
    ("fedasync", {"staleness": "hinge", "a": 10.0, "b": 1.0, "rho": 0.5}),
])  # fmt: skip
def test_a_simulation_of_events(digits: Path, name: str, settings: dict[str, Any], delay: str) -> None:
    """200 rounds of the same clients, models and seconds, to rounding."""
    hyper = {"name": name, "batch_size": 4, "local_steps": 2, "client_optimizer": {"learning_rate": 0.1}, **settings}
    buffer = 1 if name == "fedasync" else 3
    task = local_job(digits, hyper, **late(buffer, 5, 200, 4, **DELAYS[delay]))
    data, gradient, x = rows_of(digits), gradient_of(task, 10), start_of(task)
    table, sent, rho, rate = (
        task.algorithm,
        [x],
        task.algorithm.get("rho", 0.0),
        hyper["client_optimizer"]["learning_rate"],
    )
    rounds, counted = simulated(task, len(data))
    for t, (_, who, versions) in enumerate(rounds, 1):
        assert participants(task, t).tolist() == who
        moved = np.zeros_like(x)
        for i, version in zip(who, versions, strict=True):
            (X, y), y_i = data[i], sent[version]
            for batch in minibatches(task, i, len(y), t):
                y_i = y_i - step_size(rate, version + 1) * (
                    gradient(y_i, X[batch], y[batch]) + rho * (y_i - sent[version])
                )
            moved += weight_of(task, t - 1 - version) * (y_i - (x if name == "fedasync" else sent[version]))
        x = x + table.get("alpha", 1.0) / buffer * moved
        sent.append(x)
    assert bool(counted["lost"]) == ("loss" in DELAYS[delay])
    clock = [virtual_seconds(task, len(data), t) for t in range(201)]
    assert clock == sorted(clock) == [0.0, *(seconds for seconds, _, _ in rounds)]
    assert max(t - version for t, (_, _, versions) in enumerate(rounds) for version in versions) > 0
    np.testing.assert_allclose(played(task).model, x, rtol=0, atol=1e-9)


def test_equal_delays_of_all_clients_are_synchronous_rounds(skewed: Path) -> None:
    clients = open_federation(skewed).clients
    hyper = {"name": "fedavg", "batch_size": 4, "local_steps": 2, "client_optimizer": {"learning_rate": 0.1}}
    alone, together = (
        played(local_job(skewed, hyper, **tables)).model for tables in ({"rounds": 6}, late(clients, clients, 6))
    )
    assert alone.tobytes() == together.tobytes()


def test_equal_delays_prefer_nobody(digits: Path) -> None:
    hyper = {"name": "fedbuff", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
    task, clients = local_job(digits, hyper, **late(1, 5, 60, 0)), open_federation(digits).clients
    assert {int(participants(task, t)[0]) for t in range(1, 61)} == set(range(clients))


def test_one_client_at_work_is_sequential_sgd(digits: Path) -> None:
    hyper = {"name": "fedavg", "batch_size": 4, "local_steps": 1, "client_optimizer": {"learning_rate": 0.1}}
    task = local_job(digits, hyper, **late(1, 1, 30, delay_spread=1.0))
    data, gradient, x = rows_of(digits), gradient_of(task, 10), start_of(task)
    for t in range(1, 31):
        (i,) = participants(task, t).tolist()
        (X, y), (batch,) = data[i], minibatches(task, i, len(data[i][1]), t)
        x = x - 0.1 * gradient(x, X[batch], y[batch])
    np.testing.assert_allclose(played(task).model, x, rtol=0, atol=1e-10)


def test_momentum_of_the_server_is_of_the_rates_that_clients_had(digits: Path) -> None:
    rate = {"initial": 0.5, "exponent": 1.0}
    hyper = {"name": "fedcm", "alpha": 0.5, "batch_size": 4, "client_optimizer": {"learning_rate": rate}}
    task = local_job(digits, hyper, **late(1, 5, 20, delay_spread=1.0))
    data, gradient, sent = rows_of(digits), gradient_of(task, 10), [(start_of(task), 0.0)]
    for t, (_, (i,), (version,)) in enumerate(simulated(task, len(data))[0], 1):
        ((X, y), (batch,)), (x, m) = (data[i], minibatches(task, i, len(data[i][1]), t)), sent[version]
        direction = 0.5 * gradient(x, X[batch], y[batch]) + 0.5 * m
        sent.append((sent[-1][0] - step_size(rate, version + 1) * direction, direction))
    np.testing.assert_allclose(played(task).model, sent[-1][0], rtol=0, atol=1e-9)


def test_the_clock_of_a_synchronous_round_is_that_of_its_last_answer(digits: Path, tmp_path: Path) -> None:
    hyper = {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
    network = {"simulated_network": {"delay_s": 2.0, "delay_spread": 1.0}}
    task = local_job(digits, hyper, participation={"clients_per_round": 4}, record={"evaluate_every": 1}, **network)
    run(task, Solo(), tmp_path / "run")
    assert task.simulated_network is not None
    waited = [
        delays(task.simulated_network, task.seed, t - 1, participants(task, t)).max() for t in range(1, task.rounds + 1)
    ]
    np.testing.assert_allclose(read_history(tmp_path / "run")["simulated_s"], np.cumsum([0.0, *waited]))


@pytest.mark.parametrize("security", ["plain", "masked", "encrypted"])
def test_bytes_of_answers_that_are_lost_or_late_count(digits: Path, tmp_path: Path, security: str) -> None:
    hyper = {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}}
    tables = late(2, 7, 8, 1, delay_spread=2.0, loss=0.3)
    task = local_job(digits, hyper, aggregation={"security": security}, **tables)
    run(task, Solo(), tmp_path / "run")
    _, counted = simulated(task, open_federation(digits).clients)
    spent, said, one = read_json(tmp_path / "run" / "run.json"), forecast(task, 1), (650 + 1) * 8
    assert counted["lost"] and counted["late"]
    more = {key: spent[key] - said["keys"][key] - 8 * said[f"{key}_per_round"] for key in ("up_bytes", "down_bytes")}
    if security != "encrypted":  # where an upload is ciphertexts
        assert more["up_bytes"] == counted["late"] * one  # the upload, and its weight
    assert more["down_bytes"] == counted.total() * one  # in float64, and the step
    assert [spent[key] for key in more] == [said[key] for key in more]


def test_weights_are_as_exact_beside_large_targets(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y, found = X @ rng.normal(size=3), []
    for scale in (1.0, 2.0**30):
        folder = tmp_path / f"{scale:g}"
        mf.FederatedDataset.from_arrays(X, y * scale, clients=8, out=folder)
        task = local_job(
            folder,
            {"name": "fedasync", "batch_size": 4, "client_optimizer": {"learning_rate": 0.1}},
            model={"name": "least-squares"},
            **late(2, 4, 30, delay_spread=1.0),
        )
        found.append(played(task).model / scale)
    np.testing.assert_allclose(*found, rtol=1e-8)


@dataclass(frozen=True)
class Longer(FedAvg):
    """One step in the first round, two in the second, and so on."""

    def in_round(self, now: Round) -> Longer:
        return replace(self, local_steps=now.index + 1)


LATE = late(3, 5)
NETWORK = {"simulated_network": {"delay_s": 1.0}}
PRIVATE = {"privacy": {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0, "public_preparation": True}}


@pytest.mark.parametrize(("name", "tables", "what"), [
    ("fedavg", {"asynchrony": LATE["asynchrony"]}, "[asynchrony]: says nothing of when answers come"),
    ("fedavg", LATE | PRIVATE, "[asynchrony]: no sensitivity of answers"),
    ("fedavg", LATE | {"participation": {"clients_per_round": 3}}, "[participation] clients_per_round: with"),
    ("fedavg", late(3, 99), "[asynchrony] concurrency = 99: "),
    ("fedavg", late(99, 3), "[asynchrony] buffer = 99: "),
    ("scaffold", LATE, "[asynchrony]: what clients of this method keep"),
    ("fedlin", LATE, "[asynchrony]: what clients of this method keep"),
    ("test_asynchrony:Longer", LATE, "`in_round`, or send and hear"),
    ("ssca", LATE, '[asynchrony]: "ssca" takes no local steps'),
    ("fedavg", late(3, 5, delay_spread=11.0), "delay_spread = 11.0: expected a number of at most 10"),
    ("fedavg", late(3, 5, loss=0.999), "loss = 0.999: expected a number of at most 0.99"),
    ("fedavg", {"simulated_network": {"delay_s": 1.0, "loss": 0.1}}, "loss = 0.1: a round would wait for ever"),
    ("fedavg", {"simulated_network": {"delay_s": 1.0, "name": "lte"}}, "delay_s and latency_s"),
    ("fedavg", {"simulated_network": {"name": "lte", "delay_spread": 1.0}}, "of delays, of which there are none"),
    ("fedavg", NETWORK | {"participation": {"clients_per_round": 3}, "privacy": {
        **PRIVATE["privacy"], "level": "client", "trust": "central", "sampling": "poisson"}}, "the time of a round"),
])  # fmt: skip
def test_refused(digits: Path, name: str, tables: dict[str, Any], what: str) -> None:
    least = {"rho": [0.5], "gamma": [0.5]} if name == "ssca" else {"client_optimizer": {"learning_rate": 0.1}}
    with pytest.raises(UsageError, match=re.escape(what)):
        next(rounds(local_job(digits, {"name": name, "batch_size": 4, **least}, **tables)))
