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
from itertools import product
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.reveals import MeanGradient
from mpifed.core.record import Array, leaves, map_leaves
from mpifed.maths.arrays import flat
from mpifed.maths.objectives import Objective, Parameters
from mpifed.maths.parameters import Slope

NOISE = 1e-5  # relative size of singular values that may come from rounding to float32
ONE = 1e-3  # the same where one row is expected
FITS = 1e-2  # relative mismatch below which a single sample explains a gradient
ALL_FIT = 1e-5  # the same of the samples of a minibatch
EQUAL = 1e-3  # relative difference below which two lengths are equal
SHARP = 0.1  # least change of the mismatch by a relative change of the length: else the length is open
STARTS, EASY_BATCH = 2, 6  # random mixings of some seconds each, up to so many rows
_WEIGHT = 0.3  # of negative features, relative to the mismatch
CYCLES = 20  # most turns of linear programs
_PIXELS = 200  # features that are constrained to be nonnegative
_LENGTHS = np.logspace(-3, 8, 264)  # tried, in units of the gradient's own length
_FILLED = 1000  # turns that fill in numbers which were not sent


class Recovered(NamedTuple):
    """Rows [f, p] behind a gradient, f <= B, and the attacker's assessment without the truth."""

    rows: Array  # float64; of norm 1 where the length is not known
    sure: bool  # whether the attacker is sure to have all of them


class Length(NamedTuple):
    """A length and label of a sample along a known direction that explain a gradient."""

    residual: float
    sharpness: float  # change of the residual per relative change of the length
    length: float  # negative: against the direction
    label: int


def rows_behind(objective: Objective, mean: MeanGradient, batch: int, nonnegative: bool = False) -> Recovered:
    """The samples of a minibatch.

    Parameters
    ----------
    objective : the job's model class
    mean : the gradient over `batch` samples, of a client's upload or of a sum
    nonnegative : whether the attacker knows that features are not negative, as those of images
    """
    model, seen = (map_leaves(np.float64, record) for record in (mean.model, mean.gradient))
    first = seen.first.reshape(len(seen.first), -1)
    if mean.known is not None:
        first = _filled(first, mean.known.reshape(first.shape), batch)
        seen = Parameters(first, ())
    left, values, _ = np.linalg.svd(first, full_matrices=False)
    rank = int(np.sum(values > values[0] * (ONE if batch == 1 else NOISE)))
    nothing = Recovered(np.zeros((0, len(first))), False)
    if rank == 0:
        return nothing
    if batch == 1:
        along = left[:, 0] * np.copysign(1, left[:, 0].sum())
        unknown = Recovered(along[None], False)
        if not objective.classifies or not mean.scaled:  # for any length, a target explains the gradient
            return unknown
        best, *others = explain(objective, model, along, along @ first, nonnegative)
        others = [way for way in others if way.residual < max(10 * best.residual, 1e-6)]
        if best.residual > FITS or any(way.sharpness < SHARP for way in (best, *others)):
            return unknown
        if any(abs(abs(way.length / best.length) - 1) > EQUAL for way in others):
            return unknown
        # of two classes (x, 0) and (-x, 1) are alike; with one score the rank is always one
        sure = rank == 1 < len(values) and all(way.length * best.length > 0 for way in others)
        return Recovered(best.length * along[None], sure)
    if not objective.classifies:
        return nothing
    if not model.first.any():
        found = _class_sums(objective, model, first, batch, nonnegative) or nothing
    elif rank == 1 or (rank < batch and rank >= first.shape[1] - 1):  # with too few scores the span lacks samples
        found = nothing
    else:
        found = _Mixing(objective, model, seen, min(rank, batch), batch, nonnegative).solve(rank == batch)
    return Recovered(found.rows, found.sure and mean.scaled)  # of another length it may be nearly as good


def _filled(first: Array, known: Array, rank: int) -> Array:
    """A matrix of low rank of which some numbers are known."""
    whole = first
    for _ in range(_FILLED):
        left, values, right = np.linalg.svd(whole, full_matrices=False)
        whole = np.where(known, first, (left[:, :rank] * values[:rank]) @ right[:rank])
    return whole


