"""What models, terms and regularizers of one's own must obey: shapes, which a run compares, and five laws.

Derivatives are those of finite differences; a sample counts as it would alone, in minibatches and for clipping; a
second call gives the same bits; `convex` holds; a prox is a minimizer. Points are random, so that no record decides or
is told. What does not hold is an AssertionError that says what came and what was expected. What a class gives that
breaks a law may be anything, and is Any here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike

from mpifed.core.exchange import Problem
from mpifed.core.protocols import Parameters
from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, flat, leaves, map_leaves, unflat
from mpifed.core.round import Round
from mpifed.maths.clipping import clipped_gradient
from mpifed.maths.objectives import Objective
from mpifed.maths.terms import Loss, OfOutputs, Term

ROUNDING = 1e-5  # of a sum in float32, relative; and of a difference quotient
_CLIENTS, _SAMPLES = 3, 6  # with models of their own, and of each
_DIRECTIONS = 3
_STEPS = 10.0 ** -np.arange(1.0, 8.0)
_OFF = 1e-3  # how far a derivative may be from a difference quotient, relative
_PLACES = (-0.1, 0.1, 0.5, 0.9, 1.1, 2.0, 10.0, 100.0)  # on the line from a point to its prox, and multiples of it
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

    def loss(self, at: Trial) -> Array:
        """[n, s]"""
        scores = self.model.scores_of(at.model, at.X)
        return np.asarray(self.term.loss(self.model, at.model.head, scores, at.y), dtype="f8")

    def gradient(self, at: Trial) -> Parameters:
        """Leaves [n, ...], as algorithms ask for it."""
        if self.term == Loss():
            return self.model.gradient(*at)
        scores, back = self.model.forward(at.model, at.X)
        return back(self.term.slope(self.model, at.model.head, scores, at.y, at.weights))

    def server(self, model: Parameters) -> float:
        """The value of the part that needs no samples."""
        part = self.term.server(model)
        return 0.0 if part is None else float(part[0])


def trial(problem: Problem, rng: Generator, dtype: str, spread: float = 0.3) -> Trial:
    """Normal features, and models near the start, by `spread` times the size of each leaf."""
    model, shape = problem.objective, (_CLIENTS, _SAMPLES)

    def near(leaf: Array) -> Array:
        size = float(np.linalg.norm(leaf)) / max(1, leaf.size) ** 0.5 or 1.0
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
    (model, term), head = function, at.model.head
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


def check_function(function: ModelFunction, problem: Problem, rng: Generator, private: bool) -> None:
    """The laws of a loss, or of a term; `private`: that of clipping, too."""
    at = pure("start()", lambda seed: trial(problem, np.random.default_rng(seed), "float64"), int(rng.integers(2**32)))
    pure("loss()", function.loss, at)
    gradient = pure("the gradient by slope()", function.gradient, at)

    def total(model: Parameters) -> float:
        return float((at.weights * function.loss(at._replace(model=model))).sum())

    _check_derivative("the gradient by slope()", total, at.model, gradient, rng)
    check_alone(function, at, private)
    if isinstance(function.term, Loss):
        check_training(function.model, at, rng)
    if function.model.convex and function.term.convex:
        for spread in (0.3, 1.0, 5.0):
            _check_convex(function, at, at._replace(model=trial(problem, rng, "float64", spread).model))
    one = map_leaves(lambda leaf: leaf[0], at.model)
    if (server := function.term.server(one)) is not None:
        _check_derivative("the gradient of server()", function.server, one, server[1], rng)


def check_alone(function: ModelFunction, at: Trial, private: bool) -> None:
    """Losses and gradients are sums over samples, as they are alone; `private`: also each clipped to a norm.

    On the second rests epsilon.
    """
    losses, whole, bound = function.loss(at), function.gradient(at), 0.0
    for i in range(_CLIENTS):
        summed, clipped, size, client = np.zeros(()), np.zeros(()), 0.0, _of_client(at, i)
        for j in range(_SAMPLES):
            sample = Trial(client.model, client.X[:, j : j + 1], client.y[:, j : j + 1], np.ones((1, 1)))
            loss, alone, weight = function.loss(sample).item(), flat(function.gradient(sample)), at.weights[i, j]
            _must_agree("loss() of a sample among others", losses[i, j], loss, abs(loss))
            norm = float(np.linalg.norm(alone))
            bound = bound or norm / 2 or 1.0  # most are longer
            summed = summed + weight * alone
            clipped = clipped + abs(weight) * bound / max(norm, bound) * alone
            size += abs(weight) * norm
        _must_agree("the gradient by slope() and the way back", flat(_of_client(whole, i)), summed, size)
        if private:
            limited = clipped_gradient(function.model, at.model, at.X, at.y, abs(at.weights), bound)
            what = "the sum of clipped gradients by layers() or sample_gradients()"
            _must_agree(what, flat(_of_client(limited, i)), clipped, size)


def check_training(model: Objective, at: Trial, rng: Generator) -> None:
    """A network in training is a function of each sample alone, its place and the key, with this one's gradient."""
    keys = model.pass_keys(Round(0, 0, np.ones(_CLIENTS, dtype=bool)), 0, np.arange(_CLIENTS))
    if not keys:
        return

    def outputs(parameters: Parameters, X: Array) -> Array:
        return model.forward(parameters, X, *keys)[0]

    def total(parameters: Parameters) -> float:
        return float((at.weights * model.loss(parameters.head, outputs(parameters, at.X), at.y)).sum())

    scores = pure("outputs() in training", outputs, at.model, at.X)
    _check_derivative("the gradient in training", total, at.model, model.gradient(*at, *keys), rng)
    for j in range(_SAMPLES):
        X: Array = rng.standard_normal((*at.y.shape, at.X.shape[-1]))
        X[:, j] = at.X[:, j]
        came, size = outputs(at.model, X)[:, j].ravel(), float(abs(scores).max())
        _must_agree("outputs() in training of a sample among others", came, scores[:, j].ravel(), size)


