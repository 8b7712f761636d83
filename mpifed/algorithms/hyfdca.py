"""HyFDCA: primal-dual learning where clients hold some samples and some features.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106).
Fenchel duality, with lambda = 2 l2: P(w) = lambda/2 ||w||^2 + 1/N sum l_i(x_i.w) is bounded below by
D(alpha) = -lambda/2 ||w(alpha)||^2 - 1/N sum l_i*(-alpha_i), w(alpha) = X'alpha / (lambda N). (1), (2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from mpifed.algorithms.horizontal import model_template, power_of_two
from mpifed.algorithms.hybrid import (
    ByRows,
    ask_nothing,
    by_first,
    inner_products,
    lambda_n,
    largest_dual,
    largest_loss,
    largest_pulled,
    largest_score,
    on_grid,
    padded,
    placed_by_columns,
    placed_by_rows,
    pulled,
    told_rows,
    trust_of_duals,
    unpadded,
)
from mpifed.algorithms.hybrid_measures import measured_products, measures_of_cells
from mpifed.algorithms.hyfdca_local import HyFDCABroadcast, HyFDCAClients
from mpifed.algorithms.hyfdca_rules import (
    OWN_NORMS,
    PARTS,
    Along,
    HyFDCAServer,
    Momentum,
    best_part,
    momentum,
)
from mpifed.algorithms.hyfdca_settings import HyFDCASettings
from mpifed.algorithms.hyfdca_setup import Norms, Power
from mpifed.core.block import Block
from mpifed.core.exchange import Exchange, Field, Measure
from mpifed.core.record import ABSENT, Array
from mpifed.core.reveals import DualSum, DualVariables, Received, Revealed
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters

GROWTH = 8  # of the weights of the mean, which is so that of about the last ninth of all rounds


class PrimalUpload(NamedTuple):
    """A client's upload for the server."""

    pulled: Array  # Placed [n, p]: X'alpha, or for line-search X'd
    loss: Array  # [n] the sum of the losses at the w of this round, each sample counted once; () if it decides nothing
    along: Along  # each sample counted once; ABSENT but for line-search
    turned: Array  # [n]; () but for accelerated


def _back(now: Round) -> Array:
    return now.back


