"""The checks of own classes: silent about every right class, at any scale of data and with kinks."""

from __future__ import annotations

import itertools
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from lengths import long_unless
from scipy.sparse import csr_matrix

import mpifed
from mpifed.maths import regularizers, terms
from mpifed.maths.checks.differences import compare, derivative
from mpifed.maths.checks.examined import Broken, Examined
from mpifed.maths.checks.objectives import Task, examine_objective, examine_term
from mpifed.maths.checks.regularizers import examine_regularizer
from mpifed.maths.objectives import OBJECTIVES, LinearScores, Parameters, Slope

EXAMPLES = Path(mpifed.__file__).resolve().parents[1] / "jobs" / "examples"
Huber = runpy.run_path(str(EXAMPLES / "own_objective.py"))["Huber"]
SAMPLES = 6


def here(value: Any) -> Any:
    return value


def task(
    seed: int,
    classes: int,
    features: int,
    size: float = 1.0,
    of_targets: float = 1.0,
    sparse: bool = False,
    **more: Any,
) -> Task:
    rng = np.random.default_rng(seed)
    X = size * rng.standard_normal((1, SAMPLES, features))
    X = (csr_matrix(X[0] * (rng.random(X[0].shape) < 0.3)),) if sparse else X
    y = rng.integers(classes, size=SAMPLES) if classes else of_targets * rng.standard_normal(SAMPLES)
    known = {"dtype": "float32", "lead": (1,)} | more
    return Task(
        features, classes or 1, known["dtype"], bool(classes), X, y, known["lead"], lambda: np.random.default_rng(seed)
    )


OWN: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": 5}, "mlp, bias": {"hidden": 40, "bias": True}, "softmax": {},
    "softmax, bias": {"bias": True}, "one-vs-rest, bias": {"bias": True}, "true-class-logistic, bias": {"bias": True},
    "logistic": {}, "least-squares": {}, "hinge": {}, "squared-hinge": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "size"),
    long_unless(lambda name, size: (size > 1) == ("bias" in name), itertools.product(OWN, (1e-3, 1e4))),
)
def test_mpifeds_own_objectives_and_terms_are_right(name: str, size: float) -> None:
    objective = OBJECTIVES[name.partition(",")[0]](**OWN[name])
    two = bool(objective.check(4, 3))
    cases = [(0, 1), (0, 30)] if not objective.classifies else [(2, 1)] if two else [(2, 1), (3, 30), (40, 7)]
    ways: list[tuple[tuple[int, ...], str, bool]] = [((1,), "float32", False), ((), "float64", True)]
    for seed, (classes, features) in enumerate(cases):
        for lead, dtype, sparse in ways if seed == 0 else ways[seed % 2 :][:1]:
            some = task(seed, classes, features, size, sparse=sparse, lead=lead, dtype=dtype)
            assert examine_objective(Examined(objective, here), some) > 0
            start = objective.start(features, some.outputs, some.rng(), dtype)
            for term in (terms.Loss((0,)), terms.ErrorRate(), terms.Norm()):
                if not term.check(objective, some.outputs):
                    known = examine_term(Examined(term, here), Examined(objective, here), start, some)
                    assert known > 0 or not isinstance(term, terms.Loss)  # others may be flat there


def loss_of(function: Callable[[Any, Any], Any], slope: Callable[[Any, Any], Any], **says: Any) -> Any:
    """An objective of one score z and a target y."""

    @dataclass(frozen=True)
    class Made(LinearScores):
        classifies: ClassVar[bool] = False
        nonnegative: ClassVar[bool] = says.get("nonnegative", False)
        convex: ClassVar[bool] = says.get("convex", False)

        def start(self, features: int, outputs: int, rng: Any, dtype: str) -> Parameters:
            return Parameters(np.zeros((features, 1), dtype), ())

        def loss(self, head: Any, scores: Any, y: Any) -> Any:
            return function(scores[..., 0], y)

        def slope(self, head: Any, scores: Any, y: Any, weights: Any) -> Slope:
            down = slope(scores, y[..., None]) * weights[..., None]
            return Slope(self.loss(head, scores, y), (), down.astype(scores.dtype))

        def predict(self, head: Any, scores: Any) -> Any:
            return scores[..., 0]

    return Made()


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


