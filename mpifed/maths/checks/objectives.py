"""The contract of an objective beside its loss and slope; the complete test of an objective, and of a term."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from mpifed.core.protocols import Features
from mpifed.core.record import Array, Record, bare_leaves, flat, leaves, map_leaves
from mpifed.maths.checks import losses as laws
from mpifed.maths.checks.differences import compare, derivative
from mpifed.maths.checks.examined import ROUNDING, Broken, Examined, defines, must_be_array, must_be_record, near
from mpifed.maths.checks.losses import Losses
from mpifed.maths.checks.points import Origin, TestedPoint, nudged, points, wide
from mpifed.maths.objectives import LinearScores, NeuralNetwork, Parameters

_DRAWN_TWICE = 2**21  # numbers of a model: the start of a larger model is drawn only once
_PREDICTED = 64  # samples whose classes are predicted: cheap, and enough to reach most classes
_DIRECTIONS = 3  # random directions along which derivatives are compared
_FOLLOWED = 2**20  # numbers of a model: for larger models server() is not compared with differences


class Task(NamedTuple):
    """The job's data and settings that the tests need, and random numbers of their own."""

    features: int
    outputs: int
    dtype: str
    classifies: bool
    X: Any  # of features, [1, s, p], or a tuple of one CSR matrix [s, p]; in float64
    targets: Array  # [s] as in the shards
    lead: tuple[int, ...]  # see `Origin`
    rng: Callable[[], Generator]  # the same generator, in its initial state, each time


def origin(examined: Examined, model: Parameters, task: Task) -> Origin:
    """The origin of the points of an objective, or of a term on it: the start of the objective."""
    classes = task.outputs if task.classifies else 0
    if isinstance(examined.target, NeuralNetwork):
        scores = np.asarray(examined.target.scores_of(model, task.X))[0]
        return Origin((), scores.astype(np.float64), task.targets, classes, task.lead)
    scores = np.asarray(examined.call("scores", first=model.first, X=task.X))[0]
    return Origin(wide(model.head), scores.astype(np.float64), task.targets, classes, task.lead)


def examine_objective(examined: Examined, task: Task) -> int:
    """The number of derivatives that were compared; raises Broken with the first violation of the contract."""
    objective, rng = examined.target, task.rng()
    model = _start(examined, task)
    _scores(examined, model, task, rng)
    of_rows, chosen = Losses(examined, {}), points(origin(examined, model, task), rng)
    known = examine_losses(of_rows, chosen, task, rng)
    for point in laws.finite(of_rows, chosen):
        examine_predictions(examined, point, task.outputs if objective.classifies else 0, rng)
        _head_squares(of_rows, point)
    return known


def examine_term(examined: Examined, objective: Examined, model: Parameters, task: Task) -> int:
    """`examine_objective` for a term, with the job's objective and its start."""
    rng = task.rng()
    chosen = points(origin(objective, model, task), rng)
    of_rows = Losses(examined, {"objective": objective.target})
    known = examine_losses(of_rows, chosen, task, rng)
    for point in chosen:
        _counted(examined, point.y)
    _server(examined, model, rng)
    return known


def examine_losses(losses: Losses, chosen: Sequence[TestedPoint], task: Task, rng: Generator) -> int:
    """The loss and slope at these points; the number of derivatives that were compared."""
    usable = laws.finite(losses, chosen)
    laws.dtypes(losses, usable[0], task.dtype)
    laws.samples_apart(losses, usable[0])
    laws.weights(losses, usable[0], rng)
    known = laws.derivatives(losses, usable, rng)
    laws.weights(losses, usable[-1], rng)
    laws.clients_apart(losses, chosen, rng)
    laws.claims(losses, usable, rng)
    return known


def _start(examined: Examined, task: Task) -> Parameters:
    """The initial model, in memory; it must depend on the arguments of start() only."""

    def drawn() -> Any:  # as in `examined`
        return examined.target.start(task.features, task.outputs, task.rng(), task.dtype)

    model = drawn()
    if not (hasattr(model, "first") and hasattr(model, "head")):
        raise Broken(f"start() gives a {type(model).__name__}; Parameters(first, head) are expected", "start")
    first = model.first
    width = first.shape[-1] if isinstance(first, np.ndarray) and first.ndim == 2 else 1
    must_be_array(first, (task.features, width), "first of what start() gives", "start", task.dtype)
    must_be_record(model.head, model.head, (), "head", "start", task.dtype)
    for name, leaf in (("first", first), *leaves(model.head, "head")):
        if not np.isfinite(leaf).all():
            raise Broken(f"{name} of what start() gives is not finite", "start")
    if sum(leaf.size for leaf in (first, *bare_leaves(model.head))) <= _DRAWN_TWICE:
        again = bare_leaves(drawn())
        if not all(map(np.array_equal, bare_leaves(model), again)):
            raise Broken("start() gives different models for equal generators; draw from its `rng` only", "start")
    return Parameters(first, model.head)


