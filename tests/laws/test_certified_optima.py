"""Certified runs of convex problems, beside optima that are found otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certified import read_job, read_model, recomputed, solve
from lengths import long_unless
from registry import table
from test_certified_runs import DOUBLE, HORIZONTAL, PROBLEMS, check, result

from jobs.hyfdca.rows import read_rows
from mpifed.data.store import open_federation
from mpifed.files.history import read_history

CONVEX: dict[str, dict[str, Any]] = {
    "ball": PROBLEMS["softmax, only the ball is curved"],
    "by class": PROBLEMS["convex by class"],
    "penalized": {
        "model": {"name": "softmax", "bias": False, "l2": 0.02},
        "constraint": [{"name": "loss", "classes": [0], "limit": 0.4}, {"name": "norm", "limit": 5.0}],
    },
}


@pytest.mark.parametrize("problem", long_unless(lambda problem: problem == "penalized", CONVEX))
def test_multipliers_and_bound_come_near_those_of_the_optimum(problem: str, classes: Path, tmp_path: Path) -> None:
    """Convex problems by full batches; the optimum by the method of multipliers, certified by its own gap."""
    counts = open_federation(classes).counts
    full = HORIZONTAL | {
        "batch_size": int(counts.max()),
        "rho": [1.0],
        "gamma": [0.5],
        "tau": 0.5,
        "slack_cost": 1000.0,
    }
    assert counts.min() == counts.max()
    found = result(table(classes, full, rounds=300, compute=DOUBLE, **CONVEX[problem]), tmp_path)
    check(tmp_path)
    best = solve(read_job(tmp_path), read_rows(classes), (6, 3), 1e4)
    (optimum, *_), nu = best.value, best.multipliers
    numbers = recomputed(read_job(tmp_path), read_rows(classes), {"first": best.w.reshape(-1, 3)})
    assert numbers["kkt_residual"] is not None and numbers["kkt_residual"] < 1e-5
    assert numbers["lower_bound"] == pytest.approx(optimum, rel=1e-6)
    assert nu.max() > 0.01
    ours = [found[f"multiplier_{m}"] for m in range(1, len(nu) + 1)]
    np.testing.assert_allclose(ours, nu, rtol=0.05, atol=0.01 * nu.max())
    assert optimum * 0.99 <= found["lower_bound"] <= optimum * (1 + 1e-6)
    assert found["objective"] == pytest.approx(optimum, rel=0.01)
    np.testing.assert_allclose(read_model(tmp_path / "model.safetensors")["first"].ravel(), best.w, atol=0.02)


@pytest.mark.parametrize("problem", ["convex by class", "softmax"])
def test_a_bound_is_below_the_optimum_from_the_first_row_on(problem: str, classes: Path, tmp_path: Path) -> None:
    job = table(classes, HORIZONTAL, rounds=30, compute=DOUBLE, **PROBLEMS[problem])
    record = {"evaluate_every": 1, "certify_every": 1, "checkpoint_every": 0}
    result(job, tmp_path, record=record)
    best = solve(read_job(tmp_path), read_rows(classes), (6, 3), 1e4)
    bounds = read_history(tmp_path)["lower_bound"]
    assert len(bounds) == 31 and np.isfinite(bounds[1:]).all()
    assert (bounds[1:] <= best.value[0] * (1 + 1e-6)).all()
    assert bounds[-1] > bounds[1]


@pytest.mark.parametrize(
    ("problem", "tau"),
    long_unless(
        lambda problem, tau: problem == "penalized",
        [("penalized", 0.1), ("penalized", 0.5), ("ball", 0.1), ("ball", 0.5)],  # limits by class are met in no round
    ),
)
def test_multipliers_are_within_their_error_of_the_optimum(
    problem: str, tau: float, classes: Path, tmp_path: Path
) -> None:
    """In every measured round that meets all limits, near the optimum or far: minibatches, small and large steps."""
    rule = HORIZONTAL | {"batch_size": 10, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": tau}
    record = {"evaluate_every": 5, "certify_every": 5, "checkpoint_every": 0}
    result(table(classes, rule, rounds=100, compute=DOUBLE, **CONVEX[problem]), tmp_path, record=record)
    job, columns = read_job(tmp_path), read_history(tmp_path)
    best = solve(job, read_rows(classes), (6, 3), 1e4)
    limits = [constraint["limit"] for constraint in job["constraint"]]
    values, ours, errors = (
        np.stack([columns[f"{name}{m}"] for m in range(1, len(limits) + 1)], axis=1)
        for name in ("constraint_", "multiplier_", "multiplier_error_")
    )
    bounded = np.isfinite(errors).all(axis=1)
    assert bounded[1:].all()  # at the start, multipliers are not yet bounded
    met = (values <= limits).all(axis=1) & bounded
    assert met.sum() > 3
    assert (abs(ours - best.multipliers) <= errors + 1e-3)[met].all()
    assert errors[met].max() > 0
