"""The contract of a loss and its slope, of an objective or of a term, tested at a few points.

`mpifed.maths.objectives.form` states it. Each function raises `Broken` where its law does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np
from numpy.random import Generator

from mpifed.core.record import AnyRecord, Array, bare_leaves, leaves, map_leaves
from mpifed.maths.checks.differences import Derivative, compare, derivative
from mpifed.maths.checks.examined import (
    ROUNDING,
    Broken,
    Examined,
    belongs_to_mpifed,
    defines,
    must_be_array,
    must_be_record,
    near,
)
from mpifed.maths.checks.points import TestedPoint, nudged
from mpifed.maths.objectives import Slope

_SCORES = 8  # scores of each point whose derivatives are compared
_OF_LEAF = 4  # numbers of each leaf of the head whose derivatives are compared
_SEGMENTS = 10  # random segments from each point, along which a loss must be convex
_MODERATE = 10.0  # larger scores may overflow
_COARSE = 1e3  # larger scores or targets, rounded to float32, may hide a step


@dataclass(frozen=True)
class Losses:
    """Loss and slope of an objective, or of a term together with its objective."""

    examined: Examined
    before: Mapping[str, Any]  # the arguments before the head: for a term, the objective

    def loss(self, point: TestedPoint, twice: bool = False) -> Array:
        """[..., s] float64 losses."""
        call = self.examined.call_twice if twice else self.examined.call
        loss = call("loss", **self.before, head=point.head, scores=point.scores, y=point.y)
        return must_be_array(loss, point.y.shape, "what loss() gives", "loss").astype(np.float64)

    def slope(self, point: TestedPoint, weights: Array, twice: bool = False, own_heads: bool = False) -> Slope:
        """The slope, in the dtype of the scores; `own_heads`: the head has a leading axis of clients."""
        call = self.examined.call_twice if twice else self.examined.call
        arguments = {"head": point.head, "scores": point.scores, "y": point.y, "weights": weights}
        slope = call("slope", **self.before, **arguments)
        if not all(hasattr(slope, name) for name in Slope._fields):
            raise Broken(f"slope() gives a {type(slope).__name__}; a Slope(loss, head, scores) is expected", "slope")
        must_be_array(slope.loss, point.y.shape, "slope.loss", "slope")
        must_be_array(slope.scores, point.scores.shape, "slope.scores", "slope", point.scores.dtype)
        like = map_leaves(lambda leaf: leaf[0], point.head) if own_heads else point.head
        must_be_record(slope.head, like, point.y.shape[:-1], "slope.head", "slope", point.scores.dtype)
        return Slope(slope.loss, slope.head, slope.scores)


def finite(losses: Losses, points: Sequence[TestedPoint]) -> list[TestedPoint]:
    """The points without samples whose loss is not finite, such as exponentials that overflow.

    These depend on the random scores, and are no fault of the class. Raises Broken if no sample is left.
    """
    usable = []
    for point in points:
        each = np.isfinite(losses.loss(point, twice=True)).reshape(-1, point.y.shape[-1])
        known = np.asarray(each.all(axis=0))
        if known.any():
            usable.append(point if known.all() else point.rows(known))
    if not usable:
        raise Broken(f"loss() is not finite at any of {len(points)} points with scores of a few units", "loss")
    return usable


def dtypes(losses: Losses, point: TestedPoint, dtype: str) -> None:
    """Arguments in the job's dtype give a slope of the same dtype: float32 must not become float64."""
    head, scores = map_leaves(lambda leaf: leaf.astype(dtype), point.head), point.scores.astype(dtype)
    losses.slope(TestedPoint(head, scores, point.y), np.ones(point.y.shape))


def weights(losses: Losses, point: TestedPoint, rng: Generator) -> None:
    """The slope is linear in each sample's weight, which may be negative or zero; slope.loss is unweighted."""
    ones, count = np.ones(point.y.shape), point.y.shape[-1]
    plain = losses.slope(point, ones, twice=True)
    loss = losses.loss(point)
    _agree(plain.loss, loss, "slope.loss", "loss() gives", "slope", "loss")
    each = rng.uniform(0.5, 2.0, count) * np.where(np.arange(count) % 3 == 1, -1.0, 1.0) * (np.arange(count) != 2)
    weighted = losses.slope(point, np.broadcast_to(each, point.y.shape).copy())
    _agree(weighted.loss, loss, "slope.loss with weights other than 1", "loss() gives", "slope")
    expected = each[..., None] * plain.scores
    _agree(weighted.scores, expected, "with weights other than 1, slope.scores", "weights times that of 1 are", "slope")
    alone = [losses.slope(point, ones * row).head for row in np.eye(count)]
    total = map_leaves(lambda *parts: sum(w * part for w, part in zip(each, parts, strict=True)), *alone)
    names = [name for name, _ in leaves(point.head)]
    for name, came, summed in zip(names, bare_leaves(weighted.head), bare_leaves(total), strict=True):
        _agree(came, summed, f"slope.head.{name}", "the weighted sum of those of single samples is", "slope")


