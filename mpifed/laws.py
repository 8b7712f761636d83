"""What models, terms and regularizers of one's own must obey: shapes, which a run compares, and five laws.

Derivatives are those of finite differences; a sample counts as it would alone; a
second call gives the same bits; `convex` holds; a prox is a minimizer. Points are random, so that no record decides or
is told. What does not hold is an AssertionError that says what came and what was expected. What a class gives that
breaks a law may be anything, and is Any here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, leaves, map_leaves
from mpifed.core.round import Round
from mpifed.maths.arrays import flat, unflat
from mpifed.maths.objectives import Objective
from mpifed.maths.parameters import Parameters
from mpifed.maths.problem import Problem
from mpifed.maths.terms import Loss, OfOutputs, Term

ROUNDING = 1e-5  # of a sum in float32, relative; and of a difference quotient
_CLIENTS, _SAMPLES = 3, 6  # with models of their own, and of each
_DIRECTIONS = 3
_STEPS = 10.0 ** -np.arange(1.0, 8.0)
_OFF = 1e-3  # how far a derivative may be from a difference quotient, relative
# on the line from a point to its prox, and multiples of it
_PLACES = np.array([[-0.1], [0.1], [0.5], [0.9], [1.1], [2.0], [10.0], [100.0]])
_AROUND = 10.0 ** -np.arange(6.0)[:, None]  # how far away others are
_TINY = 1e-100  # what underflows has fewer digits
_EDGE = 1 - 1e-6  # times a prox is surely where the regularizer is finite


class Trial(NamedTuple):
    """Arguments of a gradient."""

    model: Parameters  # leaves [n, ...]
    X: Array  # [n, s, p]
    y: Array  # [n, s] random classes or numbers
    weights: Array  # [n, s] some below zero


class ModelFunction(NamedTuple):
    """What is differentiated by the model: a term, or its loss."""

    model: Objective
    term: Term = Loss()
    keys: tuple[Array, ...] = ()  # in training, of the clients' passes

    def loss(self, at: Trial) -> Array:
        """[n, s]"""
        model = self.model
        scores = model.forward(at.model, at.X, *self.keys)[0] if self.keys else model.scores_of(at.model, at.X)
        return np.asarray(self.term.loss(model, at.model.head, scores, at.y), dtype="f8")

    def gradient(self, at: Trial) -> Parameters:
        """Leaves [n, ...], as algorithms ask for it."""
        if self.term == Loss():
            return self.model.gradient(*at, *self.keys)
        scores, back = self.model.forward(at.model, at.X, *self.keys)
        return back(self.term.slope(self.model, at.model.head, scores, at.y, at.weights))


def trial(problem: Problem, rng: Generator, dtype: str, spread: float = 0.3) -> Trial:
    """Normal features, and models near the start, by `spread` times the spread of each leaf."""
    model, shape = problem.objective, (_CLIENTS, _SAMPLES)

    def near(leaf: Array) -> Array:
        size = float(np.std(leaf)) or 1.0
        return (leaf + spread * size * rng.standard_normal((_CLIENTS, *leaf.shape))).astype(dtype)

    models = map_leaves(near, model.start(problem.features, problem.outputs, rng, dtype))
    X = rng.standard_normal((*shape, problem.features)).astype(dtype)
    y = rng.integers(problem.outputs, size=shape) if model.classifies else rng.standard_normal(shape)
    return Trial(models, X, y, rng.uniform(-1, 1, shape))


def check_start(problem: Problem, rng: Generator) -> None:
    """The start is a finite model of so many features in the job's dtype."""
    start: Any = problem.objective.start(problem.features, problem.outputs, rng, problem.dtype)
    _must_be("start() gives", type(start).__name__, "Parameters")
    _must_be("start() gives arrays of", {str(leaf.dtype) for leaf in bare_leaves(start)}, {problem.dtype})
    if not np.isfinite(flat(start)).all():
        raise AssertionError("start() gives numbers that are not finite")
    for leaf in bare_leaves(start.first):
        _must_be("start().first has axes of", leaf.shape, (problem.features, leaf.shape[-1]))


