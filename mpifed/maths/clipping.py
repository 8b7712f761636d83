"""Clipping: each sample, or each client, contributes at most a given norm to a sum.

Where scores are linear in the features, a sample's gradient by `first` is the outer product of its features x and its
derivatives s by the scores, of norm ||x|| ||s|| (I. Goodfellow: "Efficient Per-Example Gradient Computations", 2015,
arXiv:1510.01799): clipping is a factor of the sample's weight, and no per-sample gradient is formed ("ghost clipping":
X. Li, F. Tramer, P. Liang, T. Hashimoto, ICLR 2022, arXiv:2110.05679).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from functools import partial, reduce
from typing import cast

import numpy as np

from mpifed.core.contract import depth
from mpifed.core.errors import UsageError
from mpifed.core.loops import row_products
from mpifed.core.protocols import Features, Model, Parameters
from mpifed.core.record import ABSENT, AnyRecord, Array, NamedArrays, Record, added, bare_leaves, leaves, map_leaves
from mpifed.maths.arrays import column, namespace, square_norms
from mpifed.maths.kernels import clip_factors
from mpifed.maths.objectives import MLP, LinearScores, NeuralNetwork
from mpifed.maths.objectives.mlp import WeightedLater
from mpifed.maths.sparse import emptied, summed

# of squared norms of features and slopes: below it, a product with a factor that underflows is < 1e-60
_LARGEST = 1e200
# of norms of vectors whose products are made in float32: no sum of up to 255 can overflow, however large the bound is
MODERATE = 2.0**60
_NORMAL = 2.0**-126  # smaller numbers have fewer digits in float32
# exceeds rounding errors in float32, so that the clipped gradient as computed stays within the bound
_HAIR = 1 - 2.0**-20
# what gives the derivatives by the head from those by the scores
_OF_HEADS = ("head_squares", "head_sum")


def clipped_gradient(
    objective: Model, model: Parameters, X: Features, y: Array, weights: Array, clip: float, narrow: bool = False
) -> Parameters:
    """Sum over samples of weights times the sample's gradient of the loss, clipped to a norm over all leaves.

    The sum is in float64: in float32 the sum of s vectors may have an error of s^2 2^-24 times the bound
    (S. Casacuberta, M. Shoemate, S. Vadhan, C. Wagaman: "Widespread Underestimation of Sensitivity in Differentially
    Private Libraries and How to Fix It", CCS 2022). Who counts that error, see
    `mpifed.maths.privacy.mechanism.narrow_error`, may have it in float32, where model and features are in memory.

    What is scaled is what the norm is of: derivatives by a layer's outputs, or formed gradients, never the loss. Below
    the bound the factor is exactly 1: if no sample reaches it and a built-in model is in float64, the result equals
    `gradient` bit for bit. Scores of a model in float32 are computed in float32. A sample whose gradient is not finite,
    or whose features, hidden values or slopes have a norm above 1e100, for sums in float32 2^60 after clipping, counts
    as zero: an error, or a sum that is not finite, would reveal its presence.

    Parameters
    ----------
    model : common to all clients, or with leaves [n, ...]
    X : [n, s, p], or a tuple of n CSR matrices [s, p]
    y, weights : [n, s]
    clip : the bound, above 0, to whose norm (less a millionth) longer gradients are scaled
    narrow : whether sums may be in float32; weights are then at most 1

    Returns
    -------
    Parameters
        leaves [n, ...] in float64; in float32 those that are summed so

    Raises
    ------
    UsageError : when the objective does not provide the norms, see `clippable`.
    """
    if messages := clippable(objective):
        raise UsageError("\n".join(messages))
    if isinstance(objective, NeuralNetwork):
        assert not isinstance(X, tuple)  # sparse data are refused
        with np.errstate(over="ignore", invalid="ignore"):
            return _of_network(objective, model, X, y, weights, clip)
    assert isinstance(objective, LinearScores)  # `clippable` says so
    return _of_linear_scores(objective, model, X, y, weights, clip, narrow)


def _of_linear_scores(
    objective: LinearScores, model: Parameters, X: Features, y: Array, weights: Array, clip: float, narrow: bool
) -> Parameters:
    X = tuple(map(summed, X)) if isinstance(X, tuple) else X  # the norms are those of cells
    narrow = narrow and all(type(part) is np.ndarray and part.dtype == "f4" for part in (model.first, _numbers_of(X)))
    network = objective if isinstance(objective, MLP) and objective.weighs_later else None
    # sparse rows are converted in the product
    wide: Features = X if narrow or isinstance(X, tuple) else X.astype("f8", copy=False)
    working = "f4" if narrow and network is not None else "f8"
    head, headed = map_leaves(lambda leaf: leaf.astype(working, copy=False), model.head), any(leaves(model.head))
    by_slopes = all(depth(type(objective), name) <= depth(type(objective), "slope") for name in _OF_HEADS)
    with np.errstate(over="ignore", invalid="ignore"):
        scores = objective.scores(model.first, X if model.first.dtype == "f4" else wide).astype(working, copy=False)
        xp, later, of_head = namespace(scores), None, None
        if network is not None:
            later = network.weighted_later(head, scores, y, weights)
            slopes, of_head = later.slopes, later.head_squares
        else:
            slopes = objective.slope(head, scores, y, xp.ones(y.shape)).scores
            if headed and by_slopes:
                of_head = objective.head_squares(head, scores, y, slopes)
            elif headed:
                heads = _heads_of_samples(objective, head, scores, y)
                of_head = xp.stack([_squares(alone) for alone in heads], axis=1) if y.size else xp.zeros(y.shape)
        of_features = row_products(wide, wide) if narrow and not isinstance(wide, tuple) else square_norms(wide)
        of_slopes = square_norms(slopes)
        squares = of_features * of_slopes
        if of_head is not None:
            squares += of_head
        if later is not None and (xp is not np or not (weights == 1).all()):  # the gradients are weighted already
            squares *= xp.where(weights == 0, np.inf, weights) ** -2.0
        # a larger factor would make the underflow of the other count; the comparisons are false for NaN
        known = xp.isfinite(squares) & (of_features < _LARGEST) & (of_slopes < _LARGEST)
        if later is not None:
            known &= (later.widest < _LARGEST) & (later.steepest < _LARGEST)
        all_known = xp is np and bool(known.all())  # on a device without the test, which would synchronize
        if not all_known:
            slopes, wide = _zeroed(slopes, known), _without(wide, known)
            squares = xp.where(known, squares, 0.0)
        factors = _factors(squares, clip) * known
        if narrow:
            factors *= _moderate(of_features, of_slopes, factors, later)
        if later is not None:
            head, slopes = later.weighted(factors, None if all_known else known)
        else:
            each = weights * factors
            slopes *= each[..., None]
            if headed:
                head = objective.head_sum(slopes) if by_slopes else _weighted_sum(objective, head, scores, y, each)
    return Parameters(objective.pull(wide, slopes.astype("f4", copy=False) if narrow else slopes), head)


def _heads_of_samples(objective: LinearScores, head: Record, scores: Array, y: Array) -> Iterator[Record]:
    """[n, ...] the derivative of each sample's loss by the head, one after the other.

    They are what is scaled: of a sum with scaled losses the terms may cancel otherwise, see `MLP.weighted_later`.
    """
    ones = namespace(y).ones((len(y), 1))
    for s in range(y.shape[1]):
        yield objective.slope(head, scores[:, s : s + 1], y[:, s : s + 1], ones).head


def _weighted_sum(objective: LinearScores, head: Record, scores: Array, y: Array, weights: Array) -> Record:
    """[n, ...] the sum of `_heads_of_samples` times weights [n, s]; weights of 0 leave out what is not finite."""

    def weighted(leaf: Array, each: Array) -> Array:
        each = column(each, leaf)
        weighted: Array = namespace(leaf).where(each == 0, 0, leaf) * each
        return weighted

    if not weights.size:
        none: Record = map_leaves(namespace(y).zeros_like, objective.slope(head, scores, y, weights).head)
        return none
    alone = zip(_heads_of_samples(objective, head, scores, y), weights.T, strict=True)
    return added(map_leaves(partial(weighted, each=each), leaves_of_head) for leaves_of_head, each in alone)


def _moderate(of_features: Array, of_slopes: Array, factors: Array, later: WeightedLater | None) -> Array:
    """[n, s] whether nothing that float32 cannot hold matters to a sample's clipped gradient.

    Its factor has all its digits, and the outer products are of vectors of norms up to 2^60, see `narrow_error`.
    """
    steepest, widest = of_slopes, of_features
    if later is not None:
        steepest, widest = np.maximum(steepest, later.steepest), np.maximum(widest, later.widest)
    moderate: Array = (steepest * factors**2 <= MODERATE**2) & (widest <= MODERATE**2) & (factors >= _NORMAL)
    return moderate


def _numbers_of(X: Features) -> Array:
    """The numbers of the features, of sparse ones those of the first client."""
    return X[0].data if isinstance(X, tuple) else X


def _of_network(
    objective: NeuralNetwork, model: Parameters, X: Array, y: Array, weights: Array, clip: float
) -> Parameters:
    """All of it in float64; the norms are those of single samples' gradients, as the model gives them."""
    wide = map_leaves(lambda leaf: leaf.astype("f8", copy=False), model)

    def of_piece(model: Parameters, X: Features, y: Array, weights: Array) -> Parameters:
        (x,), left = cast("Array", X), weights[0]  # sparse data are refused
        if not len(x):  # which a module may not take
            return Parameters(ABSENT, map_leaves(lambda leaf: namespace(leaf).zeros((1, *leaf.shape)), model.head))

        def parts() -> Iterator[NamedArrays]:
            nonlocal left
            for squares, weighted in objective.sample_gradients(model.head, x, y[0]):
                known = squares < _LARGEST  # false for NaN too
                own, left = left[: len(squares)], left[len(squares) :]
                yield weighted(own * np.where(known, _factors(squares, clip), 0.0))

        return Parameters(ABSENT, map_leaves(lambda leaf: leaf[None], added(parts())))

    return objective.in_pieces(of_piece, wide, X.astype("f8", copy=False), y, weights)


def _zeroed(values: Array, known: Array) -> Array:
    """[n, s, ...] with zeros for samples where `known` [n, s] is false."""
    return namespace(values).where(known[..., None], values, 0.0)


def _without(X: Features, known: Array) -> Features:
    """The features, set to zero for samples where `known` [n, s] is false, since NaN times zero is NaN."""
    if isinstance(X, tuple):
        return tuple(emptied(x, valid) for x, valid in zip(X, known, strict=True))
    return _zeroed(X, known)


def clippable(objective: Model) -> list[str]:
    """Messages on why the norms of per-sample gradients are not available."""
    kind = type(objective)
    if isinstance(objective, NeuralNetwork):
        return []
    overridden = [name for name in ("scores", "pull") if getattr(kind, name) is not getattr(LinearScores, name)]
    if not overridden:
        return []
    return [
        f"[model] name: {kind.__name__} has {' and '.join(overridden)} of its own, and clipping needs those of "
        "mpifed.maths.objectives.LinearScores, X times the weights; derive it from LinearScores and leave them out"
    ]


def record_factors(record: Record, clip: float) -> Array:
    """[n] factors that scale each client's part of a record, leaves [n, ...], to a norm of at most `clip`.

    Exactly 1 for shorter parts; 0 for parts that are not finite, since an error would reveal them.
    """
    squares = _squares(record)
    xp = namespace(squares)
    known = xp.isfinite(squares)
    return xp.where(known, _factors(xp.where(known, squares, 0.0), clip), 0.0)


def _squares(record: Record) -> Array:
    """[n] of each client's part."""
    norms = [square_norms(leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))) for leaf in bare_leaves(record)]
    return reduce(operator.add, norms)


def clip_record(record: AnyRecord, clip: float) -> AnyRecord:
    """`record` times `record_factors`; zeros for clients whose part is not finite."""
    factors = record_factors(record, clip)
    all_finite = namespace(factors) is np and bool((factors > 0).all())

    def clipped(leaf: Array) -> Array:
        each = column(factors, leaf)
        return leaf * each if all_finite else namespace(leaf).where(each > 0, leaf, 0) * each

    return map_leaves(clipped, record)


def _factors(squares: Array, clip: float) -> Array:
    """Factors that bring norms slightly below the bound, so that rounding cannot exceed it; 1 for shorter ones."""
    return clip_factors(squares, clip * _HAIR)
