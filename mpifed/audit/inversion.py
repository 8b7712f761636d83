"""The rows behind a gradient: of one sample, or of few.

Scores are linear in the features, so the gradient by the feature weights is G = X' D, D [B, h] being the derivatives of
the mean loss by the scores.

- One row x: G = x delta' has rank one, with x for its columns; its length follows from delta = delta(x, y), which who
  knows the model solves for the length and the label. For networks without biases of the head this was observed by
  L. T. Phong, Y. Aono, T. Hayashi, L. Wang, S. Moriai (IEEE TIFS 2018), and the label in the signs of the last layer's
  gradient by B. Zhao, K. R. Mopuri, H. Bilen, "iDLG" (arXiv:2001.02610).
- Few rows: while D has B independent rows, the samples lie in the span of G's columns, X' = U M, and only the B x B
  numbers of M are unknown. Features that are not negative have the rows of U in the cone of the rows of M^-1; where
  each sample has a feature that the others lack, as images of few bright pixels, these are its edges, by successive
  projection (N. Gillis, S. A. Vavasis, IEEE TPAMI 2014). Lengths and labels follow sample by sample; then M is
  optimized until the samples' gradient is the observed one (after L. Zhu, Z. Liu, S. Han, NeurIPS 2019, but over B^2
  numbers instead of B p).
- While the feature weights are zero, as at the start of all linear models, D depends on labels alone, and G gives the
  sums of the samples of each class, for any number of clients.

The attacker is given the model, the mean gradient and the number of rows; labels are guessed, and the data are not
seen. Shapes: p features, h scores, B samples, of which the r with a slope are recovered.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np

from mpifed.algorithms.reveals import MeanGradient
from mpifed.core.record import Array, leaves, map_leaves
from mpifed.maths.arrays import flat
from mpifed.maths.objectives import Objective, Parameters
from mpifed.maths.problem import Problem

NOISE = 1e-5  # relative size of singular values that may come from rounding to float32
FITS = 1e-2  # relative mismatch below which a single sample explains a gradient
ALL_FIT = 1e-5  # the same of the samples of a minibatch
STARTS, EASY = 2, 6  # random mixings, of so many samples at most
_WEIGHT = 0.3  # of negative features, relative to the mismatch
_PIXELS = 200  # features that are constrained to be nonnegative
_LENGTHS = np.logspace(-3, 8, 264)  # tried, in units of the gradient's own length


def rows_behind(problem: Problem, mean: MeanGradient, batch: int, nonnegative: bool = False) -> Array:
    """[f, p] the samples of a minibatch, f <= B, in float64; of norm 1 where the length is not known.

    Parameters
    ----------
    problem : of which the model's class alone is asked
    mean : the gradient over `batch` samples, of a client's upload or of a sum
    nonnegative : whether the attacker knows that features are not negative, as those of images
    """
    objective = problem.objective
    model, seen = (map_leaves(np.float64, record) for record in (mean.model, mean.gradient))
    left, values, right = np.linalg.svd(seen.first.reshape(len(seen.first), -1), full_matrices=False)
    rank = int(np.sum(values > values[0] * NOISE))
    if rank and batch == 1:
        along = left[:, 0] * np.copysign(1, left[:, 0].sum())
        residual, length = np.inf, 1.0
        if objective.classifies:  # else a target explains the gradient for any length
            residual, length, _ = _explain(objective, model, along, along @ seen.first, nonnegative)
        row: Array = (length if residual < FITS else 1.0) * along[None]
        return row
    scores = seen.first.shape[1]
    if not rank or not objective.classifies:
        return seen.first[:0, :0]
    if not model.first.any():
        return _class_sums(objective, model, seen.first * batch, nonnegative)
    if rank == 1 or (rank < batch and rank >= scores - 1):  # with too few scores the span lacks samples
        return seen.first[:0, :0]
    r = min(rank, batch)
    basis, inside = (left[:, :r], values[:r, None] * right[:r])  # [p, r] U and [r, h], G = U times it
    best = np.inf, np.zeros((r, 0))
    for edges in _edges(basis, nonnegative):
        if best[0] > ALL_FIT and np.linalg.cond(edges) < 1e8:
            guess = _matched(objective, model, seen, batch, basis, inside, edges, nonnegative)
            best = min(best, guess, key=lambda guess: guess[0])
    rows: Array = (basis @ best[1]).T
    return rows


def _explain(
    objective: Objective, model: Parameters, along: Array, slope: Array, nonnegative: bool
) -> tuple[float, float, int]:
    """(mismatch, length, label) of the sample along `along` [p] whose loss has the derivative `slope` / length."""
    from scipy.optimize import least_squares
    from scipy.signal import argrelmin

    unit, size = along @ model.first, float(np.linalg.norm(slope))

    def mismatch(lengths: Array, label: int) -> Array:
        """[m, h] relative to the gradient's length, for m lengths."""
        head = map_leaves(lambda leaf: np.broadcast_to(leaf, (len(lengths), *leaf.shape)), model.head)
        labels, weights = np.full((len(lengths), 1), label), np.ones((len(lengths), 1))
        scores = objective.slope(head, lengths[:, None, None] * unit, labels, weights).scores
        result: Array = (lengths[:, None] * scores[:, 0] - slope) / size
        return result

    tried = []
    for label, sign in product(range(_classes(model)), (1, -1)[: 2 - nonnegative]):
        lengths = sign * size * _LENGTHS
        sizes = np.linalg.norm(mismatch(lengths, label), axis=1)
        tried += [(sizes[at], lengths[at], label) for at in (*argrelmin(sizes)[0], np.argmin(sizes))]
    ways = []
    for _, start, label in sorted(tried)[:6]:
        near = partial(lambda log, start, label: mismatch(start * np.exp(log), label)[0], start=start, label=label)
        end = least_squares(near, [0.0], "3-point", xtol=1e-12, ftol=1e-15, gtol=1e-15)
        ways.append((float(np.linalg.norm(end.fun)), float(start * np.exp(end.x[0])), label))
    return min(ways)