def _of_client(record: AnyRecord, i: int) -> AnyRecord:
    return map_leaves(lambda leaf: leaf[i : i + 1], record)


def _check_convex(function: ModelFunction, at: Trial, to: Trial) -> None:
    middle = at._replace(model=map_leaves(lambda a, b: (a + b) / 2, at.model, to.model))
    means, between = (function.loss(at) + function.loss(to)) / 2, function.loss(middle)
    above = between - means > ROUNDING * (abs(means) + abs(between))
    if above.any():
        came, mean = between[above][0], means[above][0]
        raise AssertionError(
            f"convex = True, and halfway between two models a loss() is {came:.6g}, above the mean of both, {mean:.6g}"
        )


def _check_derivative(
    what: str, value: Callable[[AnyRecord], float], at: AnyRecord, gradient: Record, rng: Generator
) -> None:
    """`gradient` is that of `value`, along random directions; at kinks some step is short enough."""
    middle, slope = flat(at), flat(gradient)
    for _ in range(_DIRECTIONS):
        along = rng.standard_normal(len(middle))
        above, below = (
            np.array([value(unflat(middle + step * along, at)) for step in steps]) for steps in (_STEPS, -_STEPS)
        )
        quotients = (above - below) / (2 * _STEPS)
        claimed = float(slope @ along)
        if not (abs(claimed - quotients) <= _OFF * abs(quotients) + 3 * ROUNDING).any():
            raise AssertionError(
                f"{what} is {claimed:.6g} along a random direction, differences give {quotients[4]:.6g}"
            )


def check_prox(regularizer: Any, model: Parameters, rng: Generator) -> None:
    """No point has a lower value(x) + ||x - u||^2 / (2 step) than prox(u, step)."""
    start = flat(model)
    for step in (0.01, 0.1, 1.0, 10.0):
        u = start + rng.standard_normal(len(start))
        result: Parameters = pure("prox()", regularizer.prox, unflat(u, model), step)
        best = flat(result)

        def cost(x: Array, u: Array = u, step: float = step) -> float:
            return float(regularizer.value(unflat(x, model))) + float(((x - u) ** 2).sum()) / (2 * step)

        came, least = min(cost(best), cost(_EDGE * best)), min(map(cost, _around(u, best, model, rng)))
        if not came <= least + ROUNDING * abs(least):
            raise AssertionError(
                f"prox(), step {step:g}: value(x) + ||x - model||^2 / (2 step) is {came:.6g}, elsewhere {least:.6g}: "
                "it is no minimizer"
            )


def _around(u: Array, best: Array, model: Parameters, rng: Generator) -> Iterator[Array]:
    """Points where the cost could be lower than at `best`."""
    for t in _PLACES:
        yield u + t * (best - u)
        yield t * best
    for size in 10.0 ** -np.arange(6):
        yield best + size * rng.standard_normal(len(u))
    for begin, end in pairwise(np.cumsum([0, *(leaf.size for leaf in bare_leaves(model))])):
        one_as_it_was = best.copy()
        one_as_it_was[begin:end] = u[begin:end]
        yield one_as_it_was


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


def _must_agree(what: str, came: ArrayLike, expected: ArrayLike, size: float) -> None:
    pairs = np.atleast_2d(np.transpose([came, expected]))
    apart = np.abs(pairs[:, 0] - pairs[:, 1])
    if not (apart <= ROUNDING * size + _TINY).all():
        together, alone = pairs[apart.argmax()]
        raise AssertionError(f"{what} is {together:.6g}, by single samples alone {alone:.6g}")
