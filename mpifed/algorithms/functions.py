"""The functions of a problem, minimize F_0 subject to F_m <= limit_m: what clients sum of them, what is known of them.

Every F is the mean over its counted samples of a term of (head, scores, y), see `mpifed.maths.terms`, or ||w||^2. All
of them share the model and so the scores: one pass over the features serves all. Shapes: n clients, s samples,
K functions that need samples, F_0 first where it is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.exchange import Exchange, Field
from mpifed.core.lazy import Lazy
from mpifed.core.record import ABSENT, AnyRecord, Array, Record, map_leaves, namespace
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.arrays import power_of_two
from mpifed.maths.objectives import Parameters, penalty
from mpifed.maths.parameters import Slope
from mpifed.maths.problem import Problem
from mpifed.maths.terms import Constraint as Constraint
from mpifed.maths.terms import Loss, Norm, Term

CHUNK = 2048  # rows scored at a time; fixed, because it decides the bits of a client's sum


class Function(NamedTuple):
    """F - aim, of which every minibatch gives an unbiased estimate."""

    term: Term
    aim: float
    penalty: float  # the factor of ||w||^2 that belongs to it


def objective_term(problem: Problem) -> Term:
    """The term whose mean is minimized, without the penalty."""
    return Loss() if problem.minimize is None else problem.minimize


def all_terms(problem: Problem) -> list[Term]:
    """[M + 1] those of the objective and of the constraints."""
    return [objective_term(problem), *(constraint.term for constraint in problem.constraints)]


def sampled(problem: Problem) -> tuple[Function, ...]:
    """[K] the functions that are means over samples."""
    first = Function(objective_term(problem), 0.0, problem.objective.l2)
    rest = (Function(constraint.term, constraint.aim, 0.0) for constraint in problem.constraints)
    return tuple(function for function in (first, *rest) if function.term.sampled)


def constrains(problem: Problem) -> bool:
    """Whether the problem is more than minimizing the mean loss over all samples."""
    return bool(problem.constraints) or objective_term(problem) != Loss()


def refused(*rows: tuple[object, str]) -> list[str]:
    """The messages of what is wrong, of a table (what is true where it is wrong, the message)."""
    return [message for wrong, message in rows if wrong]


def wrong_functions(problem: Problem) -> list[str]:
    """Errors in the functions for this data, one message each."""
    wrong = [f"[minimize] {line}" for line in objective_term(problem).check(problem.objective, problem.outputs)]
    for m, constraint in enumerate(problem.constraints, 1):
        wrong += [f"[constraint {m}] {line}" for line in constraint.term.check(problem.objective, problem.outputs)]
        wrong += refused(
            (
                constraint.term.nonnegative and problem.objective.nonnegative and constraint.aim <= 0,
                f"[constraint {m}] limit - margin = {constraint.aim:g}: the function is never below zero, so no model "
                "can meet it; raise the limit",
            )
        )
    return wrong + [
        f"{type(term).__name__}: only Norm may declare that it needs no samples; give the class `sampled = True`"
        for term in all_terms(problem)
        if not term.sampled and not isinstance(term, Norm)
    ]


def squares_alone(problem: Problem) -> list[str]:
    """Errors for an algorithm that supports no penalty but l2, one message each."""
    beta, other = problem.objective.nonconvex_penalty, "take fedavg, scaffold or fedpdm, for data split by rows"
    return refused(
        (
            beta,
            f"[model] nonconvex_penalty = {beta:g}: this algorithm supports no penalty but l2; set "
            f"nonconvex_penalty = 0, or {other}",
        ),
        (
            problem.regularizer is not None,
            f"[regularizer] {type(problem.regularizer).__name__}: this algorithm has no prox step; leave the table "
            f"out, or {other}",
        ),
    )


def counts_some(problem: Problem) -> bool:
    """Whether any function averages over a subset of the samples, so that the size of the subset must be known."""
    probe = np.arange(problem.outputs)
    return any(function.term.counted(probe) is not None for function in sampled(problem))


class Statistics(NamedTuple):
    """Estimates of the K functions and their gradients from a minibatch, weighted over its samples."""

    gradient: Parameters  # leaves [..., K, ...]
    level: Array  # [..., K] float64 of F - aim; ABSENT without constraints


def slope_of_each(
    problem: Problem,
    functions: Sequence[Function],
    head: Record,
    scores: Array,
    y: Array,
    weights: Array,
    shares: Array,
) -> tuple[list[Slope], Array]:
    """Derivatives of the weighted sums of the functions by scores and head: K slopes, and levels [..., K].

    Parameters
    ----------
    head : the model's, or one for every client
    scores : [..., s, h]
    y, weights : [..., s]
    shares : [K] counted samples relative to all, or () where all samples count in all functions
    """
    xp, derivatives, levels = namespace(scores), [], []
    for k, function in enumerate(functions):
        counted, each = function.term.counted(y), weights
        if counted is not None:
            each = xp.where(counted, weights / shares[k], 0)
        slope = function.term.slope(problem.objective, head, scores, y, each)
        derivatives.append(slope)
        if problem.constraints:
            above = function.term.loss(problem.objective, head, scores, y) - function.aim
            levels.append((each * above).sum(axis=-1, dtype=np.float64))
    return derivatives, _stack(levels, y.ndim - 1) if levels else ABSENT


def stacked(parts: Sequence[AnyRecord], y: Array) -> AnyRecord:
    """Records with leaves [..., *shape] as one with leaves [..., K, *shape]."""
    return map_leaves(lambda *leaves: _stack(leaves, y.ndim - 1), *parts)


def _stack(parts: Sequence[Array], axis: int) -> Array:
    return parts[0][(slice(None),) * axis + (None,)] if len(parts) == 1 else namespace(parts[0]).stack(parts, axis=axis)


# --- set-up: how many samples each function counts ------------------------------------------------------------------


class Counts(NamedTuple):
    """A client's upload in the set-up."""

    counted: Array  # [n, K]


