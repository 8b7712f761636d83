"""Membership inference on a model, from the losses of rows that it was trained on and of other rows.

Two attacks, on the final model alone: the loss itself (S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha, IEEE CSF 2018),
and the logit of exp(-loss), standardized by its distribution on strangers of the same class: the offline likelihood
ratio of N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramer (IEEE S&P 2022), with a normal distribution per
class instead of per row, since no shadow models are trained here. They are weaker than attacks with shadow models:
their failure proves nothing, their success proves a leak, as far as members and strangers have the same distribution.

The attacker is given the model, and the features and label of each row in question; it knows half of the strangers to
be strangers. A higher score makes membership more likely.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array

RATES = (0.01, 0.001)  # false positive rates at which true positive rates are reported
FEWEST = 20  # least members, and least strangers
OF_A_CLASS = 10  # least strangers of a class with a distribution of its own
MARGIN = 0.05
CAVEAT = (
    "members are training rows, strangers are test rows: where their distributions differ, so do the losses without "
    "memorization, and a leak may be reported where there is none, or missed"
)


class Attack(NamedTuple):
    """How well a score distinguishes members from strangers."""

    name: str  # "loss" or "likelihood"
    auc: float
    auc_low: float  # DeLong
    auc_high: float
    balanced_accuracy: float  # with a threshold chosen on half of the rows, evaluated on the other half
    tpr: dict[float, tuple[float, float, float]]  # by false positive rate: value, Clopper-Pearson bounds
    epsilon_rates: float  # lower bound from both error rates, as if rows were independent runs: an indication
    epsilon_one_run: float  # lower bound from a single run; valid if membership was decided by independent fair coins
    leak: bool  # auc_low > 0.5 + margin


class Membership(NamedTuple):
    """Results of all attacks."""

    attacks: tuple[Attack, ...]
    leak: bool  # by any attack
    members: int
    strangers: int
    confidence: float
    delta: float
    caveat: str


def membership(
    members: Array,
    strangers: Array,
    *,
    member_classes: Array | None = None,
    stranger_classes: Array | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    margin: float = MARGIN,
    seed: int = 0,
) -> Membership:
    """Run both attacks.

    Parameters
    ----------
    members, strangers : [m], [k] losses of the final model
    member_classes, stranger_classes : [m], [k] labels; None: all rows are of the same class
    delta : at which epsilon is bounded from below
    confidence : of each interval and bound
    margin : least excess of the lower bound of the AUC over 1/2 for a leak. Training and test rows that no model has
        seen differ already: by 0.010 to 0.014 on MNIST, whose test rows are easier, for a softmax regression and an MLP

    Raises
    ------
    UsageError : too few rows, or losses that are not finite
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
    attacks = tuple(_attack(name, *both, delta, confidence, margin, rng) for name, both in scores.items())
    leak = any(attack.leak for attack in attacks)
    return Membership(attacks, leak, len(members), len(strangers), confidence, delta, CAVEAT)


def area(members: Array, strangers: Array, confidence: float = 0.95) -> tuple[float, float, float]:
    """(AUC, confidence interval): E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson (Biometrics 1988)."""
    from scipy.stats import norm, rankdata

    m, k = len(members), len(strangers)
    ranks = rankdata(np.concatenate([members, strangers]))
    above = (ranks[:m] - rankdata(members)) / k  # fraction of strangers below each member
    below = 1 - (ranks[m:] - rankdata(strangers)) / m
    auc, spread = float(above.mean()), np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / k)
    reach = float(norm.ppf((1 + confidence) / 2) * spread)
    return auc, max(0.0, auc - reach), min(1.0, auc + reach)


def clopper_pearson(hits: int, of: int, confidence: float) -> tuple[float, float]:
    """Exact confidence interval of a probability."""
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, hits, of - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(1 - tail, hits + 1, of - hits)) if hits < of else 1.0


def epsilon_of_rates(false_positive: float, false_negative: float, delta: float) -> float:
    """The least epsilon of (epsilon, delta)-privacy that allows both error rates.

    P. Kairouz, S. Oh, P. Viswanath: "The Composition Theorem for Differential Privacy" (ICML 2015).
    """
    ratios = [
        (1 - delta - miss) / max(alarm, 1e-300)
        for alarm, miss in ((false_positive, false_negative), (false_negative, false_positive))
    ]
    return float(np.log(max(1.0, *ratios)))


def epsilon_of_one_run(rows: int, guesses: int, right: int, delta: float, confidence: float = 0.95) -> float:
    """The least epsilon that is compatible with `right` correct guesses in a single run.

    T. Steinke, M. Nasr, M. Jagielski: "Privacy Auditing with One (1) Training Run" (NeurIPS 2023, arXiv:2305.08846).
    `rows` is the number of rows that were included or left out by fair coins; guesses may abstain.
    """
    from scipy.stats import binom

    if not right:
        return 0.0

    def chance(epsilon: float) -> float:
        """Largest probability of as many correct guesses for a mechanism with this epsilon."""
        fair = 1 / (1 + np.exp(-epsilon))
        sums = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, fair))
        extra = float((sums / np.arange(1, right + 1)).max())
        return float(binom.sf(right - 1, guesses, fair) + 2 * rows * delta * extra)

    low, high = 0.0, 30.0
    if chance(low) > 1 - confidence:
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) < 1 - confidence else (low, middle)
    return low


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


