"""A canary in many directions: what releases tell of it is less than the ledger says, and more if anything is wrong.

A canary is a record, or a client, whose contribution is known and spread over many directions, here 122 components in
two leaves; releases are projected onto it, as in G. Andrew, P. Kairouz, S. Oh, A. Oprea, H. B. McMahan, V. Suriyakumar:
"One-shot Empirical Privacy Estimation for Federated Learning" (ICLR 2024, arXiv:2302.03098). Instead of their fit, this
is a bound: a test has false positive rate a and false negative rate b only if the mechanism's mu, as Gaussian
differential privacy, is at least Phi^-1(1 - a) - Phi^-1(b) (J. Dong, A. Roth, W. Su, JRSS B 2022; M. Nasr et al.,
USENIX Security 2023), and a and b are bounded by the counts of runs.

Who sees two rounds of two clients, or of their sum, knows the canary, and all else but whether it is there or its
opposite. Every part of every release is looked at along the canary, and the best linear combination of these decides:
where two of them had the same noise it would cancel.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from lengths import long_unless
from scipy.optimize import brentq
from scipy.stats import beta, norm
from small import algorithm, block_of

from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round
from mpifed.privacy.spending import Spending

P, RUNS, DELTA, Z = 60, 3000, 1e-3, 1.5
SURE = 1 - 1e-6  # that a bound holds: noise is secret, so that no seed makes sure of a test
SETTLE = 0.2  # fraction of the runs that the discriminant is fitted to
RIDGE = 1e-9  # relative to the trace: noise that cancels leaves no variance
AVG = {"name": "fedavg", "batch_size": 1, "client_optimizer": {"learning_rate": 0.3}}
CASES: dict[str, dict[str, Any]] = {
    "gradients": {},
    "clients": {"level": "client", "clip": 0.01},
    "clients, distributed": {"level": "client", "trust": "distributed", "clip": 0.01},
    "clients, central": {"level": "client", "trust": "central", "clip": 0.01},
}
CANARY = np.random.default_rng(4).normal(size=P) / np.sqrt(P)
SIDES = np.array([1.0, -1.0])


def clopper_pearson(hits: int, of: int, confidence: float) -> float:
    """Upper end of the exact confidence interval of a probability."""
    return float(beta.ppf((1 + confidence) / 2, hits + 1, of - hits)) if hits < of else 1.0


def least_epsilon(present: Any, absent: Any, confidence: float) -> float:
    """The epsilon of the least mu with which so many runs can be told apart.

    Parameters
    ----------
    present, absent : [runs, f] independent runs; features are parts of a release, each along the canary
    """
    settled = int(SETTLE * len(present))
    first, rest = (present[:settled], absent[:settled]), (present[settled:], absent[settled:])
    spread = np.atleast_2d(sum(np.cov(half, rowvar=False) for half in first))
    spread = spread + np.eye(len(spread)) * RIDGE * np.trace(spread)
    direction = np.linalg.solve(spread, first[0].mean(axis=0) - first[1].mean(axis=0))  # R. A. Fisher 1936
    middle = sum(float((half @ direction).mean()) for half in first) / 2
    above = [int((half @ direction > middle).sum()) for half in rest]
    of = len(rest[0])  # one end each of two intervals: both bounds hold together with this confidence
    miss, alarm = (clopper_pearson(hits, of, confidence) for hits in (of - above[0], above[1]))
    mu = max(0.0, float(norm.ppf(1 - alarm) - norm.ppf(miss)))

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - DELTA)

    return 0.0 if mu <= 0 or excess(0.0) <= 0 else float(brentq(excess, 0.0, mu * (mu + 40)))


def made(case: dict[str, Any], weaker: float, noise: str) -> Any:
    """Two clients of each run, all of them together."""
    privacy = {"clip": 0.1, "delta": DELTA, "noise": noise, **case, "noise_multiplier": Z / weaker}
    return algorithm(AVG, privacy, [1] * 2 * RUNS, P, 2, {"name": "softmax", "bias": True})


def printed(case: dict[str, Any]) -> float:
    """The ledger's epsilon after both rounds."""
    return Spending.of(made(case, 1.0, "secure")).after(True).after(True).worst()