def _called_scores(examined: Examined, first: Array, X: Features) -> Array:
    return np.asarray(examined.call("scores", first=first, X=X))


def _scores(examined: Examined, model: Parameters, task: Task, rng: Generator) -> None:
    """scores() of the user's class is linear in weights and features, and pull() is its adjoint."""
    kind = type(examined.target)
    if all(getattr(kind, name) is getattr(LinearScores, name) for name in ("scores", "pull")):
        return
    X, sparse = task.X, isinstance(task.X, tuple)
    count, (features, width) = X[0].shape[0], model.first.shape
    # of rank one, which suffices, and is quick to draw for 100,000 features
    weights, other_weights = (rng.standard_normal((features, 1)) * rng.standard_normal(width) for _ in range(2))
    shape = (1, count, width)
    scores = must_be_array(_called_scores(examined, weights, X), shape, "what scores() gives", "scores")
    negative = tuple(-3.0 * x for x in X) if sparse else -3.0 * X
    _linear(_called_scores(examined, weights, negative), -3.0 * scores, "features")
    beside = _called_scores(examined, other_weights, X)
    _linear(_called_scores(examined, 2.0 * weights - other_weights, X), 2.0 * scores - beside, "weights")
    if features > 1:
        half = features // 2
        sides = slice(half), slice(half, None)
        parts = [tuple(x[:, p] for x in X) if sparse else X[..., p].copy() for p in sides]
        added = _called_scores(examined, weights[:half], parts[0]) + _called_scores(examined, weights[half:], parts[1])
        _linear(added, scores, "columns")
    slopes = rng.standard_normal(shape)
    pulled = examined.call("pull", X=X, slopes=slopes)
    must_be_array(pulled, (1, features, width), "what pull() gives", "pull")
    left, right = float(np.sum(scores * slopes)), float(np.sum(weights * pulled[0]))
    if abs(left - right) > ROUNDING * (np.linalg.norm(scores) * np.linalg.norm(slopes) + abs(left)):
        raise Broken(
            f"<scores(w, X), d> is {left:.6g} and <w, pull(X, d)> is {right:.6g}; pull() is to be the adjoint of "
            "scores(), X' @ d where they are X @ w", "pull", "scores",
        )  # fmt: skip


def _linear(came: Array, expected: Array, what: str) -> None:
    if came.shape != expected.shape or not near(came, expected, ROUNDING).all():
        raise Broken(f"scores() are not linear in the {what}, over which clients add them up", "scores")


def examine_predictions(examined: Examined, point: TestedPoint, outputs: int, rng: Generator) -> None:
    """predict() gives [..., s] classes, or real numbers."""
    if not examined.has("predict"):
        return
    scores = 3.0 * rng.standard_normal((*point.scores.shape[:-2], _PREDICTED, point.scores.shape[-1]))
    for by in (0.0, 1.0, 3.0, 3.0, 3.0):
        predicted = examined.call_twice("predict", head=nudged(point.head, rng, by), scores=scores)
        must_be_array(predicted, scores.shape[:-1], "what predict() gives", "predict")
        invalid = outputs and ~np.isin(predicted, np.arange(outputs))
        if np.any(invalid):
            raise Broken(
                f"predict() gives {predicted[invalid][0]}; there are the classes 0 to {outputs - 1}", "predict"
            )


