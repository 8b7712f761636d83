"""Algorithm 1 of SSCA against the component formulas of the paper, written out; nothing shared but the rows drawn.

C. Ye, Y. Cui: "Sample-based Federated Learning via Mini-batch SSCA", arXiv:2103.09506: (4), (14)-(17).
"""

from __future__ import annotations

from math import exp
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from jobs_in_python import checked
from sklearn.datasets import load_digits
from whole_runs import run

from mpifed.core.round import Round
from mpifed.data.shards import common_rows, shard_of
from mpifed.data.store import open_federation
from mpifed.run.setup import prepare
from mpifed.testing import Job, Solo

ROUNDS, B, TAU, LAMBDA, HIDDEN = 6, 3, 0.15, 2e-3, 4
RHO, GAMMA = (0.8, 0.3), (0.7, 0.35)


def sigmoid(z: float) -> float:
    return 1 / (1 + exp(-z))


def swish(z: float) -> float:
    return z * sigmoid(z)


def swish_slope(z: float) -> float:
    """S'(z) = S(z) + g(z) (1 - S(z)) with g the sigmoid."""
    return swish(z) + sigmoid(z) * (1 - swish(z))


class Sums(NamedTuple):
    """B-bar [J, K] and C-bar [L, J] of one sample."""

    b: Any
    c: Any


def of_one_sample(w1: Any, w2: Any, x: Any, label: int) -> Sums:
    """The sums over l in the formulas of B-bar and C-bar, for one sample n."""
    J, L = len(w1), len(w2)
    z = [sum(w1[j, k] * x[k] for k in range(len(x))) for j in range(J)]
    logits = [sum(w2[l, j] * swish(z[j]) for j in range(J)) for l in range(L)]
    total = sum(exp(v) for v in logits)
    error = [exp(logits[l]) / total - (l == label) for l in range(L)]  # Q_l - y_nl, (10)
    b = np.array([[sum(error[l] * w2[l, j] for l in range(L)) * swish_slope(z[j]) * xk for xk in x] for j in range(J)])
    c = np.array([[error[l] * swish(z[j]) for j in range(J)] for l in range(L)])
    return Sums(b, c)


def step_size(scale_and_decay: tuple[float, float], t: int) -> float:
    return scale_and_decay[0] / t ** scale_and_decay[1]


def job(folder: Path, **changes: Any) -> Job:
    table: dict[str, Any] = {
        "name": "reference",
        "rounds": ROUNDS,
        "seed": 11,
        "data": {"path": str(folder)},
        "model": {"name": "mlp", "bias": False, "hidden": HIDDEN, "l2": LAMBDA},
        "algorithm": {"name": "ssca", "batch_size": B, "rho": list(RHO), "gamma": list(GAMMA), "tau": TAU},
        "record": {"evaluate_every": 0, "checkpoint_every": 0},
        "compute": {"dtype": "float64"},
    }
    for key, value in changes.items():
        table[key] = {**table.get(key, {}), **value} if isinstance(value, dict) else value
    return checked(table)


def paper(task: Job, start: str, per_round: int | None) -> tuple[Any, Any]:
    """(omega_1 [J, K], omega_2 [L, J]) after all rounds of Algorithm 1."""
    data = load_digits()
    pixels, labels = data.data / 16, data.target
    federation = open_federation(task.data.path)
    held = [shard_of(federation, i).rows for i in range(federation.clients)]
    train = pixels, labels
    first = prepare(task, Solo()).server.model  # "choose any w^1"
    w1, w2 = first.first.T.copy(), first.head.second.T.copy()
    b, c, beta1, beta2 = np.zeros_like(w1), np.zeros_like(w2), np.zeros_like(w1), np.zeros_like(w2)
    missing = 1.0  # prod (1 - rho_s)
    for t in range(1, task.rounds + 1):
        now = Round(t - 1, task.seed, np.ones(len(held), dtype=bool))
        clients = list(range(len(held)))
        if per_round:
            clients = sorted(now.rng("participation").choice(len(held), per_round, replace=False).tolist())
        N = sum(len(held[i]) for i in clients)
        b_bar, c_bar = np.zeros_like(w1), np.zeros_like(w2)
        for i in clients:
            rows = min(task.algorithm["batch_size"], len(held[i]))
            drawn = now.draw("minibatch", np.array([i]), np.array([len(held[i])]), rows)[0]
            for n in held[i][drawn]:
                one = of_one_sample(w1, w2, train[0][n], int(train[1][n]))
                b_bar += len(held[i]) / (rows * N) * one.b
                c_bar += len(held[i]) / (rows * N) * one.c
        rho, gamma = step_size(RHO, t), step_size(GAMMA, t)
        b = (1 - rho) * b + rho * (b_bar - 2 * TAU * w1)  # (14)
        c = (1 - rho) * c + rho * (c_bar - 2 * TAU * w2)  # (15)
        beta1, beta2 = (1 - rho) * beta1 + rho * w1, (1 - rho) * beta2 + rho * w2
        missing *= 1 - rho
        tau = TAU if start == "paper" else TAU * (1 - missing)  # errata: the curvature is tau Q_t
        bar1 = -(b + 2 * LAMBDA * beta1) / (2 * tau)  # (16)
        bar2 = -(c + 2 * LAMBDA * beta2) / (2 * tau)  # (17)
        w1, w2 = (1 - gamma) * w1 + gamma * bar1, (1 - gamma) * w2 + gamma * bar2  # (4)
    return w1, w2


