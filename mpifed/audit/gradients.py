"""Attacks on gradients that the server received from single clients, or in their sum, compared with the true rows.

Scores that are linear in the features have the gradient G = X' D by the feature weights, D [B, h] being the derivatives
of the mean loss by the scores.

- One row x: G = x delta' has rank one, with x for its columns, up to the length (L. T. Phong, Y. Aono, T. Hayashi,
  L. Wang, S. Moriai, IEEE TIFS 2018). A network whose first layer sees all features and has biases gives the row: a
  unit's gradient is (derivative by its input) x the row, and that of its bias the derivative itself.
- Few rows: while D has B independent rows, the samples lie in the span of G's columns, X' = U M. Features that are not
  negative have the rows of U in the cone of the rows of M^-1; where each sample has a feature that the others lack, as
  images of few bright pixels, these are its edges, by successive projection (N. Gillis, S. A. Vavasis, TPAMI 2014).
- Networks of PyTorch: rows and labels are optimized until the cosine of their gradient and the observed one is largest
  (J. Geiping, H. Bauermeister, H. Droege, M. Moeller, "Inverting Gradients", NeurIPS 2020, arXiv:2003.14053): by Adam
  along signs, without their total variation, which knows what images look like.

The attacker is given the model, the mean gradient and the number of rows; the data are not seen. Shapes: p features,
B samples, of which f are found, up to their lengths and signs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.findings import EACH, SUM, AttackResult
from mpifed.audit.recording import Replay
from mpifed.core.record import Array, Integers, bare_leaves
from mpifed.maths.objectives import NeuralNetwork
from mpifed.maths.objectives.torch_model import TorchNetwork, built
from mpifed.maths.problem import Problem

MOST_CLIENTS = 16  # that are attacked individually
LARGEST_BATCH = 10  # most rows of a minibatch that inversion separates
LARGEST = 2**26  # most numbers in the true rows that the result is compared with
EXACT = 1e-2  # relative error, after the best scaling, below which a row counts as recovered
MATCHED = 0.3  # the same of rows whose gradients were matched: images can be recognized
STEPS, RATE = 1000, 0.1  # of Adam; the rate falls to zero
_ROUNDING = 1e-5  # relative size of singular values that may come from rounding to float32


class Target(NamedTuple):
    """A gradient that an attacker has, and the auditor's ground truth."""

    seen: str  # EACH or SUM
    mean: MeanGradient
    batch: int  # over so many rows
    columns: Integers
    rows: list[Integers]  # numbers, among all, of those that entered, or may have; and of as many of the same clients


def gradient_attacks(replay: Replay) -> Iterator[AttackResult]:
    """Reconstruction of one row and inversion of few, from single clients' uploads as they can be read, and the sum."""
    targets = list(_targets(replay))
    for name, sizes in (("reconstruction", range(2)), ("inversion", range(2, LARGEST_BATCH + 1))):
        for seen in (EACH, SUM):
            here = [target for target in targets if target.seen == seen]
            if chosen := [target for target in here if target.batch in sizes]:
                yield _attacked(replay, name, chosen)
            else:
                why = f"gradients of {here[0].batch} rows, for which it is not made" if here else "no gradient to read"
                yield AttackResult(name, seen, why)


def _targets(replay: Replay) -> Iterator[Target]:
    """Gradients of whole rows, in the first and last occurrence of each exchange."""
    shards = replay.shards
    for exchange in replay.algorithm.exchanges:
        plays = [play for play in replay.plays if play.exchange.name == exchange.name and play.uploads]
        for play in dict.fromkeys((*plays[:1], *plays[-1:])):
            for client in (*sorted(play.uploads)[:MOST_CLIENTS], None):
                if (received := replay.received(play, client)) is None:
                    continue
                clients, columns = received.clients, received.columns
                held = {len(shards[each].columns) for each in clients}
                for mean in replay.revealed(received, MeanGradient):
                    whole = len(clients) > 1 if mean.parts else held == {len(columns)}
                    if not whole or (mean.first and play is not plays[0]):
                        continue
                    entered, strangers = list[Integers](), list[Integers]()
                    for each in clients:
                        inside = play.rows.get(each, np.zeros(shards[each].samples, dtype=bool))
                        entered.append(shards[each].rows[inside])
                        strangers.append(shards[each].rows[~inside][: inside.sum()])
                    rows = [np.unique(np.concatenate(numbers)) for numbers in (entered, strangers)]
                    batch = mean.batch or len(rows[0])
                    if batch * len(columns) <= LARGEST:
                        yield Target(SUM if client is None else EACH, mean, batch, columns, rows)


def _attacked(replay: Replay, name: str, targets: Sequence[Target]) -> AttackResult:
    """How many rows are recovered, against how many of as many rows of the same clients that did not enter."""
    few = np.unique(np.concatenate([shard.rows[:50] for shard in replay.shards.values()]))
    nonnegative = bool((replay.full_rows(few) >= 0).all())  # as of images: public knowledge
    good, chance, network = 0, 0, isinstance(replay.problem.objective, NeuralNetwork)
    within = MATCHED if network and name == "inversion" else EXACT
    if network:
        targets = [*targets[:1], *targets[1:][-1:]]  # each takes its time
    for target in targets:
        rows = rows_behind(replay.problem, target.mean, target.batch, nonnegative)
        truth, strangers = (replay.full_rows(at)[:, target.columns] for at in target.rows)
        if len(rows) and len(truth):
            apart = _distances(strangers, truth).min(axis=1) > EXACT  # no duplicates
            good += match(rows, truth, within)
            chance += match(rows, strangers[apart], within)
    of = sum(target.batch for target in targets)
    text = f"{good} of {of} rows recovered, up to their length; and {chance} of as many rows outside the minibatch"
    # more than matches of other rows explain; rows of a class are similar, too
    success = good > chance + 3 * np.sqrt(chance + (within > EXACT))
    return AttackResult(name, targets[0].seen, text, True, bool(success), good, of)


