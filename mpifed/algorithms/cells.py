"""Shared by algorithms for cells: clients hold a part of the rows and of the columns, up to all of either.

A sample's score is the sum of its holders' partial scores. What belongs to a sample alone, its loss and its conjugate,
is known to all of its holders alike, and counted once: by the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from mpifed.algorithms.certificate import STEP
from mpifed.algorithms.functions import constrains, squares_alone
from mpifed.algorithms.horizontal import model_template, power_of_two
from mpifed.core.algorithm import Algorithm
from mpifed.core.exchange import Columns, Exchange, Field, FirstNumbers, Measure, Placed, Problem
from mpifed.core.holdings import Holdings, span
from mpifed.core.record import ABSENT, Array, Record, by_columns, index, namespace
from mpifed.core.round import Round
from mpifed.data.block import Block, ClientData
from mpifed.maths.certificates import ROUNDING, dual_value
from mpifed.maths.objectives import Parameters, penalty

# --- what a client does with its rows -------------------------------------------------------------------------------


def own_rows(shard: ClientData) -> Array | slice:
    """Positions of the client's samples among all samples."""
    return span(shard.rows)


def own_columns(shard: ClientData) -> Array | slice:
    """Positions of the client's features among all features."""
    return span(shard.columns)


def own_part(values: Array, shard: ClientData) -> Array:
    """[p_i, ...] the client's columns of `values` [p, ...]."""
    return values[index(values, own_columns(shard))]


def partial_scores(shard: ClientData, w: Array, dtype: str) -> Array:
    """X w of all rows of a client, from its own columns.

    Parameters
    ----------
    w : [p_i] or [p_i, h], of the client's columns
    dtype : of X

    Returns
    -------
    [s_i] or [s_i, h] in the dtype of `w`
    """
    scores = namespace(w).empty((shard.samples, *w.shape[1:]), w.dtype)
    for at, X in shard.pieces(dtype):
        scores[at] = X @ w
    return scores


def pulled(shard: ClientData, values: Array, dtype: str) -> Array:
    """X' values: [p_i] from one value [s_i] of every row of a client, in the dtype of the values."""
    total: Array | None = None
    for at, X in shard.pieces(dtype):
        piece = X.T @ values[at]
        total = piece if total is None else total + piece
    return namespace(values).zeros(shard.features, values.dtype) if total is None else total


@lru_cache(maxsize=1024)
def counted(problem: Problem, client: int) -> Array | slice:
    """Positions among the client's samples of those of which it is the first holder."""
    rows = problem.rows
    first: Array = rows.first[rows.of(client)]
    positions = np.flatnonzero(first == client)
    return slice(None) if len(positions) == len(first) else positions


def by_first(problem: Problem, values: Sequence[Array], block: Block) -> list[Array]:
    """Values that all holders of a sample know, as summands: the first holder's counts, those of others are zero."""
    shares = [namespace(value).zeros_like(value) for value in values]
    for out, value, shard in zip(shares, values, block.shards, strict=True):
        once = index(value, counted(problem, shard.client))
        out[once] = value[once]
    return shares


class ByRows(NamedTuple):
    """One number for each sample, summed over its holders."""

    value: Array  # Placed [n, N]


def ask_nothing(server: Record, now: Round) -> tuple[()]:
    """An empty broadcast."""
    return ()


def once_a_group(block: Block, alike: bool, make: Callable[[int], Array]) -> list[Array]:
    """n arrays, the i-th of them `make(i)`, to be read only.

    Where they are `alike` for clients who hold the same rows, it is made once for those who stand side by side.
    """
    arrays: list[Array] = []
    for i, shard in enumerate(block.shards):
        again = alike and i > 0 and shard.rows is block.shards[i - 1].rows
        arrays.append(arrays[-1] if again else make(i))
    return arrays


def told_rows(total: Array, block: Block) -> list[Array]:
    """n views or copies [s_i, ...]: each client's samples of `total` [N, ...], read-only."""
    return once_a_group(block, True, lambda i: total[index(total, own_rows(block.shards[i]))])


def placed_by_rows(problem: Problem, values: Sequence[Array], block: Block) -> Placed:
    """Values [s_i, ...] of the clients' own samples, at their positions among all samples."""
    return Placed(values, [own_rows(shard) for shard in block.shards], problem.samples)


def placed_by_columns(problem: Problem, values: Sequence[Array], block: Block) -> Placed:
    """Values [p_i, ...] of the clients' own features, at their positions among all features."""
    return Placed(values, [own_columns(shard) for shard in block.shards], problem.features)


# --- whom the paper trusts -------------------------------------------------------------------------------------------