RIGHT = {
    "absolute": loss_of(lambda z, y: abs(z - y), lambda z, y: np.sign(z - y), convex=True, nonnegative=True),
    "pinball": loss_of(
        lambda z, y: np.where(y > z, 0.9 * (y - z), 0.1 * (z - y)), lambda z, y: np.where(y > z, -0.9, 0.1), convex=True
    ),
    "insensitive": loss_of(
        lambda z, y: np.maximum(abs(z - y) - 0.1, 0), lambda z, y: np.sign(z - y) * (abs(z - y) > 0.1), convex=True
    ),
    "three corners": loss_of(
        lambda z, y: abs(z - y) + abs(z) + abs(z + 1),
        lambda z, y: np.sign(z - y) + np.sign(z) + np.sign(z + 1), convex=True,
    ),
    "poisson": loss_of(lambda z, y: np.exp(z) - y * z, lambda z, y: np.exp(z) - y, convex=True),
    "sharp": loss_of(
        lambda z, y: np.logaddexp(0, (z - y) * 1e3), lambda z, y: 1e3 * sigmoid((z - y) * 1e3), convex=True
    ),
    "flat": loss_of(
        lambda z, y: np.logaddexp(0, (z - y) * 1e-4), lambda z, y: 1e-4 * sigmoid((z - y) * 1e-4), convex=True
    ),
    "quartic": loss_of(lambda z, y: (z - y) ** 4, lambda z, y: 4 * (z - y) ** 3, convex=True, nonnegative=True),
    "cauchy": loss_of(lambda z, y: np.log1p((z - y) ** 2), lambda z, y: 2 * (z - y) / (1 + (z - y) ** 2)),
    "infinite slope": loss_of(lambda z, y: np.sqrt(abs(z)), lambda z, y: 0.5 * np.sign(z) / np.sqrt(abs(z))),
    "half a line": loss_of(lambda z, y: z - np.log(z), lambda z, y: 1 - 1 / z),
    "large offset": loss_of(lambda z, y: 1e6 + (z - y) ** 2 / 2, lambda z, y: z - y, convex=True),
    "small units": loss_of(lambda z, y: 1e-8 * (z - y) ** 2 / 2, lambda z, y: 1e-8 * (z - y), convex=True),
    "single precision": loss_of(
        lambda z, y: ((z - y).astype("f4") ** 2 / 2).astype(z.dtype), lambda z, y: (z - y).astype("f4"), convex=True
    ),
    "single logistic": loss_of(
        lambda z, y: np.logaddexp(np.float32(0), (z - y).astype("f4")).astype(z.dtype),
        lambda z, y: sigmoid((z - y).astype("f4")), convex=True,
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")
@pytest.mark.parametrize(
    "of_targets", long_unless(lambda size: size in (0.0, 1.0, 1e9), [0.0, 1e-3, 1.0, 1e3, 1e6, 1e9])
)
@pytest.mark.parametrize("name", RIGHT)
def test_kinks_and_explosions_make_no_alarm(name: str, of_targets: float) -> None:
    for seed in range(4):
        lead = ((1,), ())[seed % 2]
        examine_objective(Examined(RIGHT[name], here), task(seed, 0, 3, of_targets=of_targets, lead=lead))


@pytest.mark.parametrize("name", [name for name in RIGHT if name not in ("sharp", "flat")])
def test_what_makes_no_alarm_is_still_seen_when_it_is_wrong(name: str) -> None:
    right = RIGHT[name]

    def double(self: Any, head: Any, scores: Any, y: Any, weights: Any) -> Slope:
        found = type(right).slope(self, head, scores, y, weights)
        return found._replace(scores=2 * found.scores)

    wrong = type("Doubled", (type(right),), {"slope": double})
    with pytest.raises(Broken, match="slope at scores"):
        examine_objective(Examined(wrong(), here), task(1, 0, 3))


@pytest.mark.parametrize("delta", [1e-3, 1.0, 1e3])
def test_the_example_is_right(delta: float) -> None:
    for seed in range(6):
        assert examine_objective(Examined(Huber(delta), here), task(seed, 0, 3)) > 0


def test_of_what_cannot_be_told_it_says_so() -> None:
    nothing = loss_of(lambda z, y: 0 * z, lambda z, y: 0 * z)
    assert examine_objective(Examined(nothing, here), task(0, 0, 3)) == 0


def test_many_features_of_a_wrong_regularizer_are_seen() -> None:
    class Twice(regularizers.L1):
        def prox(self, model: Parameters, step: float) -> Parameters:
            return super().prox(model, 2 * step)

    start = OBJECTIVES["softmax"](bias=True).start(100_000, 10, np.random.default_rng(0), "float32")
    assert examine_regularizer(Examined(regularizers.L1(0.1), here), start, np.random.default_rng(1)) > 0
    with pytest.raises(Broken, match="no minimizer"):
        examine_regularizer(Examined(Twice(0.1), here), start, np.random.default_rng(1))


@dataclass(frozen=True)
class Known(regularizers.L1):
    """Knows how many features there are, so that it cannot be tried on fewer."""

    features: int = 2000
    times: float = 1.0

    def value(self, model: Parameters) -> float:
        assert len(model.first) == self.features
        return super().value(model)

    def prox(self, model: Parameters, step: float) -> Parameters:
        return super().prox(model, self.times * step)


@pytest.mark.parametrize("features", [2000, 20_000])
def test_a_regularizer_that_knows_its_features(features: int) -> None:
    """It is tried as it is; where that would take long it is not, and what is said of fewer features is no matter."""
    start = Parameters(np.zeros((features, 10), "f4"), ())
    known = examine_regularizer(Examined(Known(0.1, False, features), here), start, np.random.default_rng(0))
    assert (known > 0) == (features == 2000)
    if features == 2000:
        with pytest.raises(Broken, match="no minimizer"):
            examine_regularizer(Examined(Known(0.1, False, features, 0.5), here), start, np.random.default_rng(0))


REGULARIZERS: list[Any] = [
    kind
    for weight in (1e-6, 1e-3, 1.0, 100.0)
    for kind in (
        regularizers.L1(weight), regularizers.L1(weight, biases=True), regularizers.ElasticNet(weight, weight),
        regularizers.GroupL1(weight), regularizers.Box(-weight, weight), regularizers.Box(low=0),
    )
]  # fmt: skip


@pytest.mark.parametrize("regularizer", long_unless(REGULARIZERS[6:18].__contains__, REGULARIZERS), ids=str)
def test_mpifeds_own_regularizers_are_right(regularizer: Any) -> None:
    for seed, features in enumerate((1, 7, 300)):
        start = OBJECTIVES["mlp"](hidden=4, bias=True).start(features, 3, np.random.default_rng(seed), "float32")
        assert examine_regularizer(Examined(regularizer, here), start, np.random.default_rng(seed)) > 0


def test_what_a_term_says_of_convexity_is_said_with_convex_objectives_alone() -> None:
    """Inherited from an objective it is a claim all the same: its loss may be another."""

    class Mine(terms.Loss):
        convex = True

    class Saturating(OBJECTIVES["softmax"]):  # type: ignore[misc]
        def of_scores(self, scores: Any, y: Any) -> Any:
            return -np.expm1(-super().of_scores(scores, y))

        def slope_of_scores(self, scores: Any, y: Any, weights: Any) -> Any:
            factor = np.exp(-super().of_scores(scores, y))
            return self.of_scores(scores, y), super().slope_of_scores(scores, y, weights * factor)[1]

    some = task(0, 3, 4)
    for name in ("mlp", "softmax"):
        objective = OBJECTIVES[name]()
        start = objective.start(4, 3, some.rng(), "float32")
        assert examine_term(Examined(Mine(), here), Examined(objective, here), start, some) > 0
    with pytest.raises(Broken, match="convex = True"):
        examine_objective(Examined(Saturating(), here), some)


def test_derivatives_and_where_they_are_not_to_be_trusted() -> None:
    z = np.array([0.7, 0.0, 3.0, -2.0])
    smooth = derivative(lambda step: np.sin(z + step))
    np.testing.assert_allclose(smooth.value, np.cos(z), rtol=1e-7)
    corner = derivative(lambda step: np.abs(z + step))
    np.testing.assert_allclose(corner.value[[0, 2, 3]], [1, 1, -1], rtol=1e-9)
    for claim in (-1.0, 0.0, 1.0, 5.0):  # at the corner itself nothing is held against anybody
        assert compare([np.array([1, claim, 1, -1])], [corner], own_scales=True).worst is None
    assert compare([np.array([1, 0, 1, 1.0])], [corner], own_scales=True).worst == (0, (3,))
    assert compare([np.array([1, 0, np.nan, -1.0])], [corner], own_scales=True).worst == (0, (2,))
    stairs = derivative(lambda step: np.round(z + 0.01 + step, 2))
    assert compare([np.ones(4)], [stairs], own_scales=True).worst is None
