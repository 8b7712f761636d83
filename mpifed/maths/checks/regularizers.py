"""The contract of a regularizer: p = prox(u, c) is the minimizer of h(x) + ||x - u||^2 / (2 c).

So no other x may have a lower value. The values at p are compared with those at points near p, between p and u and
beyond, at multiples of p, and at the results of prox for other steps, where h is finite also if it is infinite
elsewhere. The inequality holds for minimizers of any h, convex or not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.random import Generator

from mpifed.core.record import AnyRecord, Array, Record, bare_leaves, flat, leaves, map_leaves
from mpifed.maths.checks.examined import Broken, Examined, must_be_record
from mpifed.maths.checks.points import nudged, wide
from mpifed.maths.objectives import Parameters

# relative tolerance: an iterative prox may stop slightly before the minimizer
_EXACT = 1e-5
_STEPS = (0.1, 1.0, 10.0)
_WIDE = 10.0 ** np.arange(-6, 7)  # among these is a step that moves the model by a good part of its length
_ALONG = (-0.3, -0.1, -0.03, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0, 1000.0)
_TIMES = (0.0, 0.5, 0.9, 0.97, 1.03, 1.1, 1.5)
_NEAR = (1e-3, 1e-2, 0.1)
_FEW = 2**13  # numbers of a model that is tested in full; a larger model is cut to so few features
_MANY = 2**17  # numbers of a model that cannot be cut, and is tested at fewer points; larger ones are not
_SHAPED = 2**20  # numbers of a model whose shapes and dtypes are tested
_EDGE = 1e-6  # relative distance by which rounding may move a point out of the set where h is finite


def examine_regularizer(examined: Examined, start: Parameters, rng: Generator) -> int:
    """The number of points compared, for models of the shapes of `start`; large ones are cut to fewer features.

    Raises Broken with the first violation of the contract.
    """
    examined = examined.in_memory  # as the server computes it
    size = sum(leaf.size for leaf in bare_leaves(start))
    if size <= _SHAPED:
        _kind(examined, map_leaves(lambda leaf, like: leaf.astype(like.dtype), nudged(wide(start), rng), start))
    if size <= _FEW:
        return _minimizes(examined, wide(start), rng, small=True)
    features = max(1, _FEW // start.first.shape[-1])
    fewer = Parameters(start.first[:features], start.head)
    try:
        examined.call("value", model=wide(fewer))
        examined.call("prox", model=wide(fewer), step=1.0)
    except Broken:
        raise
    except Exception:  # it needs its features, such as the pixels of an image: errors with fewer do not matter
        return _minimizes(examined, wide(start), rng, small=False) if size <= _MANY else 0
    return _minimizes(examined, wide(fewer), rng, small=sum(leaf.size for leaf in bare_leaves(fewer)) <= 2 * _FEW)


def _minimizes(examined: Examined, start: Record, rng: Generator, small: bool) -> int:
    """Test the inequality for several models and steps; unless `small`, for a single model and two steps."""
    compared = 0
    for number, u in enumerate(_models(start, rng, small)):
        moving = _moving_step(examined, u)
        steps = [*_STEPS, moving / 3, moving] if small and number == 0 else [1.0, moving]
        proxes = {step: _prox(examined, u, step) for step in dict.fromkeys(steps)}
        for step, p in proxes.items():
            others = [other for at, other in proxes.items() if at != step]
            compared += _lowest(examined, u, step, p, [*others, *_around(u, p, rng, small)])
    return compared


def _models(start: Record, rng: Generator, small: bool) -> Iterator[Record]:
    """Models of size 1, of the size of the start, and, for each leaf, with all other leaves close to zero."""
    normal = map_leaves(lambda leaf: rng.standard_normal(leaf.shape), start)
    yield normal
    count = len(bare_leaves(start))
    if not small:
        return
    yield nudged(start, rng)
    for chosen in range(count) if count > 1 else ():
        numbers = iter(range(count))
        yield map_leaves(lambda leaf, own=chosen, at=numbers: leaf * (1.0 if next(at) == own else 1e-4), normal)


def _kind(examined: Examined, model: Record) -> None:
    """value() gives a number, prox() a model of the same shapes and dtypes, in the job's dtype."""
    h = examined.call_twice("value", model=model)
    if isinstance(h, (bool, str)) or h is None or np.ndim(h) != 0 or not np.isrealobj(h) or np.isnan(float(h)):
        raise Broken(f"value() gives {h!r}; a number is expected, infinite where the model is forbidden", "value")
    p = examined.call_twice("prox", model=model, step=0.5)
    if not (hasattr(p, "first") and hasattr(p, "head")):
        raise Broken(f"prox() gives a {type(p).__name__}; Parameters(first, head) are expected", "prox")
    must_be_record(p, model, (), "what prox() gives", "prox")
    for (name, leaf), like in zip(leaves(p), bare_leaves(model), strict=True):
        if leaf.dtype != like.dtype:
            raise Broken(f"{name} of what prox() gives is of {leaf.dtype} where the model is of {like.dtype}", "prox")
        if not np.isfinite(leaf).all():
            raise Broken(f"{name} of what prox() gives is not finite", "prox")


