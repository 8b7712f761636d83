"""Membership inference on the last model, from the losses of rows that entered and of other rows of the same clients.

Two attacks: the loss itself (S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha, IEEE CSF 2018), and the logit of
exp(-loss), standardized by its distribution on strangers of the same class: the offline likelihood ratio of N. Carlini,
S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramer (IEEE S&P 2022), with a normal distribution per class instead of per
row, since no shadow models are trained here. They are weaker than attacks with shadow models: their failure proves
nothing, their success proves a leak: members and strangers have the same distribution.

The attacker is given the model, and the features and label of each row in question; it knows half of the strangers to
be strangers. A higher score makes membership more likely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.attack_result import MEMBERSHIP, AttackResult, Floats, not_applicable
from mpifed.audit.replay import Replay
from mpifed.core.errors import UsageError
from mpifed.core.record import Array, map_leaves
from mpifed.core.round import SETUP

FEWEST = 20  # least members, and least strangers
OF_A_CLASS = 10  # least strangers of a class with a distribution of its own
MEMBERS = 2000  # most rows whose losses are compared
LARGEST = 2**26  # most numbers in these rows


class Area(NamedTuple):
    """How well a score tells members from strangers: the area under the curve, and its interval."""

    name: str  # "loss" or "likelihood"
    auc: float
    low: float  # DeLong, 99.9 %; a leak is above 0.5
    high: float


def membership_attack(replay: Replay) -> AttackResult:
    """Attack that tells rows that entered from others of the same clients, by the losses of the last model."""
    seen, problem = "the model after the last round", replay.problem
    drawn = _drawn(replay)
    members, strangers = map(len, drawn)
    if min(members, strangers) < FEWEST:
        why = f"{members} rows of clients who trained entered, and {strangers} did not; {FEWEST} are needed of each"
        return not_applicable(MEMBERSHIP, why, "anybody", seen)
    y = np.zeros(problem.samples, next(iter(replay.shards.values())).y.dtype)
    for shard in replay.shards.values():
        y[shard.rows] = shard.y
    model = map_leaves(np.float64, replay.algorithm.model(replay.server))
    losses = list[Floats]()
    for rows in drawn:
        scores = problem.objective.scores_of(model, replay.full_rows(rows)[None])
        losses.append(np.asarray(problem.objective.loss(model.head, scores, y[rows][None])[0], np.float64))
    classes = y if problem.objective.classifies else np.zeros_like(y)
    mine, others = (classes[rows] for rows in drawn)
    best = max(areas(losses[0], losses[1], mine, others, replay.job.seed), key=lambda area: area.low)
    text = (
        f"by {best.name}: area under the curve {best.auc:.3f} ({best.low:.3f} to {best.high:.3f}; 0.5 is chance), "
        f"{members} rows that entered against {strangers} of the same clients that did not"
    )
    return AttackResult(MEMBERSHIP, "anybody", seen, True, best.low > 0.5, text)


def _drawn(replay: Replay) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(rows that entered a round, rows of the same clients that did not), a draw of at most `MEMBERS` of each."""
    rng, problem = np.random.default_rng(replay.job.seed), replay.problem
    entered, near = np.zeros((2, problem.samples), dtype=bool)
    for play in replay.transcript.plays:
        for client, positions in play.rows.items() if play.round != SETUP else ():
            rows = replay.shards[client].rows
            near[rows] = True
            entered[rows[list(positions)]] = True
    most = max(FEWEST, min(MEMBERS, LARGEST // problem.features))
    members, strangers = (
        np.sort(rng.permutation(np.flatnonzero(chosen))[:most]) for chosen in (entered, near & ~entered)
    )
    return members, strangers


def areas(members: Array, strangers: Array, mine: Array, others: Array, seed: int = 0) -> list[Area]:
    """Both attacks. Raises UsageError for losses that are not finite.

    Parameters
    ----------
    members, strangers : [m], [k] losses of the model
    mine, others : [m], [k] their labels
    """
    if not np.isfinite(np.concatenate([members, strangers])).all():
        raise UsageError("membership: the last model has losses that are not finite")
    known, rest = np.split(np.random.default_rng(seed).permutation(len(strangers)), [len(strangers) // 2])
    logits = _logit(strangers[known])

    def standard(scores: Array, classes: Array) -> Array:
        """By the mean and standard deviation of strangers of the same class."""
        result = np.empty(len(scores))
        for label in np.unique(classes):
            own = logits[others[known] == label]
            own = own if len(own) >= OF_A_CLASS else logits
            result[classes == label] = (scores[classes == label] - own.mean()) / (own.std() or 1.0)
        return result

    likely = standard(_logit(members), mine), standard(_logit(strangers[rest]), others[rest])
    return [Area("loss", *area(-members, -strangers)), Area("likelihood", *area(*likely))]


def area(members: Array, strangers: Array, confidence: float = 0.999) -> tuple[float, float, float]:
    """(AUC, confidence interval): E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson (Biometrics 1988)."""
    from scipy.stats import norm, rankdata

    m, k = len(members), len(strangers)
    ranks = rankdata(np.concatenate([members, strangers]))
    above = (ranks[:m] - rankdata(members)) / k  # fraction of strangers below each member
    below = 1 - (ranks[m:] - rankdata(strangers)) / m
    auc, spread = float(above.mean()), np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / k)
    reach = float(norm.ppf((1 + confidence) / 2) * spread)
    return auc, max(0.0, auc - reach), min(1.0, auc + reach)


def _logit(losses: Array) -> Array:
    """log(q / (1 - q)) of q = exp(-loss), the probability of the true class; decreasing for any loss."""
    safe = np.clip(losses, 1e-30, None)
    return np.where(safe < 30, -np.log(np.expm1(np.minimum(safe, 30))), -safe)
