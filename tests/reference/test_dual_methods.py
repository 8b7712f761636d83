"""HyFDCA, CoCoA+ and the bundle method against loops with all data in one place, and optima known otherwise.

T. Overman, G. Blum, D. Klabjan (AAAI 2024, arXiv:2210.08106), whose algorithm numbers these are, as corrected.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import PENALTY, Whole, dual_step, even_odd, on_cells, optimum, primal, task
from definitions import dual_gain
from lengths import covering
from loops import close, played, present, rows_of
from rounds import rounds_of
from scipy.optimize import minimize, minimize_scalar

from mpifed.algorithms.bundle import PARTS
from mpifed.core.round import Round
from mpifed.run.setup import prepare
from mpifed.testing import Job, Solo, rounds

LAM = 2 * PENALTY
NEAR = 1e-8  # sums over some hundred rows, rounded to multiples of 2^-40 or so
PLAIN = {"aggregation": {"security": "plain"}}


def hyfdca(folder: Path, /, loss: str = "hinge", some: int | None = None, rounds: int = 6, **algorithm: Any) -> Job:
    return task(folder, {"name": "hyfdca", **algorithm}, loss, some, rounds=rounds, **PLAIN)


# --- HyFDCA ----------------------------------------------------------------------------------------------------------


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
    rule, N = job.algorithm["rule"], data.N
    products, w_hat = np.zeros((len(data.cells), N)), np.zeros((len(data.cells), data.p))
    alpha, before, course = np.zeros(N), set(range(len(data.cells))), []
    scale, decay = job.algorithm.get("gamma", [1.0, 0.0])

    def aggregate(k: int) -> None:  # Algorithm 4
        cell = data.cells[k]
        w_hat[k, cell.columns] = cell.X.T @ alpha[cell.rows]

    for r in range(job.rounds):
        here, gamma = set(present(job, r + 1)), scale / (r + 1) ** decay
        for k in here - before if r else ():
            aggregate(k)
        w = w_hat.sum(axis=0) / (LAM * N)
        for k in here:  # Algorithm 2
            cell = data.cells[k]
            products[k, cell.rows] = cell.X @ w[cell.columns]
        scores, change = products.sum(axis=0), np.zeros(N)
        for k in here:
            for i in drawn(job, data, k, r, count):
                t, m = data.t[i], scores[i]
                if rule == "theory":  # Algorithm 3
                    d = (t if t * m < 1 else 0.0) - alpha[i]
                    rate = 0.0 if d == 0 else (t - m) * LAM / (data.norms[i] * gamma * d)
                    delta = min(1.0, max(0.0, rate)) * d
                else:  # Algorithm 5
                    curvature = data.norms[i] if rule == "paper" else sigma / 2
                    delta = dual_step("hinge", t, alpha[i], m, curvature / (LAM * N))
                change[i] += gamma * delta / data.holders[i]
        alpha = alpha + change
        for k in here:
            aggregate(k)
        before = here
        course.append((w_hat.sum(axis=0) / (LAM * N), alpha))
    w, alphas = zip(*course, strict=True)
    return np.array(w), np.array(alphas)


RULES: dict[str, dict[str, Any]] = {
    "paper": {"rule": "paper", "inner": 7},
    "paper, own draws": {"rule": "paper", "inner": 9, "draws": "client", "gamma": [0.9, 0.3]},
    "theory": {"rule": "theory"},
    "theory, decaying": {"rule": "theory", "gamma": [1.0, 0.5]},
    "damped": {"rule": "damped"},
}


@covering({"shape": ["overlapping", "2x3"], "rule": RULES, "some": [None, 3]})
def test_hyfdca(shared_path: Path, shape: str, rule: str, some: int | None) -> None:
    folder = on_cells(shared_path, shape)
    job = hyfdca(folder, some=some, rounds=8, **RULES[rule])
    found = rounds_of(job, measured=0)
    w, alpha = plain_loop(job, Whole(folder), float(found[-1].server.sigma))
    close([one.w for one in found], w, NEAR)
    close([one.alpha for one in found], alpha, NEAR)


@pytest.mark.parametrize("some", [None, 2])
def test_whole_rows(shared_path: Path, some: int | None) -> None:
    """Who holds whole rows needs no inner products of others, and no alpha when it comes back."""
    folder = even_odd(shared_path, "rows", "--clients", 4)
    job = hyfdca(folder, some=some, **RULES["paper"])
    assert [one.name for one in prepare(job, Solo()).algorithm.exchanges] == ["duals", "primal"]
    close([one.w for one in rounds_of(job, measured=0)], plain_loop(job, Whole(folder), 0.0)[0], NEAR)


def test_power_iteration_and_what_follows_from_it(shared_path: Path) -> None:
    folder = on_cells(shared_path, "overlapping")
    data = Whole(folder)
    (one,) = rounds_of(hyfdca(folder, rule="damped", rounds=1), measured=0)
    assert 1.0 <= float(one.server.sigma) / data.largest <= 1.1 + 1e-9
    job = hyfdca(folder, rule="paper", rounds=5)
    found = rounds_of(job, measured=0)
    count = int(max(2.0, 4 * LAM * data.N) * data.N / float(found[-1].server.sigma))
    assert 1 < count < data.N
    close([one.w for one in found], plain_loop(job, data, 0.0, count)[0], NEAR)


@pytest.mark.parametrize("loss", ["hinge", "squared-hinge", "logistic"])
def test_line_search(shared_path: Path, loss: str) -> None:
    """The direction of `paper` with all samples, and the best part of it, by a search that knows all samples."""
    folder = on_cells(shared_path, "overlapping")
    data = Whole(folder)
    scale, alpha = LAM * data.N, np.zeros(data.N)
    for one in rounds_of(hyfdca(folder, loss, rule="line-search"), measured=0):
        m = data.X @ (data.X.T @ alpha) / scale
        d = np.array([dual_step(loss, *row) for row in zip(data.t, alpha, m, data.norms / scale, strict=True)])

        def down(s: float, alpha: Any = alpha, d: Any = d) -> float:
            pulled = data.X.T @ (alpha + s * d)
            return float(pulled @ pulled / (2 * scale) - dual_gain(loss, data.t * (alpha + s * d)).sum())

        parts = np.append(0.0, 2.0 ** (np.arange(-15, 1) / 2))
        s = parts[np.argmin([down(part) for part in parts])]
        if loss != "logistic":
            s = minimize_scalar(down, bounds=(0, 1), method="bounded", options={"xatol": 1e-12}).x
        assert float(one.server.part) == pytest.approx(s, abs=1e-6)
        alpha = alpha + float(one.server.part) * d
        close(one.alpha, alpha, 1e-9)
        close(one.w, data.X.T @ alpha / scale, 1e-9)


def test_accelerated(shared_path: Path) -> None:
    """FISTA on the dual, begun anew when a step turns back."""
    folder = on_cells(shared_path, "2x3")
    data = Whole(folder)
    old = alpha = np.zeros(data.N)
    theta, beta, restarts = 1.0, 0.0, 0
    found = rounds_of(hyfdca(folder, rule="accelerated", rounds=160), measured=0)
    scale, sigma = LAM * data.N, float(found[-1].server.sigma)
    for one in found:
        beyond = alpha + beta * (alpha - old)
        m = data.X @ (data.X.T @ beyond) / scale
        new = data.t * np.clip(data.t * beyond + (1 - data.t * m) * scale / sigma, 0, 1)
        if (beyond - new) @ (new - alpha) > 0:
            theta, restarts = 1.0, restarts + 1
        following = (1 + np.sqrt(1 + 4 * theta**2)) / 2
        beta, theta = (theta - 1) / following, following
        old, alpha = alpha, new
        close(one.alpha, alpha, NEAR)
        close(one.w, data.X.T @ alpha / scale, NEAR)
    assert restarts


@pytest.mark.parametrize(
    "loss", ["logistic", *(pytest.param(loss, marks=pytest.mark.long) for loss in ("hinge", "squared-hinge"))]
)
def test_the_optimum_of_hyfdca(shared_path: Path, loss: str) -> None:
    """Found by the accelerated rule, and certified by its gap."""
    folder, count = on_cells(shared_path, "2x3"), 400 if loss == "hinge" else 120
    data = Whole(folder)
    job = hyfdca(folder, loss, rule="accelerated", rounds=count)
    found, expected = rounds_of(job, measured=count)[-1].columns, optimum(loss, data.X, data.t)
    assert found["objective"] == pytest.approx(expected, rel=1e-5)
    assert found["dual"] <= expected * (1 + 1e-9)
    assert found["duality_gap"] < 1e-4 * expected


# --- CoCoA+ ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unequal(shared_path: Path) -> Path:
    """5 clients with shards of different sizes."""
    return even_odd(shared_path, "rows", "--clients", 5, "--partition", "dirichlet:1")


def cocoa_loop(job: Any, epochs: int) -> tuple[Any, list[Any]]:
    """(w [p], alphas) by Algorithm 1 of the paper, sample by sample."""
    data, loss = rows_of(job.data.path), job.model["name"]
    scale = LAM * sum(len(y) for _, y in data)
    w, alphas = np.zeros(data[0][0].shape[1]), [np.zeros(len(y)) for _, y in data]
    for t in range(1, job.rounds + 1):
        who, total = present(job, t), np.zeros_like(w)
        for k in who:
            X, y = data[k]
            now, delta = Round(t - 1, job.seed, np.ones(1, dtype=bool)), np.zeros(len(y))
            for i in now.draw("local passes", np.array([k]), np.array([len(y)]), epochs * len(y))[0]:
                # (9): by delta_i, the terms with w have the derivative x_i . (w + sigma' A delta / (lambda n))
                m, curvature = X[i] @ (w + len(who) / scale * (X.T @ delta)), len(who) * (X[i] @ X[i]) / scale
                delta[i] += dual_step(loss, 2 * y[i] - 1, alphas[k][i] + delta[i], m, curvature)
            alphas[k] = alphas[k] + delta
            total += (X.T @ delta) / scale
        w = w + total
    return w, alphas


@covering({"loss": ["hinge", "squared-hinge", "logistic"], "epochs, some": [(1, None), (2, 2), (3, 3)]}, 1)
def test_cocoa(unequal: Path, loss: str, epochs: int, some: int | None) -> None:
    job = task(unequal, {"name": "cocoa"} | ({} if epochs == 1 else {"local_epochs": epochs}), loss, some)
    found, (w, alphas), data = played(job), cocoa_loop(job, epochs), rows_of(unequal)
    close(found.model, w)
    for alpha, expected in zip(found.clients.alpha, alphas, strict=True):
        close(alpha, np.append(expected, np.zeros(len(alpha) - len(expected))))
    pulled = sum(X.T @ a for (X, _), a in zip(data, alphas, strict=True))
    close(found.model, pulled / (LAM * sum(len(y) for _, y in data)))  # absent clients' alpha counts


@pytest.mark.parametrize(("some", "loss", "gap"), [(2, "hinge", 6e-3), (None, "logistic", 1e-6)])
def test_cocoa_nears_the_optimum_and_its_dual_never_falls(
    unequal: Path, some: int | None, loss: str, gap: float
) -> None:
    X, y = (np.concatenate(part) for part in zip(*rows_of(unequal), strict=True))
    best = optimum(loss, X, 2 * y - 1)
    job = task(unequal, {"name": "cocoa", "local_epochs": 4}, loss, some, rounds=60)
    found: list[Any] = [one.columns for one in rounds(job, measured=1)][1:]
    assert found[-1]["duality_gap"] < gap * best
    assert all(after["dual"] >= before["dual"] - 1e-13 for before, after in pairwise(found))
    for row in found:
        assert row["dual"] <= best * (1 + 1e-9) and row["objective"] >= best * (1 - 1e-7)  # scikit-learn's tolerance
        assert row["duality_gap"] == pytest.approx(row["objective"] - row["dual"], abs=1e-15)


# --- the bundle method -----------------------------------------------------------------------------------------------


def bundle(folder: Path, rounds: int, loss: str = "hinge", **algorithm: Any) -> Job:
    return task(folder, {"name": "bundle", **algorithm}, loss, rounds=rounds, **PLAIN)


def weights(V: Any, c: Any) -> Any:
    """Of the planes, by scipy."""
    K = len(c)
    G, total = V @ V.T / LAM, {"type": "eq", "fun": lambda b: b.sum() - 1, "jac": lambda b: np.ones(K)}
    return minimize(
        lambda b: b @ G @ b / 2 - c @ b, np.full(K, 1 / K), jac=lambda b: G @ b - c, bounds=[(0, 1)] * K,
        constraints=[total], method="SLSQP", options={"ftol": 1e-15, "maxiter": 500},
    ).x  # fmt: skip


@pytest.mark.parametrize("shape", ["overlapping", "2x3"])
def test_bundle(shared_path: Path, shape: str) -> None:
    folder = on_cells(shared_path, shape)
    data = Whole(folder)
    X, t = data.X, data.t
    best = ahead = np.zeros(data.p)
    V, c = np.zeros((0, data.p)), np.zeros(0)
    for one in rounds_of(bundle(folder, 7)):
        part = PARTS[np.argmin([primal("hinge", X, t, best + s * (ahead - best)) for s in PARTS])]
        best = best + part * (ahead - best)
        m = X @ (best + 0.1 * (ahead - best))
        u = np.where(t * m < 1, t, 0.0)
        V, c = np.vstack([V, X.T @ u / data.N]), np.append(c, (t * u).sum() / data.N)
        beta = weights(V, c)
        ahead = V.T @ beta / LAM
        close(one.w, best, 2e-5)  # as well as scipy solves
        assert one.columns["dual"] == pytest.approx(c @ beta - PENALTY * ahead @ ahead, abs=1e-8)
        assert one.columns["objective"] == pytest.approx(primal("hinge", X, t, best), abs=1e-6)


@pytest.mark.parametrize("planes", [2, 3, 30])
def test_the_bound_of_the_bundle_never_falls_and_never_passes_the_optimum(shared_path: Path, planes: int) -> None:
    folder = on_cells(shared_path, "overlapping")
    data = Whole(folder)
    course = [one.columns for one in rounds_of(bundle(folder, 25, planes=planes))]
    bounds, values, gaps = (np.array([one[name] for one in course]) for name in ("dual", "objective", "duality_gap"))
    assert (np.diff(bounds) >= 0).all() and (np.diff(values) <= 1e-12).all()
    assert bounds[-1] - 1e-10 <= optimum("hinge", data.X, data.t) <= values[-1] + 1e-10  # as far as that is known
    assert (gaps == values - bounds).all() and gaps[-1] < (1e-4 if planes == 30 else 0.1)


def test_bundle_of_least_squares(columns: Path) -> None:
    """Ridge regression, whose optimum has a formula."""
    (*_, last), data = rounds_of(bundle(columns, 60, "least-squares"), measured=60), Whole(columns)
    X, y = data.X, (data.t + 1) / 2
    w = np.linalg.solve(X.T @ X / data.N + LAM * np.eye(data.p), X.T @ y / data.N)
    expected = PENALTY * w @ w + ((X @ w - y) ** 2).mean() / 2
    assert last.columns["dual"] <= expected * (1 + 1e-9)
    assert last.columns["objective"] == pytest.approx(expected, rel=1e-4)
