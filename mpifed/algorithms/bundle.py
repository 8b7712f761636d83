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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from annotated_types import Gt, Le

from mpifed.algorithms.cells import (
    Grid,
    Point,
    ask_nothing,
    by_rows,
    check_duals,
    field_of_losses,
    field_of_pulled,
    labels,
    largest_score,
    products,
    pulled,
    summed_once,
    trust_of_duals,
)
from mpifed.core.exchange import Exchange
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.maths.objectives import Parameters
from mpifed.maths.simplex import least_on_simplex

# how far the search may go from the best point towards the planes' minimizer
PARTS = np.append(0.0, 2.0 ** (np.arange(-31, 1) / 4))
BEYOND = 0.1  # where the next plane touches, from 0, the best point, to 1, the planes' minimizer


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
    part: np.float64  # how far the best point has just moved to there
    bound: np.float64  # the largest minimum of planes and penalty so far
    planes: Planes


class BundleClients(NamedTuple):
    """State of the clients; arrays [n, S] over a client's rows."""

    best: Array  # scores at the best point
    scores: Array  # at the planes' minimizer


class PartBroadcast(NamedTuple):
    """Broadcast: how far along the line the server moved the best point."""

    part: np.float64


class SearchUpload(NamedTuple):
    """A client's upload of the line search, each sample counted once."""

    change: Array  # [n, J] the sum of the losses at `PARTS` of the way, less that at the best point


class PlaneUpload(NamedTuple):
    """A client's upload of a cutting plane."""

    pulled: Array  # Placed [n, p] X'u
    height: Array  # [n] the sum of -l*(-u), each sample counted once


