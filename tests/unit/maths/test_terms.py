"""Terms: slopes against finite differences, values against written-out probabilities; the examples' own term too."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_objectives import CASES, CLASSIFIERS, N, S, data, flat, make, model_of, outputs_of, probabilities_of, unflat

import mpifed
from mpifed.core.record import leaves, map_leaves
from mpifed.maths.objectives import Parameters
from mpifed.maths.terms import ErrorRate, Loss, Norm

ROOT = Path(mpifed.__file__).resolve().parents[1]
PositiveRate = runpy.run_path(str(ROOT / "jobs" / "examples" / "own_constraint.py"))["PositiveRate"]
PAIRS = [
    *((Loss, name) for name in CASES),
    *((ErrorRate, name) for name in CLASSIFIERS),
    (PositiveRate, "logistic"),
]  # fmt: skip
every_pair = pytest.mark.parametrize(("kind", "name"), PAIRS, ids=[f"{k.__name__}, {name}" for k, name in PAIRS])


def gradient_of(term: Any, objective: Any, model: Parameters, X: Any, y: Any, weights: Any) -> Parameters:
    slope = term.slope(objective, model.head, objective.scores(model.first, X), y, weights)
    return Parameters(objective.pull(X, slope.scores), slope.head)


def central(function: Any, values: Any, h: float = 1e-6) -> Any:
    return np.array([(function(values + h * e) - function(values - h * e)) / (2 * h) for e in np.eye(values.size)])


@every_pair
def test_gradient_is_that_of_the_weighted_mean(kind: Any, name: str) -> None:
    """With the weights N_i / (B N) of clients of unequal sizes, B rows of each, as one number for each client."""
    term, objective = kind(), make(name)
    model, (X, y, _) = model_of(objective), data(objective, (N,))
    sizes = np.array([10, 55, 200])
    weights = sizes[:, None] / (S * sizes.sum())

    def mean(values: Any) -> float:
        at = unflat(model, values)
        each = term.loss(objective, at.head, objective.scores(at.first, X), y)
        return float(sizes @ each.mean(axis=1) / sizes.sum())

    found = map_leaves(lambda leaf: leaf.sum(axis=0), gradient_of(term, objective, model, X, y, weights))
    np.testing.assert_allclose(flat(found), central(mean, flat(model)), rtol=1e-6, atol=1e-9)  # h^2, rounding / h
    assert abs(flat(found)).max() > 1e-3


@pytest.mark.parametrize("name", list(CASES))
def test_loss_is_the_objective_s(name: str) -> None:
    objective = make(name, l2=0.3)  # which is no part of it
    model, (X, y, weights) = model_of(objective), data(objective, (N,))
    found = gradient_of(Loss(), objective, model, X, y, weights)
    np.testing.assert_array_equal(flat(found), flat(objective.gradient(model, X, y, weights)))


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_error_rate_is_the_probability_of_the_wrong_classes(name: str) -> None:
    objective = make(name)
    model, (X, y, _) = model_of(objective), data(objective, ())
    probabilities = probabilities_of(objective, model, X)
    wrong = [sum(q for c, q in enumerate(row) if c != label) for row, label in zip(probabilities, y, strict=True)]
    found = ErrorRate().loss(objective, model.head, objective.scores(model.first, X), y)
    np.testing.assert_allclose(found, wrong, rtol=1e-11)


def test_error_rate_of_a_sure_model_is_exact() -> None:
    """Neither 1 - p with p near 1 nor p near 0 loses its digits, in float32 too."""
    objective = make("logistic")
    scores, y = np.array([[-20.0], [20.0]], "f4"), np.array([0, 0])  # sure and right; sure and wrong
    slope = ErrorRate().slope(objective, (), scores, y, np.ones(2))
    np.testing.assert_allclose(ErrorRate().loss(objective, (), scores, y), [np.exp(-20), 1], rtol=1e-5)
    assert slope.scores[1, 0] == pytest.approx(np.exp(-20), rel=1e-5)


# --- some classes alone ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Loss, ErrorRate, PositiveRate])
def test_counted(kind: Any) -> None:
    y = np.array([[0, 3, 1], [2, 2, 3]])
    assert kind().counted(y) is None
    np.testing.assert_array_equal(kind(classes=(3, 0)).counted(y), [[True, True, False], [False, False, True]])
    assert not kind(classes=(9,)).counted(y).any()
    assert kind(classes=(3,)).counted(y.astype("uint8")).sum() == 2


@pytest.mark.parametrize("kind", [Loss, ErrorRate])
@pytest.mark.parametrize("name", ["mlp, bias", "softmax"])
def test_the_mean_over_some_classes_is_that_over_their_rows(kind: Any, name: str) -> None:
    term, objective = kind(classes=(1, 2)), make(name)
    model, (X, y, _) = model_of(objective), data(objective, ())
    counted = term.counted(y)
    assert 0 < counted.sum() < S
    share = counted.mean()
    found = gradient_of(term, objective, model, X, y, np.where(counted, 1 / (S * share), 0))
    only = np.isin(y, [1, 2])
    expected = gradient_of(kind(), objective, model, X[only], y[only], np.full(only.sum(), 1 / only.sum()))
    np.testing.assert_allclose(flat(found), flat(expected), rtol=1e-12, atol=1e-15)


# --- norm -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(CASES))
def test_norm(name: str) -> None:
    objective = make(name)
    model = model_of(objective)
    value, slope = Norm().server(model)
    assert isinstance(value, float)
    assert value == pytest.approx(sum(v * v for v in flat(model)), rel=1e-13)
    expected = central(lambda values: Norm().server(unflat(model, values))[0], flat(model))
    np.testing.assert_allclose(flat(slope), expected, rtol=1e-6, atol=1e-8)
    assert type(slope.head) is type(model.head)
    single = map_leaves(lambda leaf: leaf.astype("f4"), model)
    assert {leaf.dtype for _, leaf in leaves(Norm().server(single)[1])} == {np.dtype("f4")}
    assert Norm().server(map_leaves(lambda leaf: 1e20 + 0 * leaf, single))[0] > 1e40  # above what float32 holds


# --- in a job -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "name", "expected"),
    [
        (Loss(), "softmax", []),
        (Loss((3, 4, 7)), "softmax", ["classes = [3, 4, 7]: the data have classes 0 to 3; remove 4, 7"]),
        (ErrorRate((1, 0, 1)), "logistic", ["classes = [1, 0, 1]: names a class more than once; name each class once"]),
        (
            Loss(()),
            "softmax",
            ["classes = []: counts no sample; name at least one class, or leave the key out to count all samples"],
        ),
        (
            Loss((0,)),
            "least-squares",
            ["classes = [0]: the targets are real numbers without classes; leave the key out to count all samples"],
        ),
        (ErrorRate((2,)), "logistic", ["classes = [2]: the data have classes 0 to 1; remove 2"]),
        (
            ErrorRate(),
            "least-squares",
            ['name = "error-rate": is for classes, and the targets are real numbers; use name = "loss"'],
        ),
        (PositiveRate(), "softmax", ['PositiveRate: is for one score; take [model] name = "logistic"']),
    ],
    ids=str,
)
def test_what_does_not_fit(term: Any, name: str, expected: list[str]) -> None:
    objective = make(name)
    assert term.check(objective, outputs_of(objective)) == expected
