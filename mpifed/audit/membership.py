"""Membership inference on the last model, from the losses of rows that entered and of other rows of the same clients.

The loss tells members (S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha, IEEE CSF 2018). Attacks with shadow models are
stronger: failure proves nothing, success proves a leak, for members and strangers have the same distribution.
"""

from __future__ import annotations

import numpy as np

from mpifed.audit.findings import AttackResult
from mpifed.audit.recording import Replay
from mpifed.core.errors import UsageError
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import SETUP

FEWEST = 20  # least members, and least strangers
MEMBERS = 2000  # most rows whose losses are compared
LARGEST = 2**26  # most numbers in these rows
CONFIDENCE = 0.999  # of the interval that must be above 0.5


def membership_attack(replay: Replay) -> AttackResult:
    """Attack that tells rows that entered a round from others of the same clients, by the losses of the last model."""
    seen, problem, rng = "the model after the last round", replay.problem, np.random.default_rng(replay.job.seed)
    entered, near = np.zeros((2, problem.samples), dtype=bool)
    y = np.zeros(problem.samples, next(iter(replay.shards.values())).y.dtype)
    for play in replay.plays:
        for client, read in play.rows.items() if play.round != SETUP else ():
            shard = replay.shards[client]
            near[shard.rows], y[shard.rows] = True, shard.y
            entered[shard.rows[read]] = True
    most = max(FEWEST, min(MEMBERS, LARGEST // problem.features))
    drawn = [np.sort(rng.permutation(np.flatnonzero(chosen))[:most]) for chosen in (entered, near & ~entered)]
    members, strangers = map(len, drawn)
    if min(members, strangers) < FEWEST:
        why = f"{members} rows of clients who trained entered, and {strangers} did not; {FEWEST} are needed of each"
        return AttackResult("membership", seen, why)
    model = map_leaves(np.float64, replay.algorithm.model(replay.server))
    scores = problem.objective.scores_of(model, np.concatenate([*map(replay.full_rows, drawn)])[None])
    losses = np.float64(problem.objective.loss(model.head, scores, y[np.concatenate(drawn)][None])[0])
    if not np.isfinite(losses).all():
        raise UsageError("membership: the last model has losses that are not finite")
    auc, low, high = area(-losses[:members], -losses[members:])
    text = (
        f"by the loss: area under the curve {auc:.3f} ({low:.3f} to {high:.3f}; 0.5 is chance), "
        f"{members} rows that entered against {strangers} of the same clients that did not"
    )
    return AttackResult("membership", seen, text, True, low > 0.5)


def area(members: Array, strangers: Array, confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """(AUC, confidence interval): E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson (Biometrics 1988)."""
    from scipy.stats import norm, rankdata

    m, k = len(members), len(strangers)
    ranks = rankdata(np.concatenate([members, strangers]))
    above = (ranks[:m] - rankdata(members)) / k  # fraction of strangers below each member
    below = 1 - (ranks[m:] - rankdata(strangers)) / m
    auc, spread = float(above.mean()), np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / k)
    reach = float(norm.ppf((1 + confidence) / 2) * spread)
    return auc, max(0.0, auc - reach), min(1.0, auc + reach)