@dataclass(frozen=True)
class Bundle(Grid):
    """Each round computes scores at the minimizer of the planes, searches the line to it, and adds a plane.

    1. `products`: the clients receive x.w at the minimizer of the planes.
    2. `search`: the server receives the losses on the line to it from the best point, and chooses the new best point.
    3. `planes`: the server receives the plane at a point beyond it, `BEYOND` of the rest of the way.
    """

    default_security: ClassVar[str] = "encrypted"
    needs_everybody: ClassVar[bool] = True
    why_everybody: ClassVar[str] = "a plane is a sum over all samples"
    why_no_start: ClassVar[str] = "its planes begin at w = 0"
    certifies_gap: ClassVar[bool] = True

    planes: Annotated[int, Gt(1), Le(10**4)] = 30
    """Planes kept; of more, the oldest without weight is dropped, or the two of least weight become their mean, so that
    the bound never falls."""

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """products, search, planes."""
        problem = self.problem
        search = SearchUpload(field_of_losses(problem, PARTS.shape))
        planes = PlaneUpload(field_of_pulled(problem), field_of_losses(problem))
        return (
            products(
                problem, "products", by_rows(problem, largest_score(problem)),
                lambda server, now: Point(server.ahead.astype(problem.dtype)),
            ),
            Exchange("search", search, ask_nothing, self.answer_search, self.absorb_search),
            Exchange(
                "planes", planes, lambda server, now: PartBroadcast(server.part), self.answer_plane, self.absorb_plane
            ),
        )  # fmt: skip

    def check(self) -> list[str]:
        """Requires a loss with a conjugate, and l2 above 0."""
        return check_duals(self.problem)

    def start_server(self, now: Round) -> BundleServer:
        """w = 0 without planes; the bound is 0, since no loss is negative."""
        p, K, zero = np.zeros(self.problem.features), self.planes, np.float64(0)
        none = Planes(
            np.zeros((K, len(p)), self.problem.dtype), np.zeros(K), np.zeros((K, K)), np.zeros(K), np.int64(0)
        )
        return BundleServer(p, p, zero, zero, none)

    def start_clients(self, block: Block, now: Round) -> BundleClients:
        return BundleClients(*np.zeros((2, len(block.clients), int(block.counts.max())), block.dtype))

    def answer_search(
        self, clients: BundleClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[BundleClients, SearchUpload]:
        """Losses at `PARTS` of the way from the best point to the planes' minimizer, less those at the best point."""
        loss = self.problem.objective.loss

        def search(y: Array, best: Array, ahead: Array) -> Array:
            start = loss((), best[:, None], y)
            points = (best + best.dtype.type(part) * (ahead - best) for part in PARTS)
            return block.xp.stack([(loss((), m[:, None], y) - start).sum(dtype=np.float64) for m in points])

        return clients, SearchUpload(summed_once(self.problem, block, search, clients.best, clients.scores))

    def absorb_search(self, server: BundleServer, total: SearchUpload, now: Round) -> BundleServer:
        """Moves to the best of the points tried, by the objective there less that at the best point so far."""
        way = server.ahead - server.best
        squares = 2 * PARTS * float(server.best @ way) + PARTS**2 * float(way @ way)
        part = PARTS[np.argmin(total.change / self.problem.samples + float(self.problem.objective.l2) * squares)]
        return server._replace(best=server.best + part * way, part=part)

    def answer_plane(
        self, clients: BundleClients, broadcast: PartBroadcast, block: Block, now: Round
    ) -> tuple[BundleClients, PlaneUpload]:
        """X'u, for u at the point `BEYOND` of the way from the best point to the planes' minimizer."""
        number, dual, ahead = clients.best.dtype.type, self.problem.dual, clients.scores
        best = clients.best + number(broadcast.part) * (ahead - clients.best)
        touched = best + number(BEYOND) * (ahead - best)
        u = dual.toward(touched, labels(block, best.shape[1], best.dtype))
        conjugates = summed_once(self.problem, block, lambda y, u: dual.conjugate(u, y).sum(dtype=np.float64), u)
        return clients._replace(best=best), PlaneUpload(pulled(self.problem, u, block), -conjugates)

    def absorb_plane(self, server: BundleServer, total: PlaneUpload, now: Round) -> BundleServer:
        """Adds the plane, then minimizes planes plus penalty and updates the bound."""
        N, double = self.problem.samples, 2 * float(self.problem.objective.l2)
        slope = (total.pulled.astype(np.float64) / N).astype(self.problem.dtype)
        planes = with_plane(server.planes, slope, float(total.height) / N)
        k = int(planes.count)
        gram, heights = planes.gram[:k, :k], planes.heights[:k]
        weights = least_on_simplex(gram / double, heights)
        ahead = (weights.astype(slope.dtype) @ planes.slopes[:k]).astype(np.float64) / double
        bound = float(weights @ heights - weights @ (gram @ weights) / (2 * double))
        # every v_k is known to its dtype's precision alone, and the bound must hold for the true ones
        sizes = weights @ np.sqrt(np.diag(gram))
        bound -= 2 * float(np.finfo(slope.dtype).eps * sizes * np.linalg.norm(ahead))
        planes.weights[:k] = weights
        return server._replace(ahead=ahead, planes=planes, bound=np.maximum(server.bound, bound))

    def model(self, server: BundleServer) -> Parameters:
        return self.of_weights(server.best)

    def report(self, server: BundleServer) -> dict[str, float]:
        """The dual value: the largest lower bound so far."""
        return {"dual": float(server.bound)}

    def trust(self, plain: bool) -> Iterator[str]:
        """HyFDCA's trust model, for the audit's report."""
        return trust_of_duals(self.problem, "X'u of planes", False, plain)


def with_plane(planes: Planes, slope: Array, height: float) -> Planes:
    """Adds a plane, without weights; of K planes the two of least weight become their mean first: the bound stays.

    The mean of a plane without weight and another is the other one, so that the oldest without weight is dropped.
    """
    K, k = len(planes.heights), int(planes.count)
    slopes, order, mixing = planes.slopes.copy(), np.arange(K), np.eye(K)
    if k == K:
        gone, into = pair = np.argsort(planes.weights, kind="stable")[:2]
        if planes.weights[into]:
            mixing[into, pair] = planes.weights[pair] / planes.weights[pair].sum()
        slopes[into] = mixing[into].astype(slopes.dtype) @ slopes
        order = np.append(np.delete(order, gone), gone)  # the next plane takes the last place
        slopes = slopes[order]
        k -= 1
    mixing = mixing[order]
    heights, gram = mixing @ planes.heights, mixing @ planes.gram @ mixing.T
    slopes[k] = slope
    heights[k] = height
    wide = slope.astype(np.float64)
    gram[k, : k + 1] = gram[: k + 1, k] = [float(row.astype(np.float64) @ wide) for row in slopes[: k + 1]]
    return Planes(slopes, heights, gram, np.zeros(K), np.int64(k + 1))
