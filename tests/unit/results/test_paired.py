"""Settings compared in pairs over equal seeds, against formulas written here and scipy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from test_show import mpifed
from written_runs import JOB, at_end, write_made_run, write_made_sweep

from mpifed.core.errors import UsageError
from mpifed.results.comparison import as_json, compared
from mpifed.results.paired import holm

METHODS = [
    {"label": "A", "algorithm": {"name": "fedavg", "batch_size": 4}},
    {"label": "B", "algorithm": {"name": "fedavg", "batch_size": 8}},
    {"label": "C", "algorithm": {"name": "fedavg", "batch_size": 2}},
]
ACCURACY = {"A": [0.80, 0.84, 0.79, 0.86, 0.83], "B": [0.83, 0.85, 0.84, 0.87, 0.88], "C": [0.5, 0.52, 0.51, 0.5, 0.56]}


def sweep(folder: Path, values: dict[str, list[float | None]]) -> Path:
    """A run for each label and seed, None: it failed."""
    runs = [
        4 if v is None else at_end(test_accuracy=v, train_loss=1.0) for of_label in values.values() for v in of_label
    ]
    return write_made_sweep(folder, {"methods": METHODS[: len(values)], "seeds": len(values["A"])}, runs)


def t_test(x: list[float], y: list[float]) -> tuple[float, float, float, float]:
    """(mean difference, interval, p) by the textbook: d +- t s / sqrt(n)."""
    d = np.array(x) - np.array(y)
    n, mean, error = len(d), d.mean(), d.std(ddof=1) / math.sqrt(len(d))
    half = stats.t.ppf(0.975, n - 1) * error
    return mean, mean - half, mean + half, 2 * stats.t.sf(abs(mean / error), n - 1)


def test_interval_and_p_are_those_of_the_textbook(tmp_path: Path) -> None:
    """Against the best, which is B; of two p values the smaller is doubled by Holm."""
    facts = as_json(compared(sweep(tmp_path / "s", ACCURACY)))
    (paired,) = facts["paired"]
    assert (paired["column"], paired["against"], paired["level"]) == ("test_accuracy", "B", 0.95)
    a, c = paired["differences"]
    for found, label in ((a, "A"), (c, "C")):
        mean, low, high, _ = t_test(ACCURACY[label], ACCURACY["B"])
        assert found["name"] == label and found["seeds"] == [1, 2, 3, 4, 5] and found["left_out"] == []
        numbers = [found[key] for key in ("difference", "low", "high")]
        np.testing.assert_allclose(numbers, [mean, low, high], rtol=1e-9)
    p_a, p_c = (t_test(ACCURACY[label], ACCURACY["B"])[3] for label in "AC")
    assert p_c < p_a
    np.testing.assert_allclose([c["p"], a["p"]], [2 * p_c, p_a], rtol=1e-9)
    np.testing.assert_allclose(p_a, stats.ttest_rel(ACCURACY["A"], ACCURACY["B"]).pvalue, rtol=1e-9)


def test_a_baseline_that_is_named(tmp_path: Path) -> None:
    folder = sweep(tmp_path / "s", ACCURACY)
    for against in ("A", "point-0003", str(folder / "point-0003"), f"{folder / 'point-0000'}/"):
        comparison = compared(folder, against=against)
        assert [comparison.names[pairs.against] for pairs in comparison.paired] == ["A"]
        assert comparison.paired[0].differences[0].mean == pytest.approx(t_test(ACCURACY["B"], ACCURACY["A"])[0])
    with pytest.raises(UsageError, match="--against D: expected the label or name of one setting; there are A, B, C"):
        compared(folder, against="D")


def test_holm_by_hand() -> None:
    """0.01 * 4; 0.02 * 3; 0.03 * 2, not below that before; 0.9 * 1."""
    np.testing.assert_allclose(holm([0.03, 0.01, 0.9, 0.02]), [0.06, 0.04, 0.9, 0.06])
    np.testing.assert_allclose(holm([0.02, 0.012]), [0.024, 0.024])
    assert holm([0.7, 0.6]) == [1.0, 1.0] and holm([]) == []


def test_seeds_that_only_one_has_are_left_out_and_said(tmp_path: Path) -> None:
    """A failed in seed 2, and of seed 4 nothing was measured: it is never the best, and compared over the rest."""
    folder = sweep(tmp_path / "s", {"A": [0.9, None, 0.91, math.nan, 0.93], "B": ACCURACY["B"]})
    comparison = compared(folder)
    ((difference,),) = [pairs.differences for pairs in comparison.paired]
    assert comparison.names[comparison.paired[0].against] == "B"
    assert (difference.seeds, difference.left_out) == ([1, 3, 5], [2, 4])
    mean, low, high, p = t_test([0.9, 0.91, 0.93], [0.83, 0.84, 0.88])
    np.testing.assert_allclose([difference.mean, difference.low, difference.high], [mean, low, high])
    assert difference.p == pytest.approx(p)  # a single comparison
    text = mpifed("compare", folder).output
    assert "Seeds left out, not finished by both: A: 2, 4\n" in text
    assert "test_accuracy less that of B, the best, over equal seeds, in percentage points:\n" in text


def test_the_same_difference_in_every_seed_has_no_p(tmp_path: Path) -> None:
    """0.1 more each time, but for rounding: a t test would call it infinitely significant, or divide by 0."""
    other = [value + 0.1 for value in ACCURACY["A"]]
    (pairs,) = compared(sweep(tmp_path / "s", {"A": ACCURACY["A"], "B": other})).paired
    (difference,) = pairs.differences
    assert difference.p is None and difference.low == difference.high == difference.mean == pytest.approx(-0.1)
    same = compared(sweep(tmp_path / "t", {"A": ACCURACY["A"], "B": ACCURACY["A"]})).paired[0].differences[0]
    assert (same.mean, same.p) == (0.0, None)
    assert "the same for all seeds" in mpifed("compare", tmp_path / "t").output


def test_runs_of_one_seed_count_once(tmp_path: Path) -> None:
    """Two runs of seed 1: their mean; a copy makes no further degree of freedom."""
    runs = []
    for size, values in ((4, [0.8, 0.9, 0.85]), (8, [0.7, 0.75, 0.72])):
        for seed, value in enumerate(values, 1):
            job = JOB | {"seed": seed, "algorithm": JOB["algorithm"] | {"batch_size": size}}
            runs.append(write_made_run(tmp_path / f"{size}-{seed}", at_end(test_accuracy=value), job=job))
    job = JOB | {"seed": 1, "algorithm": JOB["algorithm"] | {"batch_size": 8}}
    runs.append(write_made_run(tmp_path / "again", at_end(test_accuracy=0.72), job=job))
    (pairs,) = compared(runs).paired
    (difference,) = pairs.differences
    assert difference.seeds == [1, 2, 3]
    np.testing.assert_allclose(
        [difference.mean, difference.low, difference.high, difference.p],
        t_test([0.71, 0.75, 0.72], [0.8, 0.9, 0.85]), rtol=1e-9,
    )  # fmt: skip


def test_objectives_that_differ_are_not_compared_in_pairs(tmp_path: Path) -> None:
    """Nor are they where nobody has asked; then it is said."""
    folder = write_made_sweep(
        tmp_path / "s",
        {"model.l2": [0.0, 0.1], "seeds": 3},
        [at_end(objective=float(k), train_loss=0.5) for k in range(6)],
    )
    comparison = compared(folder)
    assert comparison.paired == []
    assert "objectives differ (point-0000 has [model] l2 = 0; point-0003 has [model] l2 = 0.1)" in comparison.notes[0]
    assert [pairs.column for pairs in compared(folder, by=["train_loss"]).paired] == ["train_loss"]
    with pytest.raises(UsageError, match="objectives differ"):
        compared(folder, by=["objective"])
