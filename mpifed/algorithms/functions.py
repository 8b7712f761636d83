"""The functions of a problem, minimize F_0 subject to F_m <= limit_m: what clients sum of them, what is known of them.

Every F is the mean over its counted samples of a term of (head, scores, y), see `mpifed.maths.terms`, or ||w||^2. All
of them share the model and so the scores: one pass over the features serves all. Shapes: n clients, s samples,
K functions that need samples, F_0 first where it is one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge

from mpifed.core.exchange import Problem
from mpifed.core.record import Array, Record, map_leaves, namespace
from mpifed.maths.objectives import Parameters, concave, penalty
from mpifed.maths.terms import Loss, Norm, Term


@dataclass(frozen=True)
class Constraint:
    """F_m <= limit; the algorithm aims at limit - margin."""

    term: Term
    limit: float
    margin: Annotated[float, Ge(0)] = 0.0

    @property
    def aim(self) -> float:
        """What the algorithm is told."""
        return self.limit - self.margin


class Function(NamedTuple):
    """F - aim, of which a minibatch gives an estimate."""

    term: Term
    aim: float
    penalty: float  # the factor of ||w||^2 that belongs to it


def objective_term(problem: Problem) -> Term:
    """What is minimized, beside the penalty."""
    term: Term = Loss() if problem.minimize is None else problem.minimize
    return term


def sampled(problem: Problem) -> tuple[Function, ...]:
    """[K] the functions that need samples."""
    first = Function(objective_term(problem), 0.0, problem.objective.l2)
    rest = (Function(one.term, one.aim, 0.0) for one in problem.constraints)
    return tuple(one for one in (first, *rest) if one.term.sampled)


def constrains(problem: Problem) -> bool:
    """Whether this is more than the plain problem of minimizing the mean loss over all samples."""
    return bool(problem.constraints) or objective_term(problem) != Loss()


def wrong_functions(problem: Problem) -> list[str]:
    """What does not fit between the functions and the data, one message each."""
    wrong = [f"[minimize] {line}" for line in objective_term(problem).check(problem.objective, problem.outputs)]
    for m, one in enumerate(problem.constraints, 1):
        wrong += [f"[constraint {m}] {line}" for line in one.term.check(problem.objective, problem.outputs)]
        never = one.term.nonnegative and problem.objective.nonnegative
        if never and one.aim <= 0:
            wrong.append(
                f"[constraint {m}] limit - margin = {one.aim:g}: the function is never below zero, so no model can "
                "meet it; raise the limit"
            )
    exact = [objective_term(problem), *(one.term for one in problem.constraints)]
    wrong += [
        f"{type(term).__name__}: only Norm may say that it needs no samples; give the class `sampled = True`"
        for term in exact
        if not term.sampled and not isinstance(term, Norm)
    ]
    return wrong


def squares_alone(problem: Problem) -> list[str]:
    """What an algorithm that adds nothing but squares to its functions has to refuse, one message each."""
    wrong = []
    if beta := concave(problem.objective):
        wrong.append(
            f"[model] concave = {beta:g}: this algorithm knows no penalty but that of squares; set concave = 0, "
            "or take fedavg, scaffold or fedpdm, for data split by rows"
        )
    if problem.regularizer is not None:
        wrong.append(
            f"[regularizer] {type(problem.regularizer).__name__}: this algorithm knows no prox; leave the table out, "
            "or take fedavg, scaffold or fedpdm, for data split by rows"
        )
    return wrong


def counts_some(problem: Problem) -> bool:
    """Whether any function is a mean over some samples alone, so that their share must be known."""
    probe = np.arange(problem.outputs)
    return any(one.term.counted(probe) is not None for one in sampled(problem))


class Statistics(NamedTuple):
    """What a minibatch tells of the K functions, weighted over its samples."""

    gradient: Parameters  # leaves [..., K, ...]
    level: Array  # [..., K] float64 of F - aim; () without constraints


class Slopes(NamedTuple):
    """The same before the features are used."""

    scores: tuple[Array, ...]  # K times [..., s, h]
    head: Record  # leaves [..., K, ...]
    level: Array  # [..., K] float64, or ()


def slopes(
    problem: Problem, which: Sequence[Function], head: Record, scores: Array, y: Array, weights: Array, shares: Array
) -> Slopes:
    """Derivatives of the weighted sums of the functions by scores and head.

    Parameters
    ----------
    head : the model's, or one for every client
    scores : [..., s, h]
    y, weights : [..., s]
    shares : [K] counted samples relative to all, or () where all samples count in all functions
    """
    xp, found, levels = namespace(scores), [], []
    for k, function in enumerate(which):
        counted, each = function.term.counted(y), weights
        if counted is not None:
            each = xp.where(counted, weights / shares[k], 0)
        slope = function.term.slope(problem.objective, head, scores, y, each)
        found.append(slope)
        if problem.constraints:
            levels.append(xp.sum(each * (slope.loss - function.aim), axis=-1, dtype=np.float64))
    stacked = map_leaves(lambda *parts: _stack(parts, y.ndim - 1), *[slope.head for slope in found])
    level = xp.stack(levels, axis=-1) if levels else ()
    return Slopes(tuple(slope.scores for slope in found), stacked, level)


def statistics(
    problem: Problem, which: Sequence[Function], model: Parameters, X: Any, y: Array, weights: Array, shares: Array
) -> Statistics:
    """Weighted sums over the samples of each client, from all features: y, weights [n, s] give leaves [n, K, ...]."""
    found = slopes(problem, which, model.head, problem.objective.scores(model.first, X), y, weights, shares)
    first = _stack([problem.objective.pull(X, one) for one in found.scores], y.ndim - 1)
    return Statistics(Parameters(first, found.head), found.level)


def _stack(parts: Sequence[Array], axis: int) -> Array:
    return parts[0][(slice(None),) * axis + (None,)] if len(parts) == 1 else namespace(parts[0]).stack(parts, axis=axis)


# --- all rows: values, margins, certificates ------------------------------------------------------------------------


class Tally(NamedTuple):
    """Sums over all rows for each of the terms of `terms`; in float64."""

    total: Array  # [..., T] of the term over its counted samples
    square: Array  # [..., T] of its square
    count: Array  # [..., T]


def terms(problem: Problem) -> tuple[Term, ...]:
    """[T] what is measured: the mean loss over all samples, and every sampled term."""
    found: list[Term] = [Loss()]
    found += [one.term for one in sampled(problem) if one.term not in found]
    return tuple(dict.fromkeys(found))


def tally(problem: Problem, head: Record, scores: Array, y: Array, weights: Array) -> Tally:
    """Sums over the samples [..., s] of weight 1; those of weight 0 do not count."""
    xp, rows = namespace(scores), []
    for term in terms(problem):
        counted = term.counted(y)
        each = weights if counted is None else weights * counted
        values = term.loss(problem.objective, head, scores, y).astype(np.float64)
        rows.append([xp.sum(one, axis=-1) for one in (each * values, each * values**2, each)])
    return Tally(*(xp.stack([row[i] for row in rows], axis=-1) for i in range(3)))


class Levels(NamedTuple):
    """F_m of every constraint, and how sure they are."""

    value: Array  # [M]
    margin: Array  # [M] 1.96 standard errors of the mean
    spread: Array  # [M] root mean square of the term over its samples


def levels(problem: Problem, model: Parameters, total: Tally) -> Levels:
    """The constraints' values from sums over all rows."""
    found, known = [], terms(problem)
    for one in problem.constraints:
        own = _server_value(one.term, model)
        if not one.term.sampled:
            found.append((own, 0.0, abs(own)))
            continue
        i = known.index(one.term)
        with np.errstate(invalid="ignore"):  # of rows that are drawn, none may count
            mean, square = total.total[i] / total.count[i], total.square[i] / total.count[i]
            error = float(np.sqrt(max(square - mean**2, 0.0) / total.count[i]))
        found.append((float(mean) + own, 1.96 * error, float(np.sqrt(square)) + abs(own)))
    return Levels(*np.array(found).reshape(-1, 3).T)


def smooth_value(problem: Problem, model: Parameters, total: Tally) -> float:
    """F_0 from sums over all rows, with the penalty and without the regularizer."""
    term = objective_term(problem)
    value = _server_value(term, model)
    if term.sampled:
        i = terms(problem).index(term)
        with np.errstate(invalid="ignore"):  # of rows that are drawn, none may count
            value += float(total.total[i] / total.count[i]) + penalty(problem.objective, model)
    return value


def report_levels(problem: Problem, model: Parameters, total: Tally) -> dict[str, float]:
    """Columns of the history: the training loss F, the objective with all that is added, constraints, their margins."""
    loss, objective = float(total.total[0] / total.count[0]), smooth_value(problem, model, total)
    if problem.regularizer is not None:
        objective += problem.regularizer.value(model)
    found = levels(problem, model, total)
    columns = {"train_loss": loss, "objective": objective}
    columns |= {f"constraint_{m}": float(value) for m, value in enumerate(found.value, 1)}
    return columns | {f"margin_{m}": float(value) for m, value in enumerate(found.margin, 1)}


def _server_value(term: Term, model: Parameters) -> float:
    part = term.server(model)
    return 0.0 if part is None else float(part[0])
