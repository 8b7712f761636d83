"""Intercepts, end to end: closed forms and scipy, warnings about data, and what has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from jobs_in_python import checked
from lengths import covering
from paper import read
from whole_runs import run

from mpifed.cli import main
from mpifed.core.errors import NumericalError, UsageError
from mpifed.core.record import leaves
from mpifed.files.run_folder import job_of
from mpifed.run.outcome import Result
from mpifed.testing import Solo

DOUBLE = {"dtype": "float64"}
RIDGE = {"name": "least-squares", "l2": 0.05}
FULL: dict[str, dict[str, Any]] = {  # with all rows in each step: they end at the optimum
    "fedavg": {"name": "fedavg", "batch_size": 40, "client_optimizer": {"learning_rate": 0.4}},
    "ssca": {"name": "ssca", "batch_size": 40, "rho": [1.0], "gamma": [0.5], "tau": 0.9},
    "vertical-sgd": {"name": "vertical-sgd", "batch_size": 240, "server_optimizer": {"learning_rate": 0.4}},
    "ssca, columns": {"name": "ssca", "batch_size": 240, "rho": [1.0], "gamma": [0.5], "tau": 0.9},
}
DUALS = {
    "cocoa": ("rows", {"name": "cocoa"}),
    "hyfdca": ("grid", {"name": "hyfdca"}),
    "bundle": ("grid", {"name": "bundle"}),
    "hybrid-fedavg": (
        "grid", {"name": "hybrid-fedavg", "batch_size": 10, "client_optimizer": {"learning_rate": 0.1}},
    ),
    "hyfem": (
        "grid", {"name": "hyfem", "batch_size": 10, "mu": 1.0, "client_optimizer": {"learning_rate": 0.1}},
    ),
}  # fmt: skip


def svmlight(path: Path, y: Any, X: Any) -> Path:
    lines = [f"{t!r} " + " ".join(f"{k + 1}:{v!r}" for k, v in enumerate(x)) for t, x in zip(y, X, strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def made(path: Path, y: Any, X: Any, *options: str) -> tuple[Path, str]:
    """The data folder of such rows, and what `mpifed data` says."""
    source = svmlight(path / "rows.svm", [float(v) for v in y], [[float(v) for v in x] for x in X])
    arguments = ["data", "svmlight", str(source), "--dense", "--out", str(path / "data"), *options]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return path / "data", done.output


def far_targets(rows: int = 240) -> tuple[Any, Any]:
    """(y [s], X [s, 4]): a mean of 2.3, and noise whose half mean square is about 0.02."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((rows, 4)).astype("f4").astype("f8")
    return X @ np.array([0.4, -0.3, 0.2, 0.1]) + 2.3 + 0.2 * rng.standard_normal(rows), X


def trained(folder: Path, out: Path, algorithm: dict[str, Any], rounds: int = 1, **tables: Any) -> Result:
    table: dict[str, Any] = {
        "name": "intercepts", "rounds": rounds, "seed": 3, "data": {"path": str(folder)}, "algorithm": algorithm,
        "model": RIDGE, "compute": DOUBLE, "record": {"evaluate_every": rounds, "checkpoint_every": 0},
    }  # fmt: skip
    result = run(checked(table | tables), Solo(), out)
    assert result is not None
    return result


def flat(model: Any) -> Any:
    return np.concatenate([np.asarray(leaf, "f8").ravel() for _, leaf in leaves(model)])


# --- optima ---------------------------------------------------------------------------------------------------------


SIZES = {"everything, size": [(True, 1.0), (False, 1.0), (False, 150.0), (False, 2e5), (False, 1e9)], "name": FULL}