def trust_of_duals(problem: Problem, sums: str, clear: bool, plain: bool) -> Iterator[str]:
    """Which parts of HyFDCA's trust model hold in a job, in words.

    Parameters
    ----------
    sums : what the server receives besides w
    clear : whether these sums travel in the clear in every channel
    plain : whether the channel is the plain one
    """
    whose = "of every client" if plain or clear else "summed over the holders of each column"
    never = "; in the plain channel it sees dual variables and inner products, too" if plain else ""
    yield (
        f"HyFDCA's trust model: the server knows w, and {sums}, {whose}; dual variables and inner products are for "
        f"the clients who hold the samples alone{never}"
    )
    holders = problem.rows.holders
    if (holders == 2).any():
        yield (
            f"{int((holders == 2).sum())} samples have two holders: each of them learns what the other one sent of "
            "them, as the sum less its own"
        )


# --- arrays of unequal lengths in one state -------------------------------------------------------------------------


def padded(values: Iterable[Array], width: int) -> Array:
    """[n, width] the clients' arrays [s_i], with zeros beyond; a view where one client fills it all."""
    values = list(values)
    if len(values) == 1 and len(values[0]) == width:
        return values[0][None]
    table = namespace(values[0]).zeros((len(values), width, *values[0].shape[1:]), values[0].dtype)
    for row, value in zip(table, values, strict=True):
        row[: len(value)] = value
    return table


def unpadded(values: Array, block: Block) -> list[Array]:
    """n views [s_i] of what `padded` has put together."""
    return [row[:count] for row, count in zip(values, block.counts.tolist(), strict=True)]


# --- checks ---------------------------------------------------------------------------------------------------------


def check_cells(problem: Problem) -> list[str]:
    """Errors of the job for algorithms on cells, one message each."""
    wrong = squares_alone(problem)
    if constrains(problem):
        wrong.append(
            "[[constraint]], [minimize]: this algorithm minimizes the mean loss and the penalty alone; leave them out, "
            "or take ssca with data split by rows or columns"
        )
    if problem.measured_rows is not None:
        wrong.append(
            f"[record] measured_rows = {problem.measured_rows}: sums over cells are over all rows; leave the key out"
        )
    return wrong


def check_duals(problem: Problem) -> list[str]:
    """Errors of the job for algorithms on the dual problem, one message each; those of `check_cells` included."""
    objective, wrong = problem.objective, check_cells(problem)
    kind = type(objective).__name__
    if objective.dual is None:
        wrong.append(
            f"[model] name: {kind} has no dual problem here; take hinge, squared-hinge, logistic or least-squares"
        )
    if not objective.l2 > 0:
        wrong.append(f"[model] l2 = {objective.l2:g}: the dual problem needs l2 above 0; the paper's lambda is 2 l2")
    if problem.privacy is not None:
        wrong.append(
            "[privacy]: no noise is known that makes dual variables private; leave the table out, or take fedavg, "
            "scaffold or fedpdm, for data split by rows"
        )
    return wrong


# --- fields, primal and dual -----------------------------------------------------------------------------------------


def lambda_n(problem: Problem) -> float:
    """lambda N, as in w(alpha) = X'alpha / (lambda N)."""
    return float(2 * problem.objective.l2 * problem.samples)


def on_grid(
    problem: Problem,
    shape: tuple[int, ...],
    largest: float,
    held: Holdings | None = None,
    *,
    to_holders: bool = False,
    degree: int = 1,
) -> Field:
    """A field of values up to `largest`, as fine as the sum over all clients leaves room for in one integer."""
    scale = largest * max(2.0**-48, power_of_two(problem.clients) * 2.0**-55)
    return Field(shape, scale, largest, held=held, to_holders=to_holders, degree=degree)


def largest_score(problem: Problem) -> float:
    """A bound of x.w: for rows of norm 1 and |alpha| <= 1 it is 1 / lambda; four times as much, and 16 at least."""
    return power_of_two(4 * max(4.0, 1 / (2 * problem.objective.l2)))


def bend(problem: Problem) -> float | None:
    """The second derivative of l*, where alpha has no bound; None where it has one, as the loss's slopes have."""
    first, second, third = problem.dual.conjugate(np.array([1.0, 2.0, 3.0]), np.ones(3)).tolist()
    return third - 2 * second + first if np.isfinite(third) else None


def largest_dual(problem: Problem) -> float:
    """A bound of what one client adds to an alpha: 16 where alpha is bounded, by 1, else 1024."""
    return 2.0**4 if bend(problem) is None else 2.0**10


