"""Verdicts about what was found."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.audit.gradients import match

ROWS = np.array([[1.0, 0, 0, 0], [0, 2, 0, 1], [0, 0, 3, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("found", "at", "verdict"),
    [
        ([0, 2, 0, 1], 1, "row"),
        ([0, 2.01, 0, 1], 1, "row"),
        ([0, -4, 0, -2], 1, "direction"),
        ([0, 0.1, 0, 0.05], 1, "direction"),
        ([0, 2, 0.3, 1], 1, "close"),
        ([1, 1, 1, 1], 1, "none"),
        ([0, 0, 0, 0], None, "none"),
    ],
)
def test_verdicts(found: list[float], at: int | None, verdict: str) -> None:
    ((_, row, said),) = match(np.array([found], float), ROWS)
    assert said == verdict and at in (None, row)


def test_no_row_is_given_away_twice() -> None:
    found = np.array([[0, 2, 0, 1.02], [0, 2, 0, 1.0], [5, 0, 0, 0]])
    matches = match(found, ROWS[:3])
    assert sorted(at for _, at, _ in matches) == [0, 1, 2]
    assert matches[1] == (1, 1, "row") and [said for *_, said in matches] == ["none", "row", "direction"]
    assert match(np.zeros((0, 4)), ROWS) == match(found, ROWS[:0]) == []
