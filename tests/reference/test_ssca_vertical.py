"""Algorithms 3 and 4 of SSCA against the component formulas, against Algorithms 1 and 2, and as heavy-ball SGD.

Y. Cui, Y. Li, C. Ye: arXiv:2104.06011: (13)-(23), (30)-(42).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from paper import (
    Function,
    all_digits,
    close,
    constrained,
    in_all_variables,
    job,
    model_flat,
    omega,
    play,
    read,
    softmax,
    unconstrained,
)

ROUNDS, HIDDEN = 6, 4
RULE: dict[str, Any] = {"batch_size": 16, "rho": [0.8, 0.3], "gamma": [0.7, 0.35], "tau": 0.15}
VERTICAL, HORIZONTAL = {"name": "ssca", **RULE}, {"name": "ssca", **RULE}
NETWORK = {"name": "mlp", "bias": False, "hidden": HIDDEN, "l2": 2e-3}
BIAS: dict[bool, dict[str, bool]] = {False: {}, True: {"bias": True}}
HOLDERS: list[dict[str, int]] = [{}, {"label_holder": 3}, {"label_holder": 0}]


def norm_under(limit: float) -> dict[str, Any]:
    """(37)"""
    return {"minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": limit}]}


# --- against the component formulas ------------------------------------------------------------------------------


@covering({"holder": HOLDERS, "bias": [False, True], "start": ["exact", "paper"]})
def test_algorithm_3(shared_path: Path, tmp_path: Path, start: str, bias: bool, holder: dict[str, int]) -> None:
    """Whether all clients have the labels or one, and whoever speaks for the head."""
    folder = all_digits(shared_path, "columns", 5)
    task = job(folder, {**VERTICAL, "start": start, **holder}, {**NETWORK, **BIAS[bias]}, ROUNDS)
    data = read(folder)
    assert len({len(columns) for columns in data.columns}) > 1
    expected = unconstrained(task, data, start)
    assert len(expected) == (4 if bias else 2)
    close(play(task, tmp_path / "run").model, expected)


@covering(
    {
        "holder, bias": [({}, False), ({}, True), ({"label_holder": 3}, False)],
        "limit, c": [(2.2, 1e5), (1.4, 0.5), (1.4, 1e5), (6.0, 1e5)],
        "start": ["exact", "paper"],
    }
)
def test_algorithm_4(
    shared_path: Path, tmp_path: Path, start: str, limit: float, c: float, holder: dict[str, int], bias: bool
) -> None:
    folder = all_digits(shared_path, "columns", 5)
    objective = {"name": "mlp", "bias": False, "hidden": HIDDEN, **BIAS[bias]}
    rule = {**VERTICAL, "start": start, "slack_cost": c, **holder}
    task = job(folder, rule, objective, ROUNDS, **norm_under(limit))
    expected = constrained(task, read(folder), limit, lambda t: c, start)
    nu = np.array(expected.nu)
    assert {2.2: (nu > 0) & (nu < c), 1.4: nu == c, 6.0: nu == 0}[limit][1:].any()
    result = play(task, tmp_path / "run")
    close(result.model, expected.w)
    assert result.columns["subproblem_multiplier_1"] == pytest.approx(expected.nu[-1], rel=1e-6, abs=1e-9)
    assert result.columns["slack"] == pytest.approx(expected.slack[-1], abs=1e-8)


def test_several_constraints(shared_path: Path, tmp_path: Path) -> None:
    """Two groups of classes and the norm, every round solved in all variables by SLSQP."""
    folder = all_digits(shared_path, "columns", 7)
    groups = [Function("loss", (0, 1, 2), 1.9), Function("loss", (5, 8), 2.0), Function("norm", None, 1.0)]
    task = job(
        folder, {**VERTICAL, "tau": 0.5, "batch_size": 60, "slack_cost": 30.0, "label_holder": 2},
        {"name": "softmax", "bias": False, "l2": 1e-3}, 5,
        constraint=[
            {"name": "loss", "classes": [0, 1, 2], "limit": 1.9},
            {"name": "loss", "classes": [5, 8], "limit": 2.0},
            {"name": "norm", "limit": 1.0},
        ],
    )  # fmt: skip
    expected = in_all_variables(task, read(folder), softmax, [Function("loss"), *groups], 30.0)
    assert (abs(expected.level) < 1e-6).any(axis=0).all()  # each of them binds
    assert (expected.level < -1e-3).any()
    result = play(task, tmp_path / "run")
    np.testing.assert_allclose(model_flat(result.model), expected.w, rtol=0, atol=1e-7)  # SLSQP's


# --- vertical is horizontal --------------------------------------------------------------------------------------


@covering({"batch": [1797, 25], "constrains": [False, True], "clients": [1, 2, 3, 7, 64]})
def test_any_split_of_the_columns_is_one_client_with_all_rows(
    shared_path: Path, tmp_path: Path, clients: int, constrains: bool, batch: int
) -> None:
    """Full batch, and minibatches too: both draw for client 0 of N rows."""
    rows, columns = all_digits(shared_path, "rows", 1), all_digits(shared_path, "columns", clients)
    more = norm_under(2.1) if constrains else {}
    objective = {"name": "mlp", "hidden": HIDDEN, "bias": True} if constrains else NETWORK
    one = play(job(rows, {**HORIZONTAL, "batch_size": batch}, objective, 5, **more), tmp_path / "rows")
    two = play(job(columns, {**VERTICAL, "batch_size": batch}, objective, 5, **more), tmp_path / "columns")
    close(two.model, omega(one.model))
    assert two.columns["train_loss"] == pytest.approx(one.columns["train_loss"], rel=1e-8)
    assert two.columns["objective"] == pytest.approx(one.columns["objective"], rel=1e-8)
    if constrains:
        assert one.columns["subproblem_multiplier_1"] > 0
        for name in ("constraint_1", "margin_1", "subproblem_multiplier_1", "slack"):
            assert two.columns[name] == pytest.approx(one.columns[name], rel=1e-6, abs=1e-9)