def count_samples(
    problem: Problem, absorb: Callable[[AnyRecord, Array], AnyRecord], sender: int | None = None
) -> Exchange:
    """The set-up exchange by which the server learns the shares of the functions' samples.

    Parameters
    ----------
    absorb : (server, shares [K]) -> server
    sender : the one client who counts, where all hold the same rows
    """
    functions, most = sampled(problem), power_of_two(problem.most)

    def answer(clients: Record, broadcast: Record, block: Block, now: Round) -> tuple[Record, Counts]:
        masks = [[function.term.counted(shard.y) for function in functions] for shard in block.shards]
        counts = [
            [shard.samples if mask is None else int(mask.sum()) for mask in row]
            for shard, row in zip(block.shards, masks, strict=True)
        ]
        return clients, Counts(np.array(counts, dtype=np.float64))

    def shares(server: AnyRecord, total: Counts, now: Round) -> AnyRecord:
        empty = [function.term for function, count in zip(functions, total.counted, strict=True) if not count]
        if empty:
            raise DataError(f"{empty[0]}: none of the {problem.samples} samples counts; choose classes that are there")
        return absorb(server, total.counted.astype(np.float64) / problem.samples)

    field = Field((len(functions),), 1.0, most, sender=sender, degree=0)
    return Exchange("shares", Counts(field), lambda server, now: (), answer, shares)


# --- all rows: values, margins, certificates ------------------------------------------------------------------------


class Tally(NamedTuple):
    """Sums over all rows for each of the terms of `terms`; in float64."""

    total: Array  # [..., T] of the term over its counted samples
    square: Array  # [..., T] of its square
    count: Array  # type: ignore[assignment]  # [..., T]; no tuple's `count` is called


def terms(problem: Problem) -> tuple[Term, ...]:
    """[T] the terms that are evaluated: the mean loss over all samples, and every term of a sampled function."""
    return tuple(dict.fromkeys([Loss(), *(function.term for function in sampled(problem))]))


def tally(problem: Problem, head: Record, scores: Array, y: Array, weights: Array) -> Tally:
    """Sums over the samples [..., s] of weight 1; those of weight 0 do not count."""
    xp, rows = namespace(scores), []
    for term in terms(problem):
        counted = term.counted(y)
        each = weights if counted is None else weights * counted
        values = term.loss(problem.objective, head, scores, y).astype(np.float64)
        rows.append([xp.sum(weighted, axis=-1) for weighted in (each * values, each * values**2, each)])
    return Tally(*(xp.stack(sums, axis=-1) for sums in zip(*rows, strict=True)))


def levels(problem: Problem, model: Parameters, total: Tally) -> Array:
    """[3, M] of every constraint from sums over all rows: F_m, 1.96 standard errors of it, and its root mean square."""
    rows = [_measured(problem, constraint.term, model, total) for constraint in problem.constraints]
    each: Array = np.array(rows).reshape(-1, 3).T
    return each


def smooth_value(problem: Problem, model: Parameters, total: Tally) -> float:
    """F_0 from sums over all rows, with the penalty and without the regularizer."""
    term = objective_term(problem)
    return _measured(problem, term, model, total)[0] + (penalty(problem.objective, model) if term.sampled else 0.0)


def _measured(problem: Problem, term: Term, model: Parameters, total: Tally) -> tuple[float, float, float]:
    """A term's mean over its samples, 1.96 standard errors of it, and its root mean square."""
    if isinstance(term, Norm):
        value, _ = term.server(model)
        return value, 0.0, value
    i = terms(problem).index(term)
    with np.errstate(invalid="ignore"):  # of rows that are drawn, none may count
        mean, square = total.total[i] / total.count[i], total.square[i] / total.count[i]
        error = float(np.sqrt(max(square - mean**2, 0.0) / total.count[i]))
    return float(mean), 1.96 * error, float(np.sqrt(square))


def report_levels(problem: Problem, model: Parameters, total: Tally) -> dict[str, float]:
    """Columns of the history: training loss, objective with penalties and regularizer, constraints, their margins."""
    loss, objective = float(total.total[0] / total.count[0]), smooth_value(problem, model, total)
    if problem.regularizer is not None:
        objective += problem.regularizer.value(model)
    columns = {"train_loss": loss, "objective": objective}
    for name, row in zip(("constraint", "margin"), levels(problem, model, total), strict=False):
        columns |= {f"{name}_{m}": float(number) for m, number in enumerate(row, 1)}
    return columns


def of_each(block: Block, upload: Callable[[Array], Record]) -> Lazy:
    """Large uploads, leaves [1, ...], made for one client after the other, whose position [1] `upload` takes."""
    return Lazy(lambda: ((who, upload(who)) for who in np.arange(len(block.clients))[:, None]))
