"""A planted canary: what can be told from private uploads is less than the ledger says, and more if noise was left out.

Many clients with the same rows repeat a private run at once, with the canary and without it, under noise that nobody
can have again. Who sees the uploads tells the two apart by a threshold, which some of the runs settle and the others
try. Its error rates bound epsilon from below: TPR <= e^epsilon FPR + delta (P. Kairouz, S. Oh, P. Viswanath: "The
Composition Theorem for Differential Privacy", ICML 2015), by the bounds of C. Clopper and E. Pearson (1934).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import beta
from small import algorithm, answers, block_of

from mpifed.core.round import Round
from mpifed.privacy.spending import Spending

TRIALS, SETTLE = 30_000, 8_000  # runs, and those that settle the threshold
DELTA, DOUBT = 1e-3, 1e-7  # a rate lies beyond its bound with that chance
THRESHOLD = 2.8  # in standard deviations: some fifty false alarms
S, B = 8, 4  # rows of a client, and of half a shard
AVG = {"name": "fedavg", "batch_size": S, "client_optimizer": {"learning_rate": 0.3}}
FAR = 1e9  # of a canary's features: its gradient is clipped


class Audit(NamedTuple):
    """A way to run, what its noise is, and who is told apart."""

    table: dict[str, Any]
    privacy: dict[str, Any]
    rounds: int


AUDITS = {
    "upload": Audit(AVG, {"noise_on": "upload", "noise_multiplier": 1.2}, 1),
    "gradients, by chance": Audit(
        AVG | {"batch_size": B, "local_steps": 3},
        {"noise_multiplier": 1.5, "adjacency": "add-remove", "sampling": "poisson"}, 1,
    ),
    "hidden duals": Audit(
        {"name": "fedpdm", "batch_size": S, "client_optimizer": {"learning_rate": 0.05}, "rho": 4.0, "dual": "hidden"},
        {"noise_on": "upload", "noise_multiplier": 2.0}, 3,
    ),
    "clients": Audit(
        {"name": "scaffold", "batch_size": S, "client_optimizer": {"learning_rate": 0.3}},
        {"level": "client", "noise_multiplier": 1.8}, 2
    ),
}  # fmt: skip


def made(audit: Audit, weaker: float = 1.0) -> Any:
    """The algorithm, with noise divided by `weaker`."""
    multiplier = audit.privacy["noise_multiplier"] / weaker
    privacy = {**audit.privacy, "noise_multiplier": multiplier, "delta": DELTA, "noise": "secure"}
    return algorithm(audit.table, privacy, [S] * TRIALS, 1, 1, {"name": "least-squares", "bias": False})


def reported(audit: Audit) -> float:
    """The ledger's epsilon after all rounds."""
    one = made(audit)
    spending = Spending(one.problem.privacy, TRIALS)
    for index in range(audit.rounds):
        spending.add(one.released(index), np.ones(TRIALS, dtype=bool))
    return spending.worst()


def seen(one: Any, rounds: int, canary: float, shard: type) -> Any:
    """[trials] the sum of the uploads, each as long as the noise of its round, of a server that stands still at zero.

    The canary, one of the rows, or at level "client" all of them, pulls one way, or the other, or has no features.
    """
    whole = one.problem.privacy.level == "client"
    X, y = np.zeros((S, 1)), np.zeros(S)
    X[slice(None) if whole else slice(1)], y[slice(None) if whole else slice(1)] = abs(canary) * FAR, canary * FAR
    block, states, total = block_of([(X, y)] * TRIALS, shard), None, np.zeros(TRIALS)
    for index in range(rounds):
        now = Round(index, 1, np.ones(TRIALS, dtype=bool), secure=True)
        states, upload = answers(one, block, now, states=states)
        share = one._share(index) if hasattr(one, "rho") else one._share(one.client_optimizer.at(index + 1))
        total += upload[:, 0] / (1.0 if np.isnan(share.sensitivity) else share.sensitivity)
    return total


def least_epsilon(audit: Audit, weaker: float, shard: type) -> float:
    """A lower bound, but for a chance of 2e-7, on the epsilon of what was uploaded."""
    one, other = made(audit, weaker), 0.0 if "adjacency" in audit.privacy else -1.0
    with_it, without = (seen(one, audit.rounds, canary, shard) for canary in (1.0, other))
    limit, tries = without[:SETTLE].mean() + THRESHOLD * without[:SETTLE].std(), TRIALS - SETTLE
    hits, alarms = (int(np.sum(found[SETTLE:] > limit)) for found in (with_it, without))
    true = beta.ppf(DOUBT, hits, tries - hits + 1)
    false = beta.ppf(1 - DOUBT, alarms + 1, tries - alarms)
    return float(np.log((true - DELTA) / false)) if true > DELTA else 0.0


@pytest.mark.long
@pytest.mark.parametrize("audit", AUDITS.values(), ids=AUDITS)
def test_the_canary(audit: Audit, array_shard: Any) -> None:
    claimed = reported(audit)
    assert 1.0 < claimed < 4.0
    honest, halved = (least_epsilon(audit, weaker, array_shard) for weaker in (1.0, 2.0))
    assert 0.4 < honest < claimed  # an audit that sees something
    assert halved > claimed  # by 0.6 on average, seven of its standard deviations
