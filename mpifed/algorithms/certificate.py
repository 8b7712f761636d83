"""The certificate of a problem at a model, from sums over all rows: see `mpifed.maths.certificates`."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from mpifed.algorithms.functions import CHUNK, Tally, all_terms, levels, objective_term, sampled, smooth_value, terms
from mpifed.algorithms.measure import FirstNumbers
from mpifed.core.record import Array, Record, bare_leaves, map_leaves
from mpifed.maths import certificates
from mpifed.maths.arrays import flat, unflat
from mpifed.maths.certificates import CertifiedPoint, FirstIterate, Floats
from mpifed.maths.objectives import Parameters, penalty_gradient, squares
from mpifed.maths.problem import Problem
from mpifed.maths.terms import Norm, Term

CERTIFICATE = certificates.Certificate._fields
STEP = 2.0**-30  # of the grids on which all rows are evaluated


def known(columns: Mapping[str, float | None], name: str) -> float | None:
    """A column of the history, None where it is absent, in whatever way."""
    value = columns.get(name)
    return None if value is None or math.isnan(value) else value


def certificate_columns(problem: Problem) -> tuple[str, ...]:
    """The columns of the history that a certificate fills; see `report_certificate`."""
    of_each = [f"multiplier_{what}{m}" for what in ("", "error_") for m in range(1, len(problem.constraints) + 1)]
    return (*CERTIFICATE, "lower_bound", "duality_gap", *of_each)


def point_at(problem: Problem, model: Parameters, total: Tally, gradient: Record) -> CertifiedPoint:
    """Values and gradients of the smooth functions at a model.

    Parameters
    ----------
    total : over all rows
    gradient : leaves [K, ...] float64: sums of the sampled functions' gradients over the counted rows of all clients
    """
    known, functions = terms(problem), sampled(problem)
    counts = np.array([total.count[known.index(function.term)] for function in functions])
    stacked = np.concatenate([np.asarray(leaf).reshape(len(functions), -1) for leaf in bare_leaves(gradient)], axis=1)
    roundings = problem.clients + problem.samples / CHUNK  # of a number, by rows and by columns
    with np.errstate(divide="ignore", invalid="ignore"):  # of rows that are drawn, none may count
        rows = iter(stacked / counts[:, None])
        off = STEP / 2 * problem.target_scale * roundings * np.sqrt(stacked.shape[1]) / counts.min()
    wide = map_leaves(lambda leaf: leaf.astype(np.float64), model)
    w = flat(wide)

    def slope(term: Term, added: Array | float) -> Array:
        return flat(term.server(wide)[1]) if isinstance(term, Norm) else next(rows) + added

    first = slope(objective_term(problem), flat(penalty_gradient(problem.objective, wide)))
    others = [slope(constraint.term, 0.0) for constraint in problem.constraints]
    values, _, spreads = levels(problem, model, total)
    limits = np.array([constraint.limit for constraint in problem.constraints])
    return CertifiedPoint(
        smooth_value(problem, model, total), first, values - limits,
        np.array(others).reshape(len(others), len(w)), limits, spreads,
        (off * objective_term(problem).sampled, off),
    )  # fmt: skip


def first_iterate(problem: Problem, model: Parameters, total: Tally, gradient: Record) -> FirstNumbers:
    """Numbers of the first model that later certificates need, as JSON values; None where not finite."""
    point = point_at(problem, model, total, gradient)
    if not _finite(point):
        return dict.fromkeys(FirstIterate._fields)
    slope, length = float(np.linalg.norm(point.gradient)), float(np.sqrt(squares(model)))
    return FirstIterate(point.objective, slope, point.excess.tolist(), length)._asdict()


def report_certificate(
    problem: Problem, model: Parameters, total: Tally, gradient: Record, first: FirstNumbers
) -> dict[str, float | None]:
    """Columns of the history: the KKT residual and its parts, multipliers, and what follows from convexity.

    With a regularizer h the stationarity is ||w - prox_h(w - s grad F)|| / ||w||, s = ||w|| / ||grad F||: zero at the
    stationary points of F + h.

    Parameters
    ----------
    total, gradient : as for `point_at`
    first : from `first_iterate`, of the first model

    Returns
    -------
    None throughout where a value is not finite, or was not at the first model; NaN for what the grid of exact sums may
    have changed too much. `lower_bound` is None where `is_convex` says no or nothing is strongly convex; `duality_gap`,
    how far the objective is above it, where a limit is not met too.
    """
    point = point_at(problem, model, total, gradient)
    if first["objective"] is None or not _finite(point):
        return dict.fromkeys(certificate_columns(problem))
    start = FirstIterate(**first)
    nu = certificates.best_multipliers(point, start)
    stationarity = None
    if problem.regularizer is not None:
        prox = problem.regularizer.prox
        stationarity = certificates.prox_stationarity(
            flat(model), point.lagrangian(nu), start.length, lambda u, step: flat(prox(unflat(u, model), step))
        )
    columns: dict[str, float | None] = dict(certificates.certificate(point, start, nu, stationarity)._asdict())
    if math.isnan(columns["kkt_residual"] or 0.0):
        return dict.fromkeys(certificate_columns(problem), math.nan)
    curvatures, met = strong_convexity(problem, model), not (point.excess > 0).any()
    unit = certificates.scales(point, start)[1]
    bound = certificates.lower_bound(point, nu, curvatures, unit) if is_convex(problem) else None
    columns["lower_bound"] = bound = None if bound == -np.inf else bound
    columns["duality_gap"] = point.objective - bound if bound is not None and met else None
    for what, numbers in ("", nu), ("error_", certificates.multiplier_errors(point, nu)):
        columns |= {f"multiplier_{what}{m}": float(n) if np.isfinite(n) else None for m, n in enumerate(numbers, 1)}
    return columns


def _finite(point: CertifiedPoint) -> bool:
    return all(np.isfinite(part).all() for part in point)


def is_convex(problem: Problem) -> bool:
    """Whether bounds hold for the whole problem: all functions are known to be convex, and all rows are evaluated.

    A regularizer, which has no gradient here, allows none; and values over a part of the rows bound nothing.
    """
    rows = int(problem.counts.sum()) if problem.split == "rows" else problem.samples
    if problem.regularizer is not None or (problem.measured_rows is not None and problem.measured_rows < rows):
        return False
    if objective_term(problem).sampled and (problem.objective.nonconvex_penalty or problem.objective.l2 < 0):
        return False
    return all(isinstance(term, Norm) or (problem.objective.convex and term.convex) for term in all_terms(problem))


def strong_convexity(problem: Problem, model: Parameters) -> Floats:
    """[M + 1] for which mu each function is mu-strongly convex if it is convex, F_0 first; of such models.

    The norm is of all parameters; where l2 leaves intercepts out, it makes nothing strongly convex.
    """
    moduli = np.array([2.0 if isinstance(term, Norm) else 0.0 for term in all_terms(problem)])
    if objective_term(problem).sampled and all(bare_leaves(problem.objective.penalized(model))):
        moduli[0] += 2 * problem.objective.l2
    return moduli
