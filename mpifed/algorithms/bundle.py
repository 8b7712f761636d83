"""Cutting planes for clients who hold some samples and some features: a bundle method with a line search.

The mean loss R(w) = 1/N sum l_i(x_i.w) is convex: with u_i in -dl_i at any point, R(w) >= c - v.w everywhere, where
v = X'u / N and c = -1/N sum l_i*(-u_i). The server keeps such planes, minimizes lambda/2 ||w||^2 plus the largest of
them, and asks for the next plane. That minimum is the dual value D(alpha) of alpha = sum_k beta_k u_k, beta the weights
of the planes: a bound from below, so the server knows the duality gap.

The planes and their problem are those of C. H. Teo, S. V. N. Vishwanathan, A. Smola, Q. V. Le: "Bundle Methods for
Regularized Risk Minimization" (JMLR 2010); the search between the best point and the planes' minimizer is that of
V. Franc, S. Sonnenburg: "Optimized Cutting Plane Algorithm for Support Vector Machines" (ICML 2008).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
from annotated_types import Gt, Le

from mpifed.algorithms.cells import (
    ByRows,
    Grid,
    ask_nothing,
    check_duals,
    counted,
    largest_pulled,
    largest_score,
    on_grid,
    own_part,
    padded,
    partial_scores,
    placed_by_columns,
    placed_by_rows,
    pulled,
    told_rows,
    trust_of_duals,
)
from mpifed.algorithms.horizontal import model_template, power_of_two
from mpifed.core.exchange import Exchange, Field
from mpifed.core.record import Array, by_columns, index
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.simplex import least_on_simplex

# how far the search may go from the best point towards the planes' minimizer
PARTS = np.append(0.0, 2.0 ** (np.arange(-31, 1) / 4))


class Planes(NamedTuple):
    """Cutting planes R(w) >= c_k - v_k.w: the first `count` of K rows, the oldest first. Server only."""

    slopes: Array  # [K, p] v
    heights: Array  # [K] float64 c
    gram: Array  # [K, K] float64 v_k.v_l
    weights: Array  # [K] float64 beta
    count: np.int64  # type: ignore[assignment]  # no tuple's `count` is called


class BundleServer(NamedTuple):
    """The server's state."""

    best: Array  # [p] float64
    ahead: Array  # [p] float64 where the planes and the penalty are least
    part: Array  # [] float64, how far the best point has just moved to there
    bound: Array  # [] float64 the largest minimum of planes and penalty so far
    planes: Planes


class BundleClients(NamedTuple):
    """State of the clients; arrays over a client's rows are padded with zeros to the width S of the block."""

    best: Array  # [n, S] scores at the best point
    ahead: Array  # [n, S] scores at the planes' minimizer


@by_columns("w")
class PointBroadcast(NamedTuple):
    """Broadcast: the point at which the clients compute scores."""

    w: Array  # [p] to each client its own columns


class PartBroadcast(NamedTuple):
    """Broadcast: how far along the line the server moved the best point."""

    part: Array  # [] float64


class SearchUpload(NamedTuple):
    """A client's upload of the line search, each sample counted once."""

    change: Array  # [n, J] the sum of the losses at `PARTS` of the way, less that at the best point


class PlaneUpload(NamedTuple):
    """A client's upload of a cutting plane."""

    pulled: Array  # Placed [n, p] X'u
    height: Array  # [n] the sum of -l*(-u), each sample counted once


Asks: TypeAlias = Callable[[BundleServer, Round], PointBroadcast | tuple[()]]


