"""Shared by algorithms for cells: clients hold a part of the rows and of the columns, up to all of either.

A sample's score is the sum of its holders' partial scores. What belongs to a sample alone, its loss and its conjugate,
is known to all of its holders alike, and counted once: by the first of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial, reduce
from typing import Any, ClassVar, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import DTypeLike

from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.certificate import STEP
from mpifed.algorithms.functions import constrains, refused, squares_alone
from mpifed.algorithms.measure import Columns, FirstNumbers, Measure
from mpifed.core.exchange import Exchange, Field, OwnRecord
from mpifed.core.holdings import Holdings, Placed, by_columns, span
from mpifed.core.record import ABSENT, AnyRecord, Array, Record, beside, namespace
from mpifed.core.round import Round
from mpifed.data.block import Block, ClientData, Piece
from mpifed.maths.arrays import index, power_of_two
from mpifed.maths.certificates import ROUNDING, dual_value
from mpifed.maths.objectives import Parameters, penalty
from mpifed.maths.problem import Problem, model_template

# --- what a block's n clients do with their rows --------------------------------------------------------------------

# Numbers of a client's samples stand in arrays [n, S], as long as the largest of the block; what lies beyond a client's
# own means nothing.


class ByRows(NamedTuple):
    """One number for each sample, summed over its holders."""

    value: Array  # Placed [n, N]


class ByColumns(NamedTuple):
    """X' values, one number for each feature, summed over its holders."""

    pulled: Array  # Placed [n, p]


@by_columns("w")
class Point(NamedTuple):
    """Broadcast: weights of the columns."""

    w: Array  # [p] to each client its own columns


def ask_nothing(server: Record, now: Round) -> tuple[()]:
    """An empty broadcast."""
    return ()


def own_part(values: Array, shard: ClientData) -> Array:
    """[p_i, ...] the client's columns of `values` [p, ...]."""
    return values[index(values, span(shard.columns))]


def of_pieces(block: Block, compute: Callable[[Piece, int], Array]) -> list[Array]:
    """n arrays [s_i, ...] that `compute` makes of the rows of each client, piece by piece, and of its position."""
    each = ([compute(X, i) for _, X in shard.pieces(block.dtype)] for i, shard in enumerate(block.shards))
    return [parts[0] if len(parts) == 1 else block.xp.concatenate(parts) for parts in each]


def partial_scores(w: Array, block: Block) -> list[Array]:
    """n arrays [s_i] or [s_i, h] in the dtype of `w` [p] or [p, h]: X w of a client's rows, in its own columns."""
    own = [w[index(w, at)] for at in block.columns]
    return of_pieces(block, lambda X, i: X @ own[i])


def pulled(problem: Problem, values: Array, block: Block) -> Placed:
    """[n, p] X' values, in the clients' own columns, of a value [n, S] of every row of a client, in their dtype."""
    pairs = zip(values, block.shards, strict=True)
    pieces = ((X.T @ own[at] for at, X in shard.pieces(block.dtype)) for own, shard in pairs)
    return placed_by_columns(problem, [reduce(operator.add, parts) for parts in pieces], block)


def places(problem: Problem, block: Block) -> list[Array | slice]:
    """n times the numbers of the client's samples among all."""
    return [problem.rows.of(shard.client) for shard in block.shards]


def placed_by_rows(problem: Problem, values: Iterable[Array], block: Block) -> Placed:
    """Values [n, S, ...] of the clients' own samples, at their positions among all samples."""
    own = [row[: shard.samples] for row, shard in zip(values, block.shards, strict=True)]
    return Placed(own, places(problem, block), problem.samples)


def placed_by_columns(problem: Problem, values: Sequence[Array], block: Block) -> Placed:
    """Values [p_i, ...] of the clients' own features, at their positions among all features."""
    return Placed(values, block.columns, problem.features)


def padded(values: Iterable[Array], width: int) -> Array:
    """[n, width, ...] the clients' arrays [s_i, ...], with zeros beyond."""
    values = list(values)
    table = namespace(values[0]).zeros((len(values), width, *values[0].shape[1:]), values[0].dtype)
    for row, value in zip(table, values, strict=True):
        row[: len(value)] = value
    return table


