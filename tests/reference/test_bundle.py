"""The bundle method against a loop with all data in one place, its bound, and optima known otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_columns import PENALTY, Whole, grid, optimum, overlapping, primal, task
from paper import make_data
from rounds import rounds_of
from scipy.optimize import minimize

from mpifed.algorithms.bundle import PARTS
from mpifed.run.setup import prepare
from mpifed.testing import Job, Solo


def job_of(folder: Path, rounds: int, loss: str = "hinge", penalty: float = PENALTY, **algorithm: Any) -> Job:
    plain, objective = {"security": "plain"}, {"name": loss, "l2": penalty}
    return task(folder, {"name": "bundle", **algorithm}, aggregation=plain, model=objective, rounds=rounds)


def weights(V: Any, c: Any) -> Any:
    """Of the planes, by scipy."""
    K = len(c)
    total = {"type": "eq", "fun": lambda b: b.sum() - 1, "jac": lambda b: np.ones(K)}
    G = V @ V.T / (2 * PENALTY)
    best = minimize(
        lambda b: b @ G @ b / 2 - c @ b, np.full(K, 1 / K), jac=lambda b: G @ b - c, bounds=[(0, 1)] * K,
        constraints=[total], method="SLSQP", options={"ftol": 1e-15, "maxiter": 500},
    )  # fmt: skip
    return best.x


@pytest.mark.parametrize("shape", ["overlapping", "2x3"])
def test_the_loop(shared_path: Path, shape: str) -> None:
    folder = overlapping(shared_path) if shape == "overlapping" else grid(shared_path, shape)
    data = Whole(folder)
    X, t = data.X, data.t
    N, p = X.shape
    best = ahead = np.zeros(p)
    V, c = np.zeros((0, p)), np.zeros(0)
    for one in rounds_of(job_of(folder, 7)):
        part = PARTS[np.argmin([primal("hinge", X, t, best + s * (ahead - best)) for s in PARTS])]
        best = best + part * (ahead - best)
        m = X @ (best + 0.1 * (ahead - best))
        u = np.where(t * m < 1, t, 0.0)
        V, c = np.vstack([V, X.T @ u / N]), np.append(c, (t * u).sum() / N)
        beta = weights(V, c)
        ahead = V.T @ beta / (2 * PENALTY)
        np.testing.assert_allclose(one.w, best, rtol=0, atol=2e-5)  # as well as scipy solves
        assert one.columns["dual"] == pytest.approx(c @ beta - PENALTY * ahead @ ahead, abs=1e-8)
        assert one.columns["objective"] == pytest.approx(primal("hinge", X, t, best), abs=1e-6)


@pytest.mark.parametrize("planes", [2, 3, 30])
def test_the_bound_never_falls_and_never_passes_the_optimum(shared_path: Path, planes: int) -> None:
    folder = overlapping(shared_path)
    data = Whole(folder)
    X, t = data.X, data.t
    course = [one.columns for one in rounds_of(job_of(folder, 25, planes=planes))]
    bounds, values = ([one[name] for one in course] for name in ("dual", "objective"))
    assert (np.diff(bounds) >= 0).all()
    assert (np.diff(values) <= 1e-12).all()
    assert bounds[-1] - 1e-10 <= optimum("hinge", X, t) <= values[-1] + 1e-10  # as far as that is known
    assert [one["duality_gap"] for one in course] == [v - b for v, b in zip(values, bounds, strict=True)]
    assert values[-1] - bounds[-1] < (1e-4 if planes == 30 else 0.1)


def test_least_squares(shared_path: Path) -> None:
    """Ridge regression, whose optimum has a formula."""
    folder = make_data(
        shared_path / "ridge", "synthetic", "--split", "columns", "--clients", 3, "--samples", 60, "--features", 8
    )
    job = job_of(folder, 40, "least-squares", 0.1)
    held = prepare(job, Solo()).ranks.blocks
    shards = [shard for block in held for shard in block.shards]
    X, y = np.zeros((60, 8)), shards[0].y
    for shard in shards:
        X[:, shard.columns] = np.vstack([part for _, part in shard.pieces("float64")])
    w = np.linalg.solve(X.T @ X / 60 + 0.2 * np.eye(8), X.T @ y / 60)
    (*_, last) = rounds_of(job, measured=40)
    expected = 0.1 * w @ w + ((X @ w - y) ** 2).mean() / 2
    assert last.columns["dual"] <= expected * (1 + 1e-9)
    assert last.columns["objective"] == pytest.approx(expected, rel=1e-4)
