"""Choices with tolerances: ties are said, and neither noise nor the order of the points decides."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_show import grid, mpifed, write_sweep
from written_runs import JOB, at_end, write_made_run

from mpifed.core.errors import UsageError
from mpifed.results.best import choose, select
from mpifed.results.criteria import Criterion, criteria_of, grouped
from mpifed.results.pareto import pareto_front, recommend
from mpifed.results.pareto import select as select_pareto

KEY = "algorithm.batch_size"


def sizes(settings: Any) -> list[int]:
    return [setting.settings[KEY] for setting in settings]


# --- groups -------------------------------------------------------------------------------------------------------


def groups_by_hand(costs: list[float], tolerance: float, relative: bool) -> dict[float, int]:
    """The best that is left opens a group of all within the tolerance of it."""
    left, groups = sorted(set(costs)), dict[float, int]()
    for number in itertools.count():
        if not left:
            return groups
        best = left[0]
        width = tolerance * (abs(best) if relative else 1)
        inside = [cost for cost in left if cost <= best + width * (1 + 1e-9)]
        groups |= dict.fromkeys(inside, number)
        left = left[len(inside) :]
    raise AssertionError


@pytest.mark.parametrize("seed", range(10))
def test_groups_are_those_by_hand_in_any_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.choice([-1.0, 1.0]) * rng.integers(1, 60, rng.integers(1, 40)) / 20
    for criterion in (Criterion(tolerance=0.1), Criterion(tolerance=0.15, relative=False), Criterion()):
        expected = groups_by_hand(costs.tolist(), criterion.tolerance, criterion.relative)
        for order in (np.arange(len(costs)), rng.permutation(len(costs))):
            groups, best = grouped(costs[order], criterion)
            assert groups.tolist() == [expected[cost] for cost in costs[order].tolist()]
            for number in set(groups.tolist()):
                inside = costs[order][groups == number]
                assert (best[groups == number] == inside.min()).all()
                assert (
                    np.ptp(inside) <= (criterion.tolerance * (abs(inside.min()) if criterion.relative else 1)) * 1.001
                )


def test_a_chain_of_ties_is_no_tie() -> None:
    """1.00 ties with 1.01, 1.01 with 1.02; a group opened by 1.00 ends at 1.01, whatever comes first."""
    for order in itertools.permutations([1.00, 1.01, 1.02]):
        groups, _ = grouped(np.array(order), Criterion(tolerance=0.01))
        assert dict(zip(order, groups.tolist(), strict=True)) == {1.00: 0, 1.01: 0, 1.02: 1}


def test_what_is_within_one_per_cent_is_so_in_binary() -> None:
    """0.99 * 0.5 and 0.5 differ by more than 0.005 in floating point."""
    assert grouped(-np.array([0.5, 0.495]), Criterion(tolerance=0.01))[0].tolist() == [0, 0]
    assert grouped(-np.array([0.5, 0.49499]), Criterion(tolerance=0.01))[0].tolist() == [0, 1]
    assert grouped(np.array([np.inf, 1.0, np.inf]), Criterion(tolerance=0.5))[0].tolist() == [1, 0, 1]
    assert grouped(np.zeros(0), Criterion())[0].tolist() == []


@pytest.mark.parametrize("seed", range(5))
def test_domination_of_groups_has_no_circles(seed: int) -> None:
    """Whoever is dominated is dominated by somebody on the front, who by nobody is."""
    rng = np.random.default_rng(seed)
    costs = 1 + rng.random((25, 3)) / 5
    groups = np.stack([grouped(column, Criterion(tolerance=0.05))[0] for column in costs.T], axis=1)
    front = pareto_front(groups)
    for row in groups[~front]:
        assert any((other <= row).all() and (other < row).any() for other in groups[front])
    assert front.any()


def test_how_tolerances_are_written() -> None:
    criteria = criteria_of("test_accuracy~1%, objective:3~0.005,up_bytes,elapsed_s,simulated_s,seconds_per_round~0")
    assert criteria == {
        "test_accuracy": Criterion(1.0, 0.01, True),
        "objective": Criterion(3.0, 0.005, False),
        "up_bytes": Criterion(1.0, 0.0),  # exact
        "elapsed_s": Criterion(1.0, 0.05),  # of a clock
        "simulated_s": Criterion(1.0, 0.01),
        "seconds_per_round": Criterion(1.0, 0.0, False),
    }
    assert [str(criterion) for criterion in criteria.values()] == ["1%", "0.005", "0%", "5%", "1%", "0"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
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
def test_tolerances_that_are_none(text: str, said: str) -> None:
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
        "5": [accurate(0.999, 0.1), {"code": 4}],  # better by all, but for the seed that failed
    }
    return write_sweep(tmp_path / "sweep", grid(KEY, values))


def test_the_next_column_decides_ties(steps: Path) -> None:
    assert select(steps, "test_accuracy")["settings"] == {KEY: 1}
    choice = choose(steps, criteria_of("test_accuracy~1%,simulated_s~1%"))
    assert choice.best.settings == {KEY: 2} and sizes(choice.ties) == [3]  # 4.02 and 4.00: by the settings
    assert select(steps, "test_accuracy~1%,simulated_s~0")["settings"] == {KEY: 3}
    assert select(steps, "test_accuracy~0.003,simulated_s")["settings"] == {KEY: 2}
    assert select(steps, "test_accuracy~10%,simulated_s")["settings"] == {KEY: 4}
    told = json.loads(
        mpifed("compare", steps, "--select", "best", "--by", "test_accuracy~1%", "--by", "simulated_s", "--json").output
    )
    assert told["by"] == {
        "test_accuracy": {"best": "largest", "tolerance": "1%"}, "simulated_s": {"best": "least", "tolerance": "1%"},
    }  # fmt: skip
    assert told["ties"] == [{"settings": {KEY: 3}, "points": ["point-0002"]}]


def test_ties_are_said(steps: Path) -> None:
    text = mpifed("compare", steps, "--select", "best", "--by", "test_accuracy~1%", "--by", "simulated_s").output
    assert f"{'best':30} largest test_accuracy (within 1%), then least simulated_s (within 1%)\n" in text
    assert f"{'equal within the tolerance':30} point-0002\n" in text
    assert "equal within" not in mpifed("compare", steps, "--select", "best", "--by", "test_accuracy").output


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
    by = "test_accuracy~1%,objective~0.011,elapsed_s"
    best, front = select(runs, by), select_pareto(runs, by)
    assert best["ties"] and front["equal"]  # there is something to confuse
    for seed in range(6):
        order = [runs[i] for i in np.random.default_rng(seed).permutation(len(runs))]
        assert select(order, by) | {"settings": 0, "ties": 0} == best | {"settings": 0, "ties": 0}
        found = select_pareto(order, by)
        for part in ("front", "equal", "ties"):
            assert [row["points"] for row in found[part]] == [row["points"] for row in front[part]]
        assert (found["points"], found["grade"]) == (front["points"], front["grade"])


def test_two_executions_of_a_sweep_have_one_recommendation(tmp_path: Path) -> None:
    """They differ by up to 2 % in wall time, by which exact comparisons choose now this and now that."""

    def names_of_best(runs: list[Path], by: str | None) -> tuple[str, str]:
        return Path(select(runs, by or "elapsed_s")["points"][0]).name, Path(select_pareto(runs, by)["points"][0]).name

    chosen: dict[str | None, set[tuple[str, str]]] = {None: set(), "elapsed_s~0": set()}
    for execution in range(3):
        runs = written(tmp_path / str(execution), list(range(6)), noise=0.01, seed=execution)
        for by, names in chosen.items():
            names.add(names_of_best(runs, by))
    assert len(chosen[None]) == 1 and len(chosen["elapsed_s~0"]) > 1


# --- Pareto -------------------------------------------------------------------------------------------------------


def test_two_milliseconds_of_twelve_seconds_decide_nothing(tmp_path: Path) -> None:
    """Once the spread of a criterion was stretched to its whole range, however small it was."""
    for execution, seconds in enumerate(((12.000, 12.002), (12.002, 12.000))):
        values: dict[Any, Any] = {
            "1": [accurate(0.95, seconds[0], 0.20)], "2": [accurate(0.94, seconds[1], 0.21)],
        }  # fmt: skip
        folder = write_sweep(tmp_path / str(execution), grid(KEY, values))
        recommendation = recommend(folder, criteria_of("objective,test_accuracy,simulated_s"))
        assert recommendation.best.settings == {KEY: 1} and sizes(recommendation.beaten) == [2]
        exact = recommend(folder, criteria_of("objective,test_accuracy,simulated_s~0"))
        assert len(exact.front) == 1 + execution


def test_equal_settings_and_equal_grades_are_told_apart(tmp_path: Path) -> None:
    """1 and 2 tie by both criteria; 3 has the mirrored numbers, and so their grade."""
    values: dict[Any, Any] = {
        "3": [{"objective": 2.0, "simulated_s": 1.0}],
        "2": [{"objective": 1.0, "simulated_s": 2.0}],
        "1": [{"objective": 1.001, "simulated_s": 2.001}],
    }
    folder = write_sweep(tmp_path / "sweep", grid(KEY, values))
    found = recommend(folder, criteria_of("objective~1%,simulated_s"))
    assert found.best.settings == {KEY: 1}  # of the same groups, the first by its settings
    assert (sizes(found.equal), sizes(found.ties)) == ([2], [3])
    assert recommend(folder, criteria_of("simulated_s,objective~1%")).best.settings == {KEY: 3}
    text = mpifed("compare", folder, "--select", "pareto", "--by", "objective~1%", "--by", "simulated_s").output
    assert f"{'equal within the tolerance':30} point-0001\n{'of the same grade':30} point-0000\n" in text
    assert "1.001 (least is best, within 1%)" in text


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
    for choice in (select, select_pareto):
        with pytest.raises(UsageError, match=f"{said}.*so that {column} ranks nothing; choose by another column"):
            choice(runs, column)
        assert choice(runs, "test_accuracy")["ties" if choice is select else "equal"]


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
    assert select(runs, "objective")["points"] == [str(runs[2])]