@dataclass(frozen=True)
class Bundle(Grid):
    """Each round computes scores at the minimizer of the planes, searches the line to it, and adds a plane.

    1. `products`: the clients receive x.w at the minimizer of the planes, unless they have whole rows.
    2. `search`: the server receives the losses on the line to it from the best point, and chooses the new best point.
    3. `planes`: the server receives the plane at a point beyond it, `mix` of the rest of the way.
    """

    default_security: ClassVar[str] = "encrypted"
    needs_everybody: ClassVar[bool] = True
    why_everybody: ClassVar[str] = "a plane is a sum over all samples"
    certifies_gap: ClassVar[bool] = True

    planes: Annotated[int, Gt(1), Le(10**4)] = 30
    """Planes kept; of more, the oldest without weight is dropped, or the two of least weight become their mean, so that
    the bound never falls."""
    mix: Annotated[float, Gt(0), Le(1)] = 0.1
    """Where the next plane touches, from 0, the best point, to 1, the planes' minimizer."""
    primal: Literal["clear", "sealed"] = "sealed"
    """X'u travels sealed, as `[aggregation] security` says, or in the clear, as w does."""

    @property
    def whole(self) -> bool:
        """Whether clients have whole rows, each of its own."""
        return self.problem.split == "rows"

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """products, search, planes; without products where every client holds whole rows."""
        problem, rows = self.problem, power_of_two(float(self.problem.counts.max()))
        by_rows = on_grid(problem, (problem.samples,), largest_score(problem), problem.rows, to_holders=True)
        products = Exchange("products", ByRows(by_rows), self.ask, self.answer_products, hear=self.hear_products)
        ask: Asks = self.ask if self.whole else ask_nothing
        search = Exchange(
            "search", SearchUpload(Field((len(PARTS),), 2.0**-30, rows * 2**10, degree=2)), ask, self.answer_search,
            self.absorb_search,
        )  # fmt: skip
        summed = on_grid(problem, (problem.features,), largest_pulled(problem), problem.columns)
        height = Field((), 2.0**-30, rows * 2**10, degree=2)
        planes = Exchange(
            "planes", PlaneUpload(summed, height), self.ask_plane, self.answer_plane, self.absorb_plane,
            clear=self.primal == "clear",
        )  # fmt: skip
        return (search, planes) if self.whole else (products, search, planes)

    def check(self) -> list[str]:
        """Requires a loss with a conjugate, and l2 above 0."""
        return check_duals(self.problem)

    def start_server(self, now: Round) -> BundleServer:
        """w = 0 without planes; the bound is 0, since no loss is negative."""
        p, K = self.problem.features, self.planes
        empty = Planes(np.zeros((K, p), self.problem.dtype), np.zeros(K), np.zeros((K, K)), np.zeros(K), np.int64(0))
        return BundleServer(np.zeros(p), np.zeros(p), np.float64(0.0), np.float64(0.0), empty)

    def start_clients(self, block: Block, now: Round) -> BundleClients:
        shape = len(block.clients), int(block.counts.max())
        return BundleClients(np.zeros(shape, block.dtype), np.zeros(shape, block.dtype))

    def ask(self, server: BundleServer, now: Round) -> PointBroadcast:
        """Broadcasts the minimizer of the planes."""
        return PointBroadcast(server.ahead.astype(self.problem.dtype))

    def answer_products(
        self, clients: BundleClients, broadcast: PointBroadcast, block: Block, now: Round
    ) -> tuple[BundleClients, ByRows]:
        """Partial scores at the minimizer of the planes, from the client's own columns."""
        return clients, ByRows(placed_by_rows(self.problem, self._scores(broadcast, block), block))

    def hear_products(self, clients: BundleClients, total: ByRows, block: Block, now: Round) -> BundleClients:
        """Stores x.w of the client's samples, summed over the holders."""
        return clients._replace(ahead=padded(told_rows(total.value, block), clients.best.shape[1]))

    def answer_search(
        self, clients: BundleClients, broadcast: PointBroadcast | tuple[()], block: Block, now: Round
    ) -> tuple[BundleClients, SearchUpload]:
        """Losses at `PARTS` of the way from the best point to the planes' minimizer, less those at the best point."""
        if isinstance(broadcast, PointBroadcast):
            clients = clients._replace(ahead=padded(self._scores(broadcast, block), clients.best.shape[1]))
        xp, sums = block.xp, []
        for i, shard in enumerate(block.shards):
            once, rows = index(shard.y, counted(self.problem, shard.client)), slice(0, shard.samples)
            best, y = clients.best[i, rows][once], shard.y[once]
            way, start = clients.ahead[i, rows][once] - best, self._loss(best, y)
            changes = [xp.zeros(())]
            for j in range(1, len(PARTS)):
                change = self._loss(best + best.dtype.type(PARTS[j]) * way, y)
                change -= start
                changes.append(change.sum(dtype=np.float64))
            sums.append(xp.stack(changes))
        return clients, SearchUpload(xp.stack(sums))

    def absorb_search(self, server: BundleServer, total: SearchUpload, now: Round) -> BundleServer:
        """Moves to the best of the points tried, by the objective there less that at the best point so far."""
        penalty, way = float(self.problem.objective.l2), server.ahead - server.best
        squares = 2 * PARTS * float(server.best @ way) + PARTS**2 * float(way @ way)
        part = PARTS[np.argmin(total.change / self.problem.samples + penalty * squares)]
        return server._replace(best=server.best + part * way, part=np.float64(part))

    def ask_plane(self, server: BundleServer, now: Round) -> PartBroadcast:
        """Broadcasts how far the best point has moved."""
        return PartBroadcast(server.part)

    def answer_plane(
        self, clients: BundleClients, broadcast: PartBroadcast, block: Block, now: Round
    ) -> tuple[BundleClients, PlaneUpload]:
        """X'u, for u at the point `mix` of the way from the best point to the planes' minimizer."""
        number, dual = clients.best.dtype.type, self.problem.dual
        best = clients.best + number(broadcast.part) * (clients.ahead - clients.best)
        touched = best + number(self.mix) * (clients.ahead - best)
        sums, heights = [], []
        for i, shard in enumerate(block.shards):
            u = dual.toward(touched[i, : shard.samples], shard.y)
            once = index(u, counted(self.problem, shard.client))
            sums.append(pulled(shard, u, block.dtype))
            heights.append(-dual.conjugate(u[once], shard.y[once]).sum(dtype=np.float64))
        placed = placed_by_columns(self.problem, sums, block)
        return clients._replace(best=best), PlaneUpload(placed, block.xp.stack(heights))

    def absorb_plane(self, server: BundleServer, total: PlaneUpload, now: Round) -> BundleServer:
        """Adds the plane, then minimizes planes plus penalty and updates the bound."""
        N, double = self.problem.samples, 2 * float(self.problem.objective.l2)
        slope, height = total.pulled.astype(np.float64) / N, float(total.height) / N
        planes = with_plane(server.planes, slope.astype(self.problem.dtype), height)
        k = int(planes.count)
        weights = least_on_simplex(planes.gram[:k, :k] / double, planes.heights[:k], planes.weights[:k])
        ahead = (weights.astype(planes.slopes.dtype) @ planes.slopes[:k]).astype(np.float64) / double
        bound = float(weights @ planes.heights[:k] - weights @ (planes.gram[:k, :k] @ weights) / (2 * double))
        # every v_k is known to its dtype's precision alone, and the bound must hold for the true ones
        sizes = weights @ np.sqrt(np.diag(planes.gram)[:k])
        bound -= 2 * float(np.finfo(self.problem.dtype).eps * sizes * np.linalg.norm(ahead))
        planes = planes._replace(weights=np.append(weights, np.zeros(len(planes.weights) - k)))
        return server._replace(ahead=ahead, planes=planes, bound=np.maximum(server.bound, bound))

    def model(self, server: BundleServer) -> Parameters:
        return Parameters(server.best.astype(self.problem.dtype)[:, None], model_template(self.problem).head)

    def report(self, server: BundleServer) -> dict[str, float]:
        """The dual value: the largest lower bound so far."""
        return {"dual": float(server.bound)}

    def trust(self, plain: bool) -> Iterator[str]:
        """HyFDCA's trust model, for the audit's report."""
        return trust_of_duals(self.problem, "X'u of planes", self.primal == "clear", plain)

    def _scores(self, broadcast: PointBroadcast, block: Block) -> list[Array]:
        return [partial_scores(shard, own_part(broadcast.w, shard), block.dtype) for shard in block.shards]

    def _loss(self, scores: Array, y: Array) -> Array:
        return self.problem.objective.loss((), scores[:, None], y)


