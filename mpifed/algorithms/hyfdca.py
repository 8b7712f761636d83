"""HyFDCA: primal-dual learning where clients hold some samples and some features.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106).
Fenchel duality, with lambda = 2 l2: P(w) = lambda/2 ||w||^2 + 1/N sum l_i(x_i.w) is bounded below by
D(alpha) = -lambda/2 ||w(alpha)||^2 - 1/N sum l_i*(-alpha_i), w(alpha) = X'alpha / (lambda N). (1), (2)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from mpifed.algorithms.horizontal import model_template, power_of_two
from mpifed.algorithms.hybrid import (
    ByRows,
    ask_nothing,
    by_first,
    check_duals,
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
from mpifed.algorithms.hybrid_measures import Grid, measured_products, measures_of_cells
from mpifed.algorithms.hyfdca_checks import wrong_settings
from mpifed.algorithms.hyfdca_local import Clients, Local, Question
from mpifed.algorithms.hyfdca_rules import (
    OWN_NORMS,
    PARTS,
    TOGETHER,
    Along,
    Momentum,
    Rule,
    best_part,
    momentum,
)
from mpifed.algorithms.hyfdca_setup import Norms, Power
from mpifed.core.block import Block
from mpifed.core.exchange import Exchange, Field, Measure, ToClients, ToServer
from mpifed.core.record import Array, Record
from mpifed.core.reveals import DualSum, DualVariables, Received, Revealed
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters
from mpifed.maths.ranges import Count, Size
from mpifed.maths.schedules import StepSize

GROWTH = 8  # of the weights of the mean, which is so that of about the last ninth of all rounds


class Server(NamedTuple):
    """The server's state."""

    w: Array  # [p] float64 X'alpha / (lambda N), of the clients' last answers
    returned: Array  # [p] float64 the model; () where that is w
    least: Array  # [] float64 P of it, infinite before a loss was received; () where no loss is
    rounds: Array  # [] int64 done
    sigma: Array  # [] float64, lambda_max(XX') or the job's sigma; 0 where it is not needed
    part: Array  # [] float64 of the last direction, which the clients have still to go; () but for line-search
    momentum: Record  # Momentum; () but for accelerated
    power: Array  # [p] float64 vector of the power iteration


class Primal(NamedTuple):
    """A client's upload for the server."""

    pulled: Any  # Placed [n, p]: X'alpha, or for line-search X'd
    loss: Any  # [n] the sum of the losses at the w of this round, each sample counted once; () if it decides nothing
    along: Record  # Along, each sample counted once; () but for line-search
    turned: Any  # [n]; () but for accelerated


