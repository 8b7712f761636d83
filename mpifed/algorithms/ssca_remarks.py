"""Remarks at the end of a run of constrained SSCA: which limit is not met, or which cap was reached, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mpifed.algorithms.certificate import CONTRADICTION, known
from mpifed.algorithms.slack_costs import ALWAYS, SlackCosts, typical
from mpifed.maths.surrogate import Floats

OFTEN = 0.25  # the share of recent rounds at the cap from which on there is a remark
NEAR = 0.9  # of the cap: where a multiplier is above that, the cap may be what decides
ALONE = 1e3  # a weight of a constraint above which raising its cap changes nothing any more
FEW = 50  # rounds from which noise cannot be judged yet
FALLING = 0.95  # a mean slack over the last rounds, relative to that over more rounds, that is still falling
ROUNDING = 1e-6  # an excess relative to the limit that has nothing to do with noise


class Course(NamedTuple):
    """The course of the rounds for a constraint, as the server sees it."""

    number: int  # m, from 1
    limit: float
    cap: float  # of the multiplier
    weight: float  # at the cap, in the curvature of the convex problem, relative to the objective's
    given: bool  # whether the cap is the job's slack_cost, rather than the bound of "auto"
    rounds: int  # of this stage
    capped: float  # share of recent rounds in which the multiplier was at the cap
    typical: float  # multiplier of recent rounds
    slack: float  # mean over recent rounds
    fresh: float  # mean over fewer
    short: float  # share of recent rounds in which the limit was out of reach


def courses_of(
    limits: Sequence[float], costs: SlackCosts, caps: Floats, curvatures: Floats, given: bool, rounds: int
) -> list[Course]:
    """[M] of all constraints; `curvatures` [M + 1] of the surrogates, the objective's first."""
    nu, weights = typical(costs), caps * curvatures[1:] / (curvatures[0] or 1.0)
    return [
        Course(
            m + 1, limit, float(caps[m]), float(weights[m]), given, rounds, float(costs.capped[m]), float(nu[m]),
            float(costs.slack[m]), float(costs.fresh[m]), float(costs.short[m]),
        )
        for m, limit in enumerate(limits)
    ]  # fmt: skip


def against_noise(margins: str, recursive: bool) -> list[str]:
    """Remedies for noise in the estimates that these settings do not use yet."""
    remedies = ["take a larger batch", "let rho and gamma fall faster"]
    remedies += ['set margins = "auto"'] if margins == "off" else []
    return remedies + ([] if recursive else ['set variance_reduction = "recursive"'])


def remark(course: Course, measured: Mapping[str, float | None], remedies: Sequence[str]) -> str | None:
    """The warning about a constraint, or None.

    Parameters
    ----------
    measured : columns of the history, of the last model; what was not measured is None or missing
    remedies : what can be done about noise
    """
    m = course.number
    value, direction, multiplier = (
        known(measured, name) for name in (f"constraint_{m}", "feasible_direction", f"multiplier_{m}")
    )
    unmet = course.slack > 0 if value is None else value > course.limit
    often = course.capped >= OFTEN
    if not often and (value is None or not unmet):
        return None
    observed = _seen(course, value if unmet else None, often)
    if value is not None and unmet and not often and value - course.limit <= ROUNDING * abs(course.limit):
        return f"constraint {m}: {observed}: it ends at the limit itself, or so little above; give it a margin"
    return f"constraint {m}: {observed}; {_cause(course, unmet, often, direction, multiplier, remedies)}"


def _seen(course: Course, above: float | None, often: bool) -> str:
    """The observation, in words."""
    observed = []
    if above is not None:
        observed.append(f"its limit {course.limit:g} is not met ({above:.6g})")
    if often:
        what = "slack_cost" if course.given else 'the largest that slack_cost = "auto" may become'
        observed.append(
            f"its multiplier was at its cap {course.cap:g} ({what}) in {course.capped:.0%} of recent rounds"
        )
    return ", and ".join(observed)


def _cause(
    course: Course, unmet: bool, often: bool, direction: float | None, multiplier: float | None, remedies: Sequence[str]
) -> str:
    """The likely cause and the remedy."""
    if unmet and direction is not None and direction < CONTRADICTION:
        return (
            f"the unmet limits contradict each other, or no model can meet them: no direction lowers all of them "
            f"(feasible_direction = {direction:.2g}); raise limits"
        )
    # above a limit the certificate's multiplier is smaller than the problem's: its complementarity pulls it down
    nu = course.typical if multiplier is None or unmet else multiplier
    falling = unmet and course.fresh < FALLING * course.slack
    matters = course.weight <= ALONE or not unmet
    if often and course.given and nu >= NEAR * course.cap and matters and not falling:
        return (
            f"the cap is the likely cause, since the problem's own multiplier is near or above it ({nu:.4g}): "
            f'raise slack_cost to {_round(10 * max(nu, course.cap)):g}, or set it to "auto"'
        )
    if unmet and (course.short >= ALWAYS or course.rounds < FEW):
        far = f"; the limit was out of reach in {course.short:.0%} of recent rounds"
        reached = far if course.short >= ALWAYS else ""
        return (
            f"too few rounds are the likely cause{reached}: run more, or take longer steps (tau smaller, or gamma "
            "falling more slowly)"
        )
    not_cap = f", not the cap (the problem's own multiplier is about {nu:.4g})" if often else ""
    return f"noise in the estimates is the likely cause{not_cap}: {' or '.join(remedies)}"


def _round(number: float) -> float:
    """`number` to one significant digit."""
    return float(f"{number:.0e}")
