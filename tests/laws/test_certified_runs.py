"""What the history says about optimality, against `jobs.constraints`, which computes it from files alone.

The last row of short runs is compared number by number, for all kinds of problems and both splits of the data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from lengths import long_unless
from own_terms import AFFINE, affine_of_loss
from registry import table
from whole_runs import run

from jobs.constraints.certify import Columns, certified, compared, last_row, main
from mpifed.algorithms import vertical_measures
from mpifed.core.errors import NotCertified
from mpifed.testing import Alone

SIZES = {"batch_size": 10, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2, "slack_cost": 30.0}
HORIZONTAL, VERTICAL = {"name": "ssca", **SIZES}, {"name": "ssca", **SIZES}
DOUBLE = {"dtype": "float64"}
OWN = {AFFINE: affine_of_loss}

# differences of 64-bit numbers: sums on the grid of 2^-30 over 240 rows are right to 1e-10
EXACT, SINGLE = 1e-6, 1e-3


def result(job: dict[str, Any], out: Path, **changes: Any) -> Columns:
    """The last row of a run, whether its limits are met or not."""
    task = checked(job | {"record": {"evaluate_every": 2, "checkpoint_every": 0}} | changes)
    with suppress(NotCertified):
        run(task, Alone(), out)
    return last_row(out)


def check(out: Path, tolerance: float = EXACT) -> Columns:
    """The last row, each number of which is that of `jobs.constraints`."""
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
    "one against the rest": {
        "model": {"name": "one-vs-rest", "l2": 0.02, "bias": True},
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
    "local steps": HORIZONTAL | {"local_steps": 2, "start": "paper"},
    "vertical": VERTICAL,
    "label holder": VERTICAL | {"label_holder": 2, "start": "paper"},
    "recursive": VERTICAL | {"variance_reduction": "recursive"},
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
    folder = by_columns if name in ("vertical", "label holder", "recursive") else classes
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
    directions = {name: found["feasible_direction"] for name, found in columns.items()}
    assert any(value is not None for value in directions.values())
    gaps = {name: found["duality_gap"] for name, found in columns.items() if found["duality_gap"] is not None}
    assert gaps and all(directions[name] is None and gap >= 0 for name, gap in gaps.items())


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


def test_single_precision_is_near(classes: Path, by_columns: Path, tmp_path: Path) -> None:
    """Certificates are of the model as it is stored; gradients are sums of 32-bit numbers."""
    for name, folder in (("horizontal", classes), ("vertical", by_columns)):
        for problem in ("groups", "convex by class"):
            out = tmp_path / name / problem
            result(table(folder, ALGORITHMS[name], rounds=6, **PROBLEMS[problem]), out)
            check(out, SINGLE)


def test_many_turns_over_many_rows(by_columns: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vertical measures go through the rows in turns, the last of them shorter."""
    monkeypatch.setattr(vertical_measures, "CHUNK", 37)
    result(table(by_columns, VERTICAL, rounds=3, compute=DOUBLE, **PROBLEMS["groups"]), tmp_path)
    check(tmp_path)


@pytest.mark.parametrize("ranks", [None, 2])
def test_from_the_command_line(
    ranks: int | None, classes: Path, tmp_path: Path, launch: Any, write_job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """`python -m jobs.constraints.certify`, of a run on several ranks; and what differs is said."""
    job = table(classes, HORIZONTAL, rounds=5, compute=DOUBLE, **PROBLEMS["groups"])
    ended = launch(ranks, "run", write_job(tmp_path / "job.toml", job), "--out", tmp_path / "out")
    assert ended.code in (0, 5), ended.text
    assert main([str(tmp_path / "out")]) == 0
    assert "differ" not in capsys.readouterr().out
    history = tmp_path / "out" / "history.csv"
    lines = history.read_text(encoding="utf-8").splitlines()
    at, cells = lines[0].split(",").index("stationarity"), lines[-1].split(",")
    cells[at] = repr(float(cells[at]) * 1.001)
    history.write_text("\n".join([*lines[:-1], ",".join(cells), ""]), encoding="utf-8")
    assert main([str(tmp_path / "out")]) == 1
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "differ" in line]
    assert line.split()[0] == "stationarity"


# --- units and order ------------------------------------------------------------------------------------------------

LIMITS = [
    {"name": AFFINE, "classes": [1], "limit": 0.8},
    {"name": "norm", "limit": 4.0},
    {"name": AFFINE, "classes": [2], "limit": 2.5},
]
THOUSAND = {"factor": 1000.0}


def changed(of_objective: float, factors: tuple[float, ...], order: tuple[int, ...]) -> dict[str, Any]:
    """min F_0 subject to LIMITS, in other units and another order."""
    limits = [
        one if factor == 1 else one | {"factor": factor, "limit": factor * one["limit"]}
        for one, factor in zip(LIMITS, factors, strict=True)
    ]
    minimize = {"name": AFFINE, "classes": [0], "factor": of_objective}
    tables = {"model": NETWORK, "minimize": minimize, "constraint": [limits[m] for m in order]}
    return tables | {"aggregation": {"arithmetic": "float"}}  # on no grid, which would be of one width in all units


CHANGES: dict[str, tuple[float, tuple[float, ...], tuple[int, ...]]] = {
    "model": (1000.0, (1, 1, 1), (0, 1, 2)),
    "constraint": (1, (1000.0, 1, 1), (0, 1, 2)),
    "order": (1, (1, 1, 1), (2, 0, 1)),
    "all": (1e-3, (30.0, 1, 1e-3), (1, 2, 0)),
}


@pytest.mark.parametrize(
    ("split", "change"),
    long_unless(
        lambda split, change: change == "all" or (change == "model") == (split == "rows"),
        itertools.product(("rows", "columns"), CHANGES),
    ),
)
def test_units_and_order_change_no_number(
    split: str, change: str, classes: Path, by_columns: Path, tmp_path: Path
) -> None:
    """At the same model: its path does not depend on the problem."""
    folder, name = {"rows": (classes, "WalkOverRows"), "columns": (by_columns, "WalkOverColumns")}[split]
    algorithm = SIZES | {"name": f"own_terms:{name}"}

    def ended(out: Path, *problem: Any) -> Columns:
        return result(table(folder, algorithm, rounds=4, compute=DOUBLE, **changed(*problem)), out)

    factor, factors, order = CHANGES[change]
    before, after = ended(tmp_path / "0", 1, (1, 1, 1), (0, 1, 2)), ended(tmp_path / "1", factor, factors, order)
    check(tmp_path / "1")
    nu = [before[f"multiplier_{m + 1}"] * factor / factors[m] for m in order]
    np.testing.assert_allclose([after[f"multiplier_{m}"] for m in (1, 2, 3)], nu, rtol=1e-9)
    assert max(nu) > 0 and before["feasible_direction"] and before["feasibility"]
    names = ("kkt_residual", "stationarity", "feasibility", "complementarity", "feasible_direction")
    assert [after[name] for name in names] == pytest.approx([before[name] for name in names], rel=1e-9)
