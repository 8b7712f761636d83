"""FedPDM against a loop written from its paper, against FedAvg where they are one, and against known optima.

Y. Li, C.-W. Huang, S. Wang, C.-Y. Chi, T. Q. S. Quek (IEEE MLSP 2023), whose equation numbers these are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from lengths import covering
from loops import PRIVATE, gradient_of, local_job, minibatches, played, present, rows_of, start_of
from paper import make_data, step_size
from whole_runs import run

from mpifed.testing import Job, Solo, rounds

RHO = 2.0
RULES: dict[str, dict[str, float]] = {
    "prox": {"initial": 0.8, "exponent": 0.5},
    "fedpd": {"initial": 0.9, "exponent": 0.3},
    "paper": {"initial": 0.4, "exponent": 0.3},
}
CLASSES = 10
L1 = {"name": "l1", "weight": 0.02}
# sums over some hundred rows in float64
EXACT = {"rtol": 0, "atol": 1e-10}


def fedpdm(**changes: Any) -> dict[str, Any]:
    rule = changes.get("local_rule", "prox")
    return {
        "name": "fedpdm",
        "batch_size": 4,
        "client_optimizer": {"learning_rate": RULES[rule]},
        "rho": RHO,
        **changes,
    }


class Course(NamedTuple):
    """What the loop leaves."""

    x_0: Any  # [d]
    x: Any  # [N, d]
    lam: Any  # [N, d]
    steps: list[int]  # Q of every client of every round


def soft(u: Any, threshold: float) -> Any:
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0)


def plain_loop(task: Job, outputs: int = CLASSES) -> Course:
    """Algorithm 1, client by client; h = gamma ||x||_1, biases left out."""
    rule, data, gradient = task.algorithm, rows_of(task.data.path), gradient_of(task, outputs)
    gamma, penalized = (task.regularizer or {"weight": 0.0})["weight"], data[0][0].shape[1] * outputs
    x_0 = start_of(task)
    x, lam, steps = np.tile(x_0, (len(data), 1)), np.zeros((len(data), len(x_0))), []
    for t in range(1, task.rounds + 1):
        eta = step_size(task.client_optimizer["learning_rate"], t)
        eta = {"prox": 1 / (RHO + 1 / eta), "fedpd": eta / RHO, "paper": eta}[rule.get("local_rule", "prox")]
        total, rows = np.zeros_like(x_0), 0
        for i in present(task, len(data), t):
            X, y = data[i]
            v = x[i] if rule.get("start") == "own" else x_0
            Q = 0
            for batch in minibatches(task, i, len(y), t):
                Q += 1
                down = gradient(v, X[batch], y[batch]) - lam[i] + RHO * (v - x_0)
                v = v - eta * down  # (10a)
                if down @ down <= rule.get("tolerance", -1.0):  # (11)
                    break
            steps.append(Q)
            x[i] = v  # (10b)
            lam[i] = lam[i] + RHO * (x_0 - v)  # (10c)
            total, rows = total + len(y) * (v - lam[i] / RHO), rows + len(y)  # (10d)
        x_0 = total / rows  # (13)
        x_0[:penalized] = soft(x_0[:penalized], gamma / RHO)
    return Course(x_0, x, lam, steps)


def same(task: Job, outputs: int = CLASSES, atol: float = 1e-10) -> Course:
    """The product's models and dual variables are those of the loop."""
    found, expected = played(task), plain_loop(task, outputs)
    np.testing.assert_allclose(found.model, expected.x_0, rtol=0, atol=atol)
    np.testing.assert_allclose(found.kept("model"), expected.x, rtol=0, atol=atol)
    np.testing.assert_allclose(found.kept("dual"), expected.lam, rtol=0, atol=atol)
    return expected


@covering({"rule": RULES, "steps": [1, 4], "start": ["server", "own"], "per_round": [None, 3]})
def test_the_loop(skewed: Path, rule: str, steps: int, start: str, per_round: int | None) -> None:
    """Shards of different sizes; whoever is absent keeps x_i and lambda_i."""
    participation = {} if per_round is None else {"clients_per_round": per_round}
    same(local_job(skewed, fedpdm(local_rule=rule, local_steps=steps, start=start), participation=participation))


@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("start", ["server", "own"])
def test_the_stopping_rule(skewed: Path, start: str, block: int) -> None:
    """(11), at which clients end after different numbers of steps, those of one block too."""
    algorithm = fedpdm(
        local_steps=12,
        start=start,
        client_optimizer={"learning_rate": {"initial": 2.0, "exponent": 0.1}},
        tolerance=3.0,
    )
    task = local_job(skewed, algorithm, data={"path": str(skewed), "block": block}, rounds=3)
    steps = same(task).steps
    assert {1, 12} < set(steps)
    assert len(set(steps)) > 4


@pytest.mark.parametrize(
    "tables",
    [
        {"regularizer": L1},
        {"model": {"name": "softmax", "bias": False, "l2": 0.0}},
        {"model": {"name": "softmax", "bias": False, "l2": 0.05, "nonconvex_penalty": 0.1}},
        {"model": {"name": "true-class-logistic", "bias": False, "nonconvex_penalty": 0.1}, "regularizer": L1},
    ],
    ids=["l1", "no penalty", "concave penalty", "the paper's function"],
)
def test_other_functions(skewed: Path, tables: dict[str, Any]) -> None:
    algorithm, some = fedpdm(local_steps=3, batch_size=5), {"participation": {"clients_per_round": 4}}
    x_0 = same(local_job(skewed, algorithm, **some, **tables)).x_0
    assert ((x_0 == 0).sum() > 200) == ("regularizer" in tables)  # dead pixels have 90


@pytest.mark.parametrize("tables", PRIVATE.values(), ids=PRIVATE)
def test_clipped(skewed: Path, tables: dict[str, Any]) -> None:
    """Each record's gradient by itself, and the penalties not at all."""
    objective = {"name": "softmax", "bias": True, "l2": 0.05}
    same(local_job(skewed, fedpdm(local_steps=3), model=objective, **tables))


# --- FedAvg ----------------------------------------------------------------------------------------------------------


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
    task = local_job(skewed, fedpdm(local_steps=3), model=objective, **tables)
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
