"""Records made to break the mechanism: of any numbers; and sums that floats of 64 or 32 bits round far off."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from small import algorithm, block_of, flat, sensitivity

import mpifed as mf
from mpifed.core.errors import NumericalError
from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import Round
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import LeastSquares, Parameters, Softmax
from mpifed.privacy.guards import on_grid

STEP = {"learning_rate": 0.3}
SOFTMAX, BIASED = {"name": "softmax", "bias": False}, {"name": "softmax", "bias": True}
KINDS: dict[str, dict[str, Any]] = {
    "gradients": {},
    "paper": {"noise": "paper"},
    "clients, by chance": {"level": "client", "trust": "central", "sampling": "poisson"},
    "clients": {"level": "client"},
    "clients, distributed": {"level": "client", "trust": "distributed"},
    "clients, central": {"level": "client", "trust": "central"},
}
BAD = [np.nan, np.inf, -np.inf, 1e300, float(np.finfo("f8").max)]


def at(clients: int = 1) -> Round:
    return Round(0, 1, np.ones(clients, dtype=bool))


def after(one: Any, rows: Any, shard: type) -> Any:
    """[d] the model after a round."""
    (exchange,), now, block = one.exchanges, at(len(rows)), block_of(rows, shard)
    server = one.start_server(now._replace(index=-1))
    answer = exchange.answer(one.start_clients(block, now), exchange.ask(server, now), block, now)[1]
    total = map_leaves(lambda leaf: leaf.sum(axis=0), answer)
    return np.concatenate([leaf.ravel() for _, leaf in leaves(one.model(exchange.absorb(server, total, now)))])


@pytest.mark.filterwarnings("error::RuntimeWarning")
@covering({"name": KINDS, "bad": BAD, "objective": [SOFTMAX, BIASED, {"name": "mlp", "bias": False, "hidden": 3}]})
def test_a_record_of_any_numbers_ends_no_run(name: str, bad: float, objective: Any, array_shard: Any) -> None:
    """The model is finite, and, with the same noise, within the reach of one record, or client, of the one without."""
    settings, table = {"clip": 1.0, "noise_multiplier": 3.0} | KINDS[name], {"name": "fedavg", "batch_size": 12}
    one = algorithm(table | {"client_optimizer": STEP}, settings, [12, 12], 5, 3, objective)
    rng, found = np.random.default_rng(2), []
    X, y = rng.normal(size=(2, 12, 5)), rng.integers(0, 3, (2, 12))
    for value in (0.0, bad):
        X[1, 4, 2:] = value
        found.append(after(one, list(zip(X, y, strict=True)), array_shard))
    assert np.isfinite(found[1]).all()
    reach = 0.3 * 2 / 12 if one.problem.privacy.on_gradients else sensitivity(one)
    assert np.linalg.norm(found[1] - found[0]) <= reach / 2 * 1.01


@pytest.mark.parametrize("released_only", [False, True])
def test_no_message_has_a_record_s_numbers(released_only: bool, tmp_path: Path) -> None:
    """Whatever is measured without noise may end a run, and says neither whose number it was, nor which."""
    X, y = np.ones((8, 2)), np.append(np.ones(7), 3e38)
    data, privacy = mf.FederatedDataset.from_arrays(X, y, clients=2), mf.Privacy(delta=1e-5, clip=1, noise_multiplier=1)
    said = nullcontext() if released_only else pytest.raises(NumericalError, match="true, which measures none of it")
    with said as caught:
        mf.run(
            mf.FedAvg(batch_size=2, client_optimizer=mf.SGD(0.1)), data, mf.LeastSquares(), rounds=1, privacy=privacy,
            record=mf.Record(released_only=released_only), out=tmp_path / "run", progress="none",
        )  # fmt: skip
    assert caught is None or not re.search(r"client|e\+", str(caught.value))


# --- sums ------------------------------------------------------------------------------------------------------------

CLIENTS = 40  # each with data of its own
MODELS: dict[str, tuple[dict[str, Any], int]] = {
    "softmax": (SOFTMAX, 3),
    "softmax, bias": (BIASED, 3),
    "least squares": ({"name": "least-squares", "bias": True}, 1),
    "network": ({"name": "mlp", "hidden": 4, "bias": False}, 3),
    "network, bias": ({"name": "mlp", "hidden": 4, "bias": True}, 3),
}


def made(model: Any, outputs: int, shape: tuple[int, int, int], **privacy: Any) -> Any:
    """A method in float32 whose every minibatch has all rows of a client."""
    clients, rows, features = shape
    table = {"name": "fedavg", "batch_size": rows, "client_optimizer": STEP}
    settings = {"clip": 1.0, "noise_multiplier": 1.0, **privacy}
    return algorithm(table, settings, [rows] * clients, features, outputs, model, dtype="float32")


def apart(one: Any, pair: Any, shard: type, model: Any = None) -> Any:
    """[n, d] how far two data sets' integers are apart before noise is added, in sensitivities."""
    guard, sent = one.guard, []
    point = np.zeros(one.layout.size) if model is None else model
    for X, y in pair:
        block, rows = block_of(list(zip(X, y, strict=True)), shard, "float32"), np.arange(len(y[0]))
        with np.errstate(**guard.quiet):
            batch = guard.minibatch(block.take(np.tile(rows, (len(y), 1))), (), 1.0)
            total = guard.clipped(guard.record(point[None]), batch)
        each = np.full(len(y), 1 / one.problem.privacy.reach)
        integers = flat(on_grid(guard.how, "g", total, each, 0.0, block.clients, at(len(y)), None, "float64"))
        assert (integers == np.rint(integers)).all()
        sent.append(integers)
    assert guard.how.equivalent <= one.problem.privacy.multiplier / (1 + guard.how.inexact)  # roundings are counted
    return (sent[0] - sent[1]) * 2.0**-guard.how.exponent


