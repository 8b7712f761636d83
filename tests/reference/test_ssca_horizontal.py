"""Algorithm 1 of SSCA against the component formulas of the paper, as heavy-ball SGD, and at a known optimum.

C. Ye, Y. Cui: "Sample-based Federated Learning via Mini-batch SSCA", arXiv:2103.09506: (4), (14)-(17).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper import Function, close, heavy_ball, job, play, read, softmax, step_size, unconstrained
from scipy.optimize import minimize

ROUNDS = 6
RULE: dict[str, Any] = {"name": "ssca", "batch_size": 3, "rho": [0.8, 0.3], "gamma": [0.7, 0.35], "tau": 0.15}
NETWORK = {"name": "mlp", "bias": False, "hidden": 4, "l2": 2e-3}
every_start = pytest.mark.parametrize("start", ["exact", "paper"])


@every_start
@pytest.mark.parametrize("part", [{}, {"clients_per_round": 3}], ids=str)
def test_algorithm_1(skewed: Path, tmp_path: Path, start: str, part: dict[str, int]) -> None:
    task, data = job(skewed, RULE | {"start": start}, NETWORK, ROUNDS, participation=part), read(skewed)
    counts = [len(rows) for rows in data.rows]
    assert max(counts) > 2 * min(counts)  # unequal, so that the weights N_i/(B N) matter
    close(play(task, tmp_path / "run").model, unconstrained(task, data, start))


@every_start
def test_it_is_heavy_ball_sgd(digits: Path, tmp_path: Path, start: str) -> None:
    """With rho_1 = 1: step gamma_t rho_t/(2 tau), momentum (1-rho_t)(1-gamma_{t-1}) gamma_t/gamma_{t-1} (errata)."""
    rho, gamma, tau = [1.0, 0.3], [0.7, 0.35], 0.6
    rule = RULE | {"start": start, "rho": rho, "gamma": gamma, "tau": tau}
    task = job(digits, rule, NETWORK | {"l2": 0.0}, ROUNDS)

    def momentum(t: int) -> float:
        last = step_size(gamma, t - 1) if t > 1 else 1.0
        return (1 - step_size(rho, t)) * (1 - last) * step_size(gamma, t) / last

    w = heavy_ball(task, read(digits), lambda t: step_size(gamma, t) * step_size(rho, t) / (2 * tau), momentum)
    close(play(task, tmp_path / "run").model, w)


@pytest.mark.parametrize("rho", [[1.0], [0.7]])
def test_full_batches_find_the_optimum_of_a_convex_problem(classes: Path, tmp_path: Path, rho: list[float]) -> None:
    """Softmax regression, against BFGS on all rows at once."""
    data, penalty = read(classes), 0.02
    N, size = len(data.y), len(data.rows[0])
    assert {len(rows) for rows in data.rows} == {size}

    def objective(w: Any) -> tuple[float, Any]:
        losses, pull = softmax(w, Function("loss"), data.X, data.y)
        return losses.mean() + penalty * w @ w, pull(np.full(N, 1 / N)) + 2 * penalty * w

    best = minimize(objective, np.zeros(3 * data.X.shape[1]), jac=True, tol=1e-12)
    rule = {"name": "ssca", "batch_size": size, "rho": rho, "gamma": [1.0], "tau": 0.8}
    result = play(job(classes, rule, {"name": "softmax", "bias": False, "l2": penalty}, 400), tmp_path / "run")
    np.testing.assert_allclose(result.model.first.reshape(-1), best.x, rtol=0, atol=1e-6)
    assert result.columns["objective"] == pytest.approx(best.fun, abs=1e-9)
    assert result.columns["objective"] - result.columns["train_loss"] == pytest.approx(penalty * best.x @ best.x)
