"""Membership inference on a model, from the losses of rows that it was trained on and of other rows.

Two attacks, on the last model alone: the loss itself (S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha, IEEE CSF 2018),
and the logit of exp(-loss), standardized by its distribution on strangers of the same class: the offline likelihood
ratio of N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramer (IEEE S&P 2022), with a normal distribution per
class instead of per row, since no shadow models are trained here. They are weaker than attacks with shadow models:
their failure proves nothing, their success proves a leak: members and strangers have the same distribution.

The attacker is given the model, and the features and label of each row in question; it knows half of the strangers to
be strangers. A higher score makes membership more likely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array

FEWEST = 20  # least members, and least strangers
OF_A_CLASS = 10  # least strangers of a class with a distribution of its own


class Attack(NamedTuple):
    """How well a score distinguishes members from strangers."""

    name: str  # "loss" or "likelihood"
    auc: float
    auc_low: float  # DeLong, 99.9 %
    auc_high: float
    leak: bool  # auc_low > 0.5


class Membership(NamedTuple):
    """Results of all attacks."""

    attacks: tuple[Attack, ...]
    leak: bool  # by any attack
    members: int
    strangers: int


def membership(
    members: Array,
    strangers: Array,
    *,
    member_classes: Array | None = None,
    stranger_classes: Array | None = None,
    seed: int = 0,
) -> Membership:
    """Run both attacks.

    Raises UsageError for too few rows, or losses that are not finite.

    Parameters
    ----------
    members, strangers : [m], [k] losses of the model
    member_classes, stranger_classes : [m], [k] labels; None: all rows are of the same class
    """
    members, strangers = np.asarray(members, np.float64), np.asarray(strangers, np.float64)
    _check(members, strangers)
    rng = np.random.default_rng(seed)
    mine = np.zeros(len(members), int) if member_classes is None else np.asarray(member_classes)
    other = np.zeros(len(strangers), int) if stranger_classes is None else np.asarray(stranger_classes)
    order = rng.permutation(len(strangers))
    known, rest = order[: len(order) // 2], order[len(order) // 2 :]
    standard = _Standard(_logit(strangers[known]), other[known])
    scores = {
        "loss": (-members, -strangers),
        "likelihood": (standard(_logit(members), mine), standard(_logit(strangers[rest]), other[rest])),
    }
    areas = {name: area(*both) for name, both in scores.items()}
    attacks = tuple(Attack(name, auc, low, high, low > 0.5) for name, (auc, low, high) in areas.items())
    return Membership(attacks, any(attack.leak for attack in attacks), len(members), len(strangers))


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


class _Standard:
    """Standardizes scores by the mean and standard deviation of strangers of the same class."""

    def __init__(self, scores: Array, classes: Array) -> None:
        self.all = _moments(scores)
        self.own = {
            int(label): _moments(scores[classes == label])
            for label in np.unique(classes)
            if np.sum(classes == label) >= OF_A_CLASS
        }

    def __call__(self, scores: Array, classes: Array) -> Array:
        moments = np.array([self.own.get(int(label), self.all) for label in classes]).reshape(-1, 2)
        standardized: Array = (scores - moments[:, 0]) / moments[:, 1]
        return standardized


def _moments(scores: Array) -> tuple[float, float]:
    return float(scores.mean()), float(scores.std()) or 1.0


def _logit(losses: Array) -> Array:
    """log(q / (1 - q)) of q = exp(-loss), the probability of the true class; decreasing for any loss."""
    safe = np.clip(losses, 1e-30, None)
    return np.where(safe < 30, -np.log(np.expm1(np.minimum(safe, 30))), -safe)


def _check(members: Array, strangers: Array) -> None:
    for name, losses in (("members", members), ("strangers", strangers)):
        if losses.ndim != 1 or len(losses) < FEWEST:
            raise UsageError(
                f"membership: {name} have shape {losses.shape}; a loss each of at least {FEWEST} rows is needed"
            )
        if not np.isfinite(losses).all():
            raise UsageError(f"membership: {np.sum(~np.isfinite(losses))} losses of {name} are not finite")
