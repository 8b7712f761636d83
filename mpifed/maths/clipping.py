"""Clipping: no record, or no client, moves a sum by more than a given norm.

Since scores are linear in the features, a sample's gradient by `first` is the product of its features x and its slopes
s by the scores, of norm ||x|| ||s|| (I. Goodfellow: "Efficient Per-Example Gradient Computations", 2015,
arXiv:1510.01799): clipping is a factor on the sample's weight, and nothing is built for each sample ("ghost clipping":
X. Li, F. Tramer, P. Liang, T. Hashimoto, ICLR 2022, arXiv:2110.05679).
"""

from __future__ import annotations

import math
from typing import Any

from mpifed.core.errors import UsageError
from mpifed.core.record import Array, Record, bare_leaves, leaves, map_leaves
from mpifed.maths.arrays import column, namespace, square_norms
from mpifed.maths.kernels import clip_factors
from mpifed.maths.objectives import Linear, Objective, Parameters

_HAIR = 1 - 2.0**-20  # more than a few roundings in float32: a clipped gradient as it is computed keeps the bound


def clipped_gradient(
    objective: Objective, model: Parameters, X: Any, y: Array, weights: Array, clip: float
) -> Parameters:
    """Sum over samples of weights times the sample's gradient of the loss, clipped over all leaves together.

    Below the bound the factor is 1 exactly, and with the objectives of this package the outcome is that of `gradient`,
    bit for bit, when no sample reaches it. Norms are those of slopes as computed, in float64. What is not finite stays
    so, whatever its weight.

    Parameters
    ----------
    model : common, or one for every client: leaves [n, ...]
    X : [n, s, p], or a tuple of n CSR matrices [s, p]
    y, weights : [n, s]
    clip : the bound, above 0; gradients above it, but for a millionth, become that long

    Returns
    -------
    Parameters
        leaves [n, ...]

    Raises
    ------
    UsageError
        when the norms cannot be had from what the objective tells, see `clippable`.
    """
    if wrong := clippable(objective, model.head):
        raise UsageError("\n".join(wrong))
    scores = objective.scores(model.first, X)
    slopes = objective.slope(model.head, scores, y, namespace(scores).ones(y.shape, scores.dtype)).scores
    squares, head = square_norms(X) * square_norms(slopes), any(leaves(model.head))
    if head:
        squares += objective.head_squares(model.head, scores, y, slopes)
    each = weights * _factors(squares, clip)
    if head:
        slope = objective.slope(model.head, scores, y, each)
        return Parameters(objective.pull(X, slope.scores), slope.head)
    return Parameters(objective.pull(X, slopes * each[..., None].astype(slopes.dtype)), model.head)


def clippable(objective: Objective, head: Record) -> list[str]:
    """Why the norms of the samples' gradients cannot be known, one message each; for models with such a head."""
    kind, wrong = type(objective), []
    own = [name for name in ("scores", "pull") if getattr(kind, name, None) is not getattr(Linear, name)]
    if own:
        wrong.append(
            f"[objective] name: {kind.__name__} has {' and '.join(own)} of its own, and clipping needs those of "
            "mpifed.maths.objectives.Linear, X times the weights; derive it from Linear and leave them out"
        )
    if any(leaves(head)) and _depth(kind, "head_squares") > _depth(kind, "slope"):
        wrong.append(
            f"[objective] name: {kind.__name__} has a head, and no head_squares that belongs to its slope: its "
            "samples' gradients cannot be clipped; give the class a method head_squares"
        )
    return wrong


def _depth(kind: type, name: str) -> int:
    """How far up its ancestors a class finds a method."""
    return next((i for i, one in enumerate(kind.__mro__) if name in vars(one)), len(kind.__mro__))


def clip_record(record: Record, clip: float) -> Record:
    """Each client's part of a record, leaves [n, ...], scaled to a norm of at most `clip` over all leaves.

    Below that the factor is 1 exactly.
    """
    squares = sum(square_norms(leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))) for leaf in bare_leaves(record))
    factors = _factors(squares, clip)
    return map_leaves(lambda leaf: leaf * column(factors, leaf), record)


def _factors(squares: Array, clip: float) -> Array:
    """What brings squared norms within the bound, a hair below it so that rounding cannot exceed it; 1 if they are."""
    return clip_factors(squares, clip * _HAIR)