def check_shapes(function: ModelFunction, at: Trial) -> None:
    """Losses, slopes, predictions and the gradient have their shapes and the dtype of the model."""
    model, term, _ = function
    head = at.model.head
    scores, back = model.forward(at.model, at.X)
    own, outputs = term if isinstance(term, OfOutputs) else model, model.class_scores(head, scores)
    _must_be("the slope of the loss has shape", np.shape(own.sample_loss.slope(outputs.copy(), at.y)), outputs.shape)
    _must_be("loss() has shape", np.shape(term.loss(model, head, scores, at.y)), at.y.shape)
    gradient = back(term.slope(model, head, scores, at.y, at.weights))
    _must_be("the gradient by slope() is", _shapes(gradient), _shapes(at.model))
    _must_be("predict() has first axes of", np.shape(model.predict(head, scores))[:2], at.y.shape)
    if (counted := term.counted(at.y)) is not None:
        _must_be("counted() is", _shapes(counted), _shapes(at.y.astype(bool)))


def check_prox_shapes(regularizer: Any, model: Parameters) -> None:
    """A number, and a model of the same shapes and dtypes."""
    value = regularizer.value(model)
    if np.ndim(value) or np.asarray(value).dtype.kind not in "fiu" or np.isnan(value):
        raise AssertionError(f"value() gives {value!r}; a number is expected, infinite where the model is forbidden")
    _must_be("prox() gives", _shapes(regularizer.prox(model, 0.5)), _shapes(model))


def check_function(function: ModelFunction, problem: Problem, rng: Generator) -> None:
    """The laws of a loss, or of a term."""
    at = pure("start()", lambda seed: trial(problem, np.random.default_rng(seed), "float64"), int(rng.integers(2**32)))
    _check_slope(function, at, rng)
    check_alone(function, at)
    now = Round(0, 0, np.ones(_CLIENTS, dtype=bool))
    if keys := function.model.pass_keys(now, 0, np.arange(_CLIENTS)):
        _check_training(function._replace(keys=keys), at, rng)
    if function.model.convex and function.term.convex:
        for spread in (0.3, 1.0, 5.0):
            _check_convex(function, at, at._replace(model=trial(problem, rng, "float64", spread).model))


def check_alone(function: ModelFunction, at: Trial) -> None:
    """Losses and gradients are sums over samples, as they are alone."""
    shape = at.y.shape
    singles = [
        Trial(_of_client(at.model, i), at.X[i : i + 1, [j]], at.y[i : i + 1, [j]], np.ones((1, 1)))
        for i, j in np.ndindex(shape)
    ]
    losses = np.array([function.loss(one).item() for one in singles]).reshape(shape)
    _must_agree("loss() of a sample among others", function.loss(at), losses, abs(losses))
    alone = np.array([flat(function.gradient(one)) for one in singles]).reshape(*shape, -1)
    norms, weights = np.linalg.norm(alone, axis=2, keepdims=True), at.weights[..., None]
    gradient = function.gradient(at)
    came = [flat(_of_client(gradient, i)) for i in range(len(alone))]
    sizes = (abs(weights) * norms).sum(axis=1)
    _must_agree("the gradient by slope() and the way back", came, (weights * alone).sum(axis=1), sizes)


def _of_client(record: AnyRecord, i: int) -> AnyRecord:
    return map_leaves(lambda leaf: leaf[i : i + 1], record)


def _check_training(function: ModelFunction, at: Trial, rng: Generator) -> None:
    """A network in training is a function of each sample alone, its place and the key, with this one's gradient."""
    losses = _check_slope(function, at, rng)
    for j in range(_SAMPLES):
        X: Array = rng.standard_normal((*at.y.shape, at.X.shape[-1]))
        X[:, j] = at.X[:, j]
        came = function.loss(at._replace(X=X))[:, j]
        _must_agree("loss() in training of a sample among others", came, losses[:, j], abs(losses).max())


def _check_slope(function: ModelFunction, at: Trial, rng: Generator) -> Array:
    """The losses [n, s], whose weighted sum has this gradient."""
    when = " in training" if function.keys else ""
    losses: Array = pure(f"loss(){when}", function.loss, at)
    gradient: Parameters = pure(f"the gradient by slope(){when}", function.gradient, at)

    def total(model: Parameters) -> float:
        return float((at.weights * function.loss(at._replace(model=model))).sum())

    _check_derivative(f"the gradient by slope(){when}", total, at.model, gradient, rng)
    return losses


