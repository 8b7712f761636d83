"""What the history says about optimality, computed again from the model, the data and the multipliers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from registry import table
from scipy.optimize import minimize

from mpifed.algorithms import vertical
from mpifed.algorithms.functions import CERTIFICATE
from mpifed.comm.transport import Alone
from mpifed.run.config import Job
from mpifed.run.history import read_history, read_model
from mpifed.run.loop import run
from mpifed.shards.store import open_federation

HIDDEN = 3
SIZES = {"batch": 10, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2, "slack_cost": 30.0}
HORIZONTAL, VERTICAL = {"name": "ssca-horizontal", **SIZES}, {"name": "ssca-vertical", **SIZES}

Floats = np.ndarray[Any, Any]
Function = Callable[[dict[str, Floats]], float]


class Data(NamedTuple):
    """All rows."""

    X: Floats  # [s, p]
    y: Floats  # [s]


def rows_of(folder: Path) -> tuple[Floats, Floats]:
    """(X [s, p], targets [s]): what the shards hold, put together."""
    federation = open_federation(folder)
    X, y = np.full((federation.samples, federation.features), np.nan), np.full(federation.samples, np.nan)
    for i in range(federation.clients):
        shard = federation.shard(i, in_memory=True)
        part = np.empty((shard.samples, shard.features))
        shard.take(np.arange(shard.samples), part)
        X[np.ix_(shard.rows, shard.columns)] = part
        y[shard.rows] = shard.y
    assert np.isfinite(X).all() and np.isfinite(y).all()
    return X, y


def read(folder: Path) -> Data:
    """The same, of classes."""
    X, y = rows_of(folder)
    return Data(X, y.astype(int))


# --- the problem, written out ------------------------------------------------------------------------------------


def losses(model: dict[str, Floats], data: Data) -> Floats:
    """[s] cross-entropies of the network, or of softmax regression."""
    z = data.X @ model["first"]
    if "head.second" in model:
        z = z + model.get("head.hidden_bias", 0.0)
        z = z / (1 + np.exp(-z)) @ model["head.second"] + model.get("head.output_bias", 0.0)
    return np.log(np.exp(z).sum(axis=1)) - z[np.arange(len(data.y)), data.y]


def norm(model: dict[str, Floats]) -> float:
    return sum(float((leaf**2).sum()) for leaf in model.values())


def counted(data: Data, classes: list[int] | None) -> Data:
    some = np.isin(data.y, classes) if classes is not None else np.ones(len(data.y), dtype=bool)
    return Data(data.X[some], data.y[some])


def sampled(term: dict[str, Any], model: dict[str, Floats], data: Data) -> Floats | None:
    """[s'] the term of each sample that counts; None for the norm."""
    if term["name"] == "norm":
        return None
    each = losses(model, counted(data, term.get("classes")))
    return 1 - np.exp(-each) if term["name"] == "error-rate" else each


def functions(job: Job, data: Data) -> list[Function]:
    """F_0, F_1, ..."""

    def function(term: dict[str, Any], factor: float) -> Function:
        def value(model: dict[str, Floats]) -> float:
            each = sampled(term, model, data)
            return norm(model) if each is None else float(each.mean()) + factor * norm(model)

        return value

    return [function(job.minimize, job.objective.get("penalty", 0.0)), *(function(c, 0.0) for c in job.constraint)]


def slope(function: Function, model: dict[str, Floats], step: float = 1e-5) -> Floats:
    """[d] by central differences: errors of step^2 and 1e-16 / step."""
    found = []
    for name, leaf in sorted(model.items()):
        for at in np.ndindex(leaf.shape):
            ends = []
            for sign in (1, -1):
                moved = leaf.copy()
                moved[at] += sign * step
                ends.append(function({**model, name: moved}))
            found.append((ends[0] - ends[1]) / (2 * step))
    return np.array(found)


def residual(job: Job, data: Data, model: dict[str, Floats], nu: Floats) -> tuple[float, float, float]:
    """(stationarity, infeasibility, complementarity) of (1, nu) / (1 + sum nu)."""
    first, *others = functions(job, data)
    excess = np.array([f(model) - c["limit"] for f, c in zip(others, job.constraint, strict=True)])
    lagrangian = slope(lambda w: first(w) + sum(n * f(w) for n, f in zip(nu, others, strict=True)), model)
    total = 1 + nu.sum()
    return (
        float(np.linalg.norm(lagrangian)) / total,
        float(max([0.0, *excess])),
        float(max([0.0, *(nu * abs(excess) / total)])),
    )


# --- runs --------------------------------------------------------------------------------------------------------

NETWORK = {"name": "network", "hidden": HIDDEN}
GROUPS = [
    {"name": "loss", "classes": [0, 2], "limit": 0.9, "margin": 0.05},
    {"name": "norm", "limit": 7.0},
    {"name": "error-rate", "classes": [1], "limit": 0.6},
]
PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {"objective": NETWORK | {"penalty": 0.01}},
    "norm": {"objective": NETWORK, "minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 0.8}]},
    "groups": {"objective": NETWORK | {"penalty": 0.01, "bias": True}, "constraint": GROUPS},
    "error rate": {
        "objective": NETWORK | {"penalty": 0.01},
        "minimize": {"name": "error-rate", "classes": [0, 2]},
        "constraint": [{"name": "loss", "limit": 1.0, "margin": 0.1}],
    },
    "softmax": {"objective": {"name": "softmax", "penalty": 0.1}, "constraint": [{"name": "norm", "limit": 1.0}]},
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "horizontal": HORIZONTAL,
    "local steps": HORIZONTAL | {"local_steps": 2, "start": "paper"},
    "vertical": VERTICAL,
    "label holder": VERTICAL | {"label_holder": 2, "start": "paper"},
    "recursive": VERTICAL | {"variance_reduction": "recursive"},
}


def result(job: dict[str, Any], out: Path, **changes: Any) -> tuple[Job, dict[str, Any], dict[str, Floats]]:
    """(the job, its history, its model)."""
    task = Job.check(job | {"record": {"every": 2, "checkpoint_every": 0}} | changes)
    run(task, Alone(), out)
    return task, read_history(out), {name: a.astype("f8") for name, a in read_model(out / "model.h5").items()}


def multipliers(history: dict[str, Any], constraints: int) -> Floats:
    return np.array([history[f"subproblem_multiplier_{m}"][-1] for m in range(1, constraints + 1)])


@pytest.mark.parametrize("rounds", [1, 7])
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_residual_is_that_of_the_true_problem(
    problem: str, name: str, rounds: int, classes: Path, by_columns: Path, tmp_path: Path
) -> None:
    algorithm, tables = ALGORITHMS[name], PROBLEMS[problem]
    folder = by_columns if algorithm["name"] == "ssca-vertical" else classes
    job = table(folder, algorithm, rounds=rounds, compute={"dtype": "float64"}, **tables)
    task, history, model = result(job, tmp_path / "run")
    nu, data = multipliers(history, len(task.constraint)), read(folder)
    expected = residual(task, data, model, nu)
    found = [history[column][-1] for column in CERTIFICATE]
    # differences of float64 are right to 1e-9, sums on the grid of 2^-30 over 240 rows to 1e-10
    np.testing.assert_allclose(found[1:], expected, rtol=1e-6, atol=1e-8)
    assert found[0] == max(found[1:]) > 0
    assert found[1] > 0
    if problem in ("norm", "groups") and rounds > 1:
        assert nu.max() > 0, "the problem should be one in which something binds"
    np.testing.assert_allclose(history["objective"][-1], functions(task, data)[0](model), rtol=1e-8)
    np.testing.assert_allclose(history["train_loss"][-1], losses(model, data).mean(), rtol=1e-8)


@pytest.mark.parametrize("name", ["horizontal", "vertical"])
def test_values_and_margins_are_means_and_standard_errors(
    name: str, classes: Path, by_columns: Path, tmp_path: Path
) -> None:
    folder = by_columns if name == "vertical" else classes
    job = table(folder, ALGORITHMS[name], rounds=5, compute={"dtype": "float64"}, **PROBLEMS["groups"])
    task, history, model = result(job, tmp_path / "run")
    data = read(folder)
    for m, term in enumerate(task.constraint, 1):
        each = sampled(term, model, data)
        value = norm(model) if each is None else each.mean()
        margin = 0.0 if each is None else 1.96 * each.std() / np.sqrt(len(each))
        assert each is None or 40 < len(each) < len(data.y)
        assert history[f"constraint_{m}"][-1] == pytest.approx(value, rel=1e-8)
        assert history[f"margin_{m}"][-1] == pytest.approx(margin, rel=1e-6)
    assert np.isfinite([history[f"{what}_{m}"] for what in ("constraint", "margin") for m in (1, 2, 3)]).all()


def test_single_precision_is_near(classes: Path, tmp_path: Path) -> None:
    """float32 models: certificates are of the model as it is stored."""
    job = table(classes, HORIZONTAL, rounds=6, **PROBLEMS["groups"])
    task, history, model = result(job, tmp_path / "run")
    expected = residual(task, read(classes), model, multipliers(history, 3))
    np.testing.assert_allclose([history[column][-1] for column in CERTIFICATE[1:]], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["horizontal", "vertical"])
def test_real_targets(name: str, regression: Path, columns: Path, tmp_path: Path) -> None:
    """Least squares, penalized and within a ball."""
    folder = columns if name == "vertical" else regression
    tables = {"objective": {"name": "least-squares", "penalty": 0.05}, "constraint": [{"name": "norm", "limit": 0.01}]}
    job = table(folder, ALGORITHMS[name], rounds=5, compute={"dtype": "float64"}, **tables)
    _, history, model = result(job, tmp_path / "run")
    X, y = rows_of(folder)
    w, (nu,) = model["first"][:, 0], multipliers(history, 1)
    gradient = X.T @ (X @ w - y) / len(y) + 2 * 0.05 * w + nu * 2 * w
    assert nu > 0
    assert history["stationarity"][-1] == pytest.approx(np.linalg.norm(gradient) / (1 + nu), rel=1e-6)
    assert history["constraint_1"][-1] == pytest.approx(w @ w)
    assert history["objective"][-1] == pytest.approx(((X @ w - y) ** 2).mean() / 2 + 0.05 * w @ w, rel=1e-8)


@pytest.mark.parametrize("name", ["fedavg", "vertical-sgd"])
def test_baselines_have_the_norm_of_their_gradient(name: str, classes: Path, by_columns: Path, tmp_path: Path) -> None:
    folder = classes if name == "fedavg" else by_columns
    algorithm = {"name": name, "batch": 10, "step": [0.2]}
    job = table(folder, algorithm, rounds=5, compute={"dtype": "float64"}, **PROBLEMS["plain"])
    task, history, model = result(job, tmp_path / "run")
    expected = np.linalg.norm(slope(functions(task, read(folder))[0], model))
    assert history["kkt_residual"][-1] == history["stationarity"][-1] == pytest.approx(expected, rel=1e-6)
    assert history["infeasibility"][-1] == history["complementarity"][-1] == 0


def test_many_turns_over_many_rows(by_columns: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vertical measures go through the rows in turns, the last of them shorter."""
    job = table(by_columns, VERTICAL, rounds=3, compute={"dtype": "float64"}, **PROBLEMS["groups"])
    _, whole, model = result(job, tmp_path / "whole")
    monkeypatch.setattr(vertical, "CHUNK", 37)
    _, parts, again = result(job, tmp_path / "parts")
    for name in model:
        np.testing.assert_array_equal(model[name], again[name])
    for name in whole.keys() - {"elapsed_s"}:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-8, atol=1e-9, err_msg=name)


def test_at_a_solution_known_otherwise_the_residual_is_small(classes: Path, tmp_path: Path) -> None:
    """A convex problem by full batches: minimum and multiplier are scipy's."""
    limit, counts = 1.0, open_federation(classes).counts
    assert len(set(counts.tolist())) == 1
    full = HORIZONTAL | {"batch": int(counts[0]), "rho": [1.0], "gamma": [0.5], "tau": 0.5, "slack_cost": 100.0}
    tables = {"objective": {"name": "softmax"}, "constraint": [{"name": "norm", "limit": limit}]}
    job = table(classes, full, rounds=150, compute={"dtype": "float64"}, **tables)
    task, history, model = result(job, tmp_path / "run")
    assert history["kkt_residual"][-1] < 1e-8
    data = read(classes)
    solved = minimize(
        lambda w: losses({"first": w.reshape(6, 3)}, data).mean(),
        np.zeros(18),
        constraints=[{"type": "ineq", "fun": lambda w: limit - w @ w, "jac": lambda w: -2 * w}],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(model["first"].ravel(), solved.x, rtol=0, atol=1e-5)
    gradient = slope(functions(task, data)[0], {"first": solved.x.reshape(6, 3)})
    nu = -gradient @ solved.x / (2 * limit)  # grad F_0 + nu 2 w = 0
    assert history["subproblem_multiplier_1"][-1] == pytest.approx(nu, rel=1e-4)
    assert nu > 0.01
    assert history["slack"][-1] < 1e-9
