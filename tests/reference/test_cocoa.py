"""CoCoA+ against a plain loop, against scikit-learn's optimum, and by what the paper promises of the dual."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import Played, played, present, rows_of
from own_columns import PENALTY, close, dual_step, even_odd, optimum, task

from mpifed.core.round import Round
from mpifed.testing import rounds

COCOA = {"name": "cocoa"}


@pytest.fixture(scope="module")
def unequal(shared_path: Path) -> Path:
    """5 clients with shards of different sizes."""
    return even_odd(shared_path, "rows", "--clients", 5, "--partition", "dirichlet:1")


def plain_loop(job: Any, folder: Path, epochs: int = 1) -> Any:
    """(w [p], alphas) by Algorithm 1 of the paper, sample by sample."""
    data, loss = rows_of(folder), job.model["name"]
    n, lam = sum(len(y) for _, y in data), 2 * PENALTY
    w, alphas = np.zeros(data[0][0].shape[1]), [np.zeros(len(y)) for _, y in data]
    for t in range(1, job.rounds + 1):
        who = present(job, len(data), t)
        safe = len(who)
        total = np.zeros_like(w)
        for k in who:
            X, y = data[k]
            now, delta = Round(t - 1, job.seed, np.ones(1, dtype=bool)), np.zeros(len(y))
            for i in now.draw("local passes", np.array([k]), np.array([len(y)]), epochs * len(y))[0]:
                # (9): by delta_i, the terms with w have the derivative x_i . (w + sigma' A delta / (lambda n))
                m = X[i] @ (w + safe / (lam * n) * (X.T @ delta))
                delta[i] += dual_step(loss, 2 * y[i] - 1, alphas[k][i] + delta[i], m, safe * (X[i] @ X[i]) / (lam * n))
            alphas[k] = alphas[k] + delta
            total += (X.T @ delta) / (lam * n)
        w = w + total
    return w, alphas


def alphas_of(found: Played, data: list[Any]) -> list[Any]:
    """alpha of every client."""
    for alpha, (_, y) in zip(found.clients.alpha, data, strict=True):
        assert not alpha[len(y) :].any()
    return [alpha[: len(y)] for alpha, (_, y) in zip(found.clients.alpha, data, strict=True)]


@pytest.mark.parametrize("objective", ["hinge", "squared-hinge", "logistic"])
@pytest.mark.parametrize(
    ("hyper", "per_round"),
    [({}, None), ({"local_epochs": 2}, 2), ({"local_epochs": 3}, 3)],
)
def test_the_rounds_of_the_paper(unequal: Path, objective: str, hyper: dict[str, Any], per_round: int | None) -> None:
    part = {} if per_round is None else {"clients_per_round": per_round}
    job = task(unequal, COCOA | hyper, participation=part, model={"name": objective, "l2": PENALTY})
    found = played(job)
    w, alphas = plain_loop(job, unequal, hyper.get("local_epochs", 1))
    close(found.model, w)
    data = rows_of(unequal)
    found_alphas = alphas_of(found, data)
    for one, expected in zip(found_alphas, alphas, strict=True):
        close(one, expected)
    pulled = sum(X.T @ a for (X, _), a in zip(data, found_alphas, strict=True))
    close(found.model, pulled / (2 * PENALTY * sum(len(y) for _, y in data)))  # absent clients' alpha counts


@pytest.mark.parametrize(
    ("per_round", "objective", "gap"), [(None, "hinge", 6e-3), (2, "hinge", 6e-3), (None, "logistic", 1e-6)]
)
def test_it_nears_the_optimum_and_the_dual_never_falls(
    unequal: Path, per_round: int | None, objective: str, gap: float
) -> None:
    X, y = (np.concatenate(part) for part in zip(*rows_of(unequal), strict=True))
    best = optimum(objective, X, 2 * y - 1)
    part = {} if per_round is None else {"clients_per_round": per_round}
    model = {"name": objective, "l2": PENALTY}
    job = task(unequal, COCOA | {"local_epochs": 4}, participation=part, rounds=60, model=model)
    _, *found = [one.columns for one in rounds(job, measured=1)]
    assert found[-1]["duality_gap"] < gap * best
    for before, after in pairwise(found):
        assert after["dual"] >= before["dual"] - 1e-13
    for row in found:
        assert row["dual"] <= best * (1 + 1e-9)  # scikit-learn's tolerance
        assert row["objective"] >= best * (1 - 1e-7)
        assert row["duality_gap"] == pytest.approx(row["objective"] - row["dual"], abs=1e-15)