def samples_apart(losses: Losses, point: TestedPoint) -> None:
    """A sample's loss and slope do not depend on the other samples of the call."""
    count = point.y.shape[-1]
    loss, slope = losses.loss(point), losses.slope(point, np.ones(point.y.shape))
    for rows in (slice(0, 1), slice(1, count)) if count > 1 else ():
        part = point.rows(rows)
        _agree(losses.loss(part), loss[..., rows], "called with part of the samples, loss()", "with all of them it is",
               "loss")  # fmt: skip
        came = losses.slope(part, np.ones(part.y.shape)).scores
        _agree(came, slope.scores[..., rows, :], "called with part of the samples, slope.scores", "with all it is",
               "slope")  # fmt: skip


def derivatives(losses: Losses, points: Sequence[TestedPoint], rng: Generator) -> int:
    """The slope is the derivative of the sum of losses; the number of comparisons that counted."""
    known = sum(_by_scores(losses, point, rng) for point in points)
    known += sum(_by_head(losses, point, rng) for point in points if any(leaves(point.head)))
    return known


def _by_scores(losses: Losses, point: TestedPoint, rng: Generator) -> int:
    """Compare by scores; those of all samples are moved at a time, since samples are independent."""
    width = point.scores.shape[-1]
    chosen = np.sort(rng.permutation(width)[:_SCORES]).tolist()

    def moved(step: float, at: int) -> Array:
        scores = point.scores.copy()
        scores[..., at] += step
        return losses.loss(point._replace(scores=scores))

    slope = losses.slope(point, np.ones(point.y.shape)).scores
    differences = [derivative(lambda step, at=at: moved(step, at)) for at in chosen]  # type: ignore[misc]
    claims = [slope[..., at] for at in chosen]
    largest = np.abs(point.scores).max(axis=-1)
    coarse = np.maximum(largest, np.abs(point.y)) > _COARSE
    for claim, difference in zip(claims, differences, strict=True):
        np.copyto(claim, difference.value, where=(largest > _MODERATE) & ~np.isfinite(claim))
        np.copyto(difference.counts, False, where=coarse & (difference.value == 0))
    compared = compare(claims, differences, own_scales=True)
    if compared.worst is not None:
        worst, where = compared.worst
        place = ", ".join(map(str, (*where[point.y.ndim - 1 :], chosen[worst])))
        count = sum(claim.size for claim in claims)
        raise _mismatch(f"scores[{place}]", claims[worst][where], differences[worst].value[where], count)
    return compared.known


def _by_head(losses: Losses, point: TestedPoint, rng: Generator) -> int:
    """Compare by the head: a few numbers of each leaf, and a random direction in each leaf."""
    slope = losses.slope(point, np.ones(point.y.shape)).head
    names, claims, differences = [], [], []
    parts = zip(leaves(point.head), bare_leaves(slope), strict=True)
    for number, ((name, leaf), claim) in enumerate(parts):
        shape: tuple[int, ...] = leaf.shape
        directions = [(f", along a random direction of all {leaf.size} numbers", rng.standard_normal(shape))]
        for at in np.sort(rng.permutation(leaf.size)[:_OF_LEAF]).tolist():
            place = np.unravel_index(at, shape)
            axis = np.zeros(shape)
            axis[place] = 1.0
            directions.append((f"[{', '.join(str(int(i)) for i in place)}]", axis))
        for label, direction in reversed(directions):
            names.append(f"head.{name}{label}" if name else f"head{label}")
            claims.append(np.sum(claim * direction))
            differences.append(_along(losses, point, number, direction))
    compared = compare(claims, differences, own_scales=False)
    if compared.worst is not None:
        worst = compared.worst[0]
        raise _mismatch(names[worst], claims[worst], differences[worst].value, len(claims))
    return compared.known


def _along(losses: Losses, point: TestedPoint, number: int, direction: Array) -> Derivative:
    """The derivative of the sum of losses along a direction of one leaf of the head."""

    def moved(step: float) -> Array:
        result: Array = np.sum(losses.loss(point._replace(head=_moved(point.head, number, step * direction))))
        return result

    return derivative(moved)