@pytest.mark.parametrize("start", ["exact", "paper"])
@pytest.mark.parametrize("per_round", [None, 3])
def test_algorithm_1(skewed: Path, tmp_path: Path, start: str, per_round: int | None) -> None:
    participation = {} if per_round is None else {"clients_per_round": per_round}
    task = job(skewed, algorithm={"start": start}, participation=participation)
    counts = prepare(task, Solo()).algorithm.problem.counts
    assert counts.max() > 2 * counts.min()  # unequal, so that the weights N_i/(B N) matter
    model = run(task, Solo(), tmp_path / "run").model
    w1, w2 = paper(task, start, per_round)
    # gradients are rounded to multiples of 2^-40 = 1e-12 for each client; 6 rounds with factors gamma/(2 tau) < 3
    np.testing.assert_allclose(model.first.T, w1, rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.head.second.T, w2, rtol=0, atol=1e-10)


@pytest.mark.parametrize("start", ["exact", "paper"])
def test_it_is_heavy_ball_sgd(digits: Path, tmp_path: Path, start: str) -> None:
    """With rho_1 = 1: step gamma_t rho_t/(2 tau), momentum (1-rho_t)(1-gamma_{t-1}) gamma_t/gamma_{t-1} (errata)."""
    rho, gamma, tau = (1.0, 0.3), (0.7, 0.35), 0.6
    task = job(
        digits,
        model={"l2": 0.0},
        algorithm={"start": start, "rho": list(rho), "gamma": list(gamma), "tau": tau},
    )
    model = run(task, Solo(), tmp_path / "run").model
    data = load_digits()
    federation = open_federation(digits)
    held = [shard_of(federation, i).rows for i in range(8)]
    train = _training_rows(data.data / 16, data.target, federation)
    first = prepare(task, Solo()).server.model
    w = w1, w2 = first.first.T.copy(), first.head.second.T.copy()
    before = w
    for t in range(1, ROUNDS + 1):
        now = Round(t - 1, task.seed, np.ones(8, dtype=bool))
        gradient = [np.zeros_like(w1), np.zeros_like(w2)]
        for i in range(8):
            drawn = now.draw("minibatch", np.array([i]), np.array([len(held[i])]), B)[0]
            for n in held[i][drawn]:
                one = of_one_sample(*w, train[0][n], int(train[1][n]))
                share = len(held[i]) / (B * sum(map(len, held)))
                gradient = [gradient[0] + share * one.b, gradient[1] + share * one.c]
        step = step_size(gamma, t) * step_size(rho, t) / (2 * tau)
        momentum = 0.0
        if t > 1:
            last = step_size(gamma, t - 1)
            momentum = (1 - step_size(rho, t)) * (1 - last) * step_size(gamma, t) / last
        new = tuple(v - step * g + momentum * (v - u) for v, g, u in zip(w, gradient, before, strict=True))
        before, w = w, new
    np.testing.assert_allclose(model.first.T, w[0], rtol=0, atol=1e-10)
    np.testing.assert_allclose(model.head.second.T, w[1], rtol=0, atol=1e-10)


def _training_rows(pixels: Any, labels: Any, federation: Any) -> tuple[Any, Any]:
    """The rows left for training, in order: those that are not test rows."""
    test, _ = common_rows(federation, "float64")
    tested = {row.tobytes() for row in test}
    keep = np.array([row.tobytes() not in tested for row in pixels])
    assert keep.sum() == federation.samples
    return pixels[keep], labels[keep]


@pytest.mark.parametrize("rho", [[1.0], [0.7]])
def test_full_batches_find_the_optimum_of_a_convex_problem(classes: Path, tmp_path: Path, rho: list[float]) -> None:
    """Softmax regression, against L-BFGS on all rows at once."""
    from scipy.optimize import minimize

    federation = open_federation(classes)
    X = np.zeros((federation.samples, federation.features))
    y = np.zeros(federation.samples, dtype=int)
    for i in range(federation.clients):
        shard = shard_of(federation, i)
        part = np.empty((shard.samples, shard.features))
        shard.take(np.arange(shard.samples), part)
        X[shard.rows], y[shard.rows] = part, shard.y
    size = int(federation.counts.min())
    assert (federation.counts == size).all()
    penalty = 0.02

    def objective(flat: Any) -> tuple[float, Any]:
        w = flat.reshape(federation.features, 3)
        z = X @ w
        top = z.max(axis=1, keepdims=True)
        power = np.exp(z - top)
        q = power / power.sum(axis=1, keepdims=True)
        loss = -np.log(q[np.arange(len(y)), y]).mean() + penalty * (w**2).sum()
        q[np.arange(len(y)), y] -= 1
        return loss, (X.T @ q / len(y) + 2 * penalty * w).reshape(-1)

    best = minimize(objective, np.zeros(federation.features * 3), jac=True, tol=1e-12)
    table = {
        "model": {"l2": penalty, "name": "softmax", "bias": False},
        "algorithm": {"name": "ssca", "batch_size": size, "rho": rho, "gamma": [1.0], "tau": 0.8},
    }
    task = checked({
        "name": "convex", "rounds": 400, "data": {"path": str(classes)}, "compute": {"dtype": "float64"},
        "record": {"evaluate_every": 400, "checkpoint_every": 0}, **table,
    })  # fmt: skip
    result = run(task, Solo(), tmp_path / "run")
    np.testing.assert_allclose(result.model.first.reshape(-1), best.x, rtol=0, atol=1e-6)
    assert abs(result.columns["objective"] - best.fun) < 1e-9
    assert result.columns["objective"] - result.columns["train_loss"] == pytest.approx(penalty * (best.x**2).sum())