def _classes(model: Parameters) -> int:
    """Number of classes, from the shapes of the model."""
    outputs = int(dict(leaves(model.head)).get("second", model.first).shape[-1])
    return 2 if outputs == 1 else outputs


def _class_sums(objective: Objective, model: Parameters, first: Array, nonnegative: bool) -> Array:
    """At feature weights of zero: B G = sum over the classes of the sum of the class's samples times d of the class."""
    labels = np.arange(_classes(model))
    # [L, h] d of each class
    each = objective.slope(model.head, np.zeros((len(labels), first.shape[1])), labels, np.ones(len(labels))).scores
    sums, _, rank, _ = np.linalg.lstsq(each.T, first.T, rcond=None)  # [L, p]
    if rank < len(labels):  # up to a row common to all classes (softmax): at every pixel, a class is assumed to be dark
        sums -= sums.min(axis=0)
    sizes = np.linalg.norm(sums, axis=1)
    there: Array = sums[(sizes > 1e-4 * sizes.max()) & (rank >= len(labels) - nonnegative)]
    return there


def _edges(basis: Array, nonnegative: bool) -> Iterator[Array]:
    """[r, r] rows of M^-1, up to their lengths: extreme rays of the cone of U's rows; and random ones of these rows."""
    from scipy.optimize import linprog

    sizes, r = np.linalg.norm(basis, axis=1), basis.shape[1]
    if nonnegative:
        bright = sizes > 1e-4 * sizes.max()
        unit = basis[bright] / sizes[bright, None]
        # a plane that all rays cross: the largest t with unit @ c >= t
        upper = np.concatenate([-unit, np.ones((len(unit), 1))], axis=1)
        plane = linprog([0.0] * r + [-1.0], upper, np.zeros(len(unit)), bounds=[(-1, 1)] * r + [(None, 1)])
        if plane.status == 0 and plane.x[r] > 0:
            points = unit / (unit @ plane.x[:r])[:, None]
            left, chosen = points, list[int]()
            for _ in range(r):
                chosen.append(int(np.argmax((left**2).sum(axis=1))))
                away = left[chosen[-1]]
                left = left - np.outer(left @ away, away) / max(away @ away, 1e-300)
            yield points[chosen]
    rng = np.random.default_rng(0)
    for _ in range(STARTS if r <= EASY else 0):
        yield basis[rng.choice(len(sizes), r, replace=False, p=sizes**2 / (sizes**2).sum())]


def _matched(
    objective: Objective, model: Parameters, seen: Parameters, batch: int, basis: Array, inside: Array, edges: Array,
    nonnegative: bool,
) -> tuple[float, Array]:  # fmt: skip
    """(relative mismatch, M): lengths and labels sample by sample, then least squares, and labels again."""
    from scipy.optimize import least_squares

    r, head, whole = (len(edges), flat(seen.head) if seen.head else np.zeros(0), float(np.linalg.norm(flat(seen))))
    brightest = np.argsort(-np.linalg.norm(basis, axis=1))[: _PIXELS if nonnegative else 0]
    bright, unit = basis[brightest], basis.T @ model.first
    mixing, labels = np.linalg.inv(edges), np.empty(r, np.int64)
    for j, slope in enumerate(edges @ inside * batch):  # of each sample's own loss, up to its length
        _, length, labels[j] = _explain(objective, model, basis @ mixing[:, j], slope, nonnegative)
        mixing[:, j] *= length

    def mismatch(mixing: Array, labels: Array) -> Array:
        slope = objective.slope(model.head, mixing.T @ unit, labels, np.full(r, 1 / batch))
        rest = flat(slope.head) - head if len(head) else head
        return np.concatenate([(mixing @ slope.scores - inside).reshape(-1), rest]) / whole

    def wrong(numbers: Array, labels: Array) -> Array:
        mixing = numbers.reshape(r, r)
        below = np.minimum(bright @ (mixing / np.linalg.norm(mixing, axis=0)), 0)
        return np.concatenate([mismatch(mixing, labels), _WEIGHT * below.reshape(-1)])

    best = float(np.linalg.norm(mismatch(mixing, labels))), mixing
    for _ in range(3):
        if best[0] < ALL_FIT or np.linalg.cond(mixing) > 1e10:
            break
        end = least_squares(wrong, mixing.reshape(-1), max_nfev=60, ftol=1e-12, xtol=1e-12, args=(labels,))
        mixing = end.x.reshape(r, r)
        best = min(best, (float(np.linalg.norm(mismatch(mixing, labels))), mixing), key=lambda guess: guess[0])
        wanted = np.linalg.pinv(mixing) @ inside * batch  # slopes that M implies
        each = [
            objective.slope(model.head, mixing.T @ unit, np.full(r, label), np.ones(r)).scores
            for label in range(_classes(model))
        ]
        before, labels = (labels, np.argmin(((np.array(each) - wanted) ** 2).sum(axis=2), axis=0))
        if (labels == before).all():
            break
    return best