@pytest.mark.parametrize("rows", [1, 7, 100, 1023, 2049, 6000])
def test_sums_of_many_sizes(rows: int, array_shard: Any) -> None:
    """Of records of any length, most of which pull one way; the last one is turned round."""
    rng = np.random.default_rng(rows)
    X = np.abs(rng.normal(size=(rows, 40))) * 10 ** rng.uniform(-3, 6, (rows, 1))
    y = 10 ** rng.uniform(-3, 6, rows)
    y[-1], X[-1] = 1e6, (X[-1] / np.linalg.norm(X[-1])).astype("f4")
    other = np.append(y[:-1], -y[-1])
    one = made({"name": "least-squares", "bias": False}, 1, (1, rows, 40), noise_multiplier=3.0)
    moved, how = apart(one, [(X[None], part[None]) for part in (y, other)], array_shard)[0], one.guard.how
    assert 0.99 < np.linalg.norm(moved) <= 1 + how.inexact
    assert np.abs(np.abs(moved) - X[-1]).max() <= 1.01 * 2.0**-how.exponent + 2.0**-19  # both sums are rounded once


def any_records(rng: Any, outputs: int, shape: tuple[int, ...], features: int = 7) -> Any:
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
def test_neighbours_of_any_records(model: str, rows: int, clip: float, array_shard: Any) -> None:
    one, rng, worst = made(*MODELS[model], (CLIENTS, rows, 7), clip=clip), np.random.default_rng(rows), 0.0
    assert one.guard.narrow == (clip > 1e-10)
    for size in (0.0, 1e-3, 1.0, 1e3, 1e15):
        point = rng.normal(size=one.layout.size) * size
        pair = [any_records(rng, MODELS[model][1], (CLIENTS, rows))]
        pair.append(tuple(part.copy() for part in pair[0]))
        at_row = np.arange(CLIENTS), rng.integers(0, rows, CLIENTS)
        pair[1][0][at_row], pair[1][1][at_row] = any_records(rng, MODELS[model][1], (CLIENTS,))
        worst = max(worst, np.linalg.norm(apart(one, pair, array_shard, point), axis=1).max())
    assert worst <= 1 + one.guard.how.inexact