def own_rows(problem: Problem, values: Array, block: Block, width: int) -> Array:
    """[n, width, ...] each client's samples of `values` [N, ...]."""
    return padded((values[index(values, at)] for at in places(problem, block)), width)


_tables = WeakKeyDictionary[Block, dict[object, Array]]()  # what stays as it is, as long as there is its block


def labels(block: Block, width: int, dtype: DTypeLike) -> Array:
    """[n, width] the clients' classes or targets; read-only."""
    tables, key = _tables.setdefault(block, {}), (width, dtype)
    if key not in tables:
        tables[key] = padded((shard.y.astype(dtype) for shard in block.shards), width)
    return tables[key]


def holder_shares(problem: Problem, like: Array, block: Block) -> Array:
    """[n, S] 1 / the number of the holders of a client's samples, in place and dtype as `like` [n, S]; read-only."""
    tables, key = _tables.setdefault(block, {}), (problem, like.shape[1], like.dtype)
    if key not in tables:
        shares = (beside(like, 1 / problem.rows.holders[at], like.dtype) for at in places(problem, block))
        tables[key] = padded(shares, like.shape[1])
    return tables[key]


@lru_cache(maxsize=1024)
def counted(problem: Problem, client: int) -> Array | slice:
    """Positions among the client's samples of those of which it is the first holder."""
    return span(np.flatnonzero(problem.rows.first[problem.rows.of(client)] == client))


def summed_once(problem: Problem, block: Block, compute: Callable[..., Array], *tables: Array) -> Array:
    """[n, ...] what `compute` makes of each client's labels and its part of `tables` [n, S, ...].

    It gets those samples that the client counts: each sample once.
    """
    sums = []
    for i, shard in enumerate(block.shards):
        at = index(shard.y, counted(problem, shard.client))
        sums.append(compute(shard.y[at], *(table[i, : shard.samples][at] for table in tables)))
    return block.xp.stack(sums)


# --- inner products of all rows ---------------------------------------------------------------------------------------


def products(problem: Problem, name: str, fields: ByRows, ask: Callable[..., Point], keeps: str = "") -> Exchange:
    """The exchange by which clients, whose states have `scores` [n, S, ...], receive x.w of their samples."""
    answer = partial(answer_products, problem)
    return Exchange(name, fields, ask, answer, hear=partial(hear_rows, problem, "scores"), keeps=keeps)


def answer_products(
    problem: Problem, clients: AnyRecord, broadcast: Point, block: Block, now: Round
) -> tuple[AnyRecord, ByRows]:
    """Algorithm 2 of HyFDCA: partial inner products, from the client's own columns."""
    return clients, ByRows(placed_by_rows(problem, partial_scores(broadcast.w, block), block))


def hear_rows(problem: Problem, to: str, clients: OwnRecord, total: ByRows, block: Block, now: Round) -> OwnRecord:
    """Stores the sums of the client's samples in that array [n, S, ...] of its state."""
    return clients._replace(**{to: own_rows(problem, total.value, block, getattr(clients, to).shape[1])})


def answer_pulled(
    problem: Problem, of: str, clients: OwnRecord, broadcast: tuple[()], block: Block, now: Round
) -> tuple[OwnRecord, ByColumns]:
    """X' times that array [n, S] of the states."""
    return clients, ByColumns(pulled(problem, getattr(clients, of), block))


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
    pairs = int((problem.rows.holders == 2).sum())
    if pairs:
        yield (
            f"{pairs} samples have two holders: each of them learns what the other one sent of them, as the sum less "
            "its own"
        )


# --- checks ---------------------------------------------------------------------------------------------------------


def check_cells(problem: Problem) -> list[str]:
    """Errors of the job for algorithms on cells, one message each."""
    return squares_alone(problem) + refused(
        (
            constrains(problem),
            "[[constraint]], [minimize]: this algorithm minimizes the mean loss and the penalty alone; leave them out, "
            "or take ssca with data split by rows or columns",
        ),
        (
            problem.measured_rows is not None,
            f"[record] evaluate_rows = {problem.measured_rows}: sums over cells are over all rows; leave the key out",
        ),
    )


