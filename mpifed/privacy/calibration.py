"""The noise of a job, calibrated before its first round from its epsilon, and checked against its budget."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mpifed.algorithms.algorithm import Algorithm
from mpifed.core.errors import DataError, UsageError
from mpifed.job.participation import round_of
from mpifed.maths.privacy.accounting import CALIBRATED, calibrate
from mpifed.privacy.ledger_file import LEDGER, REMEDY, Header
from mpifed.privacy.spending import Spending

if TYPE_CHECKING:
    from mpifed.job.job import Job


class Budget(NamedTuple):
    """The most that any client may spend, of the rigorous epsilon."""

    key: str  # of the job
    epsilon: float


def with_noise(algorithm: Algorithm, multiplier: float) -> Algorithm:
    """The algorithm with this noise multiplier."""
    return replace(algorithm, problem=algorithm.problem.with_noise(multiplier))


def budget_of(job: Job) -> Budget | None:
    """The budget of [stop]; else the epsilon from which the noise is computed, unless by the paper; both rigorous."""
    if job.stop.epsilon is not None:
        return Budget("[stop] epsilon", job.stop.epsilon)
    if job.privacy is not None and job.privacy.epsilon is not None and not job.privacy.by_paper:
        return Budget("[privacy] epsilon", job.privacy.epsilon)
    return None


def spending_of(job: Job, spending: Spending, first: int, stop: int) -> Spending:
    """The spending after the rounds from `first` to before `stop`, each run once; all of it is public."""
    for index in range(first, stop):
        spending = spending.after(round_of(job, len(spending.rounds), index).present)
    return spending


def rounds_within(job: Job, spending: Spending, first: int = 0) -> range:
    """The rounds from `first` that keep every client within the budget, each run once; all where there is none.

    The participating clients of later rounds are known, so all are looked at together.
    """
    budget, stops = budget_of(job), range(first + 1, job.rounds + 1)
    if budget is None:
        return range(first, job.rounds)

    def over(stop: int) -> bool:
        return spending_of(job, spending, first, stop).worst() > budget.epsilon

    within = bisect_left(stops, True, key=over) if stops and over(job.rounds) else len(stops)
    return range(first, first + within)


def settle(job: Job, algorithm: Algorithm, header: Header | None = None) -> float:
    """The noise multiplier of the job, given or calibrated; of a run that goes on it is that in its ledger's `header`.

    Raises
    ------
    UsageError
        when one round costs more than the budget; when the noise was computed for other `rounds` than the job has now,
        unless its [stop] has a budget.
    DataError
        when the header has other noise than the job.
    """
    assert job.privacy is not None
    given, budget = job.privacy.noise_multiplier, job.stop.epsilon
    rounds = job.rounds if header is None else header.job["rounds"]
    if given is None and rounds != job.rounds and budget is None:
        raise UsageError(
            f"rounds = {job.rounds}: the noise of [privacy] epsilon was computed for {rounds} rounds; others have "
            "another: start anew, or go on with this noise and a budget: --set stop.epsilon=... --resume"
        )
    multiplier = _calibrated(replace(job, rounds=rounds), algorithm) if given is None else given
    if header is not None:
        tolerance = 2 * CALIBRATED if given is None else 0.0  # each of the two is within it of the least noise
        if not math.isclose(header.noise_multiplier, multiplier, rel_tol=tolerance):
            raise DataError(
                f"{LEDGER}: line 1 has noise_multiplier = {header.noise_multiplier!r}, and [privacy] gives "
                f"{multiplier!r} for the {rounds} rounds that it has; {REMEDY}"
            )
        return header.noise_multiplier
    private = with_noise(algorithm, multiplier)
    if wrong := private.check():  # the job was checked before without it
        raise UsageError("\n".join(wrong))
    if budget is not None and (once := Spending.of(private).after(True).worst()) > budget:
        raise UsageError(
            f"[stop] epsilon = {budget:g}: a budget already spent: one single round costs {once:.3g} at "
            f"delta = {job.privacy.delta:g}; raise it, or add noise by a larger [privacy] noise_multiplier "
            f"(now {multiplier:.4g}) or a smaller epsilon there"
        )
    return multiplier


def _calibrated(job: Job, algorithm: Algorithm) -> float:
    """The least noise with which all rounds of the job, roundings included, stay within [privacy] epsilon."""
    privacy = job.privacy
    assert privacy is not None and privacy.epsilon is not None  # else the noise would be given
    planned = spending_of(job, Spending.of(with_noise(algorithm, 1.0)), 0, job.rounds)
    if not privacy.by_paper:
        return calibrate(
            lambda z: replace(Spending.of(with_noise(algorithm, z)), rounds=planned.rounds).worst(), privacy.epsilon
        )
    epsilon = planned.worst_paper()  # which is inversely proportional to the noise
    if not math.isfinite(epsilon):
        raise UsageError(
            '[privacy] noise = "paper": the paper\'s formula says nothing about what this job releases (an algorithm '
            'that it does not treat, or every record in every round); take noise = "secure"'
        )
    return epsilon / privacy.epsilon