def _head_squares(losses: Losses, point: TestedPoint) -> None:
    """head_squares() and head_sum(), which clipping uses, agree with slope().

    Each is tested only where it belongs to the slope, and not to an ancestor with another slope.
    """
    kind, examined = type(losses.examined.target), losses.examined
    depth = {name: kind.__mro__.index(ancestor) for name in ("slope", "head_squares", "head_sum")
             if (ancestor := defines(kind, name)) is not None}  # fmt: skip
    ones, last = np.ones(point.y.shape), len(kind.__mro__)
    slopes = losses.slope(point, ones)
    overridden = kind.head_squares is not LinearScores.head_squares
    if overridden and depth["head_squares"] <= depth["slope"]:
        arguments = {"head": point.head, "scores": point.scores, "y": point.y, "slopes": slopes.scores}
        claimed = examined.call_twice("head_squares", **arguments)
        must_be_array(claimed, point.y.shape, "what head_squares() gives", "head_squares")
        alone = [losses.slope(point, ones * row).head for row in np.eye(point.y.shape[-1])]
        true = np.array([sum(float(np.sum(leaf**2)) for leaf in bare_leaves(head_slope)) for head_slope in alone])
        if not near(claimed.reshape(-1), true, ROUNDING).all():
            at = int(np.argmax(np.abs(claimed.reshape(-1) - true)))
            raise Broken(
                f"head_squares() gives {claimed.reshape(-1)[at]:.6g} for sample {at}, whose derivative by the head has "
                f"the squared norm {true[at]:.6g}", "head_squares",
            )  # fmt: skip
    if any(leaves(point.head)) and depth.get("head_sum", last) <= depth["slope"]:
        summed = examined.call("head_sum", slopes=slopes.scores)
        must_be_record(summed, point.head, point.y.shape[:-1], "what head_sum() gives", "head_sum")
        pairs = zip(bare_leaves(summed), bare_leaves(slopes.head), strict=True)
        if not all(near(a, b, ROUNDING).all() for a, b in pairs):
            raise Broken("head_sum() of slope.scores is not slope.head", "head_sum")


def _counted(examined: Examined, y: Array) -> None:
    """counted() gives [..., s] bool, sample by sample, or None."""
    mask = examined.call_twice("counted", y=y)
    if mask is None:
        return
    must_be_array(mask, y.shape, "what counted() gives", "counted", np.bool_)
    for i in range(y.shape[-1]):
        if not np.array_equal(examined.call("counted", y=y[..., i : i + 1]), mask[..., i : i + 1]):
            raise Broken("counted() of a sample depends on the other samples of the call", "counted")


def _server(examined: Examined, start: Parameters, rng: Generator) -> None:
    """The gradient that server() gives is the derivative of its value."""
    if sum(leaf.size for leaf in bare_leaves(start)) > _FOLLOWED:
        return
    examined = examined.in_memory  # as the server computes it
    model = nudged(wide(start), rng)
    part = examined.call("server", model=model)
    if part is None:
        return
    _, slope = part
    must_be_record(slope, model, (), "the gradient that server() gives", "server")
    # of length 1: else the curvature of a square would hide its derivative in models of many parameters
    others = [map_leaves(lambda leaf: rng.standard_normal(leaf.shape), model) for _ in range(_DIRECTIONS)]
    directions = [_of_length_1(direction) for direction in (slope, *others)]

    def value(step: float, direction: Record) -> Array:
        moved = map_leaves(lambda w, d: w + step * d, model, direction)
        result: Array = np.float64(examined.call("server", model=moved)[0])
        return result

    differences = [derivative(lambda step, d=direction: value(step, d)) for direction in directions]  # type: ignore[misc]
    claims = [np.float64(flat(slope) @ flat(direction)) for direction in directions]
    worst = compare(claims, differences, own_scales=False).worst
    if worst is not None:
        raise Broken(
            f"along a direction of length 1 the gradient that server() gives is {float(claims[worst[0]]):.6g}, finite "
            f"differences of its value give {float(differences[worst[0]].value):.6g}", "server",
        )  # fmt: skip
    if examined.target.convex:
        _convex_server(examined, model, rng)


def _of_length_1(record: Record) -> Record:
    length = float(np.linalg.norm(flat(record)))
    return map_leaves(lambda leaf: leaf / length if length else leaf, record)


def _convex_server(examined: Examined, model: Parameters, rng: Generator) -> None:
    """Halfway between two models a convex function is at most the mean of its values there."""
    for by in (0.3, 1.0, 5.0):
        to = nudged(model, rng, by)
        middle = map_leaves(lambda a, b: (a + b) / 2, model, to)
        low, high, between = (float(examined.call("server", model=point)[0]) for point in (model, to, middle))
        ends = (low + high) / 2
        if between - ends > ROUNDING * (abs(ends) + abs(between)):
            raise Broken(
                f"convex = True, and halfway between two models where what server() gives is {ends:.6g} on average it "
                f"is {between:.6g}; say False", "server",
            )  # fmt: skip