@pytest.mark.parametrize("features", [1, 16, 257])
@pytest.mark.parametrize("rows", [64, 100, 129])
def test_neighbours_whose_sums_are_rounded_one_way(features: int, rows: int, array_shard: Any) -> None:
    """One record lifts every sum above a power of two, where each of the others is rounded up; or none is."""
    one, rng = made(*MODELS["least squares"], (CLIENTS, rows, features)), np.random.default_rng(1)
    X, worst, moved = np.ones((CLIENTS, rows, features)) / np.sqrt(features + 1), 0.0, 0.0
    for _ in range(20):
        y = np.full((CLIENTS, rows), -1.0) * rng.choice([1 + 2.0**-10, 1.0, 1 - 2.0**-9, 1 / 3], (CLIENTS, 1))
        y[:, : rows // 2] = -0.999 * 2.0 ** -rng.integers(0, 3, (CLIENTS, 1))
        y[:, 0], other = -1.0, y.copy()
        other[:, 0] = 1.0
        found = np.linalg.norm(apart(one, [(X, y), (X, other)], array_shard), axis=1)
        worst, moved = max(worst, found.max()), max(moved, np.abs(found - np.median(found)).max())
    assert 0.999 < worst <= 1 + one.guard.how.inexact
    assert moved > 0  # roundings are there to be counted


@pytest.mark.parametrize("clip", [1e30, 1e36, 1e37, 1e38, 1e39, 1e60])
def test_no_sum_overflows_however_large_the_clip_is(clip: float, array_shard: Any) -> None:
    """Three records of a norm that float32 can hold and a fourth, beside three whose fourth has the other sign."""
    one, (X, y) = made(*MODELS["least squares"], (CLIENTS, 100, 7), clip=clip), np.zeros((2, CLIENTS, 100, 7))
    y, sizes = y[..., 0], np.tile(2.0 ** np.linspace(57, 67, CLIENTS // 2), 2)  # of features; targets fit, or not
    X[..., 0], y[:, :4] = sizes[:, None], -np.where(np.arange(CLIENTS) < CLIENTS // 2, sizes, 1e38)[:, None]
    other = y.copy()
    other[:, 0] *= -1
    assert one.guard.narrow
    found = np.linalg.norm(apart(one, [(X, y), (X, other)], array_shard), axis=1)
    assert found.max() <= 1 + one.guard.how.inexact


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
    numbers = rng.normal(size=(rows, width))
    if kind == "one way":  # above a power of two by the first, which rounds up every other
        numbers[:] = 2.0**-24 * (1 + 2.0**-12)
        numbers[0] = 1.0
    elif kind == "cancelling":
        numbers[1::2] = -numbers[: rows - rows % 2 : 2] * (1 + 2.0**-20)
    elif kind == "positive":
        numbers = 1 + rng.random((rows, width))
    else:
        numbers *= 10 ** rng.uniform(-6, 6, (rows, 1))
    return numbers.astype("f4")


@pytest.mark.parametrize("kind", ["any", "one way", "cancelling", "positive"])
@pytest.mark.parametrize(("rows", "features", "scores"), [
    (1, 5, 3), (2, 1, 1), (7, 60, 1), (30, 784, 10), (100, 784, 128), (129, 33, 17), (129, 4, 200), (128, 1000, 2),
])  # fmt: skip
def test_products_in_float32_are_within_the_bound(kind: str, rows: int, features: int, scores: int) -> None:
    """Of every element, and so of the norm: no product is made in a narrower format, or by fewer of them."""
    rng, g = np.random.default_rng(0), rows * 2.0**-24 / (1 - rows * 2.0**-24)
    X = columns(kind, rng, rows, features)
    slopes = np.ones((rows, scores), "f4") if kind == "one way" else columns(kind, rng, rows, scores)
    found = Softmax().pull(X[None], slopes[None])[0]
    assert found.dtype == np.float32
    wide, wide_slopes = X.astype("f8"), slopes.astype("f8")
    exact, most = (np.einsum("sp,sh->ph", f(wide), f(wide_slopes)) for f in (np.positive, np.abs))
    assert (np.abs(found - exact) <= (g + 1e-12) * most).all()
    norms = np.linalg.norm(wide, axis=1) @ np.linalg.norm(wide_slopes, axis=1)
    assert np.linalg.norm(found - exact) <= (g + 1e-12) * norms
