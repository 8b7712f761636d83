"""From vectors to integers: how far apart neighbours may end, how much noise there is, what is in nobody's way."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mpifed import Privacy
from mpifed.core import loops
from mpifed.core.refusals import messages
from mpifed.core.round import secret_words
from mpifed.maths.privacy.discrete import draw, levels_of
from mpifed.maths.privacy.mechanism import FINE, Mechanism, may_be_narrow, mechanism, release

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("privacy_vectors.json").read_text(encoding="utf-8"))


@pytest.fixture(params=[True, False], ids=["compiled", "numpy"])
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs with compiled loops, and without."""
    if not request.param:
        monkeypatch.setattr(loops, "compiled", None)


def privacy(**changes: Any) -> Privacy:
    return Privacy(**{"delta": 1e-5, "clip": 0.7, "noise_multiplier": 1.3} | changes)


def integers(how: Mechanism, values: Any, sigma: float = 0.0, each: float = 1.0, words: Any = None) -> Any:
    out = np.empty(values.shape)
    release(how, values, each, sigma, words or np.random.Philox(1).random_raw, None, out)
    return out


@pytest.mark.parametrize("row", VECTORS["releases"])
def test_releases_stay(row: dict[str, Any]) -> None:
    """Scaled, rounded, clamped, and then noisy: by the file, which others may use, and by these words."""
    values, each, most, grid = np.array(VECTORS["values"]), VECTORS["each"], VECTORS["most"], 2.0 ** row["exponent"]
    how, noise = Mechanism(row["exponent"], row["multiplier"], most, row["truncate"], 0.0), np.zeros(8, np.int64)
    words = [secret_words(bytes.fromhex(VECTORS["key"]), VECTORS["round"]) for _ in range(2)]
    assert integers(how, values, how.sigma, each, words[0]).tolist() == row["integers"]
    if how.sigma:
        draw(levels_of(how.sigma), words[1], noise)
    rounded = (np.trunc if row["truncate"] else np.rint)(np.clip(values * each, -most, most) * grid)
    assert (rounded + noise).tolist() == row["integers"]


@pytest.mark.parametrize("values", [1, 10, 7850, 10**6])
@pytest.mark.parametrize(("trust", "z"), [
    ("local", 1.3), ("local", 300.0), ("distributed", 1.3), ("distributed", 0.01), ("central", 0.01),
])  # fmt: skip
def test_the_grid(trust: str, z: float, values: int) -> None:
    """As coarse as it may be; finer only where somebody's noise would be narrower than 32 steps of it."""
    how = mechanism(privacy(trust=trust, noise_multiplier=z), values, 100, 50)
    moved = math.sqrt(values) * 2.0**-how.exponent
    assert how.shares == (50 if trust == "distributed" else 1)
    narrow = how.sigma / math.sqrt(how.shares)
    assert moved <= FINE and narrow >= 32
    assert moved > FINE / 2 or narrow < 64
    # sums of gradients, and what earlier noise has left in dual and control variables, are not cut off
    assert how.most >= 1600 and how.most >= 100 * z and not how.too_wide(50).applies


@pytest.mark.parametrize("rows", [1, 30, 91])
def test_errors_of_sums_are_counted(rows: int) -> None:
    """Of vectors of norm G, of both neighbours: rows^2 2^-53 G in float64, rows gamma_rows G in float32."""
    wide, narrow = (mechanism(privacy(), 7850, rows, 10, narrow) for narrow in (False, True))
    many = mechanism(privacy(), 7850, 10**7, 10).inexact
    assert many - wide.inexact == pytest.approx((10**14 - rows**2) * 2.0**-52 / 2, rel=1e-9)
    u = Fraction(1, 2**24)
    assert narrow.inexact - wide.inexact == pytest.approx(float(rows * rows * u / (1 - rows * u)), rel=1e-6)
    assert replace(narrow, inexact=wide.inexact) == wide
    assert may_be_narrow(privacy(), 7850, rows)
    assert 1 - 1e-3 <= narrow.equivalent / wide.equivalent < 1


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("truncate", "expected"), [
    (True, [0, 0, 0, 0, 1, 1, 0, -1, 79, 80, -80, 80]), (False, [0, 0, 0, 0, 2, 2, 0, -2, 80, 80, -80, 80]),
])  # fmt: skip
def test_rounding(dtype: str, truncate: bool, expected: list[int]) -> None:
    how = Mechanism(3, 1.0, 10.0, truncate, 0.0)
    values = np.array([0.0, -0.0, 0.06, 0.0625, 0.1875, 0.19, -0.06, -0.19, 9.99, 10.01, -10.2, 1e38], dtype)
    assert integers(how, values).tolist() == expected
    assert integers(how, np.array([np.nan, np.inf, -np.inf], dtype)).tolist() == [0, 80, -80]


def test_compiled_or_not_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values, how = np.random.default_rng(0).normal(size=20_001) * 5, mechanism(privacy(), 20_001, 10, 5)
    expected, gain = integers(how, values, how.sigma, 0.3), float(np.float32(how.multiplier))
    for _ in range(2):
        assert np.array_equal(integers(how, values, how.sigma, 0.3), expected)
        out = np.empty(values.shape, "f4")
        release(how, values, 0.3, how.sigma, np.random.Philox(1).random_raw, gain, out)
        assert np.array_equal(out, (expected * (gain * 2.0**-how.exponent)).astype("f4"))
        monkeypatch.setattr(loops, "compiled", None)


def test_neighbours_that_are_rounded_apart() -> None:
    """Every pair stays within the distance accounted for; with truncation no norm grows, and so no distance."""
    rng, worst = np.random.default_rng(1), 0.0
    near, cut = (mechanism(privacy(level=level), 500, 20, 5) for level in ("sample", "client"))
    for _ in range(300):
        here, step = rng.normal(size=(2, 500)) * [[10 ** rng.uniform(-3, 1)], [1.0]]
        there = here + step / np.linalg.norm(step)
        apart = np.linalg.norm(integers(near, here) - integers(near, there)) * 2.0**-near.exponent
        worst = max(worst, apart)
        vector = here / max(1.0, np.linalg.norm(here))
        whole = integers(cut, vector)
        assert np.linalg.norm(whole) <= np.linalg.norm(vector) * 2.0**cut.exponent
        assert np.abs(whole - vector * 2.0**cut.exponent).max() < 1
    assert 1 < worst <= 1 + near.inexact


@pytest.mark.parametrize(("settings", "values", "rows", "clients", "said"), [
    ({}, 10**6, 10**4, 1, None),
    ({"noise_multiplier": 1e9}, 10**6, 10, 1, r"noise_multiplier = 1e\+09.*lower it"),
    ({"trust": "central"}, 10**6, 10**5, 10**7, "10000000 clients"),
    ({"noise_multiplier": 1e8}, 1000, 1, 1, r"1\.1e\+12; lower it"),  # below 2^50, and too wide to be drawn
    ({"noise_multiplier": 1e-12}, 1000, 10, 1, "raise it"),
])  # fmt: skip
def test_what_does_not_fit_is_said(settings: Any, values: int, rows: int, clients: int, said: str | None) -> None:
    found = messages([mechanism(privacy(**settings), values, rows, 10).too_wide(clients)])
    assert len(found) == (said is not None)
    assert said is None or re.search(said, found[0])