def explain(objective: Objective, model: Parameters, along: Array, slope: Array, nonnegative: bool) -> list[Length]:
    """Lengths and labels of a sample along `along` [p], best first, whose loss has the derivative `slope` / length."""
    from scipy.optimize import least_squares

    unit, size, outputs = along @ model.first, np.linalg.norm(slope), _classes(model)

    def mismatch(lengths: Array, label: int) -> Array:
        """[m, h] relative to the gradient's length, for m lengths."""
        labels, weights = np.full((len(lengths), 1), label), np.ones((len(lengths), 1))
        head = map_leaves(lambda leaf: np.broadcast_to(leaf, (len(lengths), *leaf.shape)), model.head)
        scores = objective.slope(head, lengths[:, None, None] * unit, labels, weights).scores
        result: Array = (lengths[:, None] * scores[:, 0] - slope) / size
        return result

    tried = []
    for label, sign in product(range(outputs), (1,) if nonnegative else (1, -1)):
        sizes = np.linalg.norm(mismatch(sign * size * _LENGTHS, label), axis=1)
        turns = np.diff(sizes, prepend=np.inf, append=np.inf)
        valleys = np.flatnonzero((turns[:-1] <= 0) & (turns[1:] >= 0)).tolist()
        tried += [(sizes[i], sign, label, np.log(size * _LENGTHS[i])) for i in valleys]
    ways = []
    for _, sign, label, start in sorted(tried)[:6]:

        def near(log: Array, sign: int = sign, label: int = label) -> Array:
            result: Array = mismatch(sign * np.exp(log), label)[0]
            return result

        end = least_squares(near, [start], "3-point", xtol=1e-12, ftol=1e-15, gtol=1e-15)
        residual, sharpness = float(np.linalg.norm(end.fun)), float(np.linalg.norm(end.jac))
        ways.append(Length(residual, sharpness, sign * float(np.exp(end.x[0])), label))
    return sorted(ways)


def _classes(model: Parameters) -> int:
    """Number of classes, from the shapes of the model."""
    outputs = int(dict(leaves(model.head)).get("second", model.first).shape[-1])
    return 2 if outputs == 1 else outputs


def _class_sums(
    objective: Objective, model: Parameters, first: Array, batch: int, nonnegative: bool
) -> Recovered | None:
    """At feature weights of zero: G = sum over the classes of (sum of the class's samples / B) times d of the class."""
    labels = np.arange(_classes(model))
    # [L, h] d of each class
    each = objective.slope(model.head, np.zeros((len(labels), first.shape[1])), labels, np.ones(len(labels))).scores
    rank = np.linalg.matrix_rank(each)
    if rank < len(labels) - nonnegative:
        return None
    sums = np.linalg.lstsq(each.T, first.T, rcond=None)[0] * batch  # [L, p]
    if rank < len(labels):  # up to a row common to all classes (softmax)
        sums -= sums.min(axis=0)  # at every pixel, a class is assumed to be dark
    sizes = np.linalg.norm(sums, axis=1)
    there = np.flatnonzero(sizes > 1e-4 * sizes.max())
    residual = np.linalg.norm(each.T @ sums / batch - first.T) / np.linalg.norm(first)
    return Recovered(sums[there], bool(len(there) == batch and residual < ALL_FIT))


