"""The task that a run solves: its public facts, and means over its rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from mpifed.core.exchange import Field, OwnRecord
from mpifed.core.holdings import Holdings
from mpifed.core.record import AnyRecord, Array, Integers, Record, map_leaves
from mpifed.maths.arrays import power_of_two
from mpifed.maths.objectives import layout_of
from mpifed.maths.parameters import Parameters
from mpifed.maths.privacy.settings import Privacy
from mpifed.text import shown

if TYPE_CHECKING:
    from mpifed.core.round import Round
    from mpifed.core.vector import Layout
    from mpifed.maths.compression import Compression
    from mpifed.maths.duals import Dual
    from mpifed.maths.objectives import LinearScores, Objective
    from mpifed.maths.regularizers import Regularizer
    from mpifed.maths.terms import Constraint, Term


def fields_like(
    record: AnyRecord, scale: float = 2.0**-40, bound: float = 2.0**10, sender: int | None = None, wide: bool = False
) -> AnyRecord:
    """A field in the shape of each leaf of `record`."""
    return map_leaves(lambda leaf: Field(np.shape(leaf), scale, bound, sender=sender, wide=wide), record)


class Weighted(NamedTuple):
    """A client's part of a mean: clients upload sums and weights, whose sums `mean` divides."""

    value: OwnRecord  # already times the weight
    weight: Array  # [n] by default its number of rows relative to the mean client: `problem.weights[block.clients]`


def weighted_fields(
    problem: Problem, like: Record, scale: float = 2.0**-40, bound: float = 2.0**10, degrees: Record | None = None
) -> Weighted:
    """Fields of a `Weighted` whose unweighted values lie within `bound`; `degrees` of its leaves, 1 by default."""
    heaviest = power_of_two(problem.heaviest)
    degrees = map_leaves(lambda leaf: 1, like) if degrees is None else degrees

    def field(leaf: Array, degree: int) -> Field:
        return Field(np.shape(leaf), scale * heaviest, bound * heaviest, degree=degree)

    return Weighted(map_leaves(field, like, degrees), Field((), 2.0**-40, heaviest, degree=0))


def mean(total: Weighted) -> OwnRecord:  # of the class of `total.value`
    """The mean over the samples of the participating clients."""
    return map_leaves(lambda leaf: leaf / leaf.dtype.type(total.weight), total.value)


@dataclass(frozen=True, eq=False)
class Problem:
    """The public facts of the task: the objective, and the size of each client's data."""

    objective: Objective  # the model, and the loss that it has
    split: str  # "rows", "columns" or "grid"
    counts: Array  # [N] rows of each client
    samples: int  # distinct rows of all clients
    features: int  # p, of all clients
    outputs: int  # classes, or 1 for a regression
    dtype: str = "float32"  # of models and of local arithmetic
    minimize: Term | None = None  # whose mean is minimized, beside the objective's penalty
    constraints: tuple[Constraint, ...] = ()  # terms and their limits
    measured_rows: int | None = None  # how many rows are drawn to be measured; all when absent
    regularizer: Regularizer | None = None  # added to what is minimized
    clients_per_round: int | None = None  # on average, where each comes by chance; all when absent
    privacy: Privacy | None = None  # its noise multiplier settled
    rows: Holdings = cast("Holdings", None)  # who holds which; of every run  # noqa: RUF009
    columns: Holdings = cast("Holdings", None)  # who holds which; of every run  # noqa: RUF009
    start: Parameters | None = None  # the model of round 0; by default the objective's own
    target_scale: float = 1.0  # a power of two near the size of real targets, by which grids are coarser and wider
    names: Sequence[str] = ()  # [N] of the clients, where they have some
    stragglers: float = 0.0  # the share of a round's clients who upload after a part of their local work
    compression: Compression | None = None  # of uploads
    steps_in_time: Integers | None = None  # [N] local steps that clients have time for in a round; all when absent
    versions: int = 0  # how many models clients may have begun from who are at work at one time; 0: all from the newest

    def name_of(self, client: int) -> str:
        """A client as messages call it."""
        return f"client {shown(self.names[client]) if self.names else client}"

    @property
    def clients(self) -> int:
        """N, the number of all clients."""
        return len(self.counts)

    @property
    def private(self) -> Privacy:
        """The `[privacy]` settings of a job that has some."""
        assert self.privacy is not None
        return self.privacy

    def with_noise(self, multiplier: float) -> Problem:
        """The same with this noise multiplier."""
        return replace(self, privacy=replace(self.private, noise_multiplier=multiplier))

    @property
    def dual(self) -> Dual:
        """The dual of the loss, for algorithms that check that there is one."""
        assert self.objective.dual is not None  # `Algorithm.check` says so
        return self.objective.dual

    @property
    def linear(self) -> LinearScores:
        """The objective, for algorithms that need scores that are linear in the features."""
        return cast("LinearScores", self.objective)  # data split by columns or cells are refused with others

    @cached_property
    def layout(self) -> Layout:
        """Where the parts of a model stand in a vector."""
        return layout_of(self.objective, model_template(self))

    @cached_property
    def offsets(self) -> Array:
        """[N + 1] number of rows of all clients before each."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def most(self) -> int:
        """The number of rows of the client with the most."""
        return int(self.counts.max())

    @cached_property
    def heaviest(self) -> float:
        """The largest weight of a client."""
        return float(self.weights.max())

    @cached_property
    def weights(self) -> Array:
        """[N] number of rows of each client relative to the mean: 1 everywhere when shards are equal."""
        alike = not any(self.counts.strides)  # a view of one number, as this is then
        weights = (self.counts[:1] if alike else self.counts) * (self.clients / self.counts.sum())
        return np.broadcast_to(weights, self.counts.shape)


def start_model(problem: Problem, now: Round) -> Parameters:
    """The model of round 0: that of `[model] start`, or the objective's own, a function of the job's seed."""
    if problem.start is not None:
        return map_leaves(np.copy, problem.start)
    return problem.objective.start(problem.features, problem.outputs, now.rng("model"), problem.dtype)


@lru_cache(maxsize=8)  # every block of clients asks for it
def model_template(problem: Problem) -> Parameters:
    """A model in the right shapes, for the fields of an exchange: zeros that take no memory."""
    model, rng = problem.start, np.random.default_rng(0)
    if model is None:
        model = problem.objective.start(problem.features, problem.outputs, rng, problem.dtype)
    return map_leaves(lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape), model)