def _check_convex(function: ModelFunction, at: Trial, to: Trial) -> None:
    between = function.loss(at._replace(model=map_leaves(lambda a, b: (a + b) / 2, at.model, to.model)))
    means = (function.loss(at) + function.loss(to)) / 2
    above = between - means > ROUNDING * (abs(means) + abs(between))
    if above.any():
        raise AssertionError(
            f"convex = True, and halfway between two models a loss() is {between[above][0]:.6g}, above the mean of "
            f"both, {means[above][0]:.6g}"
        )


def _check_derivative(
    what: str, value: Callable[[AnyRecord], float], at: AnyRecord, gradient: Record, rng: Generator
) -> None:
    """`gradient` is that of `value`, along random directions; at kinks some step is short enough."""
    middle, slope = flat(at), flat(gradient)
    for along in rng.standard_normal((_DIRECTIONS, len(middle))):
        ends = np.array([[value(unflat(middle + s * along, at)) for s in (step, -step)] for step in _STEPS])
        quotients = (ends[:, 0] - ends[:, 1]) / (2 * _STEPS)
        claimed = float(slope @ along)
        if not (abs(claimed - quotients) <= _OFF * abs(quotients) + 3 * ROUNDING).any():
            raise AssertionError(
                f"{what} is {claimed:.6g} along a random direction, differences give {quotients[4]:.6g}"
            )


def check_prox(regularizer: Any, model: Parameters, rng: Generator) -> None:
    """No point has a lower value(x) + ||x - u||^2 / (2 step) than prox(u, step)."""
    start, sizes = flat(model), [leaf.size for leaf in bare_leaves(model)]
    of_leaves = np.repeat(np.eye(len(sizes), dtype=bool), sizes, axis=1)
    for step in (0.01, 0.1, 1.0, 10.0):
        u = start + rng.standard_normal(len(start))
        best = flat(pure("prox()", regularizer.prox, unflat(u, model), step))

        def cost(x: Array, u: Array = u, step: float = step) -> float:
            return float(regularizer.value(unflat(x, model))) + float(((x - u) ** 2).sum()) / (2 * step)

        around = best + _AROUND * rng.standard_normal((len(_AROUND), len(u)))
        a_leaf_as_it_was = np.where(of_leaves, u, best)
        others = np.concatenate([u + _PLACES * (best - u), _PLACES * best, around, a_leaf_as_it_was])
        came, least = min(cost(best), cost(_EDGE * best)), min(map(cost, others))
        if not came <= least + ROUNDING * abs(least):
            raise AssertionError(
                f"prox(), step {step:g}: value(x) + ||x - model||^2 / (2 step) is {came:.6g}, elsewhere {least:.6g}: "
                "it is no minimizer"
            )


def pure(name: str, function: Callable[..., Any], *given: object) -> Any:  # what the function gives
    """What it gives; AssertionError if it changes what it is given, or gives other bits the second time."""
    before = _bits(given)
    first, again = _bits(function(*given)), function(*given)
    if _bits(given) != before:
        raise AssertionError(f"{name}: its function changes what it is given; work on a copy")
    if _bits(again) != first:
        raise AssertionError(f"{name}: its function gives other bits the second time; draw from now.rng")
    return again


def _bits(record: Any) -> list[bytes]:
    parts = record if type(record) is tuple else (record,)
    return [np.asarray(leaf).tobytes() for part in parts for leaf in bare_leaves(part)]


def _shapes(record: Any) -> Any:
    if isinstance(record, tuple) and record and not hasattr(record, "_fields"):
        return "a plain tuple"
    return {name: (np.shape(leaf), str(getattr(leaf, "dtype", type(leaf).__name__))) for name, leaf in leaves(record)}


def _must_be(what: str, came: object, expected: object) -> None:
    if came != expected:
        raise AssertionError(f"{what} {came}; {expected} is expected")


def _must_agree(what: str, came: ArrayLike, expected: Array, size: ArrayLike) -> None:
    apart = np.abs(np.asarray(came) - expected)
    wrong = ~(apart <= ROUNDING * np.asarray(size) + _TINY)
    if wrong.any():
        at = wrong.nonzero()
        raise AssertionError(f"{what} is {np.asarray(came)[at][0]:.6g}, by single samples alone {expected[at][0]:.6g}")
