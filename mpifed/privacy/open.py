"""What a guard between clients and everybody else gives, and the one of jobs without `[privacy]`: `Open`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.exchange import Block, OwnRecord
from mpifed.core.record import Array, Record, bare_leaves, map_leaves, namespace, read_only, writable
from mpifed.core.refusals import Refusal
from mpifed.core.round import Round
from mpifed.core.vector import Layout
from mpifed.data.block import Batch, Features
from mpifed.maths.arrays import column
from mpifed.maths.optimizers import ClientOptimizer
from mpifed.maths.parameters import Parameters
from mpifed.maths.privacy.release import Release
from mpifed.maths.problem import Problem, Weighted, mean, start_model, weighted_fields

Floats = NDArray[np.float64]


class Minibatch(NamedTuple):
    """Rows of each of n clients, for one local step."""

    X: Features  # [n, s, p]
    y: Array  # [n, s]
    weights: Array  # [n, s] what a row counts in the mean, 1 / batch; where gradients are clipped, in the sum: 1
    keys: tuple[Array, ...]  # of the passes, see `Objective.pass_keys`

    @property
    def arguments(self) -> tuple[Any, ...]:  # features, arrays and keys
        """What `Objective.gradient` takes after the model."""
        return self.X, self.y, self.weights, *self.keys


class LocalWork(NamedTuple):
    """What a guard must know of a method's local steps, x <- x - step (gradient + pull x) + what is public."""

    taken: int  # in a round
    batch: int
    optimizer: ClientOptimizer
    pull: float = 0.0
    gain: float | None = None  # an upload is gain (y_i - x) + what is public; None: nobody knows
    uniform: bool = False  # whether each client counts as much as any other in a mean
    remembers: bool = False  # whether clients keep states, from which uploads follow
    hidden: str = ""  # in words, what of these states was not released; nothing where empty
    several: bool = False  # whether an upload has several parts, or is of another shape than the model


@dataclass(frozen=True, eq=False)
class Open:
    """Lets everything through."""

    problem: Problem
    layout: Layout
    like: Parameters  # a model's shapes
    work: LocalWork

    draws: ClassVar[str] = "once"  # how minibatches of a round are drawn: "once", "secretly", "anew" for each step
    quiet: ClassVar[Mapping[str, str]] = {}  # for `np.errstate`: what of local steps there is no warning of
    clips: ClassVar[bool] = False  # whether gradients are clipped, and so minibatches weighted as sums

    @property
    def dtype(self) -> str:
        """The dtype of local steps."""
        return self.problem.dtype

    @cached_property
    def _models(self) -> dict[int, Array]:
        """Initial ones, by the seed: every block of clients asks for it."""
        return {}

    def initial(self, now: Round) -> Array:
        """[d] the model before round 1."""
        if now.seed not in self._models:
            self._models[now.seed] = read_only(self.layout.flat(start_model(self.problem, now)))
        return self._models[now.seed]

    def record(self, x: Array) -> Parameters:
        """The views of x [..., d]."""
        return self.layout.record(x, self.like)

    def minibatch(self, batch: Batch, keys: tuple[Array, ...], gain: float) -> Minibatch:
        """Rows of a local step, with what each counts, all the same, times `gain` in a mean."""
        weight = 1.0 if self.clips else 1 / batch.y.shape[1] * gain
        return Minibatch(*batch, namespace(batch.y).full(batch.y.shape, weight), keys)

    def put_step(
        self, at: Parameters, batch: Minibatch, step: float, r: int, clients: Array, now: Round, out: Parameters
    ) -> None:
        """Put -step times the mean gradient of minibatch r at `at`, without penalties, into `out`, leaves [n, ...]."""
        self.problem.objective.gradient(at, *batch.arguments, out=out)

    def check_model(self, model: Array, step: float) -> None:
        """See that the public model, from which local steps start, is small enough beside what is rounded."""

    @cached_property
    def weights(self) -> Floats:
        """[N] all clients' weights in a mean: their rows, relative to the mean client's."""
        return np.ones(self.problem.clients) if self.work.uniform else self.problem.weights

    def fields(self, like: Record, degrees: Record) -> Weighted:
        """Of an upload whose parts have the shapes of `like`, and these degrees in the targets of a regression."""
        return weighted_fields(self.problem, like, degrees=degrees)

    def shown(self, block: Block) -> Block:
        """What of the clients a method's hooks may read beside their changes."""
        return block

    def leave(self, uploaded: OwnRecord, step: float, block: Block, now: Round) -> tuple[OwnRecord, OwnRecord]:
        """The uploads [n, ...] as they leave their clients, and as all others see them, for states."""
        return uploaded, uploaded

    def weighted(self, left: OwnRecord, clients: Array, *kept: Record) -> Weighted:
        """What has left the clients, times their weights: in place, where nothing in `kept` is in the same memory."""
        weight = self.weights[clients]
        if (weight == 1).all():
            return Weighted(left, weight)
        others = [leaf for part in (left, *kept) for leaf in bare_leaves(part)]

        def scaled(leaf: Array) -> Array:
            xp = namespace(leaf)
            if leaf.dtype.kind != "f":  # as counts, which no weight may round
                leaf = leaf.astype("f8")
            # `left` has it once
            apart = writable(leaf) and sum(xp.may_share_memory(leaf, other) for other in others) <= 1
            return xp.multiply(leaf, column(weight, leaf), out=leaf if apart else None)

        return Weighted(map_leaves(scaled, left), weight)

    def present(self, total: Weighted) -> float:
        """The total weight of the participating clients."""
        return float(total.weight)

    def arrive(self, total: Weighted, step: float, now: Round) -> OwnRecord:  # of the class of `total.value`
        """The mean upload."""
        return mean(total)

    def released(self) -> Release:
        """What each round releases."""
        raise NotImplementedError

    def conflicts(self) -> Iterator[Refusal]:
        """What of the job does not go with this guard."""
        return iter(())
