"""The noise of a job, calibrated before its first round from its epsilon, and checked against its budget."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from mpifed.algorithms.algorithm import Algorithm, with_noise
from mpifed.core.errors import DataError, UsageError
from mpifed.job.participation import round_of
from mpifed.maths.privacy import accounting
from mpifed.privacy.ledger_file import LEDGER, REMEDY, Header
from mpifed.privacy.spending import Spending, sayable, undone

if TYPE_CHECKING:
    from mpifed.job.job import Job

_TRIES = 8
_LITTLE = 1 + 1e-5  # least factor by which insufficient noise grows
_ROUNDING = 1e-12  # of a formula and its inverse
_NEAR = 1e-3  # how far two calibrations may be apart: each is within `accounting.CALIBRATED` of the least noise


class Budget(NamedTuple):
    """The most that any client may spend."""

    key: str  # of the job
    epsilon: float
    by_paper: bool  # whether it is the paper's epsilon

    def cost(self, spending: Spending) -> float:
        """The epsilon of the client who has spent most."""
        return _paper_cost(spending) if self.by_paper else spending.worst()


def budget_of(job: Job) -> Budget | None:
    """The budget of [stop], always of the rigorous epsilon; else the epsilon from which the noise is computed."""
    if job.stop.epsilon is not None:
        return Budget("[stop] epsilon", job.stop.epsilon, by_paper=False)
    if job.privacy is not None and job.privacy.epsilon is not None:
        return Budget("[privacy] epsilon", job.privacy.epsilon, job.privacy.accounting == "paper")
    return None


def spending_of(job: Job, algorithm: Algorithm, rounds: int) -> Spending:
    """The releases of `rounds` rounds; all of it is public."""
    spending = Spending(algorithm.problem.private, algorithm.problem.clients)
    for index in range(rounds):
        spending.add(algorithm.released(index), round_of(job, spending.clients, index).present)
    return spending


def settle(job: Job, algorithm: Algorithm) -> float:
    """The noise multiplier of the job, given or calibrated; UsageError when one round costs more than the budget."""
    assert job.privacy is not None
    multiplier = job.privacy.noise_multiplier
    if multiplier is None:
        multiplier = _calibrated(job, algorithm)
        if wrong := with_noise(algorithm, multiplier).check():  # the job was checked before without it
            raise UsageError("\n".join(wrong))
    if job.stop.epsilon is not None:
        _check_budget(job, with_noise(algorithm, multiplier), job.stop.epsilon)
    return multiplier


def settled_before(job: Job, algorithm: Algorithm, header: Header) -> float:
    """The noise multiplier in the header of the ledger of a run that goes on; DataError when the job has another.

    UsageError where it was computed for other `rounds` than the job has now, unless its [stop] has a budget.
    """
    assert job.privacy is not None
    expected, multiplier, tolerance = job.privacy.noise_multiplier, header.noise_multiplier, 0.0
    if expected is None:
        before = header.job["rounds"]
        if job.rounds != before and job.stop.epsilon is None:
            raise UsageError(
                f"rounds = {job.rounds}: the noise of [privacy] epsilon was computed for {before} rounds; others have "
                "another: start anew, or go on with this noise and a budget: --set stop.epsilon=... --resume"
            )
        expected = _calibrated(replace(job, rounds=before), algorithm)
        tolerance = _NEAR
    if not math.isclose(multiplier, expected, rel_tol=tolerance):
        raise DataError(
            f"{LEDGER}: line 1 has noise_multiplier = {multiplier!r}, and [privacy] gives {expected!r} for the "
            f"{header.job['rounds']} rounds that it has; {REMEDY}"
        )
    return multiplier


def _check_budget(job: Job, algorithm: Algorithm, budget: float) -> None:
    first_round = Spending.of_a_round(algorithm)
    if first_round.worst() > budget:
        raise UsageError(
            f"[stop] epsilon = {budget:g}: a budget already spent: one single round costs {first_round.worst():.3g} at "
            f"delta = {first_round.privacy.delta:g}; raise it, or add noise by a larger [privacy] noise_multiplier "
            f"(now {first_round.privacy.noise_multiplier:.4g}) or a smaller epsilon there"
        )


def _calibrated(job: Job, algorithm: Algorithm) -> float:
    """The least noise with which all rounds of the job stay within [privacy] epsilon.

    A release's multiplier is proportional to that of the job, but for roundings: hence the loop.
    """
    privacy = job.privacy
    assert privacy is not None and privacy.epsilon is not None  # else the noise would be given
    if privacy.accounting == "rigorous" and not sayable(privacy, privacy.epsilon):
        raise UsageError(
            f"[privacy] epsilon = {privacy.epsilon:g} at delta = {privacy.delta:g}: how far drawn integers may be from "
            "those accounted for leaves nothing to be said there; raise delta, lower epsilon, or give noise_multiplier"
        )
    cost, growth = (Spending.worst, _growth) if privacy.accounting == "rigorous" else (_paper_cost, _paper_growth)
    multiplier = growth(spending_of(job, with_noise(algorithm, 1.0), job.rounds), privacy.epsilon)
    for _ in range(_TRIES):
        spending = spending_of(job, with_noise(algorithm, multiplier), job.rounds)
        if cost(spending) <= privacy.epsilon:
            return multiplier
        multiplier *= max(growth(spending, privacy.epsilon), _LITTLE)
    raise UsageError(
        f"[privacy] epsilon = {privacy.epsilon:g}: what {job.algorithm['name']} releases does not follow its noise; "
        "let the multipliers of `released` be proportional to the noise multiplier, or give noise_multiplier"
    )


def _growth(spending: Spending, target: float) -> float:
    """The factor by which the noise must grow so that no client exceeds the target."""
    privacy, factor = spending.privacy, 0.0
    for group in undone(spending.groups()):
        spent = group.spent
        grown = {(factor * multiplier, rate): count for (multiplier, rate), count in spent.items()}
        if factor == 0.0 or spending.epsilon_of(grown) > target:
            plan = [(multiplier, rate, count) for (multiplier, rate), count in spent.items()]
            factor = accounting.calibrate(target, privacy.delta, plan, sampling=privacy.sampling)
    return factor


def _paper_cost(spending: Spending) -> float:
    return spending.worst_paper() * (1 - _ROUNDING)


def _paper_growth(spending: Spending, target: float) -> float:
    """The same factor by the paper's formula, in which epsilon is inversely proportional to the noise."""
    epsilon = spending.worst_paper()
    if not math.isfinite(epsilon):
        raise UsageError(
            '[privacy] accounting = "paper": the paper\'s formula says nothing about what this job releases (an '
            'algorithm that it does not treat, or every record in every round); take accounting = "rigorous"'
        )
    return epsilon / target
