"""Choices with tolerances: ties are said, and neither noise nor the order of the points decides."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_show import best_of, grid, mpifed, write_sweep
from written_runs import JOB, at_end, write_made_run

from mpifed.core.errors import UsageError
from mpifed.results.criteria import Criterion, criteria_of, grouped

KEY = "algorithm.batch_size"


def pareto_of(*arguments: Any) -> dict[str, Any]:
    """The choice of `mpifed compare --select pareto`."""
    found: dict[str, Any] = json.loads(mpifed("compare", "--select", "pareto", "--json", *arguments).output)
    return found


# --- groups -------------------------------------------------------------------------------------------------------


def test_a_chain_of_ties_is_no_tie() -> None:
    """1.00 ties with 1.01, 1.01 with 1.02; a group opened by 1.00 ends at 1.01, whatever comes first."""
    for order in itertools.permutations([1.00, 1.01, 1.02]):
        groups, _ = grouped(np.array(order), Criterion(tolerance=0.01))
        assert dict(zip(order, groups.tolist(), strict=True)) == {1.00: 0, 1.01: 0, 1.02: 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("objective:0", "0 is no weight"),
        ("objective,up_bytes,objective:2", "objective is given twice"),
        ("objective~", " is no tolerance"),
        ("objective~-1%", "-1% is no tolerance"),
        ("objective~100%", "100% is no tolerance; give a part of the value, as objective~1%"),
        ("objective~inf", "inf is no tolerance"),
        ("objective~nan", "nan is no tolerance"),
        ("objective~1%%", "expected COLUMN"),
        ("objective~1%:2", "expected COLUMN"),
        ("objective,", "expected COLUMN"),
        ("~1%", "expected COLUMN"),
    ],
)
def test_criteria_that_are_none(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        criteria_of(text)


# --- the best -----------------------------------------------------------------------------------------------------


def accurate(accuracy: float, seconds: float, objective: float = 1.0) -> dict[str, Any]:
    return {"test_accuracy": accuracy, "simulated_s": seconds, "objective": objective}


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    values: dict[Any, Any] = {
        "1": [accurate(0.950, 12.0)],
        "2": [accurate(0.948, 4.02)],
        "3": [accurate(0.946, 4.00)],
        "4": [accurate(0.900, 1.00)],
        "5": [accurate(0.999, 0.1), {"code": 68}],  # better by all, but for the seed that failed
    }
    return write_sweep(tmp_path / "sweep", grid(KEY, values))


def test_the_next_column_decides_ties(steps: Path) -> None:
    assert best_of(steps, "--by", "test_accuracy")["settings"] == {KEY: 1}
    assert best_of(steps, "--by", "test_accuracy~1%,simulated_s~0")["settings"] == {KEY: 3}
    assert best_of(steps, "--by", "test_accuracy~0.003,simulated_s")["settings"] == {KEY: 2}
    assert best_of(steps, "--by", "test_accuracy~10%,simulated_s")["settings"] == {KEY: 4}
    told = best_of(steps, "--by", "test_accuracy~1%", "--by", "simulated_s")
    assert told["settings"] == {KEY: 2}  # 4.02 and 4.00: by the settings
    assert told["by"] == {
        "test_accuracy": {"best": "largest", "tolerance": "1%"}, "simulated_s": {"best": "least", "tolerance": "1%"},
    }  # fmt: skip
    assert told["ties"] == [{"settings": {KEY: 3}, "points": ["point-0002"]}]


def written(folder: Path, order: list[int], noise: float = 0.0, seed: int = 0) -> list[Path]:
    """Runs of settings whose times differ by 20 % at least; seconds and memory are noisy, all else is exact."""
    rng = np.random.default_rng(seed)
    runs = []
    for k in order:
        rows = at_end(
            test_accuracy=0.9 + 0.001 * (k % 3), train_loss=0.5 - 0.01 * (k % 4), objective=0.5 - 0.01 * (k % 4),
            elapsed_s=10 * 1.3 ** (k // 2) * (1 + noise * rng.uniform(-1, 1)),
        )  # fmt: skip
        job = JOB | {"algorithm": JOB["algorithm"] | {"batch_size": k + 1}}
        run = folder / f"run-{k}"
        runs.append(run if run.exists() else write_made_run(run, rows, job=job))
    return runs


def test_nothing_depends_on_the_order_of_the_points(tmp_path: Path) -> None:
    runs = written(tmp_path, list(range(8)))
    by = ("--by", "test_accuracy~1%,objective~0.011,elapsed_s")
    first, recommended = best_of(*runs, *by), pareto_of(*runs, *by)
    assert first["ties"] and recommended["equal"]  # there is something to confuse
    for seed in range(6):
        order = [runs[i] for i in np.random.default_rng(seed).permutation(len(runs))]
        assert best_of(*order, *by) | {"settings": 0, "ties": 0} == first | {"settings": 0, "ties": 0}
        found = pareto_of(*order, *by)
        for part in ("front", "equal", "ties"):
            assert [row["points"] for row in found[part]] == [row["points"] for row in recommended[part]]
        assert (found["points"], found["grade"]) == (recommended["points"], recommended["grade"])


# --- objectives ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tables", "column", "said"),
    [
        ([{"model": {"name": "softmax", "l2": 0.1}}, {"model": {"name": "softmax", "l2": 0.2}}], "objective",
         r"a has \[model\] l2 = 0.1; .*b has \[model\] l2 = 0.2"),
        ([{"model": {"name": "softmax"}}, {"model": {"name": "mlp", "l2": 1e-4}}], "objective", "l2 = 0.0001"),
        ([{"model": {"name": "softmax"}}, {"model": {"name": "hinge"}}], "train_loss", "losses differ"),
        ([{}, {"regularizer": {"name": "l1", "weight": 0.1}}], "objective", r"\[regularizer\] = "),
        ([{"model": {"name": "m:Own", "scale": 2}}, {"model": {"name": "m:Own"}}], "objective", r"\[model\] scale = 2"),
    ],
)  # fmt: skip
def test_different_objectives_are_not_ranked(
    tmp_path: Path, tables: list[dict[str, Any]], column: str, said: str
) -> None:
    rows = at_end(objective=1.0, train_loss=1.0, test_accuracy=0.5)
    runs = [write_made_run(tmp_path / name, rows, job=JOB | of_run) for name, of_run in zip("ab", tables, strict=True)]
    for choice in ("best", "pareto"):
        refused = mpifed("compare", *runs, "--select", choice, "--by", column).output
        assert re.search(f"{said}.*so that {column} ranks nothing; choose by another column", refused)
    accuracy = ("--by", "test_accuracy")
    assert best_of(*runs, *accuracy)["ties"] and pareto_of(*runs, *accuracy)["equal"]


def test_the_kind_of_network_is_no_objective(tmp_path: Path) -> None:
    models = [
        {"name": "mlp", "hidden": 8, "l2": 0.1},
        {"name": "mlp", "hidden": 16, "l2": 0.1},
        {"name": "softmax", "l2": 0.1},
    ]
    runs = [
        write_made_run(tmp_path / str(k), at_end(objective=1.0 - k), job=JOB | {"model": model})
        for k, model in enumerate(models)
    ]
    assert best_of(*runs, "--by", "objective")["points"] == [str(runs[2])]