def _distances(some: Array, others: Array) -> Array:
    """[m, n] the distances between rows after the best scaling, of either sign, relative to their lengths."""
    one, other = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300) for rows in (some, others))
    distances: Array = np.sqrt(np.maximum(1 - (one @ other.T) ** 2, 0))
    return distances


def match(estimates: Array, rows: Array, within: float = EXACT) -> int:
    """How many of distinct `rows` [m, p] are recovered in `estimates` [f, p], up to this relative error.

    Each estimate is assigned to one row. Among many rows with few features any estimate is near a row by chance:
    compare with the rows of the minibatch, and also with as many that did not take part.
    """
    from scipy.optimize import linear_sum_assignment

    distances = _distances(estimates, rows)
    return int((distances[linear_sum_assignment(distances)] < within).sum())


def rows_behind(problem: Problem, mean: MeanGradient, batch: int, nonnegative: bool) -> Array:
    """The rows [f, p] of a minibatch; none where no attack is built in.

    `nonnegative`: whether the attacker knows that features are not negative, as those of images.
    """
    none = np.zeros((0, problem.features))
    if isinstance(problem.objective, NeuralNetwork):
        head = bare_leaves(mean.gradient.head)
        for both in pairwise(head) if batch == 1 else ():
            for w, b in (both, both[::-1]):
                if b.ndim == 1 and w.ndim == 2 and {*w.shape} == {len(b), problem.features} and b.any():
                    weights = w if w.shape == (len(b), problem.features) else w.T  # as of JAX
                    unit = int(np.argmax(np.abs(b)))
                    return np.asarray(weights[[unit]], np.float64)
        matches = isinstance(problem.objective, TorchNetwork) and problem.objective.loss_name == "cross-entropy"
        return _matched(problem, mean, batch, nonnegative) if matches else none
    first = np.float64(mean.gradient.first)
    left, values, _ = np.linalg.svd(first.reshape(len(first), -1), full_matrices=False)
    rank = int(np.sum(values > values[0] * _ROUNDING))
    if batch > 1:
        return _edges(left[:, :rank]) if nonnegative and 1 < rank <= batch else none
    rows: Array = left[:, : min(rank, 1)].T
    return rows


def _edges(basis: Array) -> Array:
    """[r, p] the columns of U M: rows of M^-1 are, up to their lengths, extreme rays of the cone of U's rows [p, r]."""
    from scipy.linalg import qr
    from scipy.optimize import linprog

    sizes, r = np.linalg.norm(basis, axis=1), basis.shape[1]
    bright = sizes > 1e-4 * sizes.max()
    unit = basis[bright] / sizes[bright, None]
    # one that all rays cross, near each
    plane = linprog(unit.sum(axis=0), -unit, -np.ones(len(unit)), bounds=(None, None))
    if plane.status:
        return np.zeros((0, len(basis)))
    points = unit / (unit @ plane.x)[:, None]
    chosen = qr(points.T, mode="r", pivoting=True)[1][:r]  # each the farthest from the span of those before
    rows: Array = (basis @ np.linalg.pinv(points[chosen])).T
    return rows


def _matched(problem: Problem, mean: MeanGradient, batch: int, nonnegative: bool) -> Array:
    """[B, p] rows whose gradient by a network of PyTorch has the direction of the observed one."""
    import torch

    objective, head = problem.objective, mean.model.head
    assert isinstance(objective, TorchNetwork)
    shape = objective.shape or (problem.features,)
    net = built(objective.build, 0, shape, problem.outputs).eval()
    values = [torch.tensor(leaf, dtype=torch.float32).requires_grad_() for leaf in bare_leaves(head)]
    parameters = dict(zip(head._fields, values, strict=True))
    gradient = [np.ravel(leaf) for leaf in bare_leaves(mean.gradient.head)]
    seen = torch.tensor(np.concatenate(gradient), dtype=torch.float32)
    x = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    y = torch.zeros(batch, problem.outputs, requires_grad=True)  # logits of the labels
    adam = torch.optim.Adam([x, y], RATE)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, STEPS)
    for _ in range(STEPS):
        z = torch.func.functional_call(net, parameters, (x,))
        loss = torch.nn.functional.cross_entropy(z, y.softmax(1))
        slopes = torch.autograd.grad(loss, values, create_graph=True)
        whole = torch.cat([slope.reshape(-1) for slope in slopes])
        cosine = torch.nn.functional.cosine_similarity(whole, seen, dim=0)
        x.grad, y.grad = (-slope for slope in torch.autograd.grad(cosine, (x, y)))
        x.grad.sign_()
        adam.step()
        falling.step()
        if nonnegative:
            x.data.clamp_(min=0)
    rows: Array = x.detach().numpy().reshape(batch, -1).astype(np.float64)
    return rows
