"""The recommended setting of a sweep: the Pareto front against brute force, the grades against numbers by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_show import grid, mpifed, write_sweep

from mpifed.core.errors import UsageError
from mpifed.results.criteria import criteria_of
from mpifed.results.pareto import pareto_front, recommend, relational_grades, select


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_that_of_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    costs = rng.integers(0, 4, (rng.integers(1, 30), rng.integers(1, 4))).astype(float)  # many ties, many equal ones
    for i, inside in enumerate(pareto_front(costs)):
        beaten = False
        for other in costs:
            pairs = list(zip(other, costs[i], strict=True))
            beaten |= all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)
        assert inside == (not beaten)


def test_grades_by_hand() -> None:
    """Cost A runs from 10 to 50, cost B from 1 to 3: D = (0, 1), (1/4, 1/2), (1, 0)."""
    costs = np.array([[10.0, 3.0], [20.0, 2.0], [50.0, 1.0]])
    coefficients, grades = relational_grades(costs)
    np.testing.assert_allclose(coefficients, [[1, 1 / 2], [4 / 5, 2 / 3], [1 / 2, 1]], rtol=1e-15)
    np.testing.assert_allclose(grades, [0.75, 11 / 15, 0.75], rtol=1e-15)
    # with z = 1/2 a coefficient is 1 / (2 D + 1)
    coefficients, grades = relational_grades(costs, [1, 3], distinguishing=0.5)
    np.testing.assert_allclose(coefficients, [[1, 1 / 3], [2 / 3, 1 / 2], [1 / 3, 1]], rtol=1e-15)
    np.testing.assert_allclose(grades, [1 / 2, (2 / 3 + 3 / 2) / 4, (1 / 3 + 3) / 4], rtol=1e-15)


def test_what_is_the_same_for_all_distinguishes_nobody() -> None:
    coefficients, grades = relational_grades(np.array([[7.0, 0.0], [7.0, 1.0]]))
    np.testing.assert_array_equal(coefficients, [[1, 1], [1, 1 / 2]])
    np.testing.assert_array_equal(grades, [1, 3 / 4])
    np.testing.assert_array_equal(relational_grades(np.array([[7.0], [7.0]]))[1], [1, 1])
    np.testing.assert_array_equal(relational_grades(np.array([[-3.0, 5.0]]))[1], [1])


# --- of a sweep --------------------------------------------------------------------------------------------------


def ran(objective: float | None, accuracy: float, seconds: float, code: int = 0) -> dict[str, Any]:
    return {"code": code, "objective": objective, "test_accuracy": accuracy, "simulated_s": seconds}


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Three on the front: the cheapest, the best, and between; one beaten, and one for each reason to leave it out."""
    values = {
        "1": [ran(0.5, 0.7, 9.0), ran(0.5, 0.7, 11.0)],  # cheap: 10 s
        "2": [ran(0.2, 0.9, 20.0), ran(0.2, 0.9, 20.0)],  # between
        "3": [ran(0.1, 0.95, 100.0), ran(0.1, 0.95, 100.0)],  # good and dear
        "4": [ran(0.3, 0.9, 20.0), ran(0.3, 0.9, 20.0)],  # beaten by 2
        "5": [ran(0.01, 0.99, 1.0), ran(None, 0.0, 0.0, code=68)],
        "6": [ran(0.01, 0.99, 1.0, code=75), None],
        "7": [ran(None, 0.99, 1.0), ran(0.01, 0.99, 1.0)],
    }
    return write_sweep(tmp_path / "sweep", grid("algorithm.batch_size", values))


THREE = criteria_of("objective,test_accuracy,simulated_s")


