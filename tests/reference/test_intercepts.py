"""Intercepts, end to end: closed forms, what has none, and what is measured of a run, as scikit-learn counts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import common
from lengths import covering
from loops import close, local_job, make_data, played, rows_of
from sklearn.datasets import dump_svmlight_file
from sklearn.metrics import accuracy_score, log_loss
from whole_runs import run

from jobs.hyfdca.rows import read_rows
from mpifed.core.errors import NumericalError, UsageError
from mpifed.data.store import open_federation
from mpifed.testing import Job, Solo, rounds

RIDGE = {"name": "least-squares", "l2": 0.05}
FULL: dict[str, dict[str, Any]] = {  # with all rows in each step: they end at the optimum
    "fedavg": {"name": "fedavg", "batch_size": 40, "client_optimizer": {"learning_rate": 0.4}},
    "ssca": {"name": "ssca", "batch_size": 40, "rho": [0.7], "gamma": [0.5], "tau": 0.9},
    "vertical-sgd": {"name": "vertical-sgd", "batch_size": 240, "server_optimizer": {"learning_rate": 0.4}},
    "ssca, columns": {"name": "ssca", "batch_size": 240, "rho": [1.0], "gamma": [0.5], "tau": 0.9},
}


def far_targets(rows: int = 240) -> tuple[Any, Any]:
    """(y [s], X [s, 4]): a mean of 2.3, and noise whose half mean square is about 0.02."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((rows, 4)).astype("f4").astype("f8")
    return X @ np.array([0.4, -0.3, 0.2, 0.1]) + 2.3 + 0.2 * rng.standard_normal(rows), X


def made(path: Path, y: Any, X: Any, split: str = "rows", clients: int = 6) -> Path:
    dump_svmlight_file(X, y, str(path / "rows.svm"), zero_based=False)
    words = ("svmlight", path / "rows.svm", "--dense", "--split", split, "--clients", clients, "--task", "regression")
    return make_data(path / "data", *words)


@covering(
    {"everything, size": [(True, 1.0), (False, 1.0), (False, 150.0), (False, 2e5), (False, 1e9)], "name": FULL}, 1
)
def test_ridge_with_an_intercept(tmp_path: Path, name: str, everything: bool, size: float) -> None:
    """1/2 mean (x'w + b - y)^2 + l2 ||w||^2, with b in the penalty or not, by its normal equations.

    House prices too: exact sums take their grids from the size of the targets, and the fit is relative to it.
    """
    y, X = far_targets()
    split, clients = ("columns", 2) if name in ("vertical-sgd", "ssca, columns") else ("rows", 6)
    folder = made(tmp_path, size * y, X, split, clients)
    ((X, y),) = read_rows(folder).pieces(10**6)
    Z = np.column_stack([X, np.ones(len(y))])
    ridge = RIDGE["l2"] * np.diag([1.0] * 4 + [float(everything)])
    best = np.linalg.solve(Z.T @ Z / len(Z) + 2 * ridge, Z.T @ y / len(Z))
    found = played(
        local_job(folder, FULL[name], rounds=300, model=RIDGE | {"penalize_bias": everything}), measured=True
    )
    close(found.model / size, best / size, 2e-6 if name == "fedavg" else 1e-9)
    loss = np.mean((Z @ best - y) ** 2) / 2
    assert found.columns["train_loss"] == pytest.approx(loss, rel=1e-5)
    assert found.columns["objective"] == pytest.approx(loss + best @ ridge @ best, rel=1e-9)


def test_private_runs_take_no_scale_from_the_targets_and_say_nothing_of_data(tmp_path: Path) -> None:
    """It is computed from all rows; a target far beyond the grid ends a run that measures, which tells no more."""
    y, X = far_targets(60)
    X[:, 1] = 1.0
    privacy = {"privacy": {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 2.0, "public_preparation": True}}
    tables = {"rounds": 1, "record": {"evaluate_every": 1, "checkpoint_every": 0}, **privacy}
    rule = FULL["fedavg"] | {"batch_size": 5}
    folder = made(tmp_path, y, X, clients=3)
    for bias in True, False:
        run(local_job(folder, rule, model=RIDGE | {"bias": bias}, **tables), Solo(), tmp_path / str(bias))
        said = json.loads((tmp_path / str(bias) / "run.json").read_text())["warnings"]
        assert not [text for text in said if "targets have mean" in text or "same value" in text]
    (far := tmp_path / "far").mkdir()
    with pytest.raises(NumericalError, match="as one record can make it; set released_only = true"):
        run(local_job(made(far, 1e6 * y, X, clients=3), rule, model=RIDGE, **tables), Solo(), tmp_path / "run")


