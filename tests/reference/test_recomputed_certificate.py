"""`jobs.constraints`, which computes certificates without mpifed, against mathematics."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from launching import ROOT
from scipy.optimize import minimize, nnls

from jobs.constraints.certificate import Point, lower_bound, multipliers, shortest_step
from jobs.constraints.functions import convex, curvatures, flat, functions
from jobs.constraints.rows import Floats, Model, Rows, first_iterate, read_rows
from mpifed.algorithms.horizontal import start_model
from mpifed.core.record import leaves
from mpifed.core.round import SETUP, Round
from mpifed.run.setup import problem_of
from mpifed.shards.store import open_federation


def test_nothing_of_the_package_is_imported() -> None:
    names = ("rows", "functions", "certificate", "certify", "optimum")
    for tree in (ast.parse((ROOT / "jobs" / "constraints" / f"{name}.py").read_text()) for name in names):
        nodes = list(ast.walk(tree))
        found = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        found += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert found and not [name for name in found if name.split(".")[0] == "mpifed"]
        assert all(name.startswith("jobs.constraints") for name in found if name.split(".")[0] == "jobs")


# --- data and functions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["skewed", "sides", "scattered", "patchwork", "regression"])
def test_the_rows_of_all_shards(name: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(name)
    federation, rows = open_federation(folder), read_rows(folder)
    ((X, y),) = rows.pieces(len(rows.y))
    covered = np.zeros(X.shape, dtype=bool)
    for i in range(federation.clients):
        shard = federation.shard(i, in_memory=True)
        part = np.empty((shard.samples, shard.features))
        shard.take(np.arange(shard.samples), part)
        np.testing.assert_allclose(X[np.ix_(shard.rows, shard.columns)], part, rtol=1e-12)
        np.testing.assert_array_equal(y[shard.rows], shard.y)
        covered[np.ix_(shard.rows, shard.columns)] = True
    assert covered.all()
    assert rows.outputs == (federation.classes or 1)


def test_sparse_rows(tmp_path: Path, make_data: Any) -> None:
    text = "".join(f"{i % 2} 1:{i} 3:{i * i} {'7:1' if i % 3 else ''}\n" for i in range(1, 13))
    (tmp_path / "some.svm").write_text(text)
    options = ["--split", "rows", "--clients", "3", "--sparse", "--scale", "unit", "--pack", "2"]
    folder = make_data(tmp_path / "data", "svmlight", str(tmp_path / "some.svm"), *options)
    ((X, y),) = read_rows(folder).pieces(100)
    federation = open_federation(folder)
    assert federation.sparse
    for i in range(3):
        shard = federation.shard(i, in_memory=True)
        part = shard.take_sparse(np.arange(shard.samples), "f8").toarray()
        np.testing.assert_array_equal(X.toarray()[shard.rows], part)
        np.testing.assert_array_equal(y[shard.rows], shard.y)


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


def test_values_are_means_and_their_standard_errors() -> None:
    job, rows, model = problem("softmax")
    X = rows.raw * 2 + rows.shift
    z = X @ model["first"] + model["head.bias"]
    loss = np.log(np.exp(z).sum(axis=1)) - z[np.arange(30), rows.y]
    w = model["first"].ravel()  # the penalties count no intercept
    everything = flat(model)
    own = loss[rows.y == 1]
    rate = 1 - np.exp(-loss)
    first, of_class, norm, errors = functions(job, rows, model)
    assert first.value == pytest.approx(loss.mean() + 0.02 * w @ w + 0.1 * (w**2 / (1 + w**2)).sum())
    assert of_class[:3] == pytest.approx((own.mean(), own.std() / np.sqrt(10), np.sqrt((own**2).mean())))
    assert norm[:3] == (everything @ everything, 0, 0)
    assert errors[:3] == pytest.approx((rate.mean(), rate.std() / np.sqrt(30), np.sqrt((rate**2).mean())))


def test_which_problems_are_convex() -> None:
    def job(objective: dict[str, Any], minimize: str, *constraints: str) -> dict[str, Any]:
        tables = [{"name": name} for name in constraints]
        return {"model": objective, "minimize": {"name": minimize}, "constraint": tables}

    softmax, network = {"name": "softmax", "bias": False, "l2": 0.25}, {"name": "mlp", "bias": False, "l2": 0.25}
    assert convex(job(softmax, "loss", "loss", "norm"))
    assert curvatures(job(softmax, "loss", "loss", "norm")).tolist() == [0.5, 0.0, 2.0]
    assert curvatures(job(softmax, "norm", "loss")).tolist() == [2.0, 0.0]
    assert not convex(job(network, "norm", "loss"))
    assert not convex(job(softmax, "norm", "error-rate"))
    assert not convex(job(softmax | {"nonconvex_penalty": 0.1}, "loss"))
    assert curvatures(job(network, "loss", "norm")).tolist() == [0.0, 2.0]
    assert curvatures(job(softmax, "error-rate", "norm")).tolist() == [0.0, 2.0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["mlp", "softmax", "logistic"])
def test_the_first_iterate(name: str, dtype: str, classes: Path, halves: Path) -> None:
    folder = halves if name == "logistic" else classes
    objective = {
        "name": name,
        **{"mlp": {"hidden": 7, "bias": True}}.get(name, {"bias": True}),
    }
    table = {
        "name": "w0", "rounds": 1, "seed": 2**62 + 5, "data": {"path": str(folder)}, "model": objective,
        "compute": {"dtype": dtype}, "algorithm": {"name": "fedavg", "batch_size": 4},
        "client_optimizer": {"learning_rate": 0.3},
    }  # fmt: skip
    job = checked(table)
    task = problem_of(job, open_federation(folder))
    model = start_model(task, Round(SETUP, job.seed, np.ones(task.clients, dtype=bool)))
    found = first_iterate(table, task.features, task.outputs)
    assert found.keys() == dict(leaves(model)).keys()
    for leaf, values in leaves(model):
        np.testing.assert_array_equal(found[leaf], values)


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
        value * scale, gradient * scale[:, None], limit * scale[1:], np.ones(M), first * scale, 2 * scale, 1.5,
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


@pytest.mark.parametrize("seed", range(30))
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


def test_of_several_multipliers_the_shortest() -> None:
    """g_0 = -(1, 1); four gradients, one twice, one in other units: x is shared out in units of their lengths."""
    gradient = np.array([[-1.0, -1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 5.0], [-1.0, 0.0]])
    limit = np.full(4, 2.0)
    at = Point(np.array([1.0, *limit]), gradient, limit, limit, np.ones(5), np.ones(5), 1.0, np.zeros(5), False)
    np.testing.assert_allclose(multipliers(at), [0.5, 0.5, 0.2, 0], atol=1e-12)
