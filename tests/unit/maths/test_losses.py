"""Losses: values against those of scikit-learn and written out, slopes against differences, optima of other solvers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import hinge_loss, log_loss

from mpifed.data.block import vectors
from mpifed.maths import duals, losses
from mpifed.maths.losses import CrossEntropy, HingeLoss, SampleLoss

S, L = 40, 4
RNG = np.random.default_rng(0)


def margin(z: Any, k: Any) -> float:
    return float((2 * k - 1) * z[0])


# of one sample: outputs z [L], and its class or target
WRITTEN_OUT: dict[type[SampleLoss], Any] = {
    losses.CrossEntropy: lambda z, k: log_loss([k], [np.exp(z) / np.exp(z).sum()], labels=range(L)),
    losses.TrueClass: lambda z, k: math.log(1 + math.exp(-z[k])),  # (25) of FedPDM-DP
    losses.LogisticLoss: lambda z, k: math.log1p(math.exp(-margin(z, k))),
    losses.HingeLoss: lambda z, k: max(0.0, 1 - margin(z, k)),
    losses.SquaredHingeLoss: lambda z, k: max(0.0, 1 - margin(z, k)) ** 2,
    losses.SquaredError: lambda z, t: (z[0] - t) ** 2 / 2,
}
DUALS = {
    losses.LogisticLoss: duals.LogisticDual, losses.HingeLoss: duals.HingeDual,
    losses.SquaredHingeLoss: duals.SquaredHingeDual, losses.SquaredError: duals.LeastSquaresDual,
}  # fmt: skip
every_loss = pytest.mark.parametrize("kind", WRITTEN_OUT)


def data(loss: SampleLoss, *lead: int) -> tuple[Any, Any]:
    outputs = L if loss.classifies and not loss.binary else 1
    y = RNG.integers(0, max(outputs, 2), (*lead, S)) if loss.classifies else RNG.standard_normal((*lead, S))
    return 2 * RNG.standard_normal((*lead, S, outputs)), y


@every_loss
def test_values_predictions_and_duals(kind: type[SampleLoss]) -> None:
    loss = kind()
    z, y = data(loss, 3)
    rows, targets = z.reshape(-1, z.shape[-1]), y.ravel()
    expected = [WRITTEN_OUT[kind](*pair) for pair in zip(rows, targets, strict=True)]
    np.testing.assert_allclose(loss.value(z, y).ravel(), expected, rtol=1e-12)
    assert (loss.value(z, y) >= 0).all() == loss.nonnegative
    least = rows.argmax(axis=1) if rows.shape[1] > 1 else rows[:, 0] > 0 if loss.classifies else rows[:, 0]
    assert loss.predict(z).ravel().tolist() == least.tolist()
    assert loss.predict(z).dtype == y.dtype
    assert type(loss.dual) is DUALS.get(kind, type(None))


@every_loss
def test_slopes_are_those_of_the_value(kind: type[SampleLoss]) -> None:
    """By differences; weighted in the dtype of the outputs; what is given stays. A convex one is above its tangents."""
    loss = kind()
    (z, y), weights, h = data(loss, 3), RNG.uniform(-1, 2, (3, 1)), 1e-6
    before, slopes = z.tobytes(), loss.slope(z, y)
    for k, e in enumerate(np.eye(z.shape[-1])):
        central = (loss.value(z + h * e, y) - loss.value(z - h * e, y)) / (2 * h)
        np.testing.assert_allclose(slopes[..., k], central, rtol=1e-5, atol=1e-8)
    single = loss.weighted(z.astype("f4"), y, weights)
    np.testing.assert_allclose(single, slopes * weights[..., None], rtol=1e-4, atol=1e-5)
    assert single.dtype == np.float32
    assert z.tobytes() == before
    other, _ = data(loss, 3)
    tangent = loss.value(z, y) + (slopes * (other - z)).sum(axis=-1)
    assert loss.convex and (loss.value(other, y) >= tangent - 1e-12).all()


def test_several_targets_count_by_their_mean() -> None:
    z, y = RNG.standard_normal((2, S, 3))
    loss = losses.SquaredError()
    np.testing.assert_allclose(loss.value(z, vectors(y)), ((z - y) ** 2).mean(axis=1) / 2, rtol=1e-13)
    np.testing.assert_allclose(loss.slope(z, vectors(y)), (z - y) / 3, rtol=1e-13)
    assert loss.predict(z) is z


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("size", [50.0, 1e3, 1e6, 1e30])
def test_huge_logits(dtype: str, size: float) -> None:
    z, y = np.array([[size, -size, 0], [-size, size, 0]], dtype), np.array([0, 0])
    np.testing.assert_allclose(CrossEntropy().value(z, y), [0, 2 * size], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(CrossEntropy().slope(z, y), [[0, 0, 0], [-1, 1, 0]], atol=1e-6)
    assert CrossEntropy().slope(z, y).dtype == dtype


def test_the_hinge_s_slope_is_a_subgradient_at_the_kink() -> None:
    """loss(z') >= loss(z) + slope (z' - z) for all z', at the kink and beside it, where it is the shortest."""
    z, others = np.array([-2.0, -1.0, 0.0, 1.0, 1.0 - 1e-12, 1.0 + 1e-12, 3.0]), np.linspace(-4, 4, 33)
    for label in (0, 1):
        y = np.full(len(z), label)
        value, slope = HingeLoss().value(z[:, None], y), HingeLoss().slope(z[:, None], y)[:, 0]
        for other in others:
            assert (HingeLoss().value(np.full((len(z), 1), other), y) >= value + slope * (other - z) - 1e-15).all()
    assert HingeLoss().slope(np.array([[1.0]]), np.array([1]))[0, 0] == 0
    z, y = data(HingeLoss())
    assert HingeLoss().value(z, y).mean() == pytest.approx(hinge_loss(2 * y - 1, z[:, 0]), rel=1e-12)
