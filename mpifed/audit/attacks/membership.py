"""Whether a model tells which rows it was trained on, from the losses of rows that were and of rows that were not.

Two attacks, on the final model alone: the loss itself (S. Yeom, I. Giacomelli, M. Fredrikson, S. Jha, IEEE CSF 2018),
and the logit of exp(-loss), standardized by what it is on strangers of the same class: the offline likelihood ratio of
N. Carlini, S. Chien, M. Nasr, S. Song, A. Terzis, F. Tramer (IEEE S&P 2022), with one normal distribution a class
instead of one a row, since here no other models are trained. They are weaker than attacks with such shadow models: that
they fail is no proof of anything, that they succeed is one of a leak, as far as members and strangers are alike.

The attacker is given the model, and for each row in question its features, label and nothing else; strangers are rows
like those, of which half are known to it as strangers. Scores: the higher, the more a row looks like a member.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Array

RATES = (0.01, 0.001)  # false positive rates at which true ones are reported
FEWEST = 20  # rows of each kind
OF_A_CLASS = 10  # strangers by which a class gets a distribution of its own
MARGIN = 0.05
CAVEAT = (
    "members are training rows, strangers are test rows: where the two are not drawn alike, the losses differ without "
    "any memory of rows, and a leak is found where there is none, or hidden"
)


class Attack(NamedTuple):
    """How well one score tells members from strangers."""

    name: str  # "loss" or "likelihood"
    auc: float
    auc_low: float  # DeLong
    auc_high: float
    balanced_accuracy: float  # with a threshold chosen on one half of the rows, counted on the other
    tpr: dict[float, tuple[float, float, float]]  # by false positive rate: value, Clopper-Pearson bounds
    epsilon_rates: float  # lower bound from both error rates, as if rows were independent runs: an indication
    epsilon_one_run: float  # lower bound of one run; valid where members were chosen by coins of their own
    leak: bool  # auc_low > 0.5 + margin


class Membership(NamedTuple):
    """What was found by all attacks."""

    attacks: tuple[Attack, ...]
    leak: bool  # by any of them
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
    """Both attacks.

    Parameters
    ----------
    members, strangers : [m], [k] losses of the final model
    member_classes, stranger_classes : [m], [k] labels; None: all rows are of one class
    delta : at which epsilon is bounded from below
    confidence : of each interval and bound
    margin : how far the area's lower bound must lie above 1/2 for a leak. Training and test rows that no model has seen
        differ already: on MNIST, whose test rows are easier, by 0.010 to 0.014 for a softmax regression and a network

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
    leak = any(one.leak for one in attacks)
    return Membership(attacks, leak, len(members), len(strangers), confidence, delta, CAVEAT)


def area(members: Array, strangers: Array, confidence: float = 0.95) -> tuple[float, float, float]:
    """The area under the curve and its interval: E. R. DeLong, D. M. DeLong, D. L. Clarke-Pearson (Biometrics 1988)."""
    from scipy.stats import norm, rankdata

    m, k = len(members), len(strangers)
    ranks = rankdata(np.concatenate([members, strangers]))
    above = (ranks[:m] - rankdata(members)) / k  # the part of strangers below each member
    below = 1 - (ranks[m:] - rankdata(strangers)) / m
    found, spread = float(above.mean()), np.sqrt(above.var(ddof=1) / m + below.var(ddof=1) / k)
    reach = float(norm.ppf((1 + confidence) / 2) * spread)
    return found, max(0.0, found - reach), min(1.0, found + reach)


def clopper_pearson(hits: int, of: int, confidence: float) -> tuple[float, float]:
    """The exact interval of a probability."""
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
    """The least epsilon that so many right guesses of one run allow.

    T. Steinke, M. Nasr, M. Jagielski: "Privacy Auditing with One (1) Training Run" (NeurIPS 2023, arXiv:2305.08846).
    `rows` is how many were included or left out by fair coins; guesses may abstain.
    """
    from scipy.stats import binom

    if not right:
        return 0.0

    def chance(epsilon: float) -> float:
        """That any mechanism of this epsilon is guessed as often."""
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
    """Scores less the mean of strangers of the same class, over their standard deviation."""

    def __init__(self, scores: Array, classes: Array) -> None:
        self.all = _moments(scores)
        self.own = {
            int(one): _moments(scores[classes == one])
            for one in np.unique(classes)
            if np.sum(classes == one) >= OF_A_CLASS
        }

    def __call__(self, scores: Array, classes: Array) -> Any:
        moments = np.array([self.own.get(int(one), self.all) for one in classes]).reshape(-1, 2)
        return (scores - moments[:, 0]) / moments[:, 1]


def _moments(scores: Array) -> tuple[float, float]:
    return float(scores.mean()), float(scores.std()) or 1.0


def _logit(losses: Array) -> Array:
    """log(q / (1 - q)) of q = exp(-loss), the probability of the true class; falls with the loss whatever it is."""
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
    """One to choose on, one to count on."""
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
    """Of members above the threshold that `rate` of the strangers pass; NaN with fewer strangers than 1 / rate."""
    allowed = int(rate * len(strangers) + 1e-9)
    if not allowed:
        return np.nan, np.nan, np.nan
    threshold = np.sort(strangers)[-allowed - 1]
    hits = int(np.sum(members > threshold))
    return hits / len(members), *clopper_pearson(hits, len(members), confidence)


def _from_rates(first: _Half, second: _Half, delta: float, confidence: float) -> float:
    """The bound of the threshold that is best on the first half, from the errors on the second."""

    def bound(alarms: int, strangers: int, misses: int, members: int) -> float:
        each = 1 - (1 - confidence) / 2  # both bounds hold together
        alarm, miss = (clopper_pearson(a, b, 2 * each - 1)[1] for a, b in ((alarms, strangers), (misses, members)))
        return epsilon_of_rates(alarm, miss, delta)

    at, alarms, misses = _thresholds(first)
    some = np.unique(np.linspace(0, len(at) - 1, 200).astype(int))
    k, m = len(first[1]), len(first[0])
    best = max(some, key=lambda i: bound(round(alarms[i] * k), k, round(misses[i] * m), m))
    wrong = int(np.sum(second[1] > at[best])), int(np.sum(second[0] <= at[best]))
    return bound(wrong[0], len(second[1]), wrong[1], len(second[0]))


def _from_guesses(first: _Half, second: _Half, delta: float, confidence: float) -> float:
    """As many members as strangers; the highest scores are guessed members, the lowest strangers, others nothing."""

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
                f"membership: {name} have shape {losses.shape}; one loss each for at least {FEWEST} rows is needed: "
                "make data with more test rows (mpifed data --test-fraction)"
            )
        if not np.isfinite(losses).all():
            raise UsageError(f"membership: {np.sum(~np.isfinite(losses))} losses of {name} are not finite numbers")
