"""Pictures of squares, and nothing for other rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpifed.audit.attacks.images import save_pairs


@pytest.mark.parametrize("pairs", [1, 3, 23])
def test_a_grid(pairs: int, tmp_path: Path) -> None:
    from matplotlib.image import imread

    rng = np.random.default_rng(0)
    rows = rng.random((pairs, 64))
    path = save_pairs(tmp_path / "found.png", rows, rows + 0.1)
    assert path == tmp_path / "found.png"
    picture = imread(path)
    across, down = min(pairs, 10), -(-pairs // 10)
    assert picture.shape[0] == pytest.approx(down * 2.4 * 120, abs=1)
    assert picture.shape[1] == pytest.approx(across * 1.1 * 120, abs=1)
    assert picture[..., :3].std() > 0.05  # something is drawn
