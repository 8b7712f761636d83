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
from numpy.typing import NDArray

from mpifed.algorithms.reveals import MeanGradient
from mpifed.audit.findings import EACH, SUM, AttackResult
from mpifed.audit.recording import Replay
from mpifed.core.record import Array, bare_leaves
from mpifed.maths.objectives import NeuralNetwork
from mpifed.maths.objectives.torch_model import TorchNetwork, built
from mpifed.maths.problem import Problem

MOST_CLIENTS = 16  # that are attacked individually
LARGEST_BATCH = 10  # most rows of a minibatch that inversion separates
LARGEST = 2**26  # most numbers in the true rows that the result is compared with
EXACT = 1e-2  # relative error, after the best scaling, below which a row counts as recovered
NOISE = 0.1  # largest error of a recognizable row by the range of values in the true rows, as of 20 dB
STEPS, RATE = 1000, 0.1  # of Adam; the rate falls to zero
_ROUNDING = 1e-5  # relative size of singular values that may come from rounding to float32


class Target(NamedTuple):
    """A gradient that an attacker has, and the auditor's ground truth."""

    seen: str  # EACH or SUM
    mean: MeanGradient
    batch: int  # over so many rows
    columns: NDArray[np.int64]
    rows: list[Array]  # numbers, among all, of those that entered, or may have; and of as many of the same clients


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
        for play in plays[:1] + plays[1:][-1:]:
            total = replay.of_sum(play)
            uploads = [replay.of_client(play, client) for client in sorted(play.uploads)[:MOST_CLIENTS]]
            for received in filter(None, (*uploads, total)):
                clients, columns = received.clients, received.columns
                held = {len(shards[client].columns) for client in clients}
                for mean in replay.revealed(received, MeanGradient):
                    whole = len(clients) > 1 if mean.parts else held == {len(columns)}
                    if not whole or (mean.first and play is not plays[0]):
                        continue
                    entered, strangers = list[Array](), list[Array]()
                    for client in clients:
                        inside = play.rows.get(client, np.zeros(shards[client].samples, dtype=bool))
                        entered.append(shards[client].rows[inside])
                        strangers.append(shards[client].rows[~inside][: inside.sum()])
                    rows = [np.unique(np.concatenate(each)) for each in (entered, strangers)]
                    batch = mean.batch or len(rows[0])
                    if batch * len(columns) <= LARGEST:
                        yield Target(SUM if received is total else EACH, mean, batch, columns, rows)


def _attacked(replay: Replay, name: str, targets: Sequence[Target]) -> AttackResult:
    """How many rows are recovered, against how many of as many rows of the same clients that did not enter."""
    few = {client: np.arange(min(shard.samples, 50)) for client, shard in replay.shards.items()}
    nonnegative = all((replay.features(*some) >= 0).all() for some in few.items())  # as of images: public knowledge
    counts = np.zeros((2, 2), int)  # recovered and recognizable, of rows that entered and of others
    if isinstance(replay.problem.objective, NeuralNetwork):
        targets = [*targets[:1], *targets[1:][-1:]]  # each takes its time
    for target in targets:
        rows = rows_behind(replay.problem, target.mean, target.batch, nonnegative)
        truth, strangers = (replay.full_rows(at)[:, target.columns] for at in target.rows)
        if len(rows) and len(truth):
            apart = _distances(strangers, truth).min(axis=1) > EXACT  # no duplicates
            counts += match(rows, truth), match(rows, strangers[apart])
    of, ((good, close), (chance, near)) = sum(target.batch for target in targets), counts.tolist()
    text = f"{good} of {of} rows recovered, up to their length; and {chance} of as many rows outside the minibatch"
    text += f"; {close} more are recognizable, and {near} outside" if close else ""
    success = good > chance + 3 * np.sqrt(chance)  # more than matches of other rows explain
    success |= close > near + 3 * np.sqrt(near + 1)  # rows of a class are similar, too
    return AttackResult(name, targets[0].seen, text, True, bool(success), good, of)


def _distances(some: Array, others: Array) -> Array:
    """[m, n] the distances between rows after the best scaling, of either sign, relative to their lengths."""
    one, other = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300) for rows in (some, others))
    distances: Array = np.sqrt(np.maximum(1 - (one @ other.T) ** 2, 0))
    return distances


def match(estimates: Array, rows: Array) -> tuple[int, int]:
    """How many of distinct `rows` [m, p] are recovered in `estimates` [f, p], and how many more are recognizable.

    Each estimate is assigned to one row. Among many rows with few features any estimate is near a row by chance:
    compare with the rows of the minibatch, and also with as many that did not take part.
    """
    from scipy.optimize import linear_sum_assignment

    if not len(rows):
        return 0, 0
    distances = _distances(estimates, rows)
    found, at = linear_sum_assignment(distances)
    errors = distances[found, at]
    noise = errors * np.linalg.norm(rows[at], axis=1) / np.sqrt(rows.shape[1])
    recovered = errors < EXACT
    return int(recovered.sum()), int((~recovered & (errors < 0.3) & (noise <= NOISE * np.ptp(rows))).sum())


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
    from scipy.optimize import linprog

    sizes, r = np.linalg.norm(basis, axis=1), basis.shape[1]
    bright = sizes > 1e-4 * sizes.max()
    unit = basis[bright] / sizes[bright, None]
    # a plane that all rays cross: the largest t with unit @ c >= t
    upper = np.concatenate([-unit, np.ones((len(unit), 1))], axis=1)
    plane = linprog([0.0] * r + [-1.0], upper, np.zeros(len(unit)), bounds=[(-1, 1)] * r + [(None, 1)])
    if plane.status or plane.x[r] <= 0:
        return np.zeros((0, len(basis)))
    points = unit / (unit @ plane.x[:r])[:, None]
    left, chosen = points, list[int]()
    for _ in range(r):
        chosen.append(int(np.argmax((left**2).sum(axis=1))))
        away = left[chosen[-1]]
        left = left - np.outer(left @ away, away) / max(away @ away, 1e-300)
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