def sent(one: Any, label: int, pulls: bool, now: Round, shard: type) -> Any:
    """leaves [2 runs, ...]: every other client has the canary, or its opposite, whose gradient is 0 unless it pulls.

    A client is not exchanged but left out: there the opposite never pulls.
    """
    x = CANARY[None]
    block = block_of([(x, np.array([label])), (0 * x, np.array([0]))] * RUNS, shard)
    (exchange,) = one.exchanges
    server = one.start_server(now._replace(index=-1))
    if not pulls or (label and one.problem.privacy.level == "client"):
        away = 1e3 * CANARY[:, None] * (SIDES * (1 - 2 * label))
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
    found = []
    for number, now in enumerate(nows):
        value = sent(one, label, second or number == 0, now, shard)
        if quiet is not None:
            value = value._replace(head=sent(quiet, label, second or number == 0, now, shard).head)
        if one.problem.privacy.trust != "local":
            value = map_leaves(lambda leaf: leaf.reshape(RUNS, 2, *leaf.shape[1:]).sum(axis=1), value)
        if one.problem.privacy.trust == "central":
            value = released(one, value, now)
        found += [part.reshape(RUNS, -1) for part in (value.first @ SIDES @ CANARY, value.head.bias @ SIDES)]
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


def rounds(secure: bool) -> list[Round]:
    """Of two clients, as many as add up."""
    return [Round(index, 1, np.arange(2 * RUNS) < 2, secure) for index in range(2)]


def lower_bound(case: dict[str, Any], shard: type, weaker: float, confidence: float) -> float:
    """On epsilon, from runs with secret noise."""
    one = made(case, weaker, "secure")
    return least_epsilon(*(features(one, shard, label, rounds(secure=True), True) for label in (0, 1)), confidence)


@pytest.mark.parametrize("name", long_unless(lambda name: name in ("gradients", "clients"), CASES))
def test_the_ledger_bounds_what_a_canary_tells(name: str, array_shard: Any) -> None:
    claimed, found = printed(CASES[name]), lower_bound(CASES[name], array_shard, 1.0, SURE)
    assert claimed / 2 < found < claimed


@pytest.mark.parametrize("name", long_unless(lambda name: name in ("gradients", "clients, distributed"), CASES))
def test_noise_too_small_is_noticed(name: str, array_shard: Any) -> None:
    """By half as much again; a sensitivity too small by two makes it smaller still."""
    assert lower_bound(CASES[name], array_shard, 1.5, 0.99) > printed(CASES[name])


SHORT = [("nothing", "gradients"), ("rounds", "clients"), ("clients", "clients"), ("leaves", "gradients")]
WRONG = itertools.product(("nothing", "rounds", "clients", "leaves"), ("gradients", "clients"))


@pytest.mark.parametrize(("wrong", "name"), long_unless(lambda *one: one in SHORT, WRONG))
def test_noise_that_is_not_its_own_is_noticed(
    wrong: str, name: str, array_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in two rounds, or of two clients, or none on the biases. The canary pulls in the first round alone."""
    monkeypatch.setattr(f"{__name__}.RUNS", 1000)  # in which the bound is seven times what is printed
    case = CASES[name]
    one, nows, words = made(case, 1.0, "test"), rounds(secure=False), Round.words
    quiet = made(case, 1e9, "test") if wrong == "leaves" else None
    if wrong == "rounds":
        nows[1] = nows[0]
    if wrong == "clients":
        monkeypatch.setattr(Round, "words", lambda self, purpose, client: words(self, purpose, client - client % 2))
    found = [
        features(one, array_shard, label, [now._replace(seed=label + 1) for now in nows], False, quiet)
        for label in (0, 1)
    ]
    assert (least_epsilon(*found, SURE) > printed(case)) == (wrong != "nothing")