def largest_loss(problem: Problem) -> float:
    """A bound of the sum of a client's losses; what is larger counts as this, as it is far above that of w = 0."""
    return power_of_two(float(problem.counts.max())) * 2.0**16


def largest_pulled(problem: Problem) -> float:
    """A bound of X'alpha in one client's columns: its largest entry may be 4."""
    return power_of_two(float(problem.counts.max())) * largest_dual(problem) / 4


# (the algorithm's client states, `for_duals` of the broadcast, their block) -> n arrays [s_i], whose sum over a
# sample's holders is its alpha; their classes are the algorithm's own
Duals: TypeAlias = Callable[[Any, Any, Block], Sequence[Array]]


@by_columns("first")
class MeasuredModel(NamedTuple):
    """Broadcast: the model, and what the clients need to compute their shares of alpha."""

    first: Array  # [p, h] float64, to each client its own columns
    head: Record
    for_duals: Record


class Products(NamedTuple):
    """A client's part of the scores and of alpha, summed over the holders of a sample."""

    scores: Array  # Placed [n, N, h]
    alpha: Array  # Placed [n, N], or ABSENT


class CellsLosses(NamedTuple):
    """A client's upload of losses, each sample counted once."""

    loss: Array  # [n] sum over the samples
    at_zero: Array  # [n] the same at w = 0: a unit
    conjugate: Array  # [n] sum of l*(-alpha), or ABSENT


class CellsPrimal(NamedTuple):
    """A client's upload of X'alpha."""

    pulled: Array  # Placed [n, p] X'alpha


class CellsClients(NamedTuple):
    """State of the clients while they are evaluated."""

    states: Record  # the algorithm's own states
    scores: Array  # [n, S, h] float64
    alpha: Array  # [n, S] float64; or ABSENT


class CellsEvaluation(NamedTuple):
    """State of the server during an evaluation."""

    question: MeasuredModel
    sums: CellsLosses
    primal: CellsPrimal  # ABSENT without a dual value


