"""What the history says about optimality, against `certified`, which computes it from files alone.

The last row of short runs is compared number by number, for all kinds of problems and both splits of the data.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from certified import Columns, certified, compared, last_row
from jobs_in_python import checked
from launching import ROOT
from lengths import long_unless
from own_terms import AFFINE, affine_of_loss
from registry import table
from whole_runs import run

from mpifed.core.errors import NotCertified
from mpifed.testing import Solo

SIZES = {"batch_size": 10, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2, "slack_cost": 30.0}
HORIZONTAL, VERTICAL = {"name": "ssca", **SIZES}, {"name": "ssca", **SIZES}
DOUBLE = {"dtype": "float64"}
OWN = {AFFINE: affine_of_loss}


def test_nothing_of_the_package_is_imported() -> None:
    """By what computes certificates a second time."""
    paths = [ROOT / "jobs/hyfdca/rows.py"]
    paths += [ROOT / "tests" / f"{name}.py" for name in ("certificate", "certified", "definitions")]
    for tree in (ast.parse(path.read_text()) for path in paths):
        nodes = list(ast.walk(tree))
        found = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        found += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        assert found and not [name for name in found if name.split(".")[0] == "mpifed"]
        assert all(name == "jobs.hyfdca.rows" for name in found if name.split(".")[0] == "jobs")


# differences of 64-bit numbers: sums on the grid of 2^-30 over 240 rows are right to 1e-10
EXACT, SINGLE = 1e-6, 1e-3


def result(job: dict[str, Any], out: Path, **changes: Any) -> Columns:
    """The last row of a run, whether its limits are met or not."""
    task = checked(job | {"record": {"evaluate_every": 2, "checkpoint_every": 0}} | changes)
    with suppress(NotCertified):
        run(task, Solo(), out)
    return last_row(out)


def check(out: Path, tolerance: float = EXACT) -> Columns:
    """The last row, each number of which is that of `certified`."""
    theirs = last_row(out)
    rows = compared(certified(out, own=OWN, convex_own=(AFFINE,)), theirs, tolerance)
    assert [row for row in rows if not row[-1]] == []
    return theirs


# --- all kinds of problems ------------------------------------------------------------------------------------------

NETWORK = {"name": "mlp", "bias": False, "hidden": 3}
GROUPS = [
    {"name": "loss", "classes": [0, 2], "limit": 0.9, "margin": 0.05},
    {"name": "norm", "limit": 7.0},
    {"name": "error-rate", "classes": [1], "limit": 0.6},
]
BY_CLASS = [{"name": "loss", "classes": [k], "limit": limit} for k, limit in enumerate([0.5, 0.7, 0.6])]
BALL = [{"name": "norm", "limit": 1.0}]
PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {"model": NETWORK | {"l2": 0.01}},
    "norm": {"model": NETWORK, "minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": 0.8}]},
    "groups": {"model": NETWORK | {"l2": 0.01, "bias": True}, "constraint": GROUPS},
    "error rate": {
        "model": NETWORK | {"l2": 0.01},
        "minimize": {"name": "error-rate", "classes": [0, 2]},
        "constraint": [{"name": "loss", "limit": 1.0, "margin": 0.1}],
    },
    "contradiction": {
        "model": NETWORK | {"bias": True},
        "constraint": [{"name": "error-rate", "classes": [k], "limit": 0.01} for k in (0, 1, 2)],
    },
    "softmax": {"model": {"name": "softmax", "bias": False, "l2": 0.1}, "constraint": BALL},
    "softmax, only the ball is curved": {"model": {"name": "softmax", "bias": False}, "constraint": BALL},
    "convex by class": {
        "model": {"name": "softmax", "bias": False},
        "minimize": {"name": "norm"},
        "constraint": BY_CLASS,
    },
    "by class, and a ball": {
        "model": {"name": "softmax", "l2": 0.02, "bias": True},
        "constraint": [{"name": "loss", "classes": [1], "limit": 1.2}, {"name": "norm", "limit": 2.0}],
    },
    "softmax without constraints": {"model": {"name": "softmax", "l2": 0.05, "bias": True}},
    "twice the same": {"model": {"name": "softmax", "bias": False, "l2": 0.1}, "constraint": 2 * [BY_CLASS[0]]},
    "a limit of 0": {
        "model": {"name": "softmax", "bias": False, "l2": 0.05},
        "constraint": [{"name": AFFINE, "classes": [0], "factor": 3.0, "offset": 0.5, "limit": 0.0}],
    },
    "an objective near 0": {
        "model": {"name": "softmax", "bias": False, "l2": 0.01},
        "minimize": {"name": AFFINE, "offset": 1.0986},  # log 3 at zeros
        "constraint": [{"name": "norm", "limit": 0.3}],
    },
}
BINDING = ("norm", "groups", "softmax", "convex by class", "twice the same")
ALGORITHMS: dict[str, dict[str, Any]] = {
    "horizontal": HORIZONTAL,
    "horizontal, paper": HORIZONTAL | {"start": "paper"},
    "vertical": VERTICAL,
    "label holder": VERTICAL | {"label_holder": 2, "start": "paper"},
    "recursive": HORIZONTAL | {"variance_reduction": "recursive"},
}


@pytest.mark.parametrize(
    ("problem", "name", "rounds"),
    long_unless(
        lambda problem, name, rounds: (
            (list(PROBLEMS).index(problem) + list(ALGORITHMS).index(name)) % 5 in ((0, 2) if rounds > 1 else (1,))
        ),  # every problem with some algorithms
        itertools.product(PROBLEMS, ALGORITHMS, (1, 7)),
    ),
)
def test_every_number_is_that_of_the_true_problem(
    problem: str, name: str, rounds: int, classes: Path, by_columns: Path, tmp_path: Path
) -> None:
    algorithm = ALGORITHMS[name]
    folder = by_columns if name in ("vertical", "label holder") else classes
    result(table(folder, algorithm, rounds=rounds, compute=DOUBLE, **PROBLEMS[problem]), tmp_path)
    found = check(tmp_path)
    assert rounds == 1 or found["stationarity"]
    if problem in BINDING and rounds > 1:
        nu = [value for name, value in found.items() if name.startswith("multiplier_") and value]
        assert nu, "the problem should be one in which something binds"


def test_problems_with_and_without_a_bound_and_met_and_missed_limits(classes: Path, tmp_path: Path) -> None:
    """What the tests above compare is not empty everywhere."""
    columns = {}
    for problem in ("convex by class", "softmax", "norm"):
        job = table(classes, HORIZONTAL, rounds=7, compute=DOUBLE, **PROBLEMS[problem])
        columns[problem] = result(job, tmp_path / problem)
    assert all(columns[name]["lower_bound"] is not None for name in ("convex by class", "softmax"))
    assert columns["norm"]["lower_bound"] is None
    excess = {name: found["feasibility"] for name, found in columns.items()}
    assert any(excess.values())
    gaps = {name: found["duality_gap"] for name, found in columns.items() if found["duality_gap"] is not None}
    assert gaps and all(excess[name] == 0 and gap >= 0 for name, gap in gaps.items())


@pytest.fixture(scope="module")
def pairs(shared_path: Path, make_data: Callable[..., Path]) -> dict[str, Path]:
    """120 rows of two classes, by rows and by columns."""
    options = ["--clients", "3", "--samples", "120", "--features", "7", "--task", "classification", "--classes", "2"]
    return {
        split: make_data(shared_path / f"pairs-{split}", "synthetic", "--split", split, *options)
        for split in ("rows", "columns")
    }


@pytest.mark.parametrize("split", ["rows", "columns"])
@pytest.mark.parametrize("penalty", [0.0, 0.02])
def test_two_classes(split: str, penalty: float, pairs: dict[str, Path], tmp_path: Path) -> None:
    """Neyman and Pearson's problem."""
    algorithm = {"rows": HORIZONTAL, "columns": VERTICAL}[split]
    problem = {
        "model": {"name": "logistic", "bias": False, "l2": penalty},
        "minimize": {"name": "error-rate", "classes": [1]},
        "constraint": [{"name": "error-rate", "classes": [0], "limit": 0.2}, {"name": "norm", "limit": 20.0}],
    }
    result(table(pairs[split], algorithm, rounds=6, compute=DOUBLE, **problem), tmp_path)
    check(tmp_path)