def test_the_one_between_is_recommended(steps: Path) -> None:
    found = recommend(steps, THREE)
    assert [one.setting.settings["algorithm.batch_size"] for one in found.front] == [2, 3, 1]
    # D of batch 2: 1/4 by objective (0.1 to 0.5), 1/5 by accuracy (0.7 to 0.95), 1/9 by seconds (10 to 100)
    assert found.front[0].grade == pytest.approx((4 / 5 + 5 / 6 + 9 / 10) / 3)
    assert [one.grade for one in found.front[1:]] == pytest.approx([(1 + 1 + 1 / 2) / 3, (1 / 2 + 1 / 2 + 1) / 3])
    assert found.front[2].values["simulated_s"] == 10  # of both seeds
    assert [one.settings["algorithm.batch_size"] for one in found.beaten] == [4]
    assert [(point.name, why) for point, why in found.left_out] == [
        ("point-0008", "failed numerically (exit 68)"),
        ("point-0009", "failed numerically (exit 68)"),
        ("point-0010", "not finished"),
        ("point-0011", "not finished"),
        ("point-0012", "without a finite objective"),
        ("point-0013", "without a finite objective"),
    ]
    assert found.ties == found.equal == [] and found.edges == []


def test_the_command(steps: Path) -> None:
    text = mpifed("compare", steps, "--select", "pareto", "--by", "objective,test_accuracy,simulated_s").output
    assert "largest grey relational grade of 3 that no other setting dominates" in text
    assert (
        "--set algorithm.batch_size=2" in text and "0.2 (least is best)" in text and "90.00% (largest is best)" in text
    )
    rows = [line.split() for line in text.splitlines() if line.startswith("point-")]
    assert [row[3] for row in rows] == ["2", "3", "1"] and rows[0][-1] == "0.8444"
    assert "Dominated by a setting of the front: point-0006 to point-0007" in text
    assert "Not compared, failed numerically (exit 68): point-0008 to point-0009" in text
    told = json.loads(
        mpifed("compare", steps, "--select", "pareto", "--by", "objective:2,simulated_s", "--json").output
    )
    assert told == select(steps, "objective:2,simulated_s")
    assert told["criteria"]["objective"] == {"best": "least", "weight": 2.0, "tolerance": "0%"}
    # of 2 and 3, whose grades are (2 * 4/5 + 9/10) / 3 and (2 + 1/2) / 3, the same, 3 has the better objective
    assert told["settings"] == {"algorithm.batch_size": 3} and told["points"] == ["point-0004", "point-0005"]
    assert told["ties"] == [{"settings": {"algorithm.batch_size": 2}, "points": ["point-0002", "point-0003"]}]
    assert told["left_out"]["point-0010"] == "not finished"
    assert [one["settings"]["algorithm.batch_size"] for one in told["beaten"]] == [4]


def test_who_breaks_a_limit_is_left_out(tmp_path: Path) -> None:
    job = {"constraint": [{"name": "loss", "limit": 0.5}]}
    values = {
        v: [{"job": job, "objective": o, "constraint_1": c, "feasibility": max(c - 0.5, 0) / 0.5}]
        for v, o, c in (("1", 0.1, 0.9), ("2", 0.2, 0.4))
    }
    sweep = write_sweep(tmp_path / "sweep", grid("a", values))
    found = recommend(sweep, criteria_of("objective"))
    assert found.best.settings == {"a": 2} and [why for _, why in found.left_out] == ["breaks a limit"]
    assert len(recommend(sweep, criteria_of("objective,feasibility")).front) == 2


def test_sweeps_that_cannot_be_compared(steps: Path, tmp_path: Path) -> None:
    failed = write_sweep(tmp_path / "failed", grid("a", {"1": [{"code": 69, "objective": 1.0}, {"code": 68}]}))
    for folder, by, said in (
        (tmp_path, None, "no sweep"),
        (steps, criteria_of("loss"), "no column loss; there are rounds"),
        (failed, None, "none of its 1 settings can be compared by objective, .*: failed numerically"),
    ):
        with pytest.raises(UsageError, match=said):
            recommend(folder, by)
    assert mpifed("compare", steps, "--select", "pareto", "--max").exit_code == 2
    assert mpifed("compare", steps, "--max").exit_code == 2
