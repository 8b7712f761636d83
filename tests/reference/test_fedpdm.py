"""FedPDM against known optima, and its measure of optimality.

Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek (IEEE MLSP 2023), whose equation numbers these are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import gradient_of, local_job, played, rows_of
from paper import make_data
from whole_runs import run

from mpifed.testing import Solo, rounds

RHO = 2.0
CLASSES = 10
L1 = {"name": "l1", "weight": 0.02}
STEP = {"learning_rate": {"initial": 0.8, "exponent": 0.5}}
FEDPDM = {"name": "fedpdm", "batch_size": 4, "client_optimizer": STEP, "rho": RHO, "local_steps": 3}


def soft(u: Any, threshold: float) -> Any:
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0)


# --- optima ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def equal(tmp_path_factory: Any) -> Path:
    """5 clients with 24 rows each of a regression: with a batch of 24 all rows count in every step."""
    out = tmp_path_factory.mktemp("data") / "equal"
    return make_data(out, "synthetic", "--split", "rows", "--clients", 5, "--samples", 120, "--features", 8)


def to_the_end(folder: Path, out: Path, rounds: int, batch: int, **tables: Any) -> Any:
    record = {"evaluate_every": rounds // 2, "certify_every": rounds // 2, "checkpoint_every": 0}
    algorithm = {
        "name": "fedpdm",
        "batch_size": batch,
        "client_optimizer": {"learning_rate": 0.3},
        "rho": 3.0,
        "local_steps": 6,
    }
    return run(local_job(folder, algorithm, rounds=rounds, record=record, **tables), Solo(), out)


@pytest.mark.parametrize("gamma", [0.05, *(pytest.param(gamma, marks=pytest.mark.long) for gamma in (0.0, 0.3))])
def test_full_batches_find_the_lasso(equal: Path, tmp_path: Path, gamma: float) -> None:
    from sklearn.linear_model import Lasso

    data = rows_of(equal)
    assert {len(y) for _, y in data} == {24}
    X, y = np.concatenate([X for X, _ in data]), np.concatenate([y for _, y in data])
    best = np.linalg.lstsq(X, y, rcond=None)[0]
    if gamma:
        best = Lasso(gamma, fit_intercept=False, tol=1e-15, max_iter=100_000).fit(X, y).coef_
    tables = {"regularizer": {"name": "l1", "weight": gamma}} if gamma else {}
    result = to_the_end(equal, tmp_path / "run", 300, 24, model={"name": "least-squares", "bias": False}, **tables)
    assert result.columns["optimality"] < 1e-20  # a square
    assert result.columns["kkt_residual"] < 1e-9
    found = result.model.first[:, 0]
    np.testing.assert_allclose(found, best, rtol=0, atol=1e-9)
    assert ((found == 0) == (best == 0)).all()
    assert (found == 0).any() == (gamma > 0)


@pytest.mark.parametrize("tables", [{}, {"regularizer": L1}], ids=["smooth", "l1"])
def test_the_optimality_measure(skewed: Path, tables: dict[str, Any]) -> None:
    """(21) of the Lagrangian sum over i of N_i/N L_i + h, with the prox-gradient map where h is not smooth."""
    objective = {"name": "softmax", "bias": False, "l2": 0.05, "nonconvex_penalty": 0.1}
    task = local_job(skewed, FEDPDM, model=objective, **tables)
    found = played(task)
    *_, last = rounds(task, measured=task.rounds)
    data, x_0, x, lam = rows_of(skewed), found.model, found.kept("model"), found.kept("dual")
    N, P, pull = sum(len(y) for _, y in data), 0.0, np.zeros(640)
    gradient = gradient_of(task, CLASSES)
    for (X, y), own, dual in zip(data, x, lam, strict=True):
        share = len(y) / N
        P += share**2 * np.sum((gradient(own, X, y) - dual + RHO * (own - x_0)) ** 2)  # by x_i
        P += share**2 * np.sum((x_0 - own) ** 2)  # by lambda_i
        pull += share * (dual + RHO * (x_0 - own))  # by x_0
    target = soft(x_0 - pull / RHO, (L1["weight"] if tables else 0.0) / RHO)
    P += np.sum((RHO * (x_0 - target)) ** 2)
    assert last.columns["optimality"] == pytest.approx(P, rel=1e-9)
    assert P > 1e-3
