"""Pictures of squares, and nothing for other rows."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifed.audit.attacks.images import save_pairs, side
from mpifed.core.errors import UsageError


def test_sides() -> None:
    assert [side(n) for n in (784, 64, 4, 1, 0, 65, 123)] == [28, 8, 2, None, None, None, None]


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


def test_no_squares_no_picture(tmp_path: Path) -> None:
    assert save_pairs(tmp_path / "found.png", np.zeros((2, 65)), np.zeros((2, 65))) is None
    assert save_pairs(tmp_path / "found.png", np.zeros((0, 64)), np.zeros((0, 64))) is None
    assert not list(tmp_path.iterdir())


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match=r"mpifed\[plot\]"):
        save_pairs(tmp_path / "found.png", np.zeros((1, 64)), np.zeros((1, 64)))