def check_duals(problem: Problem) -> list[str]:
    """Errors of the job for algorithms on the dual problem, one message each; those of `check_cells` included."""
    objective = problem.objective
    return check_cells(problem) + refused(
        (
            objective.dual is None,
            f"[model] name: {type(objective).__name__} has no dual problem here; take hinge, squared-hinge, logistic "
            "or least-squares",
        ),
        (
            not objective.l2 > 0,
            f"[model] l2 = {objective.l2:g}: the dual problem needs l2 above 0; the paper's lambda is 2 l2",
        ),
        (
            problem.privacy is not None,
            "[privacy]: no noise is known that makes dual variables private; leave the table out, or take fedavg, "
            "scaffold or fedpdm, for data split by rows",
        ),
    )


# --- fields, primal and dual -----------------------------------------------------------------------------------------


def lambda_n(problem: Problem) -> float:
    """lambda N, as in w(alpha) = X'alpha / (lambda N)."""
    return float(2 * problem.objective.l2 * problem.samples)


def on_grid(problem: Problem, held: Holdings, largest: float, *, to_holders: bool = False, degree: int = 1) -> Field:
    """A field of values up to `largest` for who holds what, as fine as their sum has room for in an integer."""
    scale = largest * max(2.0**-48, power_of_two(problem.clients) * 2.0**-55)
    return Field((held.length,), scale, largest, held=held, to_holders=to_holders, degree=degree)


def by_rows(problem: Problem, largest: float, degree: int = 1) -> ByRows:
    """The field of numbers of samples, up to `largest`."""
    return ByRows(on_grid(problem, problem.rows, largest, to_holders=True, degree=degree))


def most_rows(problem: Problem) -> float:
    """A power of two: no client has more rows."""
    return power_of_two(problem.most)


def field_of_losses(problem: Problem, shape: tuple[int, ...] = (), wide: bool = False) -> Field:
    """A field of sums over a client's rows of losses, or of conjugates, or of what they differ by."""
    return Field(shape, 2.0**-30, most_rows(problem) * 2**10, degree=2, wide=wide)


def largest_score(problem: Problem) -> float:
    """A bound of x.w: for rows of norm 1 and |alpha| <= 1 it is 1 / lambda; four times as much, and 16 at least."""
    return power_of_two(4 * max(4.0, 1 / (2 * problem.objective.l2)))


def largest_dual(problem: Problem) -> float:
    """A bound of what one client adds to an alpha: 16 where alpha is bounded, by 1, else 1024."""
    return 2.0**10 if np.isinf(problem.dual.high) else 2.0**4


def field_of_pulled(problem: Problem) -> Field:
    """The field of X'alpha in one client's columns: its largest entry may be 4."""
    return on_grid(problem, problem.columns, most_rows(problem) * largest_dual(problem) / 4)


# --- what is measured ------------------------------------------------------------------------------------------------

# (the algorithm's client states, `for_duals` of the broadcast, their block) -> [n, S], whose sum over a sample's
# holders is its alpha; their classes are the algorithm's own
Duals: TypeAlias = Callable[[Any, Any, Block], Array]


class CellsLosses(NamedTuple):
    """A client's upload of sums over samples, each counted once."""

    sums: Array  # [n, J] of the losses; of those at w = 0, a unit; with a dual value of l*(-alpha)


class CellsClients(NamedTuple):
    """State of the clients while they are evaluated."""

    states: Record  # the algorithm's own states
    scores: Array  # [n, S, h] float64
    alpha: Array  # [n, S] float64; ABSENT without a dual value


class CellsEvaluation(NamedTuple):
    """State of the server during an evaluation."""

    model: Parameters  # `first` in float64
    for_duals: Record
    sums: Array = ABSENT  # [J] of `CellsLosses`
    pulled: Array = ABSENT  # [p] X'alpha; so it stays without a dual value


