"""From vectors to integers: how far apart neighbours may end, how much noise there is, what is in nobody's way."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from mpifed import Privacy
from mpifed.core import loops
from mpifed.core.refusals import messages
from mpifed.maths.privacy.mechanism import FINE, Mechanism, Noise, may_be_narrow, mechanism, release

COMPILED = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "numpy"])


def privacy(**changes: Any) -> Privacy:
    return Privacy(**{"delta": 1e-5, "clip": 0.7, "noise_multiplier": 1.3} | changes)


def integers(how: Mechanism, values: Any, sigma: float = 0.0, each: float = 1.0, seed: int = 1) -> Any:
    out = np.empty(values.shape)
    release(how, values, each, Noise(sigma, np.random.Philox(seed).random_raw, values.size), None, out)
    return out


SETTINGS = [
    {}, {"trust": "distributed"},
    {"trust": "central", "noise_multiplier": 0.01}, {"trust": "distributed", "noise_multiplier": 0.01},
    {"noise_multiplier": 300.0},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("values", [1, 10, 7850, 10**6])
def test_the_grid(settings: dict[str, Any], values: int) -> None:
    """As coarse as it may be; finer only where somebody's noise would be narrower than 32 steps of it."""
    how = mechanism(privacy(**settings), values, 100, 50)
    moved = math.sqrt(values) * 2.0**-how.exponent
    assert moved <= FINE
    shares = 50 if settings.get("trust") == "distributed" else 1
    narrow = how.sigma / math.sqrt(shares)
    assert narrow >= 32
    assert moved > FINE / 2 or narrow < 64
    assert how.shares == shares


def test_many_rows_are_counted() -> None:
    """rows^2 2^-53 G is the error of a sum of so many vectors of norm G; both neighbours have it."""
    few, many = (mechanism(privacy(), 100, rows, 10).inexact for rows in (1, 10**7))
    assert many - few == pytest.approx((10**14 - 1) * 2.0**-52 / 2, rel=1e-9)


@pytest.mark.parametrize("rows", [1, 30, 91])
def test_sums_in_float32_are_counted(rows: int) -> None:
    """b gamma_b G is the error of a sum of b vectors of norm G; both neighbours have it."""
    some = privacy()
    u = Fraction(1, 2**24)
    gamma = rows * u / (1 - rows * u)
    expected = rows * gamma
    narrow, wide = (mechanism(some, 7850, rows, 10, narrow) for narrow in (True, False))
    assert narrow.inexact - wide.inexact == pytest.approx(float(expected), rel=1e-6)
    assert replace(narrow, inexact=wide.inexact) == wide
    assert may_be_narrow(some, 7850, rows)
    less = narrow.equivalent / wide.equivalent
    assert 1 - 1e-3 <= less < 1


@pytest.mark.parametrize("z", [0.5, 10.0, 300.0])
@pytest.mark.parametrize("rows", [1, 100])
def test_nothing_usual_is_cut_off(z: float, rows: int) -> None:
    """Sums of gradients, and what earlier noise has left in dual and control variables."""
    how = mechanism(privacy(noise_multiplier=z), 7850, rows, 50)
    assert how.most >= 16 * rows and how.most >= 100 * z
    assert not how.too_wide(50).applies


@COMPILED
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("truncate", [False, True])
def test_rounding(compiled: bool, dtype: str, truncate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(loops, "compiled", None)
    how = Mechanism(3, 1.0, 10.0, truncate, 0.0)
    values = np.array([0.0, -0.0, 0.06, 0.0625, 0.1875, 0.19, -0.06, -0.19, 9.99, 10.01, -10.2, 1e38], dtype)
    expected = [0, 0, 0, 0, 1, 1, 0, -1, 79, 80, -80, 80] if truncate else [0, 0, 0, 0, 2, 2, 0, -2, 80, 80, -80, 80]
    assert integers(how, values).tolist() == expected
    unsaid = np.array([np.nan, np.inf, -np.inf], dtype)
    assert integers(how, unsaid).tolist() == [0, 80, -80]


@COMPILED
def test_compiled_or_not_the_bits_are_the_same(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    values, how = np.random.default_rng(0).normal(size=20_001) * 5, mechanism(privacy(), 20_001, 10, 5)
    expected = integers(how, values, how.sigma, 0.3)
    if not compiled:
        monkeypatch.setattr(loops, "compiled", None)
    assert np.array_equal(integers(how, values, how.sigma, 0.3), expected)
    gained, out = np.float32(how.multiplier), np.empty(values.shape, np.float32)
    noise = Noise(how.sigma, np.random.Philox(1).random_raw, values.size)
    release(how, values, 0.3, noise, float(gained), out)
    assert np.array_equal(out, (expected * (float(gained) * 2.0**-how.exponent)).astype(np.float32))


def test_neighbours_that_are_rounded_apart() -> None:
    """Every pair stays within the distance accounted for; with truncation no norm grows, and so no distance."""
    rng = np.random.default_rng(1)
    near, cut = (mechanism(privacy(level=level), 500, 20, 5) for level in ("sample", "client"))
    worst = 0.0
    for _ in range(300):
        here = rng.normal(size=500) * 10 ** rng.uniform(-3, 1)
        step = rng.normal(size=500)
        there = here + step / np.linalg.norm(step)
        apart = np.linalg.norm(integers(near, here) - integers(near, there)) * 2.0**-near.exponent
        worst = max(worst, apart)
        vector = here / max(1.0, np.linalg.norm(here))
        whole = integers(cut, vector)
        assert np.linalg.norm(whole) <= np.linalg.norm(vector) * 2.0**cut.exponent
        assert np.abs(whole - vector * 2.0**cut.exponent).max() < 1
    assert 1 < worst <= 1 + near.inexact


def test_noise_adds_to_the_integers_and_to_nothing_else() -> None:
    """The same noise on other values moves them by the same integers: nothing of a float is left."""
    how, rng = mechanism(privacy(), 3000, 10, 5), np.random.default_rng(2)
    here, there = rng.normal(size=(2, 3000))
    drawn = [integers(how, one, how.sigma) - integers(how, one) for one in (here, there, np.zeros(3000))]
    assert np.array_equal(drawn[0], drawn[1]) and np.array_equal(drawn[0], drawn[2])
    assert drawn[0].std() == pytest.approx(how.sigma, rel=0.06)
    assert (drawn[0] % 1 == 0).all()


def test_what_does_not_fit_is_said() -> None:
    assert not mechanism(privacy(), 10**6, 10**4, 10).too_wide(1).applies
    (message,) = messages([mechanism(privacy(noise_multiplier=1e9), 10**6, 10, 10).too_wide(1)])
    assert "noise_multiplier = 1e+09" in message and "lower it" in message
    (message,) = messages([mechanism(privacy(trust="central"), 10**6, 10**5, 10).too_wide(10**7)])
    assert "10000000 clients" in message
    assert mechanism(privacy(), 10**6, 10, 10).bound < 2**50
    drawn = mechanism(privacy(noise_multiplier=1e8), 1000, 1, 1)  # below 2^50, and too wide to be drawn
    (message,) = messages([drawn.too_wide(1)])
    assert "1.1e+12; lower it" in message
    (message,) = messages([mechanism(privacy(noise_multiplier=1e-12), 1000, 10, 1).too_wide(1)])
    assert "raise it" in message
