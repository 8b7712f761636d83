"""Sums of clipped gradients in float32: neighbours stay within what the mechanism counts, whatever the records are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from small import algorithm, answers, block_of

from mpifed.core.round import Round
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import LeastSquares, Parameters, Softmax
from mpifed.maths.privacy.mechanism import Noise, release
from mpifed.privacy import guards

CLIENTS, P, L = 40, 7, 3
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "softmax": ({"name": "softmax", "bias": False}, L),
    "softmax, bias": ({"name": "softmax", "bias": True}, L),
    "least squares": ({"name": "least-squares", "bias": True}, 1),
    "network": ({"name": "mlp", "hidden": 4, "bias": False}, L),
    "network, bias": ({"name": "mlp", "hidden": 4, "bias": True}, L),
}
every_model = pytest.mark.parametrize("model", MODELS)


def at() -> Round:
    return Round(0, 1, np.ones(CLIENTS, dtype=bool))


def made(model: str, rows: int, features: int = P, **privacy: Any) -> Any:
    """One whose every minibatch has all rows of a client."""
    objective, outputs = MODELS[model]
    table = {"name": "fedavg", "batch_size": rows, "client_optimizer": {"learning_rate": 0.3}}
    settings = {"clip": 1.0, "noise_multiplier": 1.0, **privacy}
    return algorithm(table, settings, [rows] * CLIENTS, features, outputs, objective, dtype="float32")


def integers(one: Any, X: Any, y: Any, model: Any, shard: type, monkeypatch: pytest.MonkeyPatch) -> Any:
    """[CLIENTS, d] what each client would release without noise, in sensitivities."""
    found: list[Any] = []

    def silent(how: Any, values: Any, each: float, noise: Any, gain: float, out: Any) -> None:
        numbers = np.empty(values.shape)
        release(how, values, each, Noise(0.0, np.random.Philox(1).random_raw, values.size), None, numbers)
        found.append(numbers.ravel())
        out[...] = 0

    with monkeypatch.context() as patched:
        patched.setattr(guards, "release", silent)
        answers(one, block_of(list(zip(X, y, strict=True)), shard, "float32"), at(), model)
    return np.concatenate(found).reshape(CLIENTS, -1) * 2.0**-one.guard.how.exponent


def model_like(one: Any, rng: Any, size: float) -> Any:
    return rng.normal(size=one.layout.size) * size


def any_records(rng: Any, outputs: int, shape: tuple[int, ...], features: int = P) -> Any:
    """Of every size that float32 has, with subnormal numbers; zeros, and what is no number."""
    X = rng.normal(size=(*shape, features)) * 10 ** rng.uniform(-45, 38, (*shape, 1))
    X[rng.random(shape) < 0.5] *= 10 ** rng.uniform(-40, 0, features)
    X[rng.random(shape) < 0.3] = rng.normal(size=features)
    X[rng.random(shape) < 0.1, 1:] = 0
    X[rng.random(shape) < 0.05, 0] = rng.choice([np.nan, np.inf, -np.inf, 1e300, -1e300])
    y = rng.integers(0, outputs, shape) if outputs > 1 else rng.normal(size=shape) * 10 ** rng.uniform(-45, 38, shape)
    return X, y


@covering({"model": MODELS, "rows": [1, 2, 30, 128], "clip": [1e-100, 1e-25, 1e-9, 1.0, 1e15, 1e30]})
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_neighbours_of_any_records(
    model: str, rows: int, clip: float, array_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, rng, outputs, worst = made(model, rows, clip=clip), np.random.default_rng(rows), MODELS[model][1], 0.0
    assert one.guard.narrow == (clip > 1e-10)
    how = one.guard.how
    for size in (0.0, 1e-3, 1.0, 1e3, 1e15):
        at_model = model_like(one, rng, size)
        X, y = any_records(rng, outputs, (CLIENTS, rows))
        X_, y_, which = X.copy(), y.copy(), rng.integers(0, rows, CLIENTS)
        X_[np.arange(CLIENTS), which], y_[np.arange(CLIENTS), which] = any_records(rng, outputs, (CLIENTS,))
        here, there = (integers(one, *data, at_model, array_shard, monkeypatch) for data in ((X, y), (X_, y_)))
        worst = max(worst, np.linalg.norm(here - there, axis=1).max())
    assert worst <= 1 + how.inexact


@pytest.mark.parametrize("features", [1, 16, 257])
@pytest.mark.parametrize("rows", [64, 100, 129])
def test_neighbours_whose_sums_are_rounded_one_way(
    features: int, rows: int, array_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One record lifts every sum above a power of two, where each of the others is rounded up; or none is."""
    one, rng = made("least squares", rows, features), np.random.default_rng(1)
    how, worst, moved = one.guard.how, 0.0, 0.0
    for _ in range(20):
        X = np.ones((CLIENTS, rows, features)) / np.sqrt(features + 1)
        y = np.full((CLIENTS, rows), -1.0) * rng.choice([1 + 2.0**-10, 1.0, 1 - 2.0**-9, 1 / 3], (CLIENTS, 1))
        y[:, : rows // 2] = -0.999 * 2.0 ** -rng.integers(0, 3, (CLIENTS, 1))
        y[:, 0], other = -1.0, y.copy()
        other[:, 0] = 1.0
        here, there = (integers(one, X, part, None, array_shard, monkeypatch) for part in (y, other))
        apart = np.linalg.norm(here - there, axis=1)
        worst, moved = max(worst, apart.max()), max(moved, np.abs(apart - np.median(apart)).max())
    assert 0.999 < worst <= 1 + how.inexact
    assert moved > 0  # roundings are there to be counted


@pytest.mark.parametrize("clip", [1e30, 1e36, 1e37, 1e38, 1e39, 1e60])
def test_no_sum_overflows_however_large_the_clip_is(
    clip: float, array_shard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three records of a norm that float32 can hold and a fourth, beside three whose fourth has the other sign."""
    one = made("least squares", 100, clip=clip)
    how, X, y = one.guard.how, np.zeros((CLIENTS, 100, P)), np.zeros((CLIENTS, 100))
    sizes = np.tile(2.0 ** np.linspace(57, 67, CLIENTS // 2), 2)  # of the features; targets are clipped to fit, or not
    X[..., 0], y[:, :4] = sizes[:, None], -np.where(np.arange(CLIENTS) < CLIENTS // 2, sizes, 1e38)[:, None]
    other = y.copy()
    other[:, 0] *= -1
    here, there = (integers(one, X, part, None, array_shard, monkeypatch) for part in (y, other))
    assert one.guard.narrow
    assert np.linalg.norm(here - there, axis=1).max() <= 1 + how.inexact


@pytest.mark.parametrize("x", [1e-44, 1e-30, 1e-3, 1.0, 1e15, 1e25, 3e38])
@pytest.mark.parametrize("target", [1e-90, 1e-44, 1e-5, 1.0, 1e15, 1e25, 1e38, 1e45, 1e90])
def test_what_is_beyond_float32_counts_as_zero(x: float, target: float) -> None:
    """Features and scaled slopes above 2^64, and factors below 2^-126; all else is the clipped gradient."""
    X, y = np.full((1, 1, 1), x, "f4"), np.full((1, 1), target)
    found = clipped_gradient(LeastSquares(), Parameters(np.zeros((1, 1), "f4"), ()), X, y, np.ones((1, 1)), 0.7, True)
    wide = float(X[0, 0, 0])
    factor = min(1.0, 0.7 / (wide * target))
    counts = wide <= 2.0**64 and target * factor <= 2.0**64 and factor >= 2.0**-126
    expected = -wide * target * factor if counts else 0.0
    assert float(found.first[0, 0, 0]) == pytest.approx(expected, rel=2e-6, abs=2.0**-60)


# --- the products that are installed ---------------------------------------------------------------------------------


def columns(kind: str, rng: Any, rows: int, width: int) -> Any:
    """[rows, width] numbers whose sums are rounded much."""
    if kind == "any":
        return rng.normal(size=(rows, width)) * 10 ** rng.uniform(-6, 6, (rows, 1))
    if kind == "one way":  # above a power of two by the first, which rounds up every other
        numbers = np.full((rows, width), 2.0**-24 * (1 + 2.0**-12))
        numbers[0] = 1.0
        return numbers
    if kind == "cancelling":
        numbers = rng.normal(size=(rows, width))
        numbers[1::2] = -numbers[: rows - rows % 2 : 2] * (1 + 2.0**-20)
        return numbers
    return 1 + rng.random((rows, width))  # positive


@pytest.mark.parametrize("kind", ["any", "one way", "cancelling", "positive"])
@pytest.mark.parametrize(("rows", "features", "scores"), [
    (1, 5, 3), (2, 1, 1), (7, 60, 1), (30, 784, 10), (100, 784, 128), (129, 33, 17), (129, 4, 200), (128, 1000, 2),
])  # fmt: skip
def test_products_in_float32_are_within_the_bound(kind: str, rows: int, features: int, scores: int) -> None:
    """Of every element, and so of the norm: no product is made in a narrower format, or by fewer of them."""
    rng, g = np.random.default_rng(0), rows * 2.0**-24 / (1 - rows * 2.0**-24)
    X = columns(kind, rng, rows, features).astype("f4")
    slopes = (np.ones((rows, scores)) if kind == "one way" else columns(kind, rng, rows, scores)).astype("f4")
    found = Softmax().pull(X[None], slopes[None])[0]
    assert found.dtype == np.float32
    wide, wide_slopes = X.astype("f8"), slopes.astype("f8")
    exact = sum(np.multiply.outer(x, d) for x, d in zip(wide, wide_slopes, strict=True))
    most = sum(np.multiply.outer(np.abs(x), np.abs(d)) for x, d in zip(wide, wide_slopes, strict=True))
    assert (np.abs(found - exact) <= (g + 1e-12) * most).all()
    norms = np.linalg.norm(wide, axis=1) @ np.linalg.norm(wide_slopes, axis=1)
    assert np.linalg.norm(found - exact) <= (g + 1e-12) * norms
