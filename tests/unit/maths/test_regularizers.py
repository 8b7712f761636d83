"""Regularizers: the prox by its inequality, against scipy, and by trying all supports."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering, long_unless
from scipy.optimize import minimize
from test_objectives import flat, unflat

from mpifed.core.record import leaves, map_leaves
from mpifed.maths.objectives import Bias, BiasedOutput, Parameters
from mpifed.maths.regularizers import L1, REGULARIZERS, Box, ElasticNet, GroupL1

CONVEX: dict[str, Any] = {
    "l1": L1(0.4),
    "l1, biases": L1(0.4, biases=True),
    "elastic-net": ElasticNet(0.3, 0.25),
    "elastic-net, biases": ElasticNet(0.3, 0.25, biases=True),
    "group-l1": GroupL1(0.35),
    "box": Box(-0.5, 1.0),
    "box, one side": Box(low=0.0),
}
every_convex = pytest.mark.parametrize("h", CONVEX.values(), ids=list(CONVEX))
HEADS: dict[str, Any] = {
    "none": (),
    "bias": Bias(np.empty(2)),
    "mlp": BiasedOutput(np.empty((2, 3)), np.empty(2), np.empty(3)),
}
every_head = pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))


def model_with(head: Any, seed: int = 0, scale: float = 1.5, features: int = 4) -> Parameters:
    rng = np.random.default_rng(seed)
    return map_leaves(lambda leaf: scale * rng.standard_normal(leaf.shape), Parameters(np.empty((features, 2)), head))


def total(h: Any, x: Parameters, u: Parameters, step: float) -> float:
    """What the prox minimizes."""
    return float(h.value(x) + np.sum((flat(x) - flat(u)) ** 2) / (2 * step))


# --- the convex ones ------------------------------------------------------------------------------------------------


@covering({"step": [0.05, 1.0, 7.0], "h": CONVEX.values(), "head": HEADS.values()})
def test_the_inequality_of_the_prox(h: Any, head: Any, step: float) -> None:
    """h(p) + <u - p, x - p> / step <= h(x) for all x says that p is the minimizer, and nothing else is."""
    for seed in range(2):
        u = model_with(head, seed)
        p = h.prox(u, step)
        assert np.isfinite(h.value(p))
        points = [model_with(head, 100 + i, scale) for i, scale in enumerate(np.repeat([0.1, 1.0, 10.0], 20))]
        near = np.random.default_rng(seed).standard_normal((20, flat(u).size))
        points += [unflat(u, flat(p) + 0.01 * move) for move in near]
        points += [h.prox(x, 1.0) for x in points]  # with zeros, or inside
        for x in points:
            inner = (flat(u) - flat(p)) @ (flat(x) - flat(p)) / step
            assert h.value(p) + inner <= h.value(x) + 1e-9 * (1 + abs(inner))


@pytest.mark.parametrize(
    ("name", "step"),
    long_unless(
        lambda name, step: (step < 1) == list(CONVEX).index(name) % 2,
        [(name, step) for name, h in CONVEX.items() for step in (0.3, 1.5) if not isinstance(h, Box)],
    ),
)
def test_scipy_finds_no_better_point(name: str, step: float) -> None:
    """Without derivatives, in 6 unknowns."""
    h = CONVEX[name]
    u = model_with(Bias(np.empty(2)), seed=3, scale=0.9, features=2)
    p = h.prox(u, step)
    settings = {"xatol": 1e-9, "fatol": 1e-13, "maxiter": 20000, "maxfev": 20000, "adaptive": True}
    start = np.full(6, 0.4)
    for _ in range(4):  # again from where the simplex has collapsed
        solved = minimize(lambda x: total(h, unflat(u, x), u, step), start, method="Nelder-Mead", options=settings)
        start = solved.x
    best = total(h, p, u, step)
    assert best <= solved.fun + 1e-12
    assert solved.fun <= best + 1e-5  # so that it has come near
    np.testing.assert_allclose(solved.x, flat(p), atol=5e-3)


@pytest.mark.parametrize("box", [h for h in CONVEX.values() if isinstance(h, Box)], ids=str)
@every_head
def test_scipy_finds_no_nearer_point_in_a_box(box: Box, head: Any) -> None:
    u = model_with(head, seed=3)
    values = flat(u)
    solved = minimize(
        lambda x: ((x - values) ** 2).sum(), np.full(values.size, 0.4), jac=lambda x: 2 * (x - values),
        method="L-BFGS-B", bounds=[(box.low, box.high)] * values.size, options={"gtol": 1e-12},
    )  # fmt: skip
    found = flat(box.prox(u, 0.7))
    assert (found != values).any()
    np.testing.assert_allclose(found, solved.x, atol=1e-9)


def test_the_soft_threshold() -> None:
    """(13) of FedPDM-DP with gamma = 0.3 and rho = 2: step 1 / rho, threshold gamma / rho = 0.15."""
    u = Parameters(np.array([[1.0, -1.0], [0.1, -0.15], [0.0, 0.16]]), Bias(np.array([0.1, 1.0])))
    found = L1(0.3).prox(u, 1 / 2)
    np.testing.assert_allclose(found.first, [[0.85, -0.85], [0, 0], [0, 0.01]], atol=1e-15)
    assert found.first[1].tolist() == [0, 0]  # zero, and not nearly
    np.testing.assert_array_equal(found.head.bias, [0.1, 1.0])
    np.testing.assert_allclose(L1(0.3, biases=True).prox(u, 1 / 2).head.bias, [0, 0.85], atol=1e-15)
    half = ElasticNet(0.3, 0.5).prox(u, 1 / 2)  # divided by 1 + 2 * 0.5 / 2
    np.testing.assert_allclose(half.first, found.first / 1.5, rtol=1e-15)


def test_groups_are_the_rows_of_the_features() -> None:
    """Threshold 0.5 * sqrt(2) * 2 = sqrt(2): of norm 5, 1 and 0."""
    u = Parameters(np.array([[3.0, 4.0], [0.6, -0.8], [0.0, 0.0]]), BiasedOutput(*(np.ones(2) for _ in range(3))))
    found = GroupL1(0.5).prox(u, 2.0)
    np.testing.assert_allclose(found.first, [[3 * (1 - 2**0.5 / 5), 4 * (1 - 2**0.5 / 5)], [0, 0], [0, 0]])
    assert not found.first[1:].any()
    np.testing.assert_array_equal(flat(found.head), flat(u.head))


def test_values() -> None:
    head = BiasedOutput(np.array([[2.0, -2.0]]), np.ones(1), -np.ones(2))
    model = Parameters(np.array([[3.0, -4.0], [0.0, 1.0]]), head)
    assert L1(0.5).value(model) == 0.5 * (8 + 4)
    assert L1(0.5, biases=True).value(model) == 0.5 * (8 + 4 + 3)
    assert ElasticNet(0.5, 0.1).value(model) == pytest.approx(0.5 * 12 + 0.1 * (26 + 8))
    assert ElasticNet(0.0, 0.1, biases=True).value(model) == pytest.approx(0.1 * (26 + 8 + 3))
    assert GroupL1(0.5).value(model) == pytest.approx(0.5 * 2**0.5 * (5 + 1))
    assert Box(-4, 3).value(model) == 0
    assert Box(-3.9, 3).value(model) == Box(high=2.9).value(model) == np.inf
    large = map_leaves(lambda leaf: leaf.astype("f4") * np.float32(8e37), model)
    assert L1(1.0).value(large) == pytest.approx(12 * 8e37, rel=1e-6)  # above what float32 holds


# --- all of them ----------------------------------------------------------------------------------------------------


@every_convex
@every_head
def test_dtype_bits_and_inputs(h: Any, head: Any) -> None:
    u = map_leaves(lambda leaf: leaf.astype("f4"), model_with(head, 2))
    before = flat(u).copy()
    p = h.prox(u, 0.37)
    np.testing.assert_array_equal(flat(u), before)
    assert [(type(p.head), leaf.shape, leaf.dtype) for _, leaf in leaves(p)] == [
        (type(u.head), leaf.shape, np.dtype("f4")) for _, leaf in leaves(u)
    ]
    np.testing.assert_array_equal(flat(h.prox(u, 0.37)), flat(p))
    wide = h.prox(map_leaves(lambda leaf: leaf.astype("f8"), u), 0.37)
    np.testing.assert_allclose(flat(p), flat(wide), rtol=1e-5, atol=1e-6)
    assert np.isfinite(h.value(p))
    assert isinstance(h.value(p), float)


@every_convex
def test_what_is_not_a_number_stays_so(h: Any) -> None:
    u = model_with(Bias(np.empty(2)))
    u.first[1, 1] = np.nan
    assert np.isnan(h.prox(u, 0.5).first[1, 1])
    assert not np.isfinite(h.value(u))


@pytest.mark.parametrize("h", [L1(0.0), ElasticNet(0.0, 0.0), GroupL1(0.0), Box(-99, 99)], ids=str)
def test_nothing_is_done_by_nothing(h: Any) -> None:
    u = model_with(Bias(np.empty(2)))
    u.first[0] = 0
    np.testing.assert_array_equal(flat(h.prox(u, 1.0)), flat(u))
    assert h.value(u) == 0


def test_a_box_of_float32() -> None:
    """0.1 is no number of float32, and what is put at the bound is inside all the same."""
    box, u = Box(-0.1, 0.1), Parameters(np.array([[-5.0, 5.0, 0.05]], "f4"), ())
    assert box.value(box.prox(u, 1.0)) == 0
    assert box.value(u) == np.inf


# --- in a job -------------------------------------------------------------------------------------------------------


def test_the_table_of_regularizers() -> None:
    assert {"l1": L1, "elastic-net": ElasticNet, "group-l1": GroupL1, "box": Box} == REGULARIZERS


def test_a_job_names_a_regularizer() -> None:
    from mpifed.job import components

    kind = components.REGULARIZER
    for table, expected in (
        ({"name": "l1", "weight": 0.1}, L1(0.1)),
        ({"name": "l1", "weight": 0.1, "biases": True}, L1(0.1, True)),
        ({"name": "elastic-net", "weight": 1, "square_weight": 0.5}, ElasticNet(1.0, 0.5)),
        ({"name": "group-l1", "weight": 0.1}, GroupL1(0.1)),
        ({"name": "box", "low": 0}, Box(low=0.0)),
    ):
        assert components.wrong_with(kind, table) == []
        assert components.make(kind, table) == expected
        assert components.make(kind, components.written_out(kind, table)) == expected
    for wrong in (
        {"name": "l1"}, {"name": "l1", "weight": -0.1}, {"name": "box", "lower": 1.0},
    ):  # fmt: skip
        (line,) = components.wrong_with(kind, wrong)
        assert line.startswith("[regularizer] ")


def test_a_box_must_have_room() -> None:
    assert Box(-1, 1).check() == Box(high=0.0).check() == []
    (line,) = Box(1.0, -2.0).check()
    assert line == "[regularizer] low = 1, high = -2: no parameter can meet both; low must be below high"
    assert Box(1.0, 1.0).check()
    (line,) = Box().check()
    assert line == "[regularizer] low = -inf, high = inf: limits nothing; give low, high or both"
