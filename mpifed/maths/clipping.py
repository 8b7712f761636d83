"""Clipping: each sample, or each client, contributes at most a given norm to a sum.

Where scores are linear in the features, a sample's gradient by `first` is the outer product of its features x and its
derivatives s by the scores, of norm ||x|| ||s|| (I. Goodfellow: "Efficient Per-Example Gradient Computations", 2015,
arXiv:1510.01799): clipping is a factor of the sample's weight, and no per-sample gradient is formed ("ghost clipping":
X. Li, F. Tramer, P. Liang, T. Hashimoto, ICLR 2022, arXiv:2110.05679).
"""

from __future__ import annotations

import math
import operator
from functools import reduce
from itertools import starmap
from typing import Any, cast

import numpy as np

from mpifed.core.record import ABSENT, AnyRecord, Array, Record, bare_leaves, map_leaves
from mpifed.data.block import Features
from mpifed.maths.arrays import added, column, namespace, row_products, square_norms, transposed_product
from mpifed.maths.objectives import Layer, LinearScores, Objective, TorchNetwork
from mpifed.maths.objectives.form import head_slope
from mpifed.maths.parameters import Parameters
from mpifed.maths.sparse import emptied, summed

# of squared norms of features and slopes: below it, a product with a factor that underflows is < 1e-60
_LARGEST = 1e200
# of norms of vectors whose products are made in float32: no sum of up to 255 can overflow, however large the bound is
MODERATE = 2.0**60
_NORMAL = 2.0**-126  # smaller numbers have fewer digits in float32
# exceeds rounding errors in float32, so that the clipped gradient as computed stays within the bound
_HAIR = 1 - 2.0**-20


def clipped_gradient(
    objective: Objective, model: Parameters, X: Features, y: Array, weights: Array, clip: float, narrow: bool = False,
    *keys: Array,
) -> Parameters:  # fmt: skip
    """Sum over samples of weights times the sample's gradient of the loss, clipped to a norm over all leaves.

    The sum is in float64: in float32 the sum of s vectors may have an error of s^2 2^-24 times the bound
    (S. Casacuberta, M. Shoemate, S. Vadhan, C. Wagaman: "Widespread Underestimation of Sensitivity in Differentially
    Private Libraries and How to Fix It", CCS 2022). Who counts that error, see
    `mpifed.maths.privacy.mechanism.narrow_error`, may have it in float32, where model and features are in memory.

    What is scaled is what the norm is of: derivatives by a layer's outputs, or formed gradients, never the loss. Below
    the bound the factor is exactly 1: if no sample reaches it and a built-in model is in float64, the result equals
    `gradient` bit for bit, or, where hidden layers are passed before samples are weighed, to rounding. Scores of a
    model in float32 are computed in float32. A sample whose gradient is not finite, or whose features, hidden values or
    slopes have a norm above 1e100, for sums in float32 2^60 after clipping, counts as zero, as does one whose pass
    raises: an error, or a sum that is not finite, would reveal its presence. A class of one's own, and a network with
    own code, passes its samples one by one: no sample sees another, and the norm is of what it gave.

    Parameters
    ----------
    model : common to all clients, or with leaves [n, ...]; where samples pass one by one, [1, ...] or [n, ...]
    X : [n, s, p], or a tuple of n CSR matrices [s, p]
    y, weights : [n, s]
    clip : the bound, above 0, to whose norm (less a millionth) longer gradients are scaled
    narrow : whether sums may be in float32; weights are then at most 1
    keys : what `objective.pass_keys` gives

    Returns
    -------
    Parameters
        leaves [n, ...] in float64; in float32 those that are summed so
    """
    if has_own_code(objective):
        return _one_by_one(objective, model, X, y, weights, clip, *keys)
    if isinstance(objective, LinearScores):
        return _of_linear_scores(objective, model, X, y, weights, clip, narrow)
    assert isinstance(objective, TorchNetwork) and not isinstance(X, tuple)  # `conflicts` and networks refuse others
    return _of_layers(objective, model, X, y, weights, clip, *keys)


