"""Test vectors: what was printed, drawn and released once is again; other implementations may be held to the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifed.core.round import secret_words
from mpifed.maths.privacy.accounting import calibrate, epsilon
from mpifed.maths.privacy.discrete import draw, levels_of
from mpifed.maths.privacy.mechanism import Mechanism, Noise, release

# epsilons as version 0.1 computed them, the last five by dp-accounting's accountant; the first six are of jobs/fedpdm
VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("privacy_vectors.json").read_text(encoding="utf-8"))


def words() -> Any:
    return secret_words(bytes.fromhex(VECTORS["key"]), VECTORS["round"])


@pytest.mark.parametrize("row", VECTORS["epsilons"])
def test_epsilons_stay(row: dict[str, Any]) -> None:
    """No bound of a grid is below it by more than dp-accounting's rounding, or above by more than a coarser one's."""
    (mechanisms,) = row["mechanisms"]
    found = epsilon(*mechanisms, row["delta"], sampling=row["sampling"])
    assert row["epsilon"] * (1 - 1e-3) <= found <= row["epsilon"] * 1.002


@pytest.mark.parametrize("row", VECTORS["multipliers"])
def test_calibrated_noise_stays(row: dict[str, Any]) -> None:
    ((factor, rate, count),) = row["mechanisms"]
    found = calibrate(lambda z: epsilon(z * factor, rate, count, row["delta"]), row["epsilon"])
    assert found == pytest.approx(row["multiplier"], rel=1e-9)


@pytest.mark.parametrize("row", VECTORS["draws"])
def test_draws_stay(row: dict[str, Any]) -> None:
    out = np.empty(len(row["integers"]), np.int64)
    draw(levels_of(row["sigma"]), words(), out)
    assert out.tolist() == row["integers"]


@pytest.mark.parametrize("row", VECTORS["releases"])
def test_releases_stay(row: dict[str, Any]) -> None:
    """Scaled, rounded, clamped, and then noisy: by the file, and by these words."""
    values, each, most, grid = np.array(VECTORS["values"]), VECTORS["each"], VECTORS["most"], 2.0 ** row["exponent"]
    how = Mechanism(row["exponent"], row["multiplier"], most, row["truncate"], 0.0)
    out, noise = np.empty(len(values)), np.zeros(len(values), np.int64)
    release(how, values, each, Noise(how.sigma, words(), len(values)), None, out)
    assert out.tolist() == row["integers"]
    if how.sigma:
        draw(levels_of(how.sigma), words(), noise)
    rounded = (np.trunc if row["truncate"] else np.rint)(np.clip(values * each, -most, most) * grid)
    assert out.tolist() == (rounded + noise).tolist()
