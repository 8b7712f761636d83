"""`python -m jobs.reproduce`: every curve of a paper is a job, and a small whole of each runs."""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from launching import ROOT
from scipy.optimize import brentq, minimize
from scipy.sparse import csr_matrix
from scipy.stats import norm

from mpifed.core.errors import NumericalError
from mpifed.job.job import read_table
from mpifed.job.sweep import points

# by paper, how many curves, and the panels of some
CURVES: dict[str, tuple[int, dict[str, int]]] = {
    "ssca": (27, {"rows": 9, "rows-limit": 4, "columns": 6, "columns-limit": 4}),
    "fedpdm": (33, {"paper": 17, "rigorous": 16}),
    "hyfdca": (12 * 9 + 24 * 5, {"mnist-4x4-1": 9, "a9a-8x8-0.1": 5}),
    "mcmahan": (22, {"2nn-iid": 2, "2nn-shards": 2, "cnn-iid": 9, "cnn-shards": 9}),
}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jobs` is imported from there."""
    monkeypatch.syspath_prepend(ROOT)


def curves_of(paper: str) -> list[Any]:
    return list(importlib.import_module(f"jobs.{paper}.figures").curves())


@pytest.mark.parametrize("paper", CURVES)
def test_every_curve_is_a_job(paper: str) -> None:
    """Whose data is that of the command at its head."""
    curves, (count, panels) = curves_of(paper), CURVES[paper]
    found = Counter(curve.panel for curve in curves)
    assert len(curves) == len({curve.name for curve in curves}) == count and panels.items() <= found.items()
    for curve in curves[:: 7 if paper == "hyfdca" else 1]:
        (first, *_) = points(read_table(curve.job, curve.changes), str(curve.job))
        assert first.job.data.path == str(curve.shards()[1]) and first.job.seed == 1
        assert first.job.model["name"] != "torch" or first.job.stop.reached


def test_settings_of_the_hybrid_paper() -> None:
    """Clients, how many of them take part, and what was tuned for it."""
    at = {curve.name: read_table(curve.job, curve.changes) for curve in curves_of("hyfdca")}
    assert {job["participation"]["clients_per_round"] for job in at.values()} == {1, 2, 4, 6, 8, 16, 32, 64}
    (method,) = at["a9a-2x2-0.1: HyFDCA"]["sweep"]["methods"]
    assert method["algorithm"] == {**at["a9a-2x2-1: HyFDCA"]["sweep"]["methods"][0]["algorithm"], "inner": 100}
    rivals = [at[f"a9a-4x4-{fraction}: FedAvg"]["sweep"]["methods"] for fraction in ("0.1", "0.5", "1")]
    assert rivals[0] == rivals[1] == rivals[2]


def test_the_tables_of_mcmahan_have_a_number_for_each_curve() -> None:
    from jobs.mcmahan.figures import SAYS

    assert {(curve.panel.partition("-")[0], curve.label) for curve in curves_of("mcmahan")} == {
        (model, label) for model, rows in SAYS.items() for label in rows
    }


# accuracies in rounds 0, 5, 10, and the round in which .94 is reached
REACHED = [((0.1, 0.9, 0.98), 7.5), ((0.1, 0.94, 0.97), 5.0), ((0.94, 0.5, 0.9), 0.0), ((0.1, 0.9, 0.5), None)]


def test_rounds_to_a_target() -> None:
    from jobs.mcmahan.figures import rounds_to

    for accuracies, reached in REACHED:
        found = rounds_to(np.array([0, 5, 10]), np.array(accuracies), 0.94)
        assert found == (None if reached is None else pytest.approx(reached))


def gaussian(multiplier: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        a, b = 1 / (2 * multiplier), epsilon * multiplier
        return norm.cdf(a - b) - math.exp(epsilon + norm.logcdf(-a - b)) - delta

    return brentq(excess, 0, 2e4, xtol=1e-9)


def test_what_is_proved_of_the_paper_s_noise() -> None:
    from jobs.fedpdm.truth import truth

    delta, q, claimed, rounds = 1e-5, 30 / 600, 7.0, np.arange(10, 300, 20)
    found = truth(claimed, rounds)
    c0 = math.sqrt(2 * math.log(1 / delta) / math.log(1.25 / delta))
    one = claimed / (c0 * q * math.sqrt(0.05 * 300 / (1 - q)))  # (20), with q
    multiplier = math.sqrt(2 * math.log(1.25 / delta)) / one  # (18)
    assert found.one_round == pytest.approx(one) and found.multiplier == pytest.approx(multiplier)

    apart, squares = 0.0, 0.0  # two clients' lambda whose gradients are G and -G in every round so far, G = 1
    for t in range(300):
        step = 1 / (10 + math.sqrt(1 + t))
        if t in rounds:
            squares += ((4 * step + abs(20 * step - 1) * apart / 10) / (4 * step * multiplier)) ** 2
        apart = max(apart, (1 - 10 * step) * apart + 20 * step)  # of any rounds, not of these alone
    assert found.hidden == pytest.approx(gaussian(1 / math.sqrt(squares), delta), rel=1e-6)
    unamplified = gaussian(multiplier / math.sqrt(len(rounds)), delta)
    assert claimed < found.public < unamplified < found.hidden
    assert found.public_printed > 100 * found.public and found.hidden_printed > 100 * found.hidden


PENALTY = 5e-3


def overlapping() -> tuple[Any, Any]:
    """Two overlapping classes, and a row of zeros."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((150, 8)) * (rng.random((150, 8)) < 0.6)
    y = (X @ rng.standard_normal(8) + 0.8 * rng.standard_normal(150) > 0).astype(np.int64)
    X[3] = 0
    return X, y


def by_box(X: Any, y: Any) -> float:
    """max over b in [0, 1] of mean b - ||(X t)'b||^2 / (2 lambda N^2), by L-BFGS-B."""
    A, n, lam = (2 * y - 1)[:, None] * X, len(y), 2 * PENALTY

    def minus(b: Any) -> tuple[float, Any]:
        w = A.T @ b / (lam * n)
        return lam / 2 * w @ w - b.mean(), (A @ w - 1) / n

    found = minimize(
        minus, np.full(n, 0.5), jac=True, method="L-BFGS-B", bounds=[(0, 1)] * n,
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 5000, "maxfun": 20000},
    )  # fmt: skip
    return -float(found.fun)


@pytest.mark.parametrize("kind", ["dense", "sparse", "float32", "bool"])
def test_both_points_of_the_reference_optimum_are_optimal(kind: str) -> None:
    """Of a support vector machine, against a general solver of its dual; a gap out of reach is an error."""
    from jobs.hyfdca.optimum import optimum

    X, y = overlapping()
    if kind == "float32":
        X = X.astype("f4")
    given = csr_matrix(X) if kind == "sparse" else X
    found = optimum(given, y.astype(bool) if kind == "bool" else y, PENALTY, 1e-11)
    t, lam, n = 2 * y - 1, 2 * PENALTY, len(y)
    X = X.astype("f8")
    primal = lam / 2 * found.w @ found.w + np.maximum(0, 1 - t * (X @ found.w)).mean()
    pulled = X.T @ found.alpha / (lam * n)
    assert found.objective == pytest.approx(primal, rel=1e-13)
    assert found.dual == pytest.approx((t * found.alpha).mean() - lam / 2 * pulled @ pulled, rel=1e-12)
    assert ((t * found.alpha >= 0) & (t * found.alpha <= 1)).all()
    assert found.relative_gap <= 1e-11
    assert found.objective == pytest.approx(by_box(X, y), rel=1e-8)
    assert t[3] * found.alpha[3] == 1
    with pytest.raises(NumericalError, match="relative duality gap is"):
        optimum(*overlapping(), PENALTY, -1.0, rounds=5)


# by paper: curves, changes and rounds, and the files that come of them
SMALL: dict[str, tuple[list[str], list[str], set[str]]] = {
    "ssca": (
        ["rows-limit: Algorithm 2, B = 1$", "rows: SGD, B = 10$", "rows-limit-tradeoff"], ["model.hidden=8"],
        {"curves.csv", "fig2-rows.png", "fig2-rows-limit.pdf", "fig4.png"},
    ),
    "fedpdm": (
        ["paper: FedPDM, epsilon 7$", "rigorous: FedAvg, without"], ["participation.clients_per_round=2"],
        {"curves.csv", "fig1-paper.png", "fig2-ab-rigorous.png", "fig2-cd-paper.pdf", "epsilon.csv"},
    ),
    "hyfdca": (
        ["a9a-4x4-1: HyFDCA$", "a9a-4x4-1: FedAvg$"], ["participation.clients_per_round=4"],
        {"curves.csv", "costs.csv", "fig3-a9a-4x4-1.png", "fig4-a9a.pdf", "optimum-a9a.json"},
    ),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("paper", SMALL)
def test_a_small_whole(paper: str, make_data: Callable[..., Path], tmp_path: Path) -> None:
    """Runs, figures and tables; what has run is not run again, and more seeds are added."""
    from jobs.reproduce import plan_of, reproduce

    only, changes, files = SMALL[paper]
    split = ["--split", "grid", "--grid", "2x2", "--labels", "even-odd"] if paper == "hyfdca" else ["--split", "rows"]
    clients = [] if paper == "hyfdca" else ["--clients", "20" if paper == "fedpdm" else "4"]
    data = make_data(tmp_path / "data", "digits", *split, *clients, "--test-fraction", "0.2")
    changes = [*changes, f"data.path={data}"]
    words = [paper, "--rounds", "20", "--out", str(tmp_path / "out"), "--only", *only]
    words += [word for change in changes for word in ("--set", change)]
    made = list(reproduce(*plan_of([*words, "--seeds", "1"])))
    assert files <= {path.name for path in (tmp_path / "out").iterdir()} and all(path.exists() for path in made)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("history.csv")}
    list(reproduce(*plan_of([*words, "--seeds", "2"])))
    assert before.items() <= {path: path.stat().st_mtime_ns for path in tmp_path.rglob("history.csv")}.items()
    table = pd.read_csv(tmp_path / "out" / "curves.csv")
    assert table.groupby(["figure", "curve"])["seed"].nunique().max() == 2 and table["round"].max() == 20
