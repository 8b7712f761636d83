"""The samples behind the gradient of a small minibatch.

The gradient by the feature weights is G = X' D, D [B, h] being the derivatives of the mean loss by the scores. While B
samples have B independent rows of D, the samples lie in the span of G's columns, X' = U M, and only the B x B numbers
of M are unknown, whatever the number of features. They are computed in two stages:

- rays: features are not negative, so the rows of U lie in the cone of the rows of M^-1. Where each sample has a feature
  that the others lack, as images of few bright pixels have, these are its edges, computed by successive projection
  (N. Gillis, S. A. Vavasis, IEEE TPAMI 2014); where these do not fit, the narrowest cone is used, computed by linear
  programs (K. Huang, X. Fu, N. D. Sidiropoulos, "Anchor-Free Correlated Topic Modeling", NIPS 2016). Lengths and labels
  follow sample by sample, as in `reconstruction`.
- matching: M is optimized until the samples' gradient is the observed one (after L. Zhu, Z. Liu, S. Han, "Deep Leakage
  from Gradients", NeurIPS 2019, but over B^2 numbers instead of B p).

While the feature weights are zero, as at the start of all linear models, D depends on labels alone, and G gives the
sums of the samples of each class, for any number of clients.

The attacker is given the model, the mean gradient of a minibatch and its size; labels are guessed. Shapes: p features,
h scores, B samples; samples with almost no slope do not contribute, and only the r others are recovered.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpifed.audit.attacks.reconstruction import classes, dense_first, explain
from mpifed.core.record import Array, flat, map_leaves
from mpifed.maths.objectives import Objective, Parameters

NOISE = 1e-5  # relative size of singular values that may come from rounding to float32
FITS = 1e-5  # relative mismatch below which samples explain a gradient
WEIGHT = 0.3  # of negative features, relative to the gradient mismatch
CYCLES = 20  # most cycles of linear programs
PIXELS = 200  # features that are constrained to be nonnegative


class Inversion(NamedTuple):
    """Recovered samples, and the attacker's assessment without the truth."""

    rows: Array  # [f, p] float64, f <= batch
    claimed: bool  # whether the attacker is sure to have recovered all samples


class _Guess(NamedTuple):
    mixing: Array  # [r, r] M
    labels: Array  # [r]
    residual: float  # relative mismatch between the observed gradient and that of the samples


def invert(
    objective: Objective, model: Parameters, gradient: Parameters, batch: int, *, nonnegative: bool, starts: int
) -> Inversion:
    """Recover the samples of a minibatch from its gradient.

    Parameters
    ----------
    objective : the job's model class
    model : parameters at which the gradient was taken
    gradient : mean over `batch` samples, more than one, without penalties: of a client's upload, or of a sum
    nonnegative : whether the attacker knows that features are not negative; otherwise there are no rays
    starts : most random mixings that are tried if the rays do not fit
    """
    parameters, seen = (map_leaves(np.float64, record) for record in (model, gradient))
    values = np.linalg.svd(dense_first(seen.first), compute_uv=False)
    rank = int(np.sum(values > NOISE * values[0])) if values[0] > 0 else 0
    if objective.classifies and rank and not parameters.first.any():
        return _class_sums(objective, parameters, seen, batch, nonnegative)
    # with too few scores the span lacks the samples
    if not objective.classifies or rank < 2 or (rank < batch and rank >= seen.first.shape[1] - 1):
        return _nothing(seen)
    problem = _Mixing(objective, parameters, seen, min(rank, batch), 1 / batch, nonnegative)
    return problem.solve(starts, rank)


def _nothing(seen: Parameters) -> Inversion:
    return Inversion(np.zeros((0, len(seen.first))), False)


def _class_sums(objective: Objective, model: Parameters, seen: Parameters, batch: int, nonnegative: bool) -> Inversion:
    """At feature weights of zero: G = sum over the classes of (sum of the class's samples / B) times d of the class."""
    outputs = classes(model)
    scores = np.zeros((1, seen.first.shape[1]))
    # [L, h] d of each class
    each = np.stack([objective.slope(model.head, scores, np.array([y]), np.ones(1)).scores[0] for y in range(outputs)])
    rank = np.linalg.matrix_rank(each)
    if rank < outputs - 1 or (rank < outputs and not nonnegative):
        return _nothing(seen)
    sums = np.linalg.lstsq(each.T, seen.first.T, rcond=None)[0] * batch  # [L, p]
    if rank < outputs:  # up to a row common to all classes (softmax)
        sums -= sums.min(axis=0)  # at every pixel, a class is assumed to be dark
    sizes = np.linalg.norm(sums, axis=1)
    there = np.flatnonzero(sizes > 1e-4 * sizes.max())
    residual = np.linalg.norm(each.T @ sums / batch - seen.first.T) / np.linalg.norm(seen.first.T)
    return Inversion(sums[there], bool(len(there) == batch and residual < FITS))


