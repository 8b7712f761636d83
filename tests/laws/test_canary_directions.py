"""A canary in many directions: what releases tell of it is less than the ledger says, and more if anything is wrong.

Its gradient has 122 components in two leaves. Who sees two rounds of two clients, or of their sum, knows it, and all
else but whether it is there or its opposite. Every part of every release is looked at along the canary, and the best
linear combination of these decides: where two of them had the same noise it would cancel.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from canaries import epsilon_of, least_mu
from lengths import long_unless
from small import algorithm, block_of

from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round
from mpifed.privacy.spending import Spending

P, RUNS, ROUNDS, DELTA = 60, 3000, 2, 1e-3
SURE = 1 - 1e-6  # that a bound holds: noise is secret, so that no seed makes sure of a test
AVG = {"name": "fedavg", "batch_size": 1, "client_optimizer": {"learning_rate": 0.3}}
Z = 1.5
CASES: dict[str, dict[str, Any]] = {
    "gradients": {},
    "clients": {"level": "client", "clip": 0.01},
    "clients, distributed": {"level": "client", "trust": "distributed", "clip": 0.01},
    "clients, central": {"level": "client", "trust": "central", "clip": 0.01},
}


def made(case: dict[str, Any], weaker: float, noise: str) -> Any:
    """Two clients of each run, all of them together."""
    privacy = {"clip": 0.1, "delta": DELTA, "noise": noise, **case, "noise_multiplier": Z / weaker}
    return algorithm(AVG, privacy, [1] * 2 * RUNS, P, 2, {"name": "softmax", "bias": True})


def printed(case: dict[str, Any]) -> float:
    """The ledger's epsilon after all rounds."""
    one = made(case, 1.0, "secure")
    return Spending.of(one).after(True, ROUNDS).worst()


def sent(one: Any, label: int, pulls: bool, now: Round, shard: type) -> Any:
    """leaves [2 runs, ...]: every other client has the canary, or its opposite, whose gradient is 0 unless it pulls.

    A client is not exchanged but left out: there the opposite never pulls.
    """
    x = np.random.default_rng(4).normal(size=(1, P)) / np.sqrt(P)
    block = block_of([(x, np.array([label])), (0 * x, np.array([0]))] * RUNS, shard)
    (exchange,) = one.exchanges
    server = one.start_server(now._replace(index=-1))
    if not pulls or (label and one.problem.privacy.level == "client"):
        away = 1e3 * x[0][:, None] * (np.array([1, -1]) * (1 - 2 * label))
        server = server._replace(model=np.concatenate([away.ravel(), server.model[away.size :]]))
    question = exchange.ask(server._replace(steps=np.int64(now.index)), now)
    return one.record(exchange.answer(one.start_clients(block, now), question, block, now)[1].value)


def features(one: Any, shard: type, label: int, nows: list[Round], second: bool, quiet: Any = None) -> Any:
    """[runs, rounds * clients or 1 * leaves] each part of each release, along the canary.

    Parameters
    ----------
    second : whether the canary pulls in the second round too
    quiet : in whose uploads of the biases there is no noise
    """
    x, model = np.random.default_rng(4).normal(size=P) / np.sqrt(P), one.problem.privacy.trust
    found = []
    for number, now in enumerate(nows):
        value = sent(one, label, second or number == 0, now, shard)
        if quiet is not None:
            value = value._replace(head=sent(quiet, label, second or number == 0, now, shard).head)
        if model != "local":
            value = map_leaves(lambda leaf: leaf.reshape(RUNS, 2, *leaf.shape[1:]).sum(axis=1), value)
        if model == "central":
            value = released(one, value, now)
        parts = [value.first @ np.array([1.0, -1.0]) @ x, value.head.bias @ np.array([1.0, -1.0])]
        found += [part.reshape(RUNS, -1) for part in parts]
    return np.concatenate(found, axis=1)


def released(one: Any, sums: Any, now: Round) -> Any:
    """leaves [runs, ...]: the model that the server makes of each sum."""
    (exchange,) = one.exchanges
    server, models = one.start_server(now._replace(index=-1)), []
    for i in range(RUNS):
        total = np.concatenate([np.ravel(leaf[i]) for _, leaf in leaves(sums)])
        weighted = exchange.fields._replace(value=total, weight=np.float64(2.0))
        models.append(one.model(exchange.absorb(server, weighted, now)))
    return map_leaves(lambda *each: np.stack(each), *models)


def at(index: int, secure: bool) -> Round:
    """Of two clients, as many as add up."""
    return Round(index, 1, np.arange(2 * RUNS) < 2, secure)


def lower_bound(case: dict[str, Any], shard: type, weaker: float = 1.0, confidence: float = SURE) -> float:
    """On epsilon, from runs with secret noise."""
    one, nows = made(case, weaker, "secure"), [at(index, secure=True) for index in range(ROUNDS)]
    return epsilon_of(least_mu(*(features(one, shard, label, nows, True) for label in (0, 1)), confidence), DELTA)


@pytest.mark.parametrize("name", long_unless(lambda name: name in ("gradients", "clients"), CASES))
def test_the_ledger_bounds_what_a_canary_tells(name: str, array_shard: Any) -> None:
    claimed, found = printed(CASES[name]), lower_bound(CASES[name], array_shard)
    assert claimed / 2 < found < claimed


@pytest.mark.parametrize("name", long_unless(lambda name: name in ("gradients", "clients, distributed"), CASES))
def test_noise_too_small_is_noticed(name: str, array_shard: Any) -> None:
    """By half as much again; a sensitivity too small by two makes it smaller still."""
    assert lower_bound(CASES[name], array_shard, 1.5, 0.99) > printed(CASES[name])


# --- what could be wrong with the noise itself -----------------------------------------------------------------------


SHORT = [("nothing", "gradients"), ("rounds", "clients"), ("clients", "clients"), ("leaves", "gradients")]
WRONG = itertools.product(("nothing", "rounds", "clients", "leaves"), ("gradients", "clients"))


@pytest.mark.parametrize(("wrong", "name"), long_unless(lambda *one: one in SHORT, WRONG))
def test_noise_that_is_not_its_own_is_noticed(
    wrong: str, name: str, array_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in two rounds, or of two clients, or none on the biases. The canary pulls in the first round alone."""
    monkeypatch.setattr(f"{__name__}.RUNS", 1000)  # in which the bound is seven times what is printed
    case = CASES[name]
    one, nows = made(case, 1.0, "test"), [at(index, secure=False) for index in range(ROUNDS)]
    quiet, words = made(case, 1e9, "test") if wrong == "leaves" else None, Round.words
    if wrong == "rounds":
        nows[1] = nows[0]
    if wrong == "clients":
        monkeypatch.setattr(Round, "words", lambda self, purpose, client: words(self, purpose, client - client % 2))
    found = []
    for label in (0, 1):
        of_label = [now._replace(seed=label + 1) for now in nows]
        found.append(features(one, array_shard, label, of_label, False, quiet))
    bound = epsilon_of(least_mu(*found, SURE), DELTA)
    assert (bound > printed(case)) == (wrong != "nothing")
