"""Every kernel's own text, compiled on the host, against what NumPy does in its place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make_believe import make_believe

from mpifed.maths import arrays, clipping, duals, kernels, kernels_sums
from mpifed.maths.fixedpoint import Encoder, grid
from mpifed.maths.sparse import DeviceRows

dtypes = pytest.mark.parametrize("dtype", ["float32", "float64"])
ULPS = {"float32": 4e-7, "float64": 1e-15}  # exp, tanh and log of two libraries differ by a unit in the last place


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


@dtypes
def test_swish_and_its_slope(cupy: Any, rng: Any, dtype: str) -> None:
    z, back = (5 * rng.standard_normal((3, 7, 4)).astype(dtype) for _ in range(2))
    gate, active = kernels.swish(cupy.asarray(z))
    for there, here in zip((gate, active), kernels.swish(z), strict=True):
        np.testing.assert_allclose(there.get(), here, rtol=ULPS[dtype], atol=ULPS[dtype])
    down = kernels.swish_slope(cupy.asarray(z), gate, active, cupy.asarray(back))
    # the same sums and products in the same order: the same bits from the same gates
    assert down.get().tobytes() == kernels.swish_slope(z, gate.get(), active.get(), back).tobytes()
    far = np.array([-1e4, 1e4, -0.0, np.inf, -np.inf], dtype)
    assert kernels.sigmoid(cupy.asarray(far)).get().tolist() == [0, 1, 0.5, 1, 0]


@dtypes
@pytest.mark.parametrize(
    "dual", [duals.HingeDual(), duals.SquaredHingeDual(), duals.LogisticDual()], ids=lambda dual: type(dual).__name__
)
@pytest.mark.parametrize("one_curvature", [True, False])
def test_dual_steps_of_classes(cupy: Any, rng: Any, dtype: str, dual: Any, one_curvature: bool) -> None:
    y = rng.integers(0, 2, 400)
    alpha = ((2 * y - 1) * rng.random(400)).astype(dtype)
    scores = (rng.standard_normal(400) * 10.0 ** rng.integers(-3, 3, 400)).astype(dtype)
    curvature: Any = 0.7 if one_curvature else (10.0 ** rng.uniform(-8, 4, 400)).astype(dtype)
    there = curvature if one_curvature else cupy.asarray(curvature)
    found = dual.step(cupy.asarray(alpha), cupy.asarray(scores), cupy.asarray(y), there)
    expected = dual.step(alpha, scores, y, curvature)
    np.testing.assert_allclose(found.get(), expected, rtol=20 * ULPS[dtype], atol=20 * ULPS[dtype])
    assert found.dtype == dtype
    if not isinstance(dual, duals.LogisticDual):  # sums, products and quotients alone
        np.testing.assert_allclose(found.get(), expected, rtol=0, atol=ULPS[dtype])


@dtypes
def test_dual_steps_of_targets(cupy: Any, rng: Any, dtype: str) -> None:
    alpha, scores, y, curvature = rng.random((4, 50)).astype(dtype)
    dual = duals.LeastSquaresDual()
    found = dual.step(*(cupy.asarray(one) for one in (alpha, scores, y, curvature)))
    assert found.get().tobytes() == dual.step(alpha, scores, y, curvature).tobytes()


def test_clip_factors_and_noise(cupy: Any, rng: Any) -> None:
    squares = np.array([0.0, 1e-300, 0.25, 1.0, 4.0, np.inf, np.nan])
    assert kernels.clip_factors(cupy.asarray(squares), 1.0).get().tolist()[:6] == [1, 1, 1, 1, 0.5, 0]
    assert np.isnan(kernels.clip_factors(cupy.asarray(squares), 1.0).get()[-1])
    record = rng.standard_normal((4, 3, 2)).astype("f4")
    there = clipping.clip_record(cupy.asarray(record), 1.5)
    assert there.get().tobytes() == clipping.clip_record(record, 1.5).tobytes()
    noise, spread = rng.standard_normal((4, 3, 2)).astype("f4"), np.array([0.0, 1.0, 2.0, 0.1])
    found = kernels.with_noise(cupy.asarray(record), noise.copy(), spread)
    assert found.get().tobytes() == kernels.with_noise(record, noise, spread).tobytes()


GRIDS = [(2.0**-40, 2.0**10, "float32"), (2.0**-12, 2.0**9, "float32"), (2.0**-60, 2.0**20, "float64")]


@settings(max_examples=25)
@given(st.sampled_from(GRIDS), st.integers(1, 5), st.integers(0, 2**32))
def test_encoded_sums_are_the_same_integers(form_of: Any, clients: int, seed: int) -> None:
    scale, bound, dtype = form_of
    form, rng = grid(scale, bound, 10, dtype), np.random.default_rng(seed)
    values = (rng.uniform(-bound, bound, (clients, 9)) * 2.0 ** rng.integers(-50, 1, (clients, 9))).astype(dtype)
    values[0, :3] = [0.5 * scale, 1.5 * scale, -2.5 * scale]  # ties go to even
    expected = np.zeros(form.limbs * 9, dtype=f"int{form.bits}")
    Encoder(form, 9).add(values, expected)
    with make_believe() as cupy:
        totals = [cupy.zeros(9, f"int{form.bits}") for _ in range(form.limbs)]
        kernels_sums.add_encoded(cupy.asarray(values), form, totals)
    assert np.concatenate([one.get() for one in totals]).tolist() == expected.tolist()
    assert {grid(*one[:2], 10, one[2])[2:] for one in GRIDS} == {(1, 64), (1, 32), (2, 64)}


def test_the_first_client_out_of_bounds_is_noted(cupy: Any) -> None:
    values, who = np.ones((4, 3), "f4"), cupy.asarray(np.array([3, 5, 8, 9]))
    worst = cupy.zeros(2)
    kernels_sums.note_worst(cupy.asarray(values), who, 1.0, worst)
    assert worst.get().tolist() == [0, 0]
    values[2, 1], values[3, 0] = -7, np.nan
    kernels_sums.note_worst(cupy.asarray(values), who, 1.0, worst)
    assert worst.get().tolist() == [9, 7]  # 1 + client 8
    worst = cupy.zeros(2)
    kernels_sums.note_worst(cupy.asarray(values[3:]), who[3:], 1.0, worst)
    assert worst.get().tolist() == [10, np.inf]


@dtypes
def test_square_norms(cupy: Any, rng: Any, dtype: str) -> None:
    X = rng.standard_normal((3, 5, 8)).astype(dtype)
    found = arrays.square_norms(cupy.asarray(X))
    np.testing.assert_allclose(found.get(), (X.astype("f8") ** 2).sum(-1), rtol=1e-14)


@dtypes
@pytest.mark.parametrize("of", ["float32", "float64"])
def test_sparse_rows(cupy: Any, rng: Any, dtype: str, of: str) -> None:
    from scipy.sparse import random

    host = random(13, 9, 0.3, format="csr", dtype=dtype, random_state=3)
    there, at = DeviceRows.of(host, cupy), np.array([4, 4, 0, 12])
    for some, ours in ((host, there), (host[at], there[at]), (host[3:7], there[3:7]), (host.T.tocsr(), there.T)):
        assert ours.shape == some.shape
        w, W = rng.standard_normal(some.shape[1]).astype(of), rng.standard_normal((some.shape[1], 3)).astype(of)
        for weights in (w, W):
            found, expected = (ours @ cupy.asarray(weights)).get(), some @ weights
            assert found.dtype == expected.dtype
            close = 1e-5 if "float32" in (of, dtype) else 1e-13
            np.testing.assert_allclose(found, expected, rtol=close, atol=close)
        np.testing.assert_allclose(ours.squares().get(), some.multiply(some).sum(axis=1).A1, rtol=1e-6)
    both = DeviceRows.stacked([there, there[at]])
    assert both.shape == (17, 9) and len(both.data) == len(host.data) + len(host[at].data)
    empty = DeviceRows.of(random(3, 4, 0.0, format="csr", dtype=dtype), cupy)
    assert (empty.T @ cupy.asarray(np.ones((3, 2), dtype))).get().tolist() == np.zeros((4, 2)).tolist()


def test_products_of_many_clients_are_one(cupy: Any, rng: Any) -> None:
    X, w, d = rng.standard_normal((4, 6, 5)), rng.standard_normal((5, 3)), rng.standard_normal((4, 6, 3))
    own = rng.standard_normal((4, 5, 3))
    for weights in (w, own):
        found = arrays.product(cupy.asarray(X), cupy.asarray(weights)).get()
        np.testing.assert_allclose(found, X @ weights, rtol=1e-13)
    found = arrays.transposed_product(cupy.asarray(X), cupy.asarray(d))
    np.testing.assert_allclose(found.get(), np.einsum("nsp,nsh->nph", X, d), rtol=1e-12)
    assert found.flags.c_contiguous


def test_many_clients_rows_are_gathered_at_once(cupy: Any, rng: Any) -> None:
    shards = [rng.random((size, 3)).astype("f4") for size in (4, 7, 5)]
    there = [cupy.asarray(one) for one in shards]
    first = cupy.asarray(np.array([one.data.ptr for one in there], np.uint64))
    at, out = np.array([[0, 3], [6, 6], [2, 1]]), cupy.empty((3, 2, 3), "f4")
    kernels.gathered(first, cupy.asarray(at), 3, out)
    assert out.get().tolist() == [one[rows].tolist() for one, rows in zip(shards, at, strict=True)]
