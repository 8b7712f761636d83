"""Terms: the laws of `mpifed.laws`, of the examples' own term too, and which samples count."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_objectives import CLASSIFIERS, S, check_laws, data, flat, make, model_of, outputs_of

import mpifed
from mpifed.core.record import leaves, map_leaves
from mpifed.maths.objectives import Parameters
from mpifed.maths.terms import ErrorRate, Loss, Norm

ROOT = Path(mpifed.__file__).resolve().parents[1]
PositiveRate = runpy.run_path(str(ROOT / "jobs" / "examples" / "own_constraint.py"))["PositiveRate"]
PAIRS = [
    *((ErrorRate, name) for name in CLASSIFIERS),
    (PositiveRate, "logistic"),
]  # fmt: skip
every_pair = pytest.mark.parametrize(("kind", "name"), PAIRS, ids=[f"{k.__name__}, {name}" for k, name in PAIRS])


def gradient_of(term: Any, objective: Any, model: Parameters, X: Any, y: Any, weights: Any) -> Parameters:
    slope = term.slope(objective, model.head, objective.scores(model.first, X), y, weights)
    return Parameters(objective.pull(X, slope.scores), slope.head)


@every_pair
def test_laws(kind: Any, name: str) -> None:
    check_laws(make(name), kind())


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


def test_norm() -> None:
    model = model_of(make("mlp, bias"))
    value, slope = Norm().server(model)
    np.testing.assert_array_equal(flat(slope), 2 * flat(model))
    assert isinstance(value, float)
    assert value == pytest.approx(sum(v * v for v in flat(model)), rel=1e-13)
    single = map_leaves(lambda leaf: leaf.astype("f4"), model)
    assert {leaf.dtype for _, leaf in leaves(Norm().server(single)[1])} == {np.dtype("f4")}
    assert Norm().server(map_leaves(lambda leaf: 1e20 + 0 * leaf, single))[0] > 1e40  # above what float32 holds


EACH_ONCE = "the classes of the data, each once; or leave the key out to count all samples"


# --- in a job -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("term", "name", "expected"),
    [
        (Loss(), "softmax", []),
        (Loss((3, 4, 7)), "softmax", [f"classes = [3, 4, 7]: expected some of 0 to 3, {EACH_ONCE}"]),
        (ErrorRate((1, 0, 1)), "logistic", [f"classes = [1, 0, 1]: expected some of 0 to 1, {EACH_ONCE}"]),
        (Loss(()), "softmax", [f"classes = []: expected some of 0 to 3, {EACH_ONCE}"]),
        (
            Loss((0,)),
            "least-squares",
            ["classes = [0]: the targets have no classes; leave the key out to count all samples"],
        ),
        (ErrorRate((2,)), "logistic", [f"classes = [2]: expected some of 0 to 1, {EACH_ONCE}"]),
        (
            ErrorRate(),
            "least-squares",
            ['name = "error-rate": is for classes, and the targets are none; use name = "loss"'],
        ),
        (PositiveRate(), "softmax", ['PositiveRate: is for one score; take [model] name = "logistic"']),
    ],
    ids=str,
)
def test_what_does_not_fit(term: Any, name: str, expected: list[str]) -> None:
    objective = make(name)
    assert term.check(objective, outputs_of(objective)) == expected
