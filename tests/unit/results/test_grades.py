"""Grey relational grades, by which jobs/hyfdca chooses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pandas import DataFrame
from written_runs import at_end, write_made_sweep

from jobs.hyfdca.selection import coefficients, selected
from mpifed.results.frames import read

SIZE = "algorithm.batch_size"


def test_by_hand(tmp_path: Path) -> None:
    """Cost A runs from 10 to 50, cost B from 1 to 3: D = (0, 1), (1/4, 1/2), (1, 0). Then of three on a front."""
    found = coefficients(DataFrame([[10.0, 3.0], [20.0, 2.0], [50.0, 1.0]]))
    np.testing.assert_allclose(found, [[1, 1 / 2], [4 / 5, 2 / 3], [1 / 2, 1]], rtol=1e-15)
    np.testing.assert_array_equal(coefficients(DataFrame([[7.0, 0.0], [7.0, 1.0]])), [[1, 1], [1, 1 / 2]])
    np.testing.assert_array_equal(coefficients(DataFrame([[-3.0, 5.0]])), [[1, 1]])
    ends = ((0.5, 0.7, 10.0), (0.2, 0.9, 20.0), (0.1, 0.95, 100.0), (0.3, 0.9, 20.0))
    runs = [at_end(objective=o, test_accuracy=a, simulated_s=s) for o, a, s in ends]
    frames = read(write_made_sweep(tmp_path / "s", {SIZE: [1, 2, 3, 4, 5]}, [*runs, 68]))
    # 2 has (4/5 + 5/6 + 9/10) / 3; by two, 2 and 3 have (2 * 4/5 + 9/10) / 3 and (2 + 1/2) / 3: the better objective
    assert selected(frames, dict.fromkeys(("objective", "test_accuracy", "simulated_s"), 1.0)) == {SIZE: 2}
    assert selected(frames, {"objective": 2.0, "simulated_s": 1.0}) == {SIZE: 3}