def _moving_step(examined: Examined, u: Record) -> float:
    """The smallest step at which prox moves u by a tenth of its length; the largest step if none does."""
    length = float(np.linalg.norm(flat(u)))
    for step in _WIDE.tolist():
        moved = float(np.linalg.norm(flat(_prox(examined, u, step)) - flat(u)))
        if 0.1 * length <= moved:
            break
    return float(step)


def _prox(examined: Examined, u: AnyRecord, step: float) -> AnyRecord:
    p: AnyRecord = examined.call("prox", model=u, step=step)
    must_be_record(p, u, (), "what prox() gives", "prox")
    return p


def _around(u: Record, p: Record, rng: Generator, small: bool) -> Iterator[Record]:
    """Points whose values could be lower than that of p."""
    yield u
    for t in _ALONG if small else _ALONG[1:-2:3]:
        yield map_leaves(lambda a, b, t=t: b + t * (b - a), u, p)
    for times in _TIMES if small else _TIMES[2:-1:3]:
        yield map_leaves(lambda b, times=times: times * b, p)
        yield map_leaves(lambda a, times=times: times * a, u)
    for by in _NEAR:
        yield nudged(p, rng, by)


def _lowest(examined: Examined, u: Record, step: float, p: Record, others: list[Record]) -> int:
    """No other point has a lower value than p; returns the number of points compared."""
    value_at_p = _value(examined, p)
    if not np.isfinite(value_at_p):
        value_at_p = _value(examined, map_leaves(lambda leaf: (1 - _EDGE) * leaf, p))
    from_u, compared = flat(u), 0
    distance_of_p = _distance(flat(p), from_u, step)
    for x in others:
        h = _value(examined, x)
        if not np.isfinite(h):
            continue
        compared, distance = compared + 1, _distance(flat(x), from_u, step)
        if not np.isfinite(value_at_p):
            raise Broken(
                f"value() is {value_at_p} at what prox() gives with step {step:.6g}, and finite elsewhere: it must be "
                "the minimizer of value(x) + ||x - model||^2 / (2 step)", "prox", "value",
            )  # fmt: skip
        if h + distance < value_at_p + distance_of_p - _EXACT * (abs(value_at_p) + distance_of_p):
            raise Broken(
                f"prox() with step {step:.6g} gives a point where value(x) + ||x - model||^2 / (2 step) is "
                f"{value_at_p + distance_of_p:.6g}, and at another point {h + distance:.6g}: it "
                "is no minimizer", "prox", "value",
            )  # fmt: skip
    return compared


def _value(examined: Examined, x: Record) -> float:
    h = float(examined.call("value", model=x))
    if np.isnan(h):
        raise Broken("value() gives nan; a number is expected, infinite where the model is forbidden", "value")
    return h


def _distance(x: Array, u: Array, step: float) -> float:
    return float(np.sum((x - u) ** 2)) / (2 * step)