class _Mixing:
    """The search for M [r, r]."""

    def __init__(
        self, objective: Objective, model: Parameters, seen: Parameters, r: int, batch: int, nonnegative: bool
    ) -> None:
        self.objective, self.model, self.r, self.batch, self.nonnegative = objective, model, r, batch, nonnegative
        self.head = flat(seen.head) if seen.head else np.zeros(0)
        self.whole = float(np.linalg.norm(flat(seen)))
        left, values, right = np.linalg.svd(seen.first, full_matrices=False)
        self.basis = left[:, :r]  # [p, r] U
        self.sizes = np.linalg.norm(self.basis, axis=1)
        self.inside = values[:r, None] * right[:r]  # [r, h], G = U times it
        self.bright = self.basis[np.argsort(-self.sizes)[: _PIXELS if nonnegative else 0]]

    def solve(self, whole: bool) -> Recovered:
        """From each start lengths and labels, then matching, until the gradient fits; `whole`: r = B."""
        best = np.inf, np.zeros((self.r, 0))
        for edges in self._starts():
            if best[0] > ALL_FIT and np.linalg.cond(edges) < 1e8:
                best = min(best, self._matched(edges), key=lambda guess: guess[0])
        residual, mixing = best
        sure = whole and residual < ALL_FIT and np.linalg.norm(self._below(mixing)) < 100 * ALL_FIT
        return Recovered((self.basis @ mixing).T, bool(sure))

    def _starts(self) -> Iterator[Array]:
        """[r, r] rows of M^-1, up to their lengths: the edges of the cone, and random bright features."""
        edges = self._edges() if self.nonnegative else None
        if edges is not None:
            yield edges
            yield self._narrowed(edges)
        rng = np.random.default_rng(0)
        for _ in range(STARTS if self.batch <= EASY_BATCH else 0):
            chosen = rng.choice(len(self.sizes), self.r, replace=False, p=self.sizes**2 / (self.sizes**2).sum())
            yield self.basis[chosen] + 1e-3 * rng.standard_normal((self.r, self.r))

    def _edges(self) -> Array | None:
        """[r, r] extreme rays of the cone of U's rows."""
        from scipy.optimize import linprog

        bright, r = self.sizes > 1e-4 * self.sizes.max(), self.r
        unit = self.basis[bright] / self.sizes[bright, None]
        # a plane that all rays cross: the largest t with unit @ c >= t
        upper = np.concatenate([-unit, np.ones((len(unit), 1))], axis=1)
        plane = linprog([0.0] * r + [-1.0], upper, np.zeros(len(unit)), bounds=[(-1, 1)] * r + [(None, 1)])
        if plane.status != 0 or not plane.x[r] > 0:
            return None
        points = unit / (unit @ plane.x[:r])[:, None]
        left, chosen = points, []
        for _ in range(r):
            chosen.append(int(np.argmax((left**2).sum(axis=1))))
            away = left[chosen[-1]]
            left = left - np.outer(left @ away, away) / max(away @ away, 1e-300)
        edges: Array = points[chosen]
        return edges

    def _narrowed(self, edges: Array) -> Array:
        """[r, r] the rows of M^-1 that span the narrowest cone around U's rows, from rows near them.

        The determinant of M is as large as it can be while features are not negative and each sample's sum to 1: by
        linear programs, column after column.
        """
        from scipy.optimize import linprog

        total, mixing, volume = self.basis.sum(axis=0), np.linalg.pinv(edges), 0.0
        floor = np.zeros(len(self.basis))
        mixing /= total @ mixing
        for j in np.tile(np.arange(self.r), CYCLES):
            if not np.linalg.cond(mixing) < 1e12:
                return edges
            grown = linprog(  # of column j, from which the determinant grows as from no other column there
                -np.linalg.inv(mixing)[j], -self.basis, floor, total[None], [1.0], bounds=(None, None)
            )
            if grown.status != 0:
                return edges
            mixing[:, j] = grown.x
            if j == self.r - 1:
                before, volume = volume, abs(float(np.linalg.det(mixing)))
                if volume <= before * (1 + 1e-9):
                    break
        return np.linalg.inv(mixing)

    def _matched(self, edges: Array) -> tuple[float, Array]:
        """(relative mismatch, M): lengths and labels sample by sample, then least squares, and labels again."""
        from scipy.optimize import least_squares

        mixing, labels = np.linalg.inv(edges), np.empty(self.r, np.int64)
        slopes = edges @ self.inside * self.batch  # [r, h] of each sample's own loss, up to its length
        for j in range(self.r):
            along = self.basis @ mixing[:, j]
            best = explain(self.objective, self.model, along, slopes[j], self.nonnegative)[0]
            mixing[:, j] *= best.length
            labels[j] = best.label
        unit, each = self.basis.T @ self.model.first, np.arange(_classes(self.model))

        def slope(mixing: Array, labels: Array, weight: float) -> Slope:
            return self.objective.slope(self.model.head, mixing.T @ unit, labels, np.full(self.r, weight))

        def mismatch(mixing: Array, labels: Array) -> Array:
            seen = slope(mixing, labels, 1 / self.batch)
            head = flat(seen.head) - self.head if len(self.head) else self.head
            return np.concatenate([(mixing @ seen.scores - self.inside).reshape(-1), head]) / self.whole

        def wrong(numbers: Array, labels: Array) -> Array:
            mixing = numbers.reshape(self.r, -1)
            return np.concatenate([mismatch(mixing, labels), _WEIGHT * self._below(mixing)])

        best_yet = float(np.linalg.norm(mismatch(mixing, labels))), mixing
        for _ in range(3):
            if best_yet[0] < ALL_FIT or np.linalg.cond(mixing) > 1e10:
                break
            end = least_squares(wrong, mixing.reshape(-1), max_nfev=60, ftol=1e-12, xtol=1e-12, args=(labels,))
            mixing = end.x.reshape(self.r, -1)
            found = float(np.linalg.norm(mismatch(mixing, labels))), mixing
            best_yet, before = min(best_yet, found, key=lambda guess: guess[0]), labels
            wanted = np.linalg.pinv(mixing) @ self.inside * self.batch  # slopes that M implies
            away = [((slope(mixing, np.full(self.r, y), 1.0).scores - wanted) ** 2).sum(axis=1) for y in each]
            labels = np.argmin(away, axis=0)
            if (labels == before).all():
                break
        return best_yet

    def _below(self, mixing: Array) -> Array:
        """[q r] negative parts of bright features, relative to the norm of each sample."""
        result: Array = np.minimum(self.bright @ (mixing / np.linalg.norm(mixing, axis=0)), 0).reshape(-1)
        return result