@covering(SIZES, 1)
def test_ridge_with_an_intercept(tmp_path: Path, name: str, everything: bool, size: float) -> None:
    """1/2 mean (x'w + b - y)^2 + l2 ||w||^2, with b in the penalty or not, by its normal equations.

    House prices too: exact sums take their grids from the size of the targets, and the fit is relative to it.
    """
    y, X = far_targets()
    split = ("columns", "2") if name in ("vertical-sgd", "ssca, columns") else ("rows", "6")
    folder, _ = made(tmp_path, size * y, X, "--split", split[0], "--clients", split[1], "--task", "regression")
    data = read(folder)
    Z = np.column_stack([data.X, np.ones(len(data.y))])
    ridge = RIDGE["l2"] * np.diag([1.0] * 4 + [float(everything)])
    best = np.linalg.solve(Z.T @ Z / len(Z) + 2 * ridge, Z.T @ data.y / len(Z))
    result = trained(folder, tmp_path / "run", FULL[name], 300, model=RIDGE | {"penalize_bias": everything})
    assert [key for key, _ in leaves(result.model)] == ["first", "head.bias"]
    np.testing.assert_allclose(flat(result.model) / size, best / size, atol=2e-6 if name == "fedavg" else 1e-9)
    loss = np.mean((Z @ best - data.y) ** 2) / 2
    assert result.columns["train_loss"] == pytest.approx(loss, rel=1e-5)
    assert result.columns["objective"] == pytest.approx(loss + best @ ridge @ best, rel=1e-9)


def about(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "run.json").read_text())
    return found


def test_private_runs_take_no_scale_from_the_targets(tmp_path: Path) -> None:
    """It is computed from all rows; a target far beyond the grid ends a run that measures, which tells no more."""
    y, X = far_targets(60)
    folder, _ = made(tmp_path, 1e6 * y, X, "--split", "rows", "--clients", "3", "--task", "regression")
    rule, privacy = (
        FULL["fedavg"] | {"batch_size": 5},
        {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 2.0, "public_preparation": True},
    )
    with pytest.raises(NumericalError, match="as one record can make it; set released_only = true"):
        trained(folder, tmp_path / "run", rule, privacy=privacy)


# --- what has none --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DUALS)
def test_duals_and_cells_have_no_intercept(tmp_path: Path, name: str) -> None:
    split, algorithm = DUALS[name]
    rng = np.random.default_rng(1)
    X = rng.standard_normal((80, 4))
    parts = ["--clients", "2"] if split == "rows" else ["--grid", "2x2"]
    folder, _ = made(tmp_path, X[:, 0] > 0, X, "--split", split, *parts)
    model: dict[str, Any] = {"name": "squared-hinge", "l2": 0.01}
    result = trained(folder, tmp_path / "run", algorithm, 2, model=model)
    assert [key for key, _ in leaves(result.model)] == ["first"]
    assert job_of(tmp_path / "run")["model"]["bias"] is False
    with pytest.raises(UsageError, match=rf'\[model\] bias = true: "{name}" has no intercepts.*add a column of ones'):
        trained(folder, tmp_path / "refused", algorithm, 2, model=model | {"bias": True})


def test_no_bound_where_nothing_curves_the_intercept(tmp_path: Path) -> None:
    """l2 leaves it out, so the objective is not strongly convex; a bound would be a guess."""
    folder, _ = made(tmp_path, *far_targets(), "--split", "rows", "--clients", "6")
    columns = {
        bias: trained(folder, tmp_path / str(bias), FULL["ssca"], 20, model=RIDGE | {"bias": bias}).columns
        for bias in (False, True)
    }
    assert columns[False]["lower_bound"] is not None and columns[False]["duality_gap"] >= 0
    assert columns[True].get("lower_bound") is None and columns[True].get("duality_gap") is None
    stop = {"reached": ["duality_gap<=1e-3"]}
    with pytest.raises(UsageError, match=r"\[stop\] reached, patience: duality_gap: .*l2 leaves the intercepts out"):
        trained(folder, tmp_path / "refused", FULL["ssca"], 20, stop=stop)
    penalized = RIDGE | {"penalize_bias": True}
    record = {"evaluate_every": 10, "checkpoint_every": 0}
    trained(folder, tmp_path / "stops", FULL["ssca"], 200, stop=stop, model=penalized, record=record)
    assert about(tmp_path / "stops")["rounds"] < 200


# --- what is said of data -------------------------------------------------------------------------------------------


def test_private_runs_say_nothing_of_data(tmp_path: Path) -> None:
    y, X = far_targets(60)
    X[:, 1] = 1.0
    folder, _ = made(tmp_path, y, X, "--split", "rows", "--clients", "3")
    privacy = {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 2.0, "public_preparation": True}
    for bias in True, False:
        rule, model = FULL["fedavg"] | {"batch_size": 5}, RIDGE | {"bias": bias}
        trained(folder, tmp_path / str(bias), rule, privacy=privacy, model=model)
        said = about(tmp_path / str(bias))["warnings"]
        assert not [text for text in said if "targets have mean" in text or "same value" in text]