def has_own_code(objective: Objective) -> bool:
    """Whether samples, or what follows from them, meet code that is not of this package or PyTorch.

    It may do what it likes: mix the samples of a batch, remember them, raise.
    """
    of_network = isinstance(objective, TorchNetwork) and not objective.passes_at_once
    return of_network or type(objective).__module__.partition(".")[0] != "mpifed"


def gradient_alone(
    objective: Objective, model: Parameters, X: Features, y: Array, weights: Array, *keys: Array
) -> Parameters:
    """The gradient of one client's samples, which no other can move; NaN where the pass raises.

    The pass has an objective and a model of its own, leaves [1, ...]. What a class keeps elsewhere, as in a global
    variable, is not seen.
    """
    alone, at = objective.alone(), map_leaves(lambda leaf: leaf.copy(), model)
    try:
        with np.errstate(all="ignore"):
            found = alone.gradient(at, X, y, weights, *keys)
            return map_leaves(lambda leaf, like: leaf.astype(like.dtype).reshape(like.shape), found, model)
    except (Exception, SystemExit):  # whatever it is, it would tell of the samples
        return map_leaves(lambda leaf: namespace(leaf).full_like(leaf, np.nan), model)


def _one_by_one(
    objective: Objective, model: Parameters, X: Features, y: Array, weights: Array, clip: float, *keys: Array
) -> Parameters:
    """Each sample passes alone; sample s with the key of its client and s."""
    total = map_leaves(lambda leaf: namespace(leaf).zeros((len(y), *leaf.shape[1:])), model)
    ones = namespace(y).ones((1, 1))
    for i, s in np.ndindex(y.shape):
        who, own = slice(i, i + 1), slice(s, s + 1)
        at = map_leaves(lambda leaf, i=i: leaf[[i % len(leaf)]].astype("f8"), model)
        x = (X[i][own],) if isinstance(X, tuple) else X[who, own].astype("f8")
        found = gradient_alone(objective, at, x, y[who, own], ones, *[each[who] + s for each in keys])
        with np.errstate(over="ignore", invalid="ignore"):
            square = sum((leaf**2).sum() for leaf in bare_leaves(found))
        if square < _LARGEST:  # false for NaN too
            each = weights[i, s] * _factors(square, clip)
            for out, leaf in zip(bare_leaves(total), bare_leaves(found), strict=True):
                out[i] += each * leaf[0]
    return total


def _of_linear_scores(
    objective: LinearScores, model: Parameters, X: Features, y: Array, weights: Array, clip: float, narrow: bool
) -> Parameters:
    X = tuple(map(summed, X)) if isinstance(X, tuple) else X  # the norms are those of cells
    numbers = X[0].data if isinstance(X, tuple) else X
    narrow = narrow and all(type(part) is np.ndarray and part.dtype == "f4" for part in (model.first, numbers))
    # sparse rows are converted in the product
    wide: Features = X if narrow or isinstance(X, tuple) else X.astype("f8", copy=False)
    working = "f4" if narrow and objective.hidden else "f8"  # without a hidden layer there are few scores
    head = map_leaves(lambda leaf: leaf.astype(working, copy=False), model.head)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        scores = objective.scores(model.first, X if model.first.dtype == "f4" else wide).astype(working, copy=False)
        outputs, backward = objective.layers(head, scores)
        slopes = objective.sample_loss.slope(outputs, y)
        # from the last to the first
        layers = [(wide if inputs is ABSENT else inputs.copy(), down) for inputs, down in backward(slopes)]
        of_slopes, of_inputs = [square_norms(down) for _, down in layers], [square_norms(x) for x, _ in layers[:-1]]
        by_rows = row_products(wide, wide) if narrow and not isinstance(wide, tuple) else square_norms(wide)
        of_inputs.append(by_rows)
        *further, first = map(operator.mul, of_inputs, of_slopes)
        squares = first + sum(further[::-1] + (of_slopes[::-1] if len(head) > len(further) else []))
        # a larger factor would make the underflow of the other count; the comparisons are false for NaN
        known = namespace(squares).isfinite(squares)
        for norms in of_inputs + of_slopes:
            known &= norms < _LARGEST
        factors = namespace(squares).where(known, _factors(squares, clip), 0.0)
        if not known.all():
            layers = [(_without(inputs, known), _without(down, known)) for inputs, down in layers]
        if narrow:
            steepest, widest = reduce(np.maximum, of_slopes), reduce(np.maximum, of_inputs)
            # its factor has all its digits, and the outer products are of vectors of norms up to 2^60: `narrow_error`
            factors *= (steepest * factors**2 <= MODERATE**2) & (widest <= MODERATE**2) & (factors >= _NORMAL)
        for _, down in layers:
            down *= (weights * factors)[..., None].astype(down.dtype, copy=False)
        *later, (features, down) = layers
        slope = head_slope(head, [*starmap(Layer, later), Layer(ABSENT, down)])
    return Parameters(transposed_product(features, down.astype("f4" if narrow else "f8", copy=False)), slope.head)