@dataclass(frozen=True)
class HyFDCA(HyFDCASettings):
    """Algorithm 1: local dual steps from secure inner products, averaged; the server receives X'alpha alone.

    Before the first round the clients may receive the norms of their samples, and the server X'Xv of random vectors v.
    In the paper lambda = 2 `l2`, H = `inner`, gamma_t = `gamma`, c_k = 1; B_n are the holders of a sample.

    The exchanges of a round: the clients receive the inner products x.w of their samples (Algorithm 2), then the sum of
    their steps, each divided by the number of the sample's holders; the server receives X'alpha (Algorithm 4).
    Clients with whole rows need no inner products of others. The second inner product of Algorithm 1 is left out, as in
    the paper's own runs.
    Where not all clients participate in every round, returning clients first receive their alpha, and upload its
    X'alpha. Absent clients keep counting with what they sent last, inner products and X'alpha.
    # differs from the paper: the alpha they receive is that of the round before, which it numbers t, and w goes to all
    who are present; a step is divided by all holders, present or not, which is steadier.

    The rules are in `mpifed.algorithms.hyfdca_rules`. Those that raise D need not lower P on the way, therefore
    `returns`: the losses by which "best" is chosen come with X'alpha in the round that begins with it, and those of
    absent clients are of other w, so that a mean is returned where some are absent.
    """

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Two for whole rows, else three; two more if clients may be absent."""
        duals, again = self._duals(), cast("Any", self.hear_again)  # nobody answers, whose states it would have
        if self.partial_participation and not self.whole:
            return (
                Exchange("return-duals", duals.fields, ask_nothing, None, hear=again, who=_back, keeps="duals"),
                self._primal("return-primal", "primal", returning=True),
                self._products("products"),
                duals,
                self._primal(keeps="primal"),
            )
        products = () if self.whole else (self._products(),)
        return (*products, duals, self._primal(keeps="primal" if self.partial_participation else ""))

    def _products(self, keeps: str = "") -> Exchange:
        return Exchange(
            "products", self._by_rows(largest_score(self.problem)), self.ask, self.answer_products,
            hear=self.hear_products, keeps=keeps,
        )  # fmt: skip

    def _duals(self) -> Exchange:
        ask: Callable[[HyFDCAServer, Round], HyFDCABroadcast | tuple[()]] = self.ask if self.whole else ask_nothing
        fields, keeps = self._by_rows(largest_dual(self.problem)), "duals" if self.local.keeps_steps else ""
        return Exchange("duals", fields, ask, self.answer_duals, hear=self.hear_duals, keeps=keeps)

    def _primal(self, name: str = "primal", keeps: str = "", returning: bool = False) -> Exchange:
        rows = power_of_two(float(self.problem.counts.max()))
        sums, values = (Field(shape, 2.0**-30, rows * 2**10, degree=2) for shape in ((), (len(PARTS),)))
        along: Along = ABSENT
        if self.rule == "line-search":
            along = Along(sums, sums, ABSENT) if self.problem.dual.quadratic else Along(ABSENT, ABSENT, values)
        turned = sums if self.rule == "accelerated" else ABSENT
        loss = on_grid(self.problem, (), largest_loss(self.problem), degree=2) if self.model_is == "best" else ABSENT
        summed = on_grid(self.problem, (self.problem.features,), largest_pulled(self.problem), self.problem.columns)
        return Exchange(
            name, PrimalUpload(summed, loss, along, turned), ask_nothing, self.answer_primal,
            self.absorb_again if returning else self.absorb,
            who=_back if returning else None, keeps=keeps, clear=not self.sealed,
        )  # fmt: skip

    def _by_rows(self, largest: float) -> ByRows:
        return ByRows(on_grid(self.problem, (self.problem.samples,), largest, self.problem.rows, to_holders=True))

    @property
    def setup(self) -> tuple[Exchange, ...]:
        """Row norms and the largest eigenvalue of XX', where the rule needs them."""
        exchanges: list[Exchange] = []
        if self.rule in OWN_NORMS:
            exchanges += Norms(self.problem).exchanges
        if self.needs_sigma and self.sigma is None:
            exchanges += Power(self.problem, self.sealed).exchanges
        return tuple(exchanges)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Losses, dual value and duality gap."""
        return measures_of_cells(self, self.shares, lambda server: server.part, private=self.sealed)

    # --- starts ------------------------------------------------------------------------------------------------------

    def start_server(self, now: Round) -> HyFDCAServer:
        zero = np.zeros(self.problem.features)
        return HyFDCAServer(
            w=zero,
            returned=ABSENT if self.model_is == "last" else zero,
            least=np.float64(np.inf) if self.model_is == "best" else ABSENT,
            rounds=np.int64(0),
            sigma=np.float64(self.sigma or 0.0),
            part=np.float64(0.0) if self.rule == "line-search" else ABSENT,
            momentum=Momentum(zero, np.float64(1.0), np.float64(0.0)) if self.rule == "accelerated" else ABSENT,
            power=now.rng("power").standard_normal(self.problem.features) if self.needs_sigma else ABSENT,
        )

    def start_clients(self, block: Block, now: Round) -> HyFDCAClients:
        return self.local.start(block)

    # --- a round -----------------------------------------------------------------------------------------------------

    def ask(self, server: HyFDCAServer, now: Round) -> HyFDCABroadcast:
        """w, or the extrapolated point of the accelerated rule."""
        number = server.momentum.beta if self.rule == "accelerated" else server.part
        sigma = server.sigma
        if self.rule == "damped" and self.sigma is None:  # half of the eigenvalue is enough, and twice as fast
            sigma = sigma / 2
        gamma = np.float64(1.0 if self.gamma is None else self.gamma.at(int(server.rounds) + 1))
        return HyFDCABroadcast(self._asked(server).astype(self.problem.dtype), sigma, number, gamma)

    def _asked(self, server: HyFDCAServer) -> Array:
        """[p] float64 the w that is broadcast in a round."""
        if self.rule != "accelerated":
            return server.w
        beyond: Array = server.w + server.momentum.beta * (server.w - server.momentum.before)
        return beyond

    def answer_products(
        self, clients: HyFDCAClients, broadcast: HyFDCABroadcast, block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByRows]:
        """Algorithm 2: the client's partial inner products."""
        clients = self.local.begun(clients, broadcast)
        return clients, ByRows(placed_by_rows(self.problem, self.local.scores(broadcast, block), block))

    def hear_products(self, clients: HyFDCAClients, total: ByRows, block: Block, now: Round) -> HyFDCAClients:
        """Stores x.w of the client's samples."""
        scores = told_rows(total.value, block)
        clients = self._with_losses(clients, scores, block)
        return clients._replace(scores=padded(scores, clients.alpha.shape[1]))

    def answer_duals(
        self, clients: HyFDCAClients, broadcast: HyFDCABroadcast | tuple[()], block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByRows]:
        """Algorithms 3 and 5: the local steps, each divided by the number of the sample's holders."""
        if isinstance(broadcast, HyFDCABroadcast):
            clients, scores = self.local.begun(clients, broadcast), self.local.scores(broadcast, block)
            clients = self._with_losses(clients, scores, block)
        else:
            scores = unpadded(clients.scores, block)
        steps = self.local.steps(clients, scores, block, now, shared=not self.whole)
        if len(clients.sent):  # what counts of an absent client are all its steps so far
            steps = [sent + step for sent, step in zip(unpadded(clients.sent, block), steps, strict=True)]
            clients = clients._replace(sent=padded(steps, clients.sent.shape[1]))
        return clients, ByRows(placed_by_rows(self.problem, steps, block))

    def hear_duals(self, clients: HyFDCAClients, total: ByRows, block: Block, now: Round) -> HyFDCAClients:
        """Adds the steps of all holders to alpha; with absent clients the sum of all their steps so far is alpha."""
        if len(clients.sent):
            return self.hear_again(clients, total, block, now)
        return self.local.moved(clients, told_rows(total.value, block), block)

    def hear_again(self, clients: HyFDCAClients, total: ByRows, block: Block, now: Round) -> HyFDCAClients:
        """Replaces alpha by the sum received."""
        pairs = zip(told_rows(total.value, block), block.shards, strict=True)
        alpha = (self.problem.dual.feasible(values, shard.y) for values, shard in pairs)
        return clients._replace(alpha=padded(alpha, clients.alpha.shape[1]))

    def answer_primal(
        self, clients: HyFDCAClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[HyFDCAClients, PrimalUpload]:
        """Algorithm 4: X'alpha in the client's columns; X'd with rule line-search."""
        moved = clients.other if self.rule == "line-search" else clients.alpha
        pairs = zip(block.shards, unpadded(moved, block), strict=True)
        sums = placed_by_columns(self.problem, [pulled(shard, values, block.dtype) for shard, values in pairs], block)
        along = self.local.along(clients, block) if self.rule == "line-search" else ABSENT
        return clients, PrimalUpload(sums, clients.losses, along, clients.turned)

    def absorb_again(self, server: HyFDCAServer, total: PrimalUpload, now: Round) -> HyFDCAServer:
        """Updates w by what returning clients missed while they were absent."""
        return server._replace(w=self._primal_of(total))

    def _primal_of(self, total: PrimalUpload) -> Array:
        return np.multiply(total.pulled, 1 / lambda_n(self.problem), dtype=np.float64)

    def absorb(self, server: HyFDCAServer, total: PrimalUpload, now: Round) -> HyFDCAServer:
        """Updates w as the rule says. (Alg. 4)"""
        if self.model_is == "best":
            server = self._with_loss(server, total)
        w = self._primal_of(total)
        if self.rule == "line-search":
            curve = lambda_n(self.problem) * float(w @ w)
            part = best_part(total.along, lambda_n(self.problem) * float(server.w @ w), curve)
            w *= part
            w += server.w
            server = server._replace(part=np.float64(part))
        if self.rule == "accelerated":
            theta = 1.0 if float(total.turned) > 0 else float(server.momentum.theta)
            server = server._replace(momentum=momentum(server.w, theta))
        t = int(server.rounds) + 1
        if self.model_is == "mean":
            weight = (GROWTH + 1) / (GROWTH + t)
            server = server._replace(returned=server.returned + weight * (w - server.returned))
        return server._replace(w=w, rounds=np.int64(t))

    def _with_loss(self, server: HyFDCAServer, total: PrimalUpload) -> HyFDCAServer:
        """The state with this round's w as the model, if its objective is the least so far."""
        w = self._asked(server)
        value = float(total.loss) / self.problem.samples + float(self.problem.objective.l2) * float(w @ w)
        return server._replace(returned=w, least=np.float64(value)) if value < server.least else server

    def _with_losses(self, clients: HyFDCAClients, scores: Sequence[Array], block: Block) -> HyFDCAClients:
        """The client states with the losses at the w of this round."""
        if self.model_is != "best":
            return clients
        return clients._replace(losses=self.local.losses(scores, block))

    def model(self, server: HyFDCAServer) -> Parameters:
        """The best w, the mean, or the last."""
        w = server.w if self.model_is == "last" else server.returned
        return Parameters(w.astype(self.problem.dtype)[:, None], model_template(self.problem).head)

    def reveals(self, received: Received) -> Iterator[Revealed]:
        """Inner products; steps of alpha, or their sum so far; X'alpha or X'd."""
        yield from Power.reveals(received)
        yield from measured_products(received)
        if received.answered_by(self.answer_products):
            yield inner_products(received, received.question.w)
        if received.answered_by(self.answer_duals):
            beta = float(received.question.number) if self.rule == "accelerated" else 0.0
            lasting = bool(received.exchange.keeps)
            before = (0.0, 0.0) if lasting or self.rule == "line-search" else (1 + beta, -beta)
            yield DualVariables(received.rows, received.answer.value[received.rows], before, lasting)
        if received.answered_by(self.answer_primal):
            yield DualSum(received.answer.pulled[received.columns], change=self.rule == "line-search")

    def trust(self, plain: bool) -> Iterator[str]:
        """The paper's trust model, for the audit's report."""
        return trust_of_duals(self.problem, "X'alpha", not self.sealed, plain)

    def shares(self, clients: HyFDCAClients, part: Array, block: Block) -> Sequence[Array]:
        """The clients' summands of alpha, for the evaluation."""
        if len(clients.sent):
            return unpadded(clients.sent, block)
        alpha = clients.alpha
        if self.rule == "line-search":
            alpha = alpha + alpha.dtype.type(part) * clients.other
        return by_first(self.problem, unpadded(alpha, block), block)
