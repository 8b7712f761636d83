"""SSCA with recursive estimates against a loop: d_t = g(w_t) + (1 - rho_t) (d_{t-1} - g(w_{t-1})), on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paper import (
    Data,
    Omega,
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
    step_size,
    without_biases,
)

from mpifed.files.history import read_history
from mpifed.testing import Job

ROUNDS = 7
RULE: dict[str, Any] = {
    "batch_size": 4, "rho": [0.8, 0.3], "gamma": [0.7, 0.35], "tau": 0.3, "variance_reduction": "recursive",
}  # fmt: skip
NETWORK = {"name": "mlp", "bias": False, "hidden": 4}


def rule(data: Data, **more: Any) -> dict[str, Any]:
    return {"name": "ssca", **RULE, **more}


def recursive(task: Job, data: Data, limit: float | None = None, c: float = 1e5) -> tuple[Omega, list[float]]:
    """(w, nu of every round); without a limit the loss and the penalty are minimized, otherwise ||w||^2.

    A. Cutkosky, F. Orabona: "Momentum-Based Variance Reduction in Non-Convex SGD" (NeurIPS 2019).
    """
    penalty, tau = task.model.get("l2", 0.0), task.algorithm["tau"]
    w = before = omega(first_model(task))
    multipliers = []
    for t in range(1, task.rounds + 1):
        rho, gamma = step_size(task.algorithm["rho"], t), step_size(task.algorithm["gamma"], t)
        drawn = draw(task, data, t)
        cost, slopes = estimate(w, data, drawn)
        if t == 1:
            value, d = cost, slopes
        else:
            old_cost, old_slopes = estimate(before, data, drawn)  # the same rows
            value = cost + (1 - rho) * (value - old_cost)
            d = combine((1.0, slopes), (1 - rho, d), (rho - 1, old_slopes))
        if limit is None:
            w_bar = combine((1.0, w), (-1 / (2 * tau), d), (-penalty / tau, without_biases(w)))
        else:
            A = value - inner(d, w) + tau * inner(w, w)
            w_bar, nu = lemma_1(combine((1.0, d), (-2 * tau, w)), A, limit, tau, c)
            multipliers.append(nu)
        before, w = w, combine((1 - gamma, w), (gamma, w_bar))
    return w, multipliers


@pytest.mark.parametrize("bias", [False, True])
def test_without_constraints(skewed: Path, tmp_path: Path, bias: bool) -> None:
    data = read(skewed)
    task = job(skewed, rule(data), {**NETWORK, "l2": 2e-3, "bias": bias}, ROUNDS)
    close(play(task, tmp_path / "run").model, recursive(task, data)[0])


@pytest.mark.parametrize("limit, c", [(2.2, 1e5), (1.7, 0.5), (9.0, 1e5)])
def test_with_a_constraint(skewed: Path, tmp_path: Path, limit: float, c: float) -> None:
    data = read(skewed)
    task = job(
        skewed, rule(data, slack_cost=c), NETWORK, ROUNDS, minimize={"name": "norm"},
        constraint=[{"name": "loss", "limit": limit}],
    )  # fmt: skip
    w, nu = recursive(task, data, limit, c)
    assert {2.2: max(nu) > 0, 1.7: max(nu) == c, 9.0: max(nu) == 0}[limit]
    result = play(task, tmp_path / "run")
    close(result.model, w)
    assert result.columns["subproblem_multiplier_1"] == pytest.approx(nu[-1], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("numbers", ["exact", "exact-blocks"])
def test_some_clients_a_round(skewed: Path, tmp_path: Path, numbers: str) -> None:
    """Those present take both gradients, weighted over them, and both count; sums of blocks come from one product."""
    data = read(skewed)
    task = job(
        skewed, rule(data), {**NETWORK, "l2": 2e-3}, ROUNDS, participation={"clients_per_round": 4},
        aggregation={"arithmetic": numbers}, data={"path": str(skewed), "block": 3},
    )  # fmt: skip
    result = play(task, tmp_path / "run")
    close(result.model, recursive(task, data)[0])
    rows = [sum(len(held) for _, held in draw(task, data, t)) for t in range(1, ROUNDS + 1)]
    gradients = read_history(tmp_path / "run")["gradients"]
    assert gradients[-1] == rows[0] + 2 * sum(rows[1:])  # from round 2 on at two models
