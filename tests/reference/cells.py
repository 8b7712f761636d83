"""What plain loops of methods on cells share: data of even and odd digits, optima, and steps of the dual."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from definitions import margin_loss
from federations import held
from loops import local_job, make_data, step_size
from scipy.optimize import brentq
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.testing import Job, minibatches

PENALTY = 1e-2
# 7 clients with rectangles of all shapes in the columns of each other
OVERLAPPING = """client,rows,columns
0,0-29 60-79,0-19
1,0-29 60-79,20-63
2,30-59,0-40
3,30-59,41-63
4,80-119,10-50
5,80-119,0-9 51-63
6,120-178,all
"""


def even_odd(folder: Path, *split: object) -> Path:
    """Even digits against odd ones, rows of norm 1."""
    return make_data(
        folder / "-".join(["even-odd", *(str(word).replace("/", "") for word in split)]), "digits", "--split", *split,
        "--labels", "even-odd", "--scale", "unit-rows", "--test-fraction", "0.9", "--seed", 4,
    )  # fmt: skip


def on_cells(folder: Path, shape: str) -> Path:
    """Of clients on a grid, as "2x3", or "overlapping"."""
    if shape != "overlapping":
        return even_odd(folder, "grid", "--grid", shape)
    (folder / "map.csv").write_text(OVERLAPPING, encoding="utf-8")
    return even_odd(folder, "grid", "--map", folder / "map.csv")


class Cell(NamedTuple):
    """What one client holds."""

    X: Any  # [s, p]
    t: Any  # [s] signs of the classes
    rows: Any  # [s]
    columns: Any  # [p]


class Whole:
    """All that anybody holds."""

    def __init__(self, folder: Path) -> None:
        federation, self.cells = open_federation(folder), list[Cell]()
        self.N, self.p = federation.samples, federation.features
        self.X, self.t, self.holders = np.zeros((self.N, self.p)), np.zeros(self.N), np.zeros(self.N)
        for client in range(federation.clients):
            shard = shard_of(federation, client)
            cell = Cell(held(federation, client), 2 * shard.y - 1, shard.rows, shard.columns)
            self.X[np.ix_(cell.rows, cell.columns)] = cell.X
            self.t[cell.rows] = cell.t
            self.holders[cell.rows] += 1
            self.cells.append(cell)
        self.norms, self.largest = (self.X**2).sum(axis=1), float(np.linalg.eigvalsh(self.X @ self.X.T)[-1])


def primal(loss: str, X: Any, t: Any, w: Any) -> float:
    """P(w) of signs t."""
    return float(PENALTY * w @ w + margin_loss(loss, t * (X @ w)).mean())


def optimum(loss: str, X: Any, t: Any) -> float:
    """P at its least, by scikit-learn, whose C is 1 / (lambda N)."""
    known: dict[str, Any] = {"C": 1 / (2 * PENALTY * len(t)), "fit_intercept": False}
    if loss == "logistic":
        solver = LogisticRegression(tol=1e-12, solver="newton-cholesky", **known)
    else:
        solver = LinearSVC(loss=loss.replace("-", "_"), tol=1e-10, max_iter=10**6, random_state=0, **known)
    return primal(loss, X, t, solver.fit(X, t).coef_[0])


def dual_step(loss: str, t: float, alpha: float, m: float, curvature: float) -> float:
    """delta that maximizes -l*(-(alpha + delta)) - m delta - curvature/2 delta^2 for the sign t, case by case."""
    a, margin = t * alpha, t * m
    if loss == "hinge":  # line 6 of HyFDCA's Algorithm 5, with y and any norm
        b = min(1.0, max(0.0, a + (1 - margin) / curvature)) if curvature else 1.0
    elif loss == "squared-hinge":
        b = max(0.0, a + (1 - margin - a / 2) / (curvature + 0.5))
    else:
        far = 1 + abs(m) + curvature
        b = expit(brentq(lambda q: q + margin + curvature * (expit(q) - a), -far, far, xtol=1e-14))
    return t * float(b) - alpha


def task(folder: Path, own: dict[str, Any], /, loss: str = "hinge", some: int | None = None, **tables: Any) -> Job:
    """A job without any measuring, in each of whose rounds so many clients take part."""
    part = {} if some is None else {"clients_per_round": some}
    given = {"model": {"name": loss, "bias": False, "l2": PENALTY}, "data": {"path": str(folder), "block": 2}}
    return local_job(folder, own, **given | {"participation": part} | tables)


def descended(job: Job, cell: Cell, client: int, t: int, w: Any, pulled: Any = None, mu: float = 0.0) -> Any:
    """[p] w after one client's local steps on hinge (or logistic) loss + PENALTY ||w||^2 + mu/2 ||w - pulled||^2."""
    step = step_size(job.client_optimizer["learning_rate"], t)
    for rows in minibatches(job, t, client):
        X, signs = cell.X[rows], cell.t[rows]
        margins = signs * (X @ w)
        down = margins < 1 if job.model["name"] == "hinge" else expit(-margins)
        slope = 2 * PENALTY * w + (mu * (w - pulled) if mu else 0.0) - (down * signs) @ X / len(rows)
        w = w - step * slope
    return w