@dataclass(frozen=True)
class HyFDCA(Grid):
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

    default_security: ClassVar[str] = "encrypted"
    why_everybody: ClassVar[str] = "its sums are of all of them"
    why_no_gap: ClassVar[str] = (
        'rule "paper" leaves it large while the model is good already; take rule = "damped", "line-search" or '
        '"accelerated"'
    )
    rule: Rule = "line-search"
    """How local dual steps are chosen: paper, theory, damped, line-search or accelerated; the last two need all
    clients."""
    inner: Count | None = None
    """Samples that a client draws in a round, on average; where absent all of them, with rule paper as many as are
    stable for rows of norm 1."""
    sigma: Size | None = None
    """Curvature that damped and accelerated steps assume, and paper without `inner`; where absent from a power
    iteration."""
    gamma: StepSize | None = None
    """Step size of the rules paper and theory, scale / t^decay, at most 1; 1 where absent."""
    draws: Literal["rows", "client"] = "rows"
    """rows: the samples of a round are drawn once, the same for all who hold them; client: each client draws its own,
    as in the paper."""
    senders: Literal["all", "none"] = "all"
    """all: every holder of a sample sends its step; none: no holder does, as all of them compute the same."""
    primal: Literal["clear", "sealed"] = "sealed"
    """X'alpha travels sealed, as `[aggregation] security` says, or in the clear, as in the paper."""
    returns: Literal["best", "mean", "last"] | None = None
    """Which w is the model: best: of least objective, needs all clients; mean: of all rounds, weighted by t^8; last, as
    in the paper. Where absent, best if all take part, else mean."""

    # --- participation, and exchanges --------------------------------------------------------------------------------

    @property
    def partial_participation(self) -> bool:
        """Whether not all clients take part in every round."""
        return self.problem.clients_per_round not in (None, self.problem.clients)

    @property
    def needs_everybody(self) -> bool:
        """All clients must participate, unless the job says otherwise and the rule allows it."""
        return not self.partial_participation or self.rule in TOGETHER

    @property
    def certifies_gap(self) -> bool:
        """P - D is a bound with every rule, but stays large with rule "paper", which moves few samples in a round."""
        return self.rule != "paper"

    @property
    def model_is(self) -> str:
        return self.returns or ("mean" if self.partial_participation else "best")

    @cached_property
    def local(self) -> Local:
        keeps_steps, losses = self.partial_participation and not self.whole, self.model_is == "best"
        return Local(self.problem, self.rule, self.inner, self.draws, keeps_steps, losses)

    @property
    def whole(self) -> bool:
        """Whether every client holds whole rows, disjoint from those of others."""
        return self.problem.split == "rows"

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Two for whole rows, else three; one less if steps are not uploaded, two more if clients may be absent."""
        if self.partial_participation and not self.whole:
            return (
                self._duals("return-duals", returning=True, silent=True),
                self._primal("return-primal", "primal", returning=True),
                self._products("products"),
                self._duals(),
                self._primal(stale="primal"),
            )
        sent = () if self.senders == "none" else (self._duals(),)
        products = () if self.whole else (self._products(),)
        return (*products, *sent, self._primal(stale="primal" if self.partial_participation else ""))

    def _products(self, stale: str = "") -> ToClients:
        return ToClients(
            "products", self._by_rows(largest_score(self.problem)), self.ask, self.answer_products, self.hear_products,
            told_by_columns=("w",), stale=stale,
        )  # fmt: skip

    def _duals(self, name: str = "duals", returning: bool = False, silent: bool = False) -> ToClients:
        return ToClients(
            name, self._by_rows(largest_dual(self.problem)), self.ask if self.whole else ask_nothing,
            self.answer_duals, self.hear_again if silent else self.hear_duals,
            told_by_columns=("w",) if self.whole else (), stale="duals" if self.local.keeps_steps else "",
            returning=returning, silent=silent,
        )  # fmt: skip

    def _primal(self, name: str = "primal", stale: str = "", returning: bool = False) -> ToServer:
        first = self.whole and self.senders == "none"
        rows = power_of_two(float(self.problem.counts.max()))
        sums, values = (Field(shape, 2.0**-30, rows * 2**10, degree=2) for shape in ((), (len(PARTS),)))
        along: Record = ()
        if self.rule == "line-search":
            along = Along(sums, sums, ()) if self.problem.objective.dual.quadratic else Along((), (), values)
        turned = sums if self.rule == "accelerated" else ()
        loss = on_grid(self.problem, (), largest_loss(self.problem), degree=2) if self.model_is == "best" else ()
        summed = on_grid(self.problem, (self.problem.features,), largest_pulled(self.problem), columns=0)
        return ToServer(
            name, Primal(summed, loss, along, turned), self.ask if first else ask_nothing, self.answer_primal,
            self.absorb_again if returning else self.absorb, told_by_columns=("w",) if first else (),
            private=self._sealed, stale=stale, returning=returning,
        )  # fmt: skip

    def _by_rows(self, largest: float) -> ByRows:
        return ByRows(on_grid(self.problem, (self.problem.samples,), largest, rows=0))

    @property
    def setup(self) -> tuple[Exchange, ...]:
        """Row norms and the largest eigenvalue of XX', where the rule needs them."""
        exchanges: list[Exchange] = []
        if self.rule in OWN_NORMS:
            exchanges += Norms(self.problem).exchanges
        if self.needs_sigma and self.sigma is None:
            exchanges += Power(self.problem, self._sealed).exchanges
        return tuple(exchanges)

    @property
    def _sealed(self) -> bool:
        return self.primal == "sealed"

    @property
    def needs_sigma(self) -> bool:
        """Whether lambda_max(XX') determines step sizes."""
        return self.rule not in OWN_NORMS or (self.rule == "paper" and self.inner is None)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Losses, dual value and duality gap."""
        return measures_of_cells(self, self.shares, lambda server: server.part, private=self._sealed)

    def check(self) -> list[str]:
        return check_duals(self.problem) or list(wrong_settings(self))

    def warnings(self) -> list[str]:
        """What sealed sums do not hide."""
        if self.rule != "paper" or not self._sealed:
            return []
        return [
            '[algorithm] rule = "paper" moves few rows in a round, on small data one: then w moves along that row, and '
            'who receives w has it up to its length, in every channel; `mpifed audit` looks for it ("moved-row"), and '
            'rule = "damped" moves all rows'
        ]

    # --- starts ------------------------------------------------------------------------------------------------------

    def start_server(self, now: Round) -> Server:
        zero = np.zeros(self.problem.features)
        return Server(
            w=zero,
            returned=() if self.model_is == "last" else zero,
            least=np.float64(np.inf) if self.model_is == "best" else (),
            rounds=np.int64(0),
            sigma=np.float64(self.sigma or 0.0),
            part=np.float64(0.0) if self.rule == "line-search" else (),
            momentum=Momentum(zero, np.float64(1.0), np.float64(0.0)) if self.rule == "accelerated" else (),
            power=now.rng("power").standard_normal(self.problem.features) if self.needs_sigma else (),
        )

    def start_clients(self, block: Block, now: Round) -> Clients:
        return self.local.start(block)

    # --- a round -----------------------------------------------------------------------------------------------------

    def ask(self, server: Server, now: Round) -> Question:
        """w, or the extrapolated point of the accelerated rule."""
        number = server.momentum.beta if self.rule == "accelerated" else server.part
        sigma = server.sigma
        if self.rule == "damped" and self.sigma is None:  # half of the eigenvalue is enough, and twice as fast
            sigma = sigma / 2
        gamma = np.float64(1.0 if self.gamma is None else self.gamma.at(int(server.rounds) + 1))
        return Question(self._asked(server).astype(self.problem.dtype), sigma, number, gamma)

    def _asked(self, server: Server) -> Array:
        """[p] float64 the w that is broadcast in a round."""
        if self.rule != "accelerated":
            return server.w
        beyond: Array = server.w + server.momentum.beta * (server.w - server.momentum.before)
        return beyond

    def answer_products(self, clients: Clients, question: Question, block: Block, now: Round) -> tuple[Clients, ByRows]:
        """Algorithm 2: the client's partial inner products."""
        clients = self.local.begun(clients, question)
        return clients, ByRows(placed_by_rows(self.problem, self.local.scores(question, block), block))

    def hear_products(self, clients: Clients, total: ByRows, block: Block, now: Round) -> Clients:
        """Stores x.w of the client's samples; takes the local steps, too, where steps are not uploaded."""
        scores = told_rows(total.value, block)
        clients = self._with_losses(clients, scores, block)
        if self.senders == "none":
            return self.local.moved(clients, self.local.steps(clients, scores, block, now), block)
        return clients._replace(scores=padded(scores, clients.alpha.shape[1]))

    def answer_duals(
        self, clients: Clients, question: Question | tuple[()], block: Block, now: Round
    ) -> tuple[Clients, ByRows]:
        """Algorithms 3 and 5: the local steps, each divided by the number of the sample's holders."""
        if isinstance(question, Question):
            clients, scores = self.local.begun(clients, question), self.local.scores(question, block)
            clients = self._with_losses(clients, scores, block)
        else:
            scores = unpadded(clients.scores, block)
        steps = self.local.steps(clients, scores, block, now, shared=not self.whole)
        if len(clients.sent):  # what counts of an absent client are all its steps so far
            steps = [sent + step for sent, step in zip(unpadded(clients.sent, block), steps, strict=True)]
            clients = clients._replace(sent=padded(steps, clients.sent.shape[1]))
        return clients, ByRows(placed_by_rows(self.problem, steps, block))

    def hear_duals(self, clients: Clients, total: ByRows, block: Block, now: Round) -> Clients:
        """Adds the steps of all holders to alpha; with absent clients the sum of all their steps so far is alpha."""
        if len(clients.sent):
            return self.hear_again(clients, total, block, now)
        return self.local.moved(clients, told_rows(total.value, block), block)

    def hear_again(self, clients: Clients, total: ByRows, block: Block, now: Round) -> Clients:
        """Replaces alpha by the sum received."""
        pairs = zip(told_rows(total.value, block), block.shards, strict=True)
        alpha = (self.problem.objective.dual.feasible(values, shard.y) for values, shard in pairs)
        return clients._replace(alpha=padded(alpha, clients.alpha.shape[1]))

    def answer_primal(
        self, clients: Clients, question: Question | tuple[()], block: Block, now: Round
    ) -> tuple[Clients, Primal]:
        """Algorithm 4: X'alpha in the client's columns; X'd with rule line-search."""
        if isinstance(question, Question):
            clients, scores = self.local.begun(clients, question), self.local.scores(question, block)
            clients = self._with_losses(clients, scores, block)
            clients = self.local.moved(clients, self.local.steps(clients, scores, block, now), block)
        moved = clients.other if self.rule == "line-search" else clients.alpha
        pairs = zip(block.shards, unpadded(moved, block), strict=True)
        sums = placed_by_columns(self.problem, [pulled(shard, values, block.dtype) for shard, values in pairs], block)
        along = self.local.along(clients, block) if self.rule == "line-search" else ()
        return clients, Primal(sums, clients.losses, along, clients.turned)

    def absorb_again(self, server: Server, total: Primal, now: Round) -> Server:
        """Updates w by what returning clients missed while they were absent."""
        return server._replace(w=self._primal_of(total))

    def _primal_of(self, total: Primal) -> Array:
        w: Array = np.multiply(total.pulled, 1 / lambda_n(self.problem), dtype=np.float64)
        return w

    def absorb(self, server: Server, total: Primal, now: Round) -> Server:
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

    def _with_loss(self, server: Server, total: Primal) -> Server:
        """The state with this round's w as the model, if its objective is the least so far."""
        w = self._asked(server)
        value = float(total.loss) / self.problem.samples + float(self.problem.objective.l2) * float(w @ w)
        return server._replace(returned=w, least=np.float64(value)) if value < server.least else server

    def _with_losses(self, clients: Clients, scores: Sequence[Array], block: Block) -> Clients:
        """The client states with the losses at the w of this round."""
        if self.model_is != "best":
            return clients
        return clients._replace(losses=self.local.losses(scores, block))

    def model(self, server: Server) -> Parameters:
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
            lasting = bool(received.exchange.stale)
            before = (0.0, 0.0) if lasting or self.rule == "line-search" else (1 + beta, -beta)
            yield DualVariables(received.rows, received.answer.value[received.rows], before, lasting)
        if received.answered_by(self.answer_primal):
            yield DualSum(received.answer.pulled[received.columns], change=self.rule == "line-search")

    def trust(self, plain: bool) -> Iterator[str]:
        """The paper's trust model, for the audit's report."""
        return trust_of_duals(self.problem, "X'alpha", not self._sealed, plain)

    def shares(self, clients: Clients, part: Array, block: Block) -> Sequence[Array]:
        """The clients' summands of alpha, for the evaluation."""
        if len(clients.sent):
            return unpadded(clients.sent, block)
        alpha = clients.alpha
        if self.rule == "line-search":
            alpha = alpha + alpha.dtype.type(part) * clients.other
        return by_first(self.problem, unpadded(alpha, block), block)
