"""The contract of a network of another library: `initial`, `outputs` and the way back from them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.random import Generator

from mpifed.core.record import ABSENT, Array, NamedArrays, added, bare_leaves, leaves, map_leaves
from mpifed.core.row_seeds import with_seeds
from mpifed.maths.checks import losses as laws
from mpifed.maths.checks.differences import compare, derivative
from mpifed.maths.checks.examined import ROUNDING, Broken, Examined, must_be_array, must_be_record, near, same
from mpifed.maths.checks.losses import Losses
from mpifed.maths.checks.objectives import Task, examine_losses, examine_predictions, origin
from mpifed.maths.checks.points import nudged, points, wide
from mpifed.maths.objectives import NeuralNetwork, Parameters, SampleGradients

_NEAR = 0.1  # how far from the start parameters are tried, where a network that begins with zeros has derivatives
_MOST_LEAVES = 16  # whose derivatives are compared one by one


def examine_network(examined: Examined, task: Task) -> int:
    """The number of derivatives that were compared; raises Broken with the first violation of the contract."""
    network, rng = examined.target, task.rng()
    model = _start(network, task)
    parameters = nudged(wide(model.head), rng, _NEAR)
    samples, known = [np.asarray(task.X[0])], 0
    if network.stochastic:  # as in training
        samples.append(with_seeds(samples[0], np.arange(1, len(samples[0]) + 1) * 2**30))
    for X in samples:
        z = _outputs(examined, parameters, X, task.outputs)
        _outputs(examined, map_leaves(lambda leaf: leaf.astype("f4"), parameters), X.astype("f4"), task.outputs)
        slopes = np.asarray(rng.standard_normal(z.shape))
        gradient = _way_back(examined, parameters, X, slopes)
        known += _derivatives(examined, parameters, X, slopes, gradient, rng)
    kind = type(network)
    if any(getattr(kind, name) is not getattr(NeuralNetwork, name) for name in ("loss", "slope", "predict")):
        of_rows = Losses(examined, {})
        chosen = points(origin(examined, Parameters(ABSENT, parameters), task), rng)
        known += examine_losses(of_rows, chosen, task, rng)
        for point in laws.finite(of_rows, chosen):
            examine_predictions(examined, point, task.outputs if network.classifies else 0, rng)
    if kind.sample_gradients is not NeuralNetwork.sample_gradients:
        _sample_gradients(network, parameters, task, rng)
    return known


def _start(network: NeuralNetwork, task: Task) -> Parameters:
    model, again = (network.start(task.features, task.outputs, task.rng(), task.dtype) for _ in range(2))
    if not isinstance(getattr(model, "head", None), NamedArrays):
        raise Broken("start() gives no Parameters((), a record of named_arrays); define initial() instead", "start")
    must_be_record(model.head, model.head, (), "what initial() gives", "initial", task.dtype)
    for name, leaf in leaves(model.head):
        if not np.isfinite(leaf).all():
            raise Broken(f'"{name}" of what initial() gives is not finite', "initial")
        if leaf.ndim == 0:
            raise Broken(f'"{name}" of what initial() gives is a single number; give it an axis', "initial")
    if not all(map(np.array_equal, bare_leaves(model), bare_leaves(again))):
        raise Broken("initial() gives different models for equal generators; draw from its `rng` only", "initial")
    return model


def _outputs(examined: Examined, parameters: NamedArrays, X: Array, outputs: int) -> Array:
    """[s, L], the same with and without a gradient, and for each sample alone."""
    dtype = bare_leaves(parameters)[0].dtype
    with_gradient, without, once_more = (
        _called(examined, parameters, X, gradient)[0] for gradient in (True, False, False)
    )
    z = must_be_array(with_gradient, (len(X), outputs), "what outputs() gives first", "outputs", dtype)
    if not (same(z, without, ROUNDING) and np.array_equal(without, once_more, equal_nan=True)):
        raise Broken(
            "outputs() gives other numbers for equal arguments, or without a gradient; leave out random numbers and "
            "states", "outputs",
        )  # fmt: skip
    if not near(np.asarray(_called(examined, parameters, X[:1], False)[0]), z[:1], ROUNDING).all():
        raise Broken("outputs() of a sample depend on the other samples of the call", "outputs")
    return z


def _called(examined: Examined, parameters: NamedArrays, X: Array, gradient: bool) -> Any:  # as `call` gives it
    came = examined.call("outputs", parameters=parameters, X=X, gradient=gradient)
    if not (isinstance(came, tuple) and len(came) == 2):
        raise Broken(f"outputs() gives a {type(came).__name__}; (outputs [s, L], the way back) is expected", "outputs")
    return came


def _way_back(examined: Examined, parameters: NamedArrays, X: Array, slopes: Array) -> NamedArrays:
    """The gradient, linear in the slopes, and that of its own parameters, whatever passed since."""
    _, back = _called(examined, parameters, X, True)
    gradient: NamedArrays = back(slopes.copy())
    must_be_record(gradient, parameters, (), "what the way back gives", "outputs", slopes.dtype)
    _called(examined, map_leaves(lambda leaf: leaf + 1, parameters), X, True)
    if not same(back(slopes.copy()), gradient, ROUNDING):
        raise Broken("the way back gives other numbers after another pass; it belongs to its own parameters", "outputs")
    if not same(back(-2 * slopes), map_leaves(lambda leaf: -2 * leaf, gradient), ROUNDING):
        raise Broken("what the way back gives is not linear in the slopes", "outputs")
    return gradient


def _derivatives(
    examined: Examined, parameters: NamedArrays, X: Array, slopes: Array, gradient: NamedArrays, rng: Generator
) -> int:
    """Along a random direction in each leaf."""
    names, claims, differences = [], [], []
    for at, (name, leaf) in list(enumerate(leaves(parameters)))[:_MOST_LEAVES]:
        direction = rng.standard_normal(leaf.shape)
        direction /= np.linalg.norm(direction)

        def value(step: float, at: int = at, direction: Array = direction) -> Array:
            moved = type(parameters)(*(w + step * direction if i == at else w for i, w in enumerate(parameters)))
            summed: Array = np.sum(_called(examined, moved, X, False)[0] * slopes)
            return summed

        names.append(name)
        claims.append(np.float64(np.sum(bare_leaves(gradient)[at] * direction)))
        differences.append(derivative(value))
    compared = compare(claims, differences, own_scales=False)
    if compared.worst is not None:
        worst = compared.worst[0]
        raise Broken(
            f'along a direction of length 1 in "{names[worst]}" the way back gives {float(claims[worst]):.6g}, finite '
            f"differences of outputs() give {float(differences[worst].value):.6g}", "outputs",
        )  # fmt: skip
    return compared.known


def _sample_gradients(network: NeuralNetwork, parameters: NamedArrays, task: Task, rng: Generator) -> None:
    """As the loop of the base class gives them: norms, and the sum times factors."""
    y = np.arange(len(task.targets)) % task.outputs if task.classifies else task.targets
    X, factors = np.asarray(task.X[0]), rng.standard_normal(len(y))

    def found(parts: Iterator[SampleGradients]) -> tuple[Array, NamedArrays]:
        squares, sums, at = list[Array](), list[NamedArrays](), 0
        for part in parts:
            squares.append(part.squares)
            sums.append(part.weighted(factors[at : at + len(part.squares)]))
            at += len(part.squares)
        return np.concatenate(squares), added(sums)

    came = found(network.sample_gradients(parameters, X, y))
    expected = found(NeuralNetwork.sample_gradients(network, parameters, X, y))
    must_be_array(came[0], y.shape, "squares of what sample_gradients() gives", "sample_gradients")
    if not near(came[0], expected[0], ROUNDING).all():
        raise Broken("squares of sample_gradients() are not the squared norms of single gradients", "sample_gradients")
    must_be_record(
        came[1], parameters, (), "what weighted() of sample_gradients() gives", "sample_gradients", "float64"
    )
    if not same(came[1], expected[1], ROUNDING):
        raise Broken("weighted() of sample_gradients() is not the sum of gradients times factors", "sample_gradients")