STEPS = {"batch_size": 10, "client_optimizer": {"learning_rate": 0.1}}


@pytest.mark.parametrize(("name", "data", "own"), [
    ("cocoa", "halves", {}), ("hyfdca", "patches", {}), ("bundle", "patches", {}), ("hybrid-fedavg", "patches", STEPS),
    ("hyfem", "patches", STEPS | {"mu": 1.0}),
])  # fmt: skip
def test_duals_and_cells_have_no_intercept(request: Any, name: str, data: str, own: dict[str, Any]) -> None:
    folder, model = request.getfixturevalue(data), {"name": "squared-hinge", "l2": 0.01}
    (*_, last) = rounds(local_job(folder, {"name": name, **own}, model=model, rounds=1))
    assert list(last.model) == ["first"]
    with pytest.raises(UsageError, match=rf'\[model\] bias = true: "{name}" has no intercepts.*add a column of ones'):
        next(rounds(local_job(folder, {"name": name, **own}, model=model | {"bias": True})))


def test_no_bound_where_nothing_curves_the_intercept(tmp_path: Path) -> None:
    """l2 leaves it out, so the objective is not strongly convex; a bound would be a guess."""
    folder, stop = made(tmp_path, *far_targets()), {"reached": ["duality_gap<=1e-3"]}

    def job(rounds: int, every: int = 10, **tables: Any) -> Job:
        record = {"evaluate_every": every, "checkpoint_every": 0}
        return local_job(folder, FULL["ssca"], rounds=rounds, record=record, **tables)

    straight, free = (played(job(20, model=RIDGE | {"bias": bias}), measured=True).columns for bias in (False, True))
    assert straight["lower_bound"] is not None and straight["duality_gap"] >= 0
    assert free.get("lower_bound") is None and free.get("duality_gap") is None
    with pytest.raises(UsageError, match=r"\[stop\] reached, patience: duality_gap: .*l2 leaves the intercepts out"):
        run(job(20, model=RIDGE, stop=stop), Solo(), tmp_path / "refused")
    run(job(200, model=RIDGE | {"penalize_bias": True}, stop=stop), Solo(), tmp_path / "stops")
    assert json.loads((tmp_path / "stops" / "run.json").read_text())["rounds"] < 200


def test_measured_columns(digits: Path) -> None:
    """Loss and accuracy as scikit-learn counts them, on all training and test rows."""
    model = {"name": "mlp", "bias": False, "hidden": 5, "l2": 1e-2}
    record = {"evaluate_every": 4, "checkpoint_every": 0}
    *_, last = rounds(local_job(digits, {"name": "fedavg", **STEPS}, model=model, record=record), measured=4)
    first, second = last.model["first"], last.model["head.second"]

    def measured(X: Any, y: Any) -> tuple[float, float]:
        z = X @ first
        logits = (z / (1 + np.exp(-z))) @ second
        share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return log_loss(y, share, labels=np.arange(10)), accuracy_score(y, share.argmax(axis=1))

    loss, _ = measured(*map(np.concatenate, zip(*rows_of(digits), strict=True)))
    test_loss, accuracy = measured(*common(open_federation(digits), "float64"))
    found, squares = last.columns, (first**2).sum() + (second**2).sum()
    assert found["train_loss"] == pytest.approx(loss, rel=1e-8)
    assert found["objective"] == pytest.approx(found["train_loss"] + 1e-2 * squares, rel=1e-12)
    assert found["test_loss"] == pytest.approx(test_loss, rel=1e-8)
    assert found["test_accuracy"] == accuracy