class _Mixing:
    """The search for M, for `count` samples, r, with weight `weight` each in the mean."""

    def __init__(
        self, objective: Objective, model: Parameters, seen: Parameters, count: int, weight: float, nonnegative: bool
    ) -> None:
        self.objective, self.model, self.nonnegative = objective, model, nonnegative
        self.count, self.weight = count, weight
        left, values, right = np.linalg.svd(dense_first(seen.first), full_matrices=False)
        self.basis = left[:, :count]  # [p, r] U
        sizes = np.linalg.norm(self.basis, axis=1)
        self.bright = self.basis[np.argsort(-sizes)[:PIXELS]]
        self.inside = values[:count, None] * right[:count]  # [r, h], G = U times it
        self.head = flat(seen.head) if seen.head else np.zeros(0)
        self.unit = self.basis.T @ model.first  # [r, h] scores of U's columns
        self.whole = float(np.sqrt((seen.first**2).sum() + self.head @ self.head))

    def solve(self, starts: int, rank: int) -> Inversion:
        """From each start, lengths and labels, then matching, until the gradient fits."""
        best: _Guess | None = None
        for first in self._starts(starts):
            guess = self._scaled(first)
            if guess is not None and guess.residual > FITS:
                guess = self._matched(guess)
            if guess is not None and (best is None or guess.residual < best.residual):
                best = guess
            if best is not None and best.residual < FITS:
                break
        if best is None:
            return Inversion(np.zeros((0, len(self.basis))), False)
        whole = rank == self.count == round(1 / self.weight) and np.linalg.norm(self._below(best.mixing)) < 100 * FITS
        return Inversion((self.basis @ best.mixing).T, bool(whole and best.residual < FITS))

    def _starts(self, starts: int) -> Iterator[Array]:
        """[r, r] rows of M^-1: the edges of the cone, those of the narrowest one, and of random bright features."""
        edges = self._edges() if self.nonnegative else None
        if edges is not None:
            yield edges
            yield self._narrowed(edges)
        rng, sizes = np.random.default_rng(0), (self.basis**2).sum(axis=1)
        for _ in range(starts):
            chosen = rng.choice(len(sizes), self.count, replace=False, p=sizes / sizes.sum())
            yield self.basis[chosen] + 1e-3 * rng.standard_normal((self.count, self.count))

    def _edges(self) -> Array | None:
        """[r, r] the rows of M^-1 up to their lengths: extreme rays of the cone of U's rows."""
        from scipy.optimize import linprog

        sizes = np.linalg.norm(self.basis, axis=1)
        bright = self.basis[sizes > 1e-4 * sizes.max()]
        unit = bright / np.linalg.norm(bright, axis=1, keepdims=True)
        r = self.count
        # a plane that all rays cross: the largest t with unit @ c >= t
        upper = np.concatenate([-unit, np.ones((len(unit), 1))], axis=1)
        plane = linprog(np.eye(r + 1)[r] * -1.0, upper, np.zeros(len(unit)), bounds=[(-1, 1)] * r + [(None, 1)])
        if plane.status != 0 or not plane.x[r] > 0:
            return None
        points = unit / (unit @ plane.x[:r])[:, None]
        left, chosen = points.copy(), []
        for _ in range(r):
            at = int(np.argmax((left**2).sum(axis=1)))
            if not (left[at] ** 2).sum() > 0:
                return None
            away = left[at] / np.linalg.norm(left[at])
            chosen.append(points[at])
            left = left - np.outer(left @ away, away)
        return np.stack(chosen)

    def _narrowed(self, edges: Array) -> Array:
        """[r, r] the rows of M^-1 that span the narrowest cone around U's rows, from rows near them.

        The determinant of M is as large as it can be while features are not negative and each sample's sum to 1: by
        linear programs, column after column.
        """
        from scipy.optimize import linprog

        if np.linalg.cond(edges) > 1e8:
            return edges
        total, floor = self.basis.sum(axis=0), np.zeros(len(self.basis))
        mixing = np.linalg.inv(edges)
        mixing /= total @ mixing
        volume = 0.0
        for _ in range(CYCLES):
            for j in range(self.count):
                if not np.linalg.cond(mixing) < 1e12:
                    return edges
                cofactors = np.linalg.det(mixing) * np.linalg.inv(mixing)[j]  # the determinant, linear in column j
                candidates = []
                for sign in (1, -1):
                    end = linprog(-sign * cofactors, -self.basis, floor, total[None], [1.0], bounds=(None, None))
                    if end.status == 0 and abs(cofactors @ end.x) > 0:
                        candidates.append((abs(float(cofactors @ end.x)), end.x))
                if not candidates:
                    return edges
                mixing[:, j] = max(candidates, key=lambda candidate: candidate[0])[1]
            before, volume = volume, abs(float(np.linalg.det(mixing)))
            if volume <= before * (1 + 1e-9):
                break
        return np.linalg.inv(mixing)

    def _scaled(self, edges: Array) -> _Guess | None:
        """Lengths and labels, sample by sample: `edges` are the rows of M^-1 up to their lengths."""
        if np.linalg.cond(edges) > 1e8:
            return None
        mixing, labels = np.linalg.inv(edges), np.empty(self.count, np.int64)
        slopes = edges @ self.inside / self.weight  # [r, h] of each sample's own loss, up to its length
        for j in range(self.count):
            along = self.basis @ mixing[:, j]
            ways = explain(self.objective, self.model, along, slopes[j], (), self.nonnegative)
            if not ways:
                return None
            mixing[:, j] *= ways[0].length
            labels[j] = ways[0].label
        return _Guess(mixing, labels, self._residual(mixing, labels))

    def _mismatch(self, mixing: Array, labels: Array) -> Array:
        scores, weights = mixing.T @ self.unit, np.full(self.count, self.weight)
        slope = self.objective.slope(self.model.head, scores, labels, weights)
        head = flat(slope.head) - self.head if len(self.head) else self.head
        return np.concatenate([(mixing @ slope.scores - self.inside).reshape(-1), head]) / self.whole

    def _below(self, mixing: Array) -> Array:
        """[q r] negative parts of features, relative to the norm of each sample."""
        if not self.nonnegative:
            return np.zeros(0)
        size = np.linalg.norm(mixing, axis=0)  # of the samples: U is orthonormal
        result: Array = np.minimum(self.bright @ (mixing / size), 0).reshape(-1)
        return result

    def _residual(self, mixing: Array, labels: Array) -> float:
        return float(np.linalg.norm(self._mismatch(mixing, labels)))

    def _matched(self, guess: _Guess) -> _Guess:
        """Least squares for M to match the gradient, with labels updated in between."""
        from scipy.optimize import least_squares

        best, labels, mixing = guess, guess.labels, guess.mixing
        for _ in range(3):

            def wrong(flat_mixing: Array, labels: Array = labels) -> Array:
                mixing = flat_mixing.reshape(self.count, -1)
                return np.concatenate([self._mismatch(mixing, labels), WEIGHT * self._below(mixing)])

            end = least_squares(wrong, mixing.reshape(-1), method="trf", max_nfev=60, ftol=1e-12, xtol=1e-12)
            mixing = end.x.reshape(self.count, -1)
            candidate = _Guess(mixing, labels, self._residual(mixing, labels))
            best = min(best, candidate, key=lambda guess: guess.residual)
            again = self._labels(mixing)
            if best.residual < FITS or again is None or (again == labels).all():
                break
            labels = again
        return best

    def _labels(self, mixing: Array) -> Array | None:
        """[r] for each sample, the class whose slope is nearest to that implied by M."""
        if np.linalg.cond(mixing) > 1e10:
            return None
        wanted, scores = np.linalg.inv(mixing) @ self.inside / self.weight, mixing.T @ self.unit
        away = []
        for label in range(classes(self.model)):
            y = np.full(self.count, label)
            slope = self.objective.slope(self.model.head, scores, y, np.ones(self.count)).scores
            away.append(((slope - wanted) ** 2).sum(axis=1))
        result: Array | None = np.argmin(away, axis=0)
        return result
