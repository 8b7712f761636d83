"""`jobs.constraints`, which computes certificates without mpifed, against mathematics."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
from certificate import Point, lower_bound, multipliers, shortest_step
from certified import first_iterate, flat, functions
from launching import ROOT
from scipy.optimize import minimize, nnls

from jobs.constraints.rows import Floats, Model, Rows


def test_nothing_of_the_package_is_imported() -> None:
    paths = [ROOT / "jobs" / "constraints" / f"{name}.py" for name in ("rows", "functions", "optimum")]
    paths += [ROOT / "tests" / f"{name}.py" for name in ("certificate", "certified")]
    for tree in (ast.parse(path.read_text()) for path in paths):
        nodes = list(ast.walk(tree))
        found = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        found += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert found and not [name for name in found if name.split(".")[0] == "mpifed"]
        assert all(name.startswith("jobs.constraints") for name in found if name.split(".")[0] == "jobs")


# --- data and functions ---------------------------------------------------------------------------------------------


OBJECTIVES: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": 4, "l2": 0.03, "bias": True},
    "softmax": {"l2": 0.02, "bias": True, "nonconvex_penalty": 0.1},
    "one-vs-rest": {"bias": False, "nonconvex_penalty": 0.3},
    "true-class-logistic": {"bias": True},
    "logistic": {"l2": 0.1},
    "least-squares": {"l2": 0.2},
    "hinge": {"l2": 0.1},
    "squared-hinge": {},
}


def problem(name: str) -> tuple[dict[str, Any], Rows, Model]:
    """Of 30 random rows, with every term that fits, at a random model."""
    rng = np.random.default_rng(0)
    outputs = {"least-squares": 1, "logistic": 2, "hinge": 2, "squared-hinge": 2}.get(name, 3)
    X, y = rng.standard_normal((30, 5)), np.arange(30) % outputs if outputs > 1 else rng.standard_normal(30)
    some = {} if outputs == 1 else {"classes": [1]}
    terms = [{"name": "loss", **some}, {"name": "norm"}, {"name": "error-rate"}][: 2 if outputs == 1 else 3]
    job = {
        "model": {"name": name, **OBJECTIVES[name]}, "compute": {"dtype": "float64"}, "seed": 3,
        "minimize": {"name": "loss"}, "constraint": [term | {"limit": 0.5} for term in terms],
    }  # fmt: skip
    rows = Rows(X, y, np.array(2.0), rng.standard_normal(5), outputs)
    model = {name: rng.standard_normal(leaf.shape) for name, leaf in first_iterate(job, 5, outputs).items()}
    return job, rows, model


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_differences(name: str) -> None:
    job, rows, model = problem(name)
    found, w = functions(job, rows, model), flat(model)

    def at(moved: Floats) -> Floats:
        shapes = {name: model[name].shape for name in sorted(model)}
        ends = np.cumsum([np.prod(shape) for shape in shapes.values()])[:-1]
        parts = zip(shapes.items(), np.split(moved, ends), strict=True)
        return np.array([f.value for f in functions(job, rows, {name: part.reshape(s) for (name, s), part in parts})])

    steps = 1e-5 * np.eye(len(w))
    differences = np.array([(at(w + step) - at(w - step)) / 2e-5 for step in steps])
    np.testing.assert_allclose(np.array([f.gradient for f in found]).T, differences, rtol=1e-6, atol=1e-8)


# --- numbers --------------------------------------------------------------------------------------------------------


def point(seed: int, most: int = 4, units: float = 1.0) -> Point:
    """A random one, its functions in units of 10^(normal numbers * units)."""
    rng = np.random.default_rng(seed)
    M, d = rng.integers(1, most + 1), rng.integers(1, 9)
    value, gradient = rng.standard_normal(M + 1), rng.standard_normal((M + 1, d))
    limit, first = value[1:] + rng.standard_normal(M), rng.standard_normal(M + 1)
    curvature = np.array([rng.choice([0.0, 1.0]), *rng.choice([0.0, 2.0], M)])
    scale = 10 ** (units * rng.standard_normal(M + 1))
    return Point(
        value * scale, gradient * scale[:, None], limit * scale[1:], np.ones(M), first * scale, 2 * scale,
        curvature * scale, True,
    )  # fmt: skip


def solved(at: Point, quadratic: float, linear: Floats) -> float | None:
    """SLSQP's minimum of linear . d + quadratic / 2 ||d||^2 over d that meets all quadratics; None: there is none."""

    def room(d: Floats) -> Floats:
        return -(at.excess + at.gradient[1:] @ d + at.curvature[1:] / 2 * (d @ d))

    rng, mu, found = np.random.default_rng(0), at.curvature[1:], []
    for size in (0.1, 1.0, 3.0):
        ended = minimize(
            lambda d: linear @ d + quadratic / 2 * d @ d, rng.standard_normal(at.gradient.shape[1]) * size,
            jac=lambda d: linear + quadratic * d, method="SLSQP", options={"ftol": 1e-15, "maxiter": 1000},
            constraints={"type": "ineq", "fun": room, "jac": lambda d: -at.gradient[1:] - np.outer(mu, d)},
        )  # fmt: skip
        found += [ended.fun] if room(ended.x).min() > -1e-8 else []
    return min(found, default=None)


@pytest.mark.parametrize("seed", range(6))
def test_numbers_are_minima(seed: int) -> None:
    at = point(seed, units=0.0)
    A = np.concatenate([at.gradient[1:].T / at.slope_scale, np.diag(at.excess) / at.value_scale])
    b = np.concatenate([-at.gradient[0] / at.slope_scale, np.zeros(len(at.limit))])
    np.testing.assert_allclose(multipliers(at), nnls(A, b)[0], rtol=1e-8, atol=1e-9)
    if (at.excess > 0).any():
        found, half = shortest_step(at), solved(at, 1.0, np.zeros(at.gradient.shape[1]))
        assert (found is None) == (half is None)
        assert found is None or half is None or found == pytest.approx(np.sqrt(2 * half), rel=1e-5)
    bound = lower_bound(at)
    if at.curvature.any():
        least = solved(at, at.curvature[0], at.gradient[0])
        assert bound == pytest.approx(np.inf if least is None else at.value[0] + least, rel=1e-5, abs=1e-6)
    else:
        assert bound is None
