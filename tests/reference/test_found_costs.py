"""SSCA with costs of slack and margins that are found: against a loop, against a known optimum, whatever the scale."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from paper import (
    Function,
    all_digits,
    close,
    combine,
    draw,
    estimate,
    first_model,
    inner,
    job,
    lemma_1,
    omega,
    play,
    read,
    softmax,
    step_size,
)
from scipy.optimize import minimize

from mpifed.testing import Job

ROUNDS = 30
RULE: dict[str, Any] = {"batch_size": 4, "rho": [0.8, 0.3], "gamma": [0.7, 0.35], "tau": 0.15, "slack_cost": "auto"}
NETWORK = {"name": "mlp", "bias": False, "hidden": 4}


def window(t: int) -> float:
    return max(1 / t, min(1 / 20, 10 / t))


def found_by_a_loop(task: Job, data: Any, limit: float, margins: bool) -> tuple[Any, float, list[float]]:
    """(w, the last cost, all margins) for ||w||^2 under a limit on the loss, by Lemma 1."""
    rule, w, tau = task.algorithm, omega(first_model(task)), task.algorithm["tau"]
    A, BC, missing, inverse, ratio, nu_cap, short = 0.0, combine((0.0, w)), 1.0, 0.0, 0.0, 0.0, 0.0
    margin, variance, before, all_margins = 0.0, 0.0, 0.0, []
    for t in range(1, task.rounds + 1):
        rho, gamma, b = step_size(rule["rho"], t), step_size(rule["gamma"], t), window(t)
        cost, bar = estimate(w, data, draw(task, data, t))
        A = (1 - rho) * A + rho * (cost + tau * inner(w, w) - inner(bar, w))
        BC = combine((1 - rho, BC), (rho, bar), (-2 * rho * tau, w))
        missing *= 1 - rho
        curvature = tau * (1 - missing)
        if margins:
            if t > 1:
                c = max(b, 1 / (t - 1))
                variance = (1 - c) * variance + c * (cost - limit - before) ** 2 / 2
            margin += b * (cost - limit + 3 * sqrt(rho / (2 - rho) * variance))
            margin, before = min(max(margin, 0.0), 1.5 * sqrt(variance)), cost - limit
            all_margins.append(margin)
        nu_cap = min(max(1.5 * ratio / inverse if t > 1 else 0.0, 1 / curvature), 1e6 / curvature)
        w_bar, nu = lemma_1(BC, A + margin, limit * (1 - missing), curvature, nu_cap)
        T = 1 + nu * curvature
        q = max(b, 1 / 4) if short >= 0.9 else b
        inverse, ratio = (1 - q) * inverse + q / T, (1 - q) * ratio + q * nu / T
        short = (1 - b) * short + b * (nu >= 0.999 * nu_cap)
        w = combine((1 - gamma, w), (gamma, w_bar))
    return w, nu_cap, all_margins


@covering({"split": ["rows", "columns"], "margins": ["off", "auto"]}, 1)
def test_against_a_loop(split: str, margins: str, skewed: Path, shared_path: Path, tmp_path: Path) -> None:
    folder = skewed if split == "rows" else all_digits(shared_path, "columns", 5)
    name = "ssca"
    task = job(
        folder, {**RULE, "name": name, "margins": margins}, NETWORK, ROUNDS, minimize={"name": "norm"},
        constraint=[{"name": "loss", "limit": 2.2}],
    )  # fmt: skip
    w, cost, steered = found_by_a_loop(task, read(folder), 2.2, margins == "auto")
    result = play(task, tmp_path / "run")
    close(result.model, w)
    assert result.columns["slack_cost_1"] == pytest.approx(cost, rel=1e-6)
    if margins == "auto":
        assert max(steered) > 0.01


# --- a known optimum ----------------------------------------------------------------------------------------------


def groups_optimum(data: Any, limits: dict[tuple[int, ...], float]) -> tuple[Any, Any]:
    """(w, multipliers) of min ||w||^2 of softmax regression subject to limits on groups' mean losses, by scipy."""

    def value(w: Any, group: tuple[int, ...]) -> tuple[float, Any]:
        some = np.isin(data.y, group)
        losses, pull = softmax(w, Function("loss"), data.X[some], data.y[some])
        return losses.mean(), pull(np.full(some.sum(), 1 / some.sum()))

    constraints = [
        {"type": "ineq", "fun": lambda w, g=g, u=u: u - value(w, g)[0], "jac": lambda w, g=g: -value(w, g)[1]}
        for g, u in limits.items()
    ]
    solved = minimize(
        lambda w: (w @ w, 2 * w), np.zeros(data.X.shape[1] * 3), jac=True, constraints=constraints, method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    )  # fmt: skip
    slopes = np.array([value(solved.x, g)[1] for g in limits])
    return solved.x, np.linalg.lstsq(slopes.T, -2 * solved.x, rcond=None)[0]


@pytest.mark.parametrize("batch", [20, pytest.param(60, marks=pytest.mark.long)])
def test_costs_end_a_little_above_the_multipliers(classes: Path, tmp_path: Path, batch: int) -> None:
    """With all rows, and with minibatches of a third of them; nothing is tuned."""
    limits = {(0,): 0.7, (1, 2): 0.6}
    w, nu = groups_optimum(read(classes), limits)
    assert nu.min() > 1
    task = job(
        classes,
        {"name": "ssca", "batch_size": batch, "rho": [0.9, 0.55], "gamma": [0.9, 0.6], "tau": 0.1},
        {"name": "softmax", "bias": False}, 600, minimize={"name": "norm"},
        constraint=[{"name": "loss", "classes": list(group), "limit": limit} for group, limit in limits.items()],
    )  # fmt: skip
    row = play(task, tmp_path / "run").columns
    costs = np.array([row["slack_cost_1"], row["slack_cost_2"]])
    away = 0.02 if batch == 60 else 0.2
    np.testing.assert_allclose(costs, np.maximum(1.5 * nu, 1 / 0.1), rtol=away)  # no less than tau_0 / tau_m
    assert row["objective"] == pytest.approx(w @ w, rel=away)