class Grid(Algorithm):
    """The base of algorithms for cells: measures losses. Models have no intercepts."""

    intercepts: ClassVar[bool] = False  # each parameter belongs to a column of the data

    def of_weights(self, w: Array) -> Parameters:
        """The model of one score with the weights w [p]."""
        return Parameters(w.astype(self.problem.dtype)[:, None], ())

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
    rows, outputs, width = most_rows(problem), model_template(problem).first.shape[1], problem.most
    of_rows = partial(Field, held=problem.rows, to_holders=True, wide=True)
    losses = CellsLosses(Field((2 if duals is None else 3,), STEP, rows * 2**10, degree=2, wide=True))
    primal = Field((problem.features,), 2.0**-44 * rows, 2.0**4 * rows, held=problem.columns, wide=True)

    def start(server: Record) -> CellsEvaluation:
        model = algorithm.model(server)
        return CellsEvaluation(model._replace(first=model.first.astype(np.float64)), for_duals(server))

    def answer_losses(
        clients: CellsClients, head: Record, block: Block, now: Round
    ) -> tuple[CellsClients, CellsLosses]:
        def compute(y: Array, scores: Array, *alpha: Array) -> Array:
            values = [problem.objective.loss(head, z, y) for z in (scores, block.xp.zeros_like(scores))]
            values += [problem.dual.conjugate(own, y) for own in alpha]
            return block.xp.stack([each.sum() for each in values])

        if duals is not None:
            clients = clients._replace(alpha=problem.dual.feasible(clients.alpha, labels(block, width, np.float64)))
        known = filter(len, (clients.scores, clients.alpha))
        return clients, CellsLosses(summed_once(problem, block, compute, *known))

    exchanges = [
        products(
            problem, "all-products", ByRows(of_rows((problem.samples, outputs), 2.0**-32, 2.0**17)),
            lambda server, now: Point(server.model.first),
        ),
        Exchange(
            "all-losses", losses, lambda server, now: server.model.head, answer_losses,
            lambda server, total, now: server._replace(sums=total.sums),
        ),
    ]  # fmt: skip
    if duals is not None:

        def ask(server: CellsEvaluation, now: Round) -> Record:
            return server.for_duals

        all_duals = Exchange(
            "all-duals", ByRows(of_rows((problem.samples,), 2.0**-36, 2.0**12)), ask,
            lambda clients, sent, block, now: (
                clients,
                ByRows(placed_by_rows(problem, duals(clients.states, sent, block).astype(np.float64), block)),
            ),
            hear=partial(hear_rows, problem, "alpha"),
        )  # fmt: skip
        all_primal = Exchange(
            "all-primal", ByColumns(primal), ask_nothing, partial(answer_pulled, problem, "alpha"),
            lambda server, total, now: server._replace(pulled=total.pulled), clear=not private,
        )  # fmt: skip
        exchanges = [all_duals, *exchanges, all_primal]

    def start_clients(block: Block, states: Record) -> CellsClients:
        zeros = np.zeros((len(block.clients), width, outputs))
        return CellsClients(states, zeros, ABSENT if duals is None else zeros[..., 0])

    return (Measure(tuple(exchanges), start, partial(_reported, algorithm, primal.scale), start_clients),)


def _reported(
    algorithm: Algorithm, step: float, server: Record, measured: CellsEvaluation, first: FirstNumbers
) -> Columns:
    """Losses, and a dual value with its gap: NaN where the grid of exact sums may have changed them too much.

    `step` is that of X'alpha where it is measured. Of w(alpha) only its length counts, for which lambda / 2
    ||w(alpha)||^2 <= P(0) - D(alpha): with w(alpha) off by e, D is off by lambda / 2 e (2 ||w(alpha)|| + e) at most.
    """
    problem, (model, _, sums, pulled) = algorithm.problem, measured
    l2, N, target = problem.objective.l2, problem.samples, problem.target_scale
    loss, at_zero, *conjugates = (sums / N).tolist()
    objective = loss + penalty(problem.objective, model)
    columns: Columns = {"train_loss": loss, "objective": objective, **algorithm.report(server)}
    dual = columns.get("dual")
    for conjugate in conjugates:
        dual = dual_value(l2, pulled.astype(np.float64) / lambda_n(problem), conjugate, 1)
    if dual is None:
        return columns
    gap = objective - dual
    if not len(pulled):  # it is of sums that were received in the rounds
        step = field_of_pulled(problem).scale
    off = step * target * float(np.linalg.norm(problem.columns.holders)) / (4 * N * l2**0.5)  # l2^0.5 e
    lost = off * (2 * abs(at_zero - dual) ** 0.5 + off) + STEP * target**2 * problem.clients / N
    if lost > ROUNDING * max(at_zero, gap):
        dual = gap = np.nan
    return {**columns, "dual": dual, "duality_gap": gap}
