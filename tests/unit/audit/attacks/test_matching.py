"""Verdicts about what was found."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.audit.gradients import match

ROWS = np.array([[1.0, 0, 0, 0], [0, 2, 0, 1], [0, 0, 3, 0], [0, 0, 0, 0]])


@pytest.mark.parametrize(
    ("found", "counts"),
    [
        ([[0, 2, 0, 1]], (1, 0)),
        ([[0, 2.01, 0, 1]], (1, 0)),
        ([[0, -4, 0, -2]], (1, 0)),
        ([[0, 2, 0.3, 1]], (0, 1)),
        ([[1, 1, 1, 1]], (0, 0)),
        ([[0, 0, 0, 0]], (0, 0)),
        ([[0, 2, 0, 1.01], [0, 2, 0, 1.0], [5, 0, 0, 0]], (2, 0)),  # no row is given away twice
        (np.zeros((0, 4)), (0, 0)),
    ],
)
def test_verdicts(found: list[list[float]], counts: tuple[int, int]) -> None:
    assert match(np.array(found, float), ROWS) == counts
    assert match(np.array(found, float), ROWS[:0]) == (0, 0)
