"""HyFDCA against loops written from the paper, as corrected, and against optima known otherwise.

T. Overman, G. Blum, D. Klabjan (AAAI 2024, arXiv:2210.08106), whose algorithm numbers these are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import present
from own_columns import PENALTY, Whole, dual_step, even_odd, grid, optimum, overlapping, task
from rounds import rounds_of
from scipy.optimize import minimize_scalar

from mpifed.core.round import Round
from mpifed.run.setup import prepare
from mpifed.testing import Job, Solo

CLOSE = {"rtol": 0, "atol": 1e-8}  # sums over some hundred rows, rounded to multiples of 2^-40 or so


def job_of(folder: Path, **algorithm: Any) -> Job:
    more = {key: algorithm.pop(key) for key in ("model", "participation", "rounds", "aggregation") if key in algorithm}
    plain = {"security": "plain"}
    return task(folder, {"name": "hyfdca", **algorithm}, **{"aggregation": plain, "model": {
        "name": "hinge", "bias": False, "l2": PENALTY}, **more})  # fmt: skip


def conjugate(loss: str, t: float, alpha: float) -> float:
    """l*(-alpha)."""
    b = t * alpha
    if loss == "hinge":
        return -b if -1e-12 <= b <= 1 + 1e-12 else np.inf
    if loss == "squared-hinge":
        return -b + b * b / 4 if b >= -1e-12 else np.inf
    assert loss == "logistic"
    if not -1e-12 <= b <= 1 + 1e-12:
        return np.inf
    return sum(v * np.log(v) for v in (b, 1 - b) if v > 0)


def drawn(job: Job, data: Whole, k: int, r: int, count: int | None) -> Any:
    """D of client k in round r = 0, 1, ..., as numbers of samples."""
    rows, inner, now = data.cells[k].rows, job.algorithm.get("inner"), Round(r, job.seed, np.zeros(0, dtype=bool))
    if job.algorithm.get("draws") == "client":
        return rows[now.draw("rows", np.array([k]), np.array([len(rows)]), inner)[0]]
    if inner is not None:
        count = round(inner * data.N / np.mean([len(cell.rows) for cell in data.cells]))
    if count is None:
        return rows
    return np.intersect1d(rows, now.draw("rows", np.array([0]), np.array([data.N]), count)[0])


def plain_loop(job: Job, data: Whole, sigma: float, count: int | None = None) -> tuple[Any, Any]:
    """([T, p] w, [T, N] alpha) of Algorithm 1 with rules `paper`, `theory`, `damped`, for the hinge loss.

    `sigma` is the eigenvalue that `damped` has found, `count` how many samples move in a round; None: all, or `inner`.
    """
    rule, lam, N = job.algorithm["rule"], 2 * PENALTY, data.N
    products, w_hat = np.zeros((len(data.cells), N)), np.zeros((len(data.cells), data.p))
    alpha, before, course = np.zeros(N), set(range(len(data.cells))), []
    scale, decay = job.algorithm.get("gamma", [1.0, 0.0])

    def aggregate(k: int) -> None:  # Algorithm 4
        cell = data.cells[k]
        w_hat[k, cell.columns] = cell.X.T @ alpha[cell.rows]

    for r in range(job.rounds):
        here, gamma = set(present(job, len(data.cells), r + 1)), scale / (r + 1) ** decay
        for k in here - before if r else ():
            aggregate(k)
        w = w_hat.sum(axis=0) / (lam * N)
        for k in here:  # Algorithm 2
            cell = data.cells[k]
            products[k, cell.rows] = cell.X @ w[cell.columns]
        scores, change = products.sum(axis=0), np.zeros(N)
        for k in here:
            for i in drawn(job, data, k, r, count):
                t, m = data.t[i], scores[i]
                if rule == "theory":  # Algorithm 3
                    d = (t if t * m < 1 else 0.0) - alpha[i]
                    rate = 0.0 if d == 0 else (t - m) * lam / (data.norms[i] * gamma * d)
                    delta = min(1.0, max(0.0, rate)) * d
                else:  # Algorithm 5
                    curvature = data.norms[i] if rule == "paper" else sigma / 2
                    delta = dual_step("hinge", t, alpha[i], m, curvature / (lam * N))
                change[i] += gamma * delta / data.holders[i]
        alpha = alpha + change
        for k in here:
            aggregate(k)
        before = here
        course.append((w_hat.sum(axis=0) / (lam * N), alpha))
    w, alphas = zip(*course, strict=True)
    return np.array(w), np.array(alphas)


RULES: dict[str, dict[str, Any]] = {
    "paper": {"rule": "paper", "inner": 7},
    "paper, own draws": {"rule": "paper", "inner": 9, "draws": "client", "gamma": [0.9, 0.3]},
    "theory": {"rule": "theory"},
    "theory, decaying": {"rule": "theory", "gamma": [1.0, 0.5]},
    "damped": {"rule": "damped"},
}


@covering({"shape": ["overlapping", "2x3"], "rule": RULES, "per_round": [None, 3]})
def test_the_loop(shared_path: Path, shape: str, rule: str, per_round: int | None) -> None:
    folder = overlapping(shared_path) if shape == "overlapping" else grid(shared_path, shape)
    some = {} if per_round is None else {"clients_per_round": per_round}
    job = job_of(folder, participation=some, rounds=8, **RULES[rule])
    found = rounds_of(job, measured=0)
    w, alpha = plain_loop(job, Whole(folder), float(found[-1].server.sigma))
    np.testing.assert_allclose([one.w for one in found], w, **CLOSE)
    np.testing.assert_allclose([one.alpha for one in found], alpha, **CLOSE)


@pytest.mark.parametrize("per_round", [None, 2])
def test_whole_rows(shared_path: Path, per_round: int | None) -> None:
    """Who holds whole rows needs no inner products of others, and no alpha when it comes back."""
    folder = even_odd(shared_path, "rows", "--clients", 4)
    some = {} if per_round is None else {"clients_per_round": per_round}
    job = job_of(folder, participation=some, rounds=6, **RULES["paper"])
    assert [one.name for one in exchanges(job)] == ["duals", "primal"]
    w, _ = plain_loop(job, Whole(folder), 0.0)
    np.testing.assert_allclose([one.w for one in rounds_of(job, measured=0)], w, **CLOSE)


def exchanges(job: Job) -> Any:
    return prepare(job, Solo()).algorithm.exchanges


@pytest.mark.parametrize("loss", ["hinge", "squared-hinge", "logistic"])
def test_line_search(shared_path: Path, loss: str) -> None:
    """The direction of `paper` with all samples, and the best part of it, by a search that knows all samples."""
    folder = overlapping(shared_path)
    data, lam = Whole(folder), 2 * PENALTY
    N = data.N
    job = job_of(folder, rule="line-search", rounds=6, model={"name": loss, "l2": PENALTY})
    alpha = np.zeros(N)
    for one in rounds_of(job, measured=0):
        m = data.X @ (data.X.T @ alpha) / (lam * N)
        each = zip(data.t, alpha, m, data.norms / (lam * N), strict=True)
        d = np.array([dual_step(loss, *numbers) for numbers in each])

        def down(s: float, alpha: Any = alpha, d: Any = d) -> float:
            inside = alpha + s * d
            pulled = data.X.T @ inside
            return sum(conjugate(loss, *pair) for pair in zip(data.t, inside, strict=True)) + pulled @ pulled / (
                2 * lam * N
            )

        parts = np.append(0.0, 2.0 ** (np.arange(-15, 1) / 2))
        s = parts[np.argmin([down(part) for part in parts])] if loss == "logistic" else None
        if s is None:
            s = minimize_scalar(down, bounds=(0, 1), method="bounded", options={"xatol": 1e-12}).x
        assert float(one.server.part) == pytest.approx(s, abs=1e-6)
        alpha = alpha + float(one.server.part) * d
        np.testing.assert_allclose(one.alpha, alpha, rtol=0, atol=1e-9)
        np.testing.assert_allclose(one.w, data.X.T @ alpha / (lam * N), rtol=0, atol=1e-9)


def test_accelerated(shared_path: Path) -> None:
    """FISTA on the dual, begun anew when a step turns back."""
    folder = grid(shared_path, "2x3")
    data, lam = Whole(folder), 2 * PENALTY
    old = alpha = np.zeros(data.N)
    theta, beta, restarts = 1.0, 0.0, 0
    found = rounds_of(job_of(folder, rule="accelerated", rounds=160), measured=0)
    N, sigma = data.N, float(found[-1].server.sigma)
    for one in found:
        beyond = alpha + beta * (alpha - old)
        m = data.X @ (data.X.T @ beyond) / (lam * N)
        new = data.t * np.clip(data.t * beyond + (1 - data.t * m) * lam * N / sigma, 0, 1)
        if (beyond - new) @ (new - alpha) > 0:
            theta, restarts = 1.0, restarts + 1
        following = (1 + np.sqrt(1 + 4 * theta**2)) / 2
        beta, theta = (theta - 1) / following, following
        old, alpha = alpha, new
        np.testing.assert_allclose(one.alpha, alpha, rtol=0, atol=1e-8)
        np.testing.assert_allclose(one.w, data.X.T @ alpha / (lam * N), rtol=0, atol=1e-8)
    assert restarts


def test_power_iteration_and_what_follows_from_it(shared_path: Path) -> None:
    folder = overlapping(shared_path)
    data, lam = Whole(folder), 2 * PENALTY
    (one,) = rounds_of(job_of(folder, rule="damped", rounds=1), measured=0)
    assert 1.0 <= float(one.server.sigma) / data.largest <= 1.1 + 1e-9
    job = job_of(folder, rule="paper", rounds=5)
    found = rounds_of(job, measured=0)
    count = int(max(2.0, 4 * lam * data.N) * data.N / float(found[-1].server.sigma))
    assert 1 < count < data.N
    np.testing.assert_allclose([one.w for one in found], plain_loop(job, data, 0.0, count)[0], **CLOSE)


@pytest.mark.parametrize(
    "loss", ["logistic", *(pytest.param(loss, marks=pytest.mark.long) for loss in ("hinge", "squared-hinge"))]
)
def test_the_optimum(shared_path: Path, loss: str) -> None:
    """Found by the accelerated rule, and certified by its gap."""
    folder = grid(shared_path, "2x3")
    data = Whole(folder)
    objective = {"name": loss, "l2": PENALTY}
    rounds = 400 if loss == "hinge" else 120
    job = job_of(folder, rule="accelerated", rounds=rounds, model=objective)
    found, expected = rounds_of(job, measured=rounds)[-1].columns, optimum(loss, data.X, data.t)
    assert found["objective"] == pytest.approx(expected, rel=1e-5)
    assert found["dual"] <= expected * (1 + 1e-9)
    assert found["duality_gap"] < 1e-4 * expected