class Grid(Algorithm):
    """The base of algorithms for cells: measures losses. Models have no intercepts."""

    intercepts: ClassVar[bool] = False  # each parameter belongs to a column of the data

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss and objective over all rows."""
        return measures_of_cells(self)


def measures_of_cells(
    algorithm: Algorithm,
    duals: Duals | None = None,
    for_duals: Callable[[Any], Record] = lambda server: (),  # of the server's state, of any class
    private: bool = True,
) -> tuple[Measure, ...]:
    """Losses over all rows, in float64; with `duals` the dual value D(alpha) and the gap P(w) - D(alpha) too.

    Any alpha of all clients gives a bound below the optimum, whoever took part in finding it: so P - D is never less
    than the distance of the model's P from the optimum.

    Parameters
    ----------
    duals : the clients' shares of alpha, from the algorithm's client states and what `for_duals` broadcasts
    for_duals : (server) -> what the clients must receive to compute these shares
    private : whether X'alpha travels in the job's channel; if not, in the clear
    """
    problem = algorithm.problem
    outputs = model_template(problem).first.shape[1]
    rows, width = power_of_two(float(problem.counts.max())), int(problem.counts.max())
    sums = Field((), STEP, rows * 2**10, degree=2, wide=True)
    scores = Field((problem.samples, outputs), 2.0**-32, 2.0**17, held=problem.rows, to_holders=True, wide=True)
    of_rows = Field((problem.samples,), 2.0**-36, 2.0**12, held=problem.rows, to_holders=True, wide=True)
    alpha = of_rows if duals is not None else ABSENT
    summed = Field((problem.features,), 2.0**-44 * rows, 2.0**4 * rows, held=problem.columns, wide=True)

    def start(server: Record) -> CellsEvaluation:
        model = algorithm.model(server)
        return CellsEvaluation(
            MeasuredModel(model.first.astype(np.float64), model.head, for_duals(server)), ABSENT, ABSENT
        )

    def start_clients(block: Block, states: Record) -> CellsClients:
        zeros = np.zeros((len(block.clients), width, outputs))
        return CellsClients(states, zeros, zeros[..., 0] if duals is not None else ABSENT)

    exchanges = (
        Exchange(
            "all-products", Products(scores, alpha), _ask_model, partial(all_products, problem, duals),
            hear=partial(_hear_products, problem),
        ),
        Exchange(
            "all-losses", CellsLosses(sums, sums, sums if duals is not None else ABSENT), _ask_head,
            partial(_all_losses, problem), lambda server, total, now: server._replace(sums=total),
        ),
    )  # fmt: skip
    primal = Exchange(
        "all-primal", CellsPrimal(summed), ask_nothing, partial(_all_primal, problem),
        lambda server, total, now: server._replace(primal=total), clear=not private,
    )  # fmt: skip
    all_exchanges = exchanges if duals is None else (*exchanges, primal)
    return (Measure(all_exchanges, start, partial(_reported, algorithm, summed.scale), start_clients),)


def _ask_model(server: CellsEvaluation, now: Round) -> MeasuredModel:
    return server.question


def _ask_head(server: CellsEvaluation, now: Round) -> Record:
    return server.question.head


def all_products(
    problem: Problem, duals: Duals | None, clients: CellsClients, broadcast: MeasuredModel, block: Block, now: Round
) -> tuple[CellsClients, Products]:
    scores = [partial_scores(shard, own_part(broadcast.first, shard), block.dtype) for shard in block.shards]
    alpha: Array = ABSENT
    if duals is not None:
        shares = [share.astype(np.float64) for share in duals(clients.states, broadcast.for_duals, block)]
        alpha = placed_by_rows(problem, shares, block)
    return clients, Products(placed_by_rows(problem, scores, block), alpha)


def _hear_products(problem: Problem, clients: CellsClients, total: Products, block: Block, now: Round) -> CellsClients:
    width = clients.scores.shape[1]
    measured = clients._replace(scores=padded(told_rows(total.scores, block), width))
    if not len(clients.alpha):
        return measured
    dual = problem.dual
    alpha = zip(told_rows(total.alpha, block), block.shards, strict=True)
    return measured._replace(alpha=padded((dual.feasible(values, shard.y) for values, shard in alpha), width))


def _all_losses(
    problem: Problem, clients: CellsClients, broadcast: Record, block: Block, now: Round
) -> tuple[CellsClients, CellsLosses]:
    xp, losses, at_zero, conjugates = block.xp, [], [], []
    for i, shard in enumerate(block.shards):
        once, rows, y = index(shard.y, counted(problem, shard.client)), slice(0, shard.samples), shard.y
        scores = clients.scores[i, rows]
        losses.append(problem.objective.loss(broadcast, scores, y)[once].sum())
        at_zero.append(problem.objective.loss(broadcast, xp.zeros_like(scores), y)[once].sum())
        if len(clients.alpha):
            conjugates.append(problem.dual.conjugate(clients.alpha[i, rows], y)[once].sum())
    return clients, CellsLosses(xp.stack(losses), xp.stack(at_zero), xp.stack(conjugates) if conjugates else ABSENT)


def _all_primal(
    problem: Problem, clients: CellsClients, broadcast: tuple[()], block: Block, now: Round
) -> tuple[CellsClients, CellsPrimal]:
    pairs = zip(block.shards, unpadded(clients.alpha, block), strict=True)
    sums = [pulled(shard, alpha, block.dtype) for shard, alpha in pairs]
    return clients, CellsPrimal(placed_by_columns(problem, sums, block))


def _reported(
    algorithm: Algorithm, step: float, server: Record, measured: CellsEvaluation, first: FirstNumbers
) -> Columns:
    """Losses, and a dual value with its gap: NaN where the grid of exact sums may have changed them too much.

    `step` is that of X'alpha where it is measured. Of w(alpha) only its length counts, for which lambda / 2
    ||w(alpha)||^2 <= P(0) - D(alpha): with w(alpha) off by e, D is off by lambda / 2 e (2 ||w(alpha)|| + e) at most.
    """
    problem, total, primal = algorithm.problem, measured.sums, measured.primal
    model = Parameters(measured.question.first, measured.question.head)
    loss = float(total.loss) / problem.samples
    columns: dict[str, float] = {"train_loss": loss, "objective": loss + penalty(problem.objective, model)}
    columns |= algorithm.report(server)
    l2, N, target = problem.objective.l2, problem.samples, problem.target_scale
    if len(primal):
        w = primal.pulled.astype(np.float64) / lambda_n(problem)
        columns["dual"] = dual_value(l2, w, float(total.conjugate), N)
    if "dual" in columns:
        columns["duality_gap"] = gap = columns["objective"] - columns["dual"]
        if not len(primal):  # it is of sums that were received in the rounds
            step = on_grid(problem, (), largest_pulled(problem)).scale
        off = step * target * float(np.linalg.norm(problem.columns.holders)) / (4 * N * l2**0.5)  # l2^0.5 e
        at_zero = float(total.at_zero) / N
        lost = off * (2 * abs(at_zero - columns["dual"]) ** 0.5 + off) + STEP * target**2 * problem.clients / N
        if lost > ROUNDING * max(at_zero, gap):
            columns |= dict.fromkeys(("dual", "duality_gap"), np.nan)
    return dict(columns)