def with_plane(planes: Planes, slope: Array, height: float) -> Planes:
    """Adds a plane; where K are stored already, one is removed first such that the bound does not fall."""
    if int(planes.count) == len(planes.heights):
        planes = _with_room(planes)
    k = int(planes.count)
    slopes, heights, gram = planes.slopes.copy(), planes.heights.copy(), planes.gram.copy()
    slopes[k], heights[k] = slope, height
    wide = slope.astype(np.float64)
    gram[k, : k + 1] = gram[: k + 1, k] = [float(row.astype(np.float64) @ wide) for row in slopes[: k + 1]]
    weights = planes.weights.copy()
    weights[k] = 0.0 if k else 1.0
    return Planes(slopes, heights, gram, weights, np.int64(k + 1))


def _with_room(planes: Planes) -> Planes:
    """Removes the oldest plane of weight 0, or replaces the two of least weight by their weighted mean."""
    K, (earlier, later) = len(planes.heights), np.sort(np.argsort(planes.weights, kind="stable")[:2])
    idle = np.flatnonzero(planes.weights == 0)
    mixing = np.eye(K)
    if len(idle):
        gone = int(idle[0])
    else:
        gone, pair = int(earlier), planes.weights[[earlier, later]]
        mixing[later, [earlier, later]] = pair / pair.sum()
    remaining = np.delete(np.arange(K), gone)
    slopes, mixing, weights = np.zeros_like(planes.slopes), mixing[remaining], planes.weights.copy()
    slopes[: K - 1] = planes.slopes[remaining]
    if not len(idle):
        at = int(np.searchsorted(remaining, later))
        slopes[at] = mixing[at].astype(slopes.dtype) @ planes.slopes
        weights[later] += weights[earlier]
    return Planes(
        slopes=slopes,
        heights=np.append(mixing @ planes.heights, 0.0),
        gram=np.pad(mixing @ planes.gram @ mixing.T, (0, 1)),
        weights=np.append(weights[remaining], 0.0),
        count=np.int64(K - 1),
    )