def _attack(
    name: str, members: Array, strangers: Array, delta: float, confidence: float, margin: float,
    rng: np.random.Generator,
) -> Attack:  # fmt: skip
    auc, low, high = area(members, strangers, confidence)
    first, second = _halves(members, strangers, rng)
    accuracy = _balanced(first, second)
    tpr = {rate: _true_positives(members, strangers, rate, confidence) for rate in RATES}
    rates, one_run = _from_rates(first, second, delta, confidence), _from_guesses(first, second, delta, confidence)
    return Attack(name, auc, low, high, accuracy, tpr, rates, one_run, low > 0.5 + margin)


_Half = tuple[Array, Array]  # scores of members, of strangers


def _halves(members: Array, strangers: Array, rng: np.random.Generator) -> tuple[_Half, _Half]:
    """(half on which a threshold is chosen, half on which it is evaluated)."""
    mine, other = rng.permutation(members), rng.permutation(strangers)
    m, k = len(mine) // 2, len(other) // 2
    return (mine[:m], other[:k]), (mine[m:], other[k:])


def _thresholds(half: _Half) -> tuple[Array, Array, Array]:
    """(thresholds, false positive rates, false negative rates) when scores above a threshold are called members."""
    members, strangers = np.sort(half[0]), np.sort(half[1])
    at = np.unique(np.concatenate([[-np.inf], members, strangers]))
    alarms = 1 - np.searchsorted(strangers, at, side="right") / len(strangers)
    return at, alarms, np.searchsorted(members, at, side="right") / len(members)


def _balanced(first: _Half, second: _Half) -> float:
    at, alarms, misses = _thresholds(first)
    threshold = at[np.argmin(alarms + misses)]
    return float((np.mean(second[0] > threshold) + np.mean(second[1] <= threshold)) / 2)


def _true_positives(members: Array, strangers: Array, rate: float, confidence: float) -> tuple[float, float, float]:
    """True positive rate at false positive rate `rate` and its interval; NaN with fewer strangers than 1 / rate."""
    allowed = int(rate * len(strangers) + 1e-9)
    if not allowed:
        return np.nan, np.nan, np.nan
    threshold = np.sort(strangers)[-allowed - 1]
    hits = int(np.sum(members > threshold))
    return hits / len(members), *clopper_pearson(hits, len(members), confidence)


def _from_rates(first: _Half, second: _Half, delta: float, confidence: float) -> float:
    """Bound for the best threshold on the first half, from its error rates on the second."""

    def bound(alarms: int, strangers: int, misses: int, members: int) -> float:
        each = 1 - (1 - confidence) / 2  # both bounds hold together
        alarm, miss = (clopper_pearson(a, b, 2 * each - 1)[1] for a, b in ((alarms, strangers), (misses, members)))
        return epsilon_of_rates(alarm, miss, delta)

    at, alarms, misses = _thresholds(first)
    candidates = np.unique(np.linspace(0, len(at) - 1, 200).astype(int))
    k, m = len(first[1]), len(first[0])
    best = max(candidates, key=lambda i: bound(round(float(alarms[i] * k)), k, round(float(misses[i] * m)), m))
    wrong = int(np.sum(second[1] > at[best])), int(np.sum(second[0] <= at[best]))
    return bound(wrong[0], len(second[1]), wrong[1], len(second[0]))


def _from_guesses(first: _Half, second: _Half, delta: float, confidence: float) -> float:
    """Bound with as many members as strangers: the highest scores are guessed as members, the lowest as strangers."""

    def bound(half: _Half, part: float) -> float:
        size = min(map(len, half))
        scores = np.concatenate([half[0][:size], half[1][:size]])
        order, each = np.argsort(scores, kind="stable"), max(1, int(part * size))
        right = np.sum(order[-each:] < size) + np.sum(order[:each] >= size)
        return epsilon_of_one_run(2 * size, 2 * each, int(right), delta, confidence)

    parts = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
    return bound(second, max(parts, key=lambda part: bound(first, part)))


def _check(members: Array, strangers: Array) -> None:
    for name, losses in (("members", members), ("strangers", strangers)):
        if losses.ndim != 1 or len(losses) < FEWEST:
            raise UsageError(
                f"membership: {name} have shape {losses.shape}; a loss each of at least {FEWEST} rows is needed: "
                "prepare data with more test rows (mpifed data --test-fraction)"
            )
        if not np.isfinite(losses).all():
            raise UsageError(f"membership: {np.sum(~np.isfinite(losses))} losses of {name} are not finite")