def _of_layers(
    objective: TorchNetwork, model: Parameters, X: Array, y: Array, weights: Array, clip: float, *keys: Array
) -> Parameters:
    """All of it in float64; the norms are those of single samples' gradients, as the model gives them."""
    wide = map_leaves(lambda leaf: leaf.astype("f8", copy=False), model)

    def of_piece(model: Parameters, X: Features, y: Array, weights: Array, *keys: Array) -> Parameters:
        (x,) = cast("Array", X)  # sparse data are refused
        if not len(x):  # which a module may not take
            return Parameters(ABSENT, map_leaves(lambda leaf: namespace(leaf).zeros((1, *leaf.shape)), model.head))

        def factors_of(squares: Array, start: int) -> Array:
            known = namespace(squares).where(squares < _LARGEST, _factors(squares, clip), 0.0)  # false for NaN too
            return weights[0, start : start + len(squares)] * known

        key = int(keys[0][0]) if keys else None
        sums = objective.sample_gradients(model.head, x, y[0], factors_of, key)
        return Parameters(ABSENT, map_leaves(lambda leaf: leaf[None], added(sums)))

    with np.errstate(over="ignore", invalid="ignore"):
        return objective.in_pieces(of_piece, wide, X.astype("f8", copy=False), y, weights, *keys)


def _without(X: Any, known: Array) -> Any:  # of the class of X
    """X [n, s, ...], set to zero for samples where `known` [n, s] is false, since NaN times zero is NaN."""
    if isinstance(X, tuple):
        return tuple(emptied(x, valid) for x, valid in zip(X, known, strict=True))
    return namespace(X).where(known[..., None], X, 0.0)


def record_factors(record: Record, clip: float) -> Array:
    """[n] factors that scale each client's part of a record, leaves [n, ...], to a norm of at most `clip`.

    Exactly 1 for shorter parts; 0 for parts that are not finite, since an error would reveal them.
    """
    norms = (square_norms(leaf.reshape(len(leaf), math.prod(leaf.shape[1:]))) for leaf in bare_leaves(record))
    squares = reduce(operator.add, norms)
    xp = namespace(squares)
    return xp.where(xp.isfinite(squares), _factors(squares, clip), 0.0)


def clip_record(record: AnyRecord, clip: float) -> AnyRecord:
    """`record` times `record_factors`; zeros for clients whose part is not finite."""
    factors = record_factors(record, clip)

    def clipped(leaf: Array) -> Array:
        each = column(factors, leaf)
        return namespace(leaf).where(each > 0, leaf, 0) * each

    return map_leaves(clipped, record)


def _factors(squares: Array, clip: float) -> Array:
    """Factors that bring norms slightly below the bound, so that rounding cannot exceed it; 1 for shorter ones."""
    xp = namespace(squares)
    with np.errstate(divide="ignore"):
        factors: Array = xp.minimum(1.0, clip * _HAIR / xp.sqrt(squares))
    return factors