def _moved(record: AnyRecord, number: int, by: Array) -> AnyRecord:
    """`record` with `by` added to the leaf of index `number`."""
    left = iter(range(len(bare_leaves(record))))
    return map_leaves(lambda leaf: leaf + by if next(left) == number else leaf, record)


def _mismatch(place: str, claim: SupportsFloat, value: SupportsFloat, count: int) -> Broken:
    came, expected = float(claim) + 0.0, float(value) + 0.0  # zeros without a sign
    return Broken(
        f"slope at {place} is {came:.6g}, finite differences of loss give {expected:.6g} (worst of {count} "
        "coordinates)", "slope",
    )  # fmt: skip


def clients_apart(losses: Losses, points: Sequence[TestedPoint], rng: Generator) -> None:
    """Results for several clients at once equal those for each client, with a common head and with separate heads."""
    lead, count = points[0].y.shape[:-1], len(points)
    flat = [(p.scores.reshape(p.scores.shape[-2:]), p.y.reshape(-1)) for p in points]
    scores, y = (np.stack(part) for part in zip(*flat, strict=True))
    w = rng.uniform(0.5, 2.0, y.shape)
    client_heads = [nudged(points[0].head, rng) for _ in points]
    stacked = map_leaves(lambda *parts: np.stack(parts), *client_heads)
    for head, heads in (
        ((points[0].head, None), (stacked, client_heads)) if any(leaves(points[0].head)) else (((), None),)
    ):
        many, kind = (
            TestedPoint(head, scores, y),
            "with a head for each client" if heads else "for several clients at once",
        )
        loss, slope = losses.loss(many), losses.slope(many, w, own_heads=heads is not None)
        for i in range(count):
            point = points[i]._replace(head=heads[i] if heads else head)
            alone = losses.slope(point, w[i].reshape(*lead, -1))
            pairs = [(loss[i], losses.loss(point), "loss()", "loss")]
            pairs += [(slope.scores[i], alone.scores, "slope.scores", "slope")]
            names = [f"slope.head.{name}" for name, _ in leaves(alone.head)]
            pairs += [(part[i], leaf, name, "slope") for name, part, leaf in
                      zip(names, bare_leaves(slope.head), bare_leaves(alone.head), strict=True)]  # fmt: skip
            for came, expected, name, method in pairs:
                _agree(came, np.reshape(expected, came.shape), f"{kind}, {name}", "for each client alone it is", method)


def claims(losses: Losses, points: Sequence[TestedPoint], rng: Generator) -> None:
    """The attributes `nonnegative`, where the user's own class sets it, and `convex`.

    A term's `convex` is a claim for convex objectives only, and is tested with these only.
    """
    kind = type(losses.examined.target)
    says = defines(kind, "nonnegative")
    if losses.examined.target.nonnegative and says is not None and not belongs_to_mpifed(says):
        for point in points:
            loss = losses.loss(point)
            if loss.min() < -ROUNDING * np.abs(loss).max():
                raise Broken(f"nonnegative = True, and a sample's loss is {loss.min():.6g}; say False", "loss")
    objective = losses.before.get("objective")
    if objective is not None and not objective.convex:
        return
    if losses.examined.target.convex:
        _convex(losses, points, rng)


def _convex(losses: Losses, points: Sequence[TestedPoint], rng: Generator) -> None:
    """At the middle of a segment in scores and head a convex loss is at most the mean of the losses at its ends."""
    for point in points:
        for number in range(_SEGMENTS):
            by = (0.3, 1.0, 5.0)[number % 3]
            scores = point.scores + by * rng.standard_normal(point.scores.shape)
            to = TestedPoint(nudged(point.head, rng, by), scores, point.y)
            middle = point._replace(
                head=map_leaves(lambda a, b: (a + b) / 2, point.head, to.head), scores=(point.scores + scores) / 2
            )
            ends, between = (losses.loss(point) + losses.loss(to)) / 2, losses.loss(middle)
            with np.errstate(all="ignore"):
                above = between - ends > ROUNDING * (np.abs(ends) + np.abs(between))
            if above.any():
                at = tuple(np.argwhere(above)[0])
                raise Broken(
                    f"convex = True, and halfway between two points a sample's loss is {between[at]:.6g}, above the "
                    f"mean of both, {ends[at]:.6g}; say False", "loss",
                )  # fmt: skip


def _agree(came: Array, expected: Array, what: str, where: str, *methods: str) -> None:
    """Raise Broken where two arrays differ by more than rounding in float32."""
    differs = ~near(came, expected, ROUNDING)
    if differs.any():
        at = tuple(np.argwhere(differs)[0])
        raise Broken(f"{what} is {float(came[at]):.6g} where {where} {float(expected[at]):.6g}", *methods)
