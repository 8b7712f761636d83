"""Reconstruction of a sample from the gradient of a minibatch of one sample.

Scores are linear in the features, so a sample x gives the feature weights the gradient x delta', delta being the
derivative of its loss by its scores: a matrix of rank one, with x for its columns. Its length follows from
delta = delta(x, y), which a party that knows the model can solve for the length and the label. For networks without
biases of the head this was observed by L. T. Phong, Y. Aono, T. Hayashi, L. Wang, S. Moriai, "Privacy-Preserving Deep
Learning via Additively Homomorphic Encryption" (IEEE TIFS 2018), and the label in the signs of the last layer's
gradient by B. Zhao, K. R. Mopuri, H. Bilen, "iDLG" (2020, arXiv:2001.02610).

The attacker is given the model and the mean gradient of one client's minibatch (`mpifed.audit.reveals`), and
does not see the data. Shapes: p features, h scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mpifed.core.record import Array, Record, bare_leaves, flat, leaves, map_leaves
from mpifed.maths.objectives import Objective, Parameters

ONE = 1e-3  # largest ratio of the second to the first singular value of a matrix of rank one
FITS = 1e-2  # relative mismatch below which a sample explains a gradient
EQUAL = 1e-3  # relative difference below which two lengths are equal
SHARP = 0.1  # least sharpness of a length that the tried lengths resolve
_LENGTHS = np.logspace(-3, 8, 264)  # tried, in units of the gradient's own length
_AROUND = np.linspace(-1, 1, 17)  # lengths that are tried next, in units of a width that falls
_SHARPNESS_STEP = 1e-6


class Reconstruction(NamedTuple):
    """A reconstructed sample, and the attacker's assessment without the truth."""

    row: Array  # [p] float64; of norm 1 if its length is not known
    scaled: bool  # whether the length is known
    signed: bool  # whether the sign is: two-class models cannot distinguish (x, 0) from (-x, 1)
    claimed: bool  # whether the gradient has rank one, as for one sample, unlike sums over different samples


class Length(NamedTuple):
    """A length and label of a sample along a known direction that explain a gradient."""

    length: float  # negative: against the direction
    label: int
    residual: float
    sharpness: float  # change of the residual per relative change of the length: near 0, the length is undetermined


def reconstruct(
    objective: Objective, model: Parameters, gradient: Parameters, *, nonnegative: bool = False
) -> Reconstruction:
    """Reconstruct the sample behind a gradient.

    Parameters
    ----------
    objective : the job's model class
    model : parameters at which the gradient was taken
    gradient : mean over the minibatch, without penalties
    nonnegative : whether the attacker knows that features are nonnegative, as those of images
    """
    seen: Parameters = map_leaves(np.float64, gradient)
    left, values, _ = np.linalg.svd(dense_first(seen.first), full_matrices=False)
    along = left[:, 0] if left[:, 0].sum() >= 0 else -left[:, 0]
    if not values[0] > 0:
        return Reconstruction(np.zeros(len(along)), False, False, False)
    # with one score the rank is always one
    single = bool(len(values) > 1 and values[1] < ONE * values[0])
    if not objective.classifies:  # for any length, a target explains the gradient
        return Reconstruction(along, False, nonnegative, single)
    ways = explain(objective, map_leaves(np.float64, model), along, along @ seen.first, seen.head, nonnegative)
    best = ways[0]
    others = [way for way in ways if way.residual < max(10 * best.residual, 1e-6)]
    several = any(way.sharpness < SHARP or abs(abs(way.length / best.length) - 1) > EQUAL for way in others)
    if several or not best.residual < FITS:  # several lengths fit, or none does
        return Reconstruction(along, False, nonnegative, False)
    signed = nonnegative or all(way.length * best.length > 0 for way in others)
    return Reconstruction(along * best.length, True, signed, single)


def explain(
    objective: Objective, model: Parameters, along: Array, slope: Array, head: Record, nonnegative: bool
) -> list[Length]:
    """Lengths and labels of a sample along `along` [p], best first, whose loss has the derivative `slope` / length.

    Parameters
    ----------
    model : float64
    slope : [h] the gradient's coefficients along that direction
    head : gradient by the head's parameters, or () if it is not known
    """
    unit, target, size = along @ model.first, flat(head) if head else np.zeros(0), np.linalg.norm(slope)
    whole = np.sqrt(size**2 + target @ target)

    def mismatch(lengths: Array, labels: Array) -> Array:
        """[m, h + d] relative gradient mismatch for m lengths and labels."""
        scores = lengths[:, None, None] * unit
        head_of_each = map_leaves(lambda leaf: np.broadcast_to(leaf, (len(lengths), *leaf.shape)), model.head)
        derivative = objective.slope(head_of_each, scores, labels[:, None], np.ones((len(lengths), 1)))
        seen = [lengths[:, None] * derivative.scores[:, 0]]
        seen += [leaf.reshape(len(lengths), -1) for leaf in bare_leaves(derivative.head)] if head else []
        result: Array = (np.concatenate(seen, axis=1) - np.concatenate([slope, target])) / whole
        return result

    ways = []
    for label in range(classes(model)):
        for sign in (1,) if nonnegative else (1, -1):
            sizes = np.linalg.norm(mismatch(sign * size * _LENGTHS, np.full(len(_LENGTHS), label)), axis=1)
            ways += [(sizes[i], sign, label, i) for i in _valleys(sizes)]
    if not ways:
        return []
    _, signs, labels, at = (np.array(values) for values in zip(*sorted(ways)[:6], strict=True))
    logs = np.log(size * _LENGTHS[at])

    def near(steps: Array) -> Array:
        """[ways, m, h + d] relative mismatch where the logarithms of the lengths change by `steps` [m]."""
        lengths = signs[:, None] * np.exp(logs[:, None] + steps)
        return mismatch(lengths.reshape(-1), np.repeat(labels, len(steps))).reshape(len(logs), len(steps), -1)

    width = 0.2  # at first two of the tried lengths, and the last time 2e-10
    while width > 1e-10:
        steps = width * _AROUND
        logs = logs + steps[np.linalg.norm(near(steps), axis=2).argmin(axis=1)]
        width /= 4
    below, ends, above = np.moveaxis(near(_SHARPNESS_STEP * np.array([-1.0, 0.0, 1.0])), 1, 0)
    residuals = np.linalg.norm(ends, axis=1)
    sharpness = np.linalg.norm(above - below, axis=1) / (2 * _SHARPNESS_STEP)
    found = zip((signs * np.exp(logs)).tolist(), labels.tolist(), residuals.tolist(), sharpness.tolist(), strict=True)
    return sorted((Length(*way) for way in found), key=lambda way: way.residual)


def classes(model: Parameters) -> int:
    """Number of classes, from the shapes of the model."""
    head = dict(leaves(model.head))
    last = head.get("second", head.get("output.weight", model.first))
    outputs = int(last.shape[-1])
    return 2 if outputs == 1 else outputs


def dense_first(first: Array) -> Array:
    """The gradient by feature weights as [p, h] in float64."""
    return np.asarray(first, dtype=np.float64).reshape(len(first), -1)


def _valleys(values: Array) -> Iterator[int]:
    """Positions of local minima."""
    padded = np.concatenate([[np.inf], values, [np.inf]])
    yield from np.flatnonzero((padded[1:-1] <= padded[:-2]) & (padded[1:-1] <= padded[2:])).tolist()