@pytest.mark.parametrize("name", ["horizontal", "vertical"])
def test_real_targets(name: str, regression: Path, columns: Path, tmp_path: Path) -> None:
    """Least squares, penalized and within a ball, and the smallest ball for a loss."""
    folder = columns if name == "vertical" else regression
    ball = {
        "model": {"name": "least-squares", "bias": False, "l2": 0.05},
        "constraint": [{"name": "norm", "limit": 0.01}],
    }
    loss = {"model": {"name": "least-squares", "bias": False}, "minimize": {"name": "norm"}}
    for i, problem in enumerate([ball, loss | {"constraint": [{"name": "loss", "limit": 0.3}]}]):
        out = tmp_path / str(i)
        result(table(folder, ALGORITHMS[name], rounds=5, compute=DOUBLE, **problem), out)
        assert check(out)["lower_bound"] is not None


@pytest.mark.parametrize("name", ["fedavg", "vertical-sgd"])
def test_baselines_have_the_norm_of_their_gradient(name: str, classes: Path, by_columns: Path, tmp_path: Path) -> None:
    folder = classes if name == "fedavg" else by_columns
    optimizer = "client_optimizer" if name == "fedavg" else "server_optimizer"
    algorithm = {"name": name, "batch_size": 10, optimizer: {"learning_rate": 0.2}}
    result(table(folder, algorithm, rounds=5, compute=DOUBLE, **PROBLEMS["plain"]), tmp_path)
    found = check(tmp_path)
    assert found["kkt_residual"] == found["stationarity"]
    assert found["feasibility"] == found["complementarity"] == 0


# --- units and order ------------------------------------------------------------------------------------------------
