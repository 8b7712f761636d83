"""HyFDCA: primal-dual learning where clients hold some samples and some features.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106).
Fenchel duality, with lambda = 2 l2: P(w) = lambda/2 ||w||^2 + 1/N sum l_i(x_i.w) is bounded below by
D(alpha) = -lambda/2 ||w(alpha)||^2 - 1/N sum l_i*(-alpha_i), w(alpha) = X'alpha / (lambda N). (1), (2)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

import numpy as np

from mpifed.algorithms.cells import (
    ByRows,
    Grid,
    ask_nothing,
    bend,
    by_first,
    check_duals,
    counted,
    lambda_n,
    largest_dual,
    largest_loss,
    largest_pulled,
    largest_score,
    measures_of_cells,
    on_grid,
    once_a_group,
    own_part,
    padded,
    partial_scores,
    placed_by_columns,
    placed_by_rows,
    pulled,
    told_rows,
    trust_of_duals,
    unpadded,
)
from mpifed.algorithms.horizontal import model_template, power_of_two
from mpifed.core.exchange import Exchange, Field, Measure, Problem
from mpifed.core.protocols import Dual
from mpifed.core.record import ABSENT, Array, beside, by_columns, in_memory, index, map_leaves, namespace
from mpifed.core.round import Round
from mpifed.data.block import Block, ClientData
from mpifed.maths.arrays import square_norms
from mpifed.maths.duals import values_along
from mpifed.maths.objectives import Parameters
from mpifed.maths.ranges import Count, Size
from mpifed.maths.schedules import StepSize

Rule: TypeAlias = Literal["paper", "theory", "damped", "line-search", "accelerated"]

TOGETHER: tuple[Rule, ...] = ("line-search", "accelerated")  # move all samples, and need all clients
OWN_NORMS: tuple[Rule, ...] = ("paper", "theory", "line-search")  # their curvatures are the samples' own
# the parts of a direction that are tried where D is not quadratic along it
PARTS = np.append(0.0, 2.0 ** (np.arange(-15, 1) / 2))


def stable_samples(lambda_n: float, samples: int, largest: float, bend: float | None) -> int:
    """How many distinct samples rule `paper` can move at once.

    b of them overlap by about 1 + b lambda_max / N. With l* of curvature `bend`, a step then overshoots by less than
    itself up to b = (1 + bend lambda N) N / lambda_max; where alpha is bounded, and so all overshooting, up to about
    max(2, 4 lambda N) N / lambda_max.

    Parameters
    ----------
    lambda_n : lambda N
    largest : lambda_max(XX'), for rows of norm 1
    bend : of l*; None where alpha is bounded
    """
    factor = max(2.0, 4 * lambda_n) if bend is None else 1 + bend * lambda_n
    return int(min(max(1.0, factor * samples / max(largest, 1e-300)), samples))


@lru_cache(maxsize=2)
def _ordered(seed: int, index: int, samples: int, count: int) -> Array:
    """[count] the samples of a round, ascending; the same for all clients."""
    now = Round(index, seed, np.zeros(0, dtype=bool))
    return np.sort(now.draw("rows", np.array([0]), np.array([samples]), count)[0])


def drawn_among(now: Round, rows: Array, samples: int, count: int) -> Array:
    """Positions among a client's `rows` [s_i] of those that are among the round's `count` samples."""
    drawn = _ordered(now.seed, int(now.index), samples, count)
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:  # without a gap
        between = drawn[np.searchsorted(drawn, rows[0]) : np.searchsorted(drawn, rows[-1], "right")]
        positions: Array = between - rows[0]
        return positions
    at = np.searchsorted(rows, drawn)
    at[at == len(rows)] = 0
    return at[rows[at] == drawn] if len(rows) else at[:0]


def local_step(
    dual: Dual, rule: Rule, alpha: Array, scores: Array, y: Array, curvature: Array | float, gamma: float
) -> Array:
    """[s] steps of the dual variables. Algorithm 5, and for rule `theory` Algorithm 3, both as corrected.

    # differs from the paper: Algorithm 5's closed form lacks y and takes ||x_i|| = 1; Algorithm 3 has u in dl(x_i w)
    where -u in dl(x_i w) is meant, and its quadratic lacks ||x_i||^2. Its s <= 1 binds only where gamma is below 1: u
    is where -l*(-a) - a x_i.w is largest (Fenchel and Young, with equality), and as the quadratic pulls back to alpha,
    the best of all steps ends between the two.
    """
    step: Array = dual.step(alpha, scores, y, curvature)
    if gamma == 1:
        return step
    if rule != "theory":
        step *= step.dtype.type(gamma)
        return step
    most = dual.toward(scores.astype(alpha.dtype, copy=False), y)
    most -= alpha
    most *= most.dtype.type(gamma)  # s gamma (u - alpha) with s in [0, 1]; for gamma = 1 no step goes beyond
    xp = namespace(step)
    return xp.clip(step, xp.minimum(most, 0), xp.maximum(most, 0), out=step)


# --- line-search ----------------------------------------------------------------------------------------------------


class Along(NamedTuple):
    """sum -l*(-(alpha + s d)) as a function of s, as sums over the samples that a client counts."""

    linear: Array  # [n] and
    quadratic: Array  # [n], where it is s linear - s^2 / 2 quadratic and a constant; else ABSENT
    values: Array  # [n, J] at the parts `PARTS`, less that at 0; else ABSENT


def along_direction(dual: Dual, alpha: Array, direction: Array, y: Array) -> Along:
    """`Along` of samples [s]; leaves have no leading axis."""
    if dual.quadratic:
        linear, quadratic = dual.coefficients(alpha, direction, y)
        return Along(linear, quadratic, ABSENT)
    values = values_along(dual, alpha, direction, y, PARTS)
    return Along(ABSENT, ABSENT, values - values[:1])


def best_part(total: Along, slope: float, curve: float) -> float:
    """The s in [0, 1] that maximizes N D(alpha + s d); where that is not quadratic, the best of `PARTS`.

    N D(alpha + s d) is sum -l*(-(alpha + s d)) - s w.X'd - s^2 / 2 ||X'd||^2 / (lambda N), and a constant.

    Parameters
    ----------
    total : over all samples
    slope : w.X'd
    curve : ||X'd||^2 / (lambda N)
    """
    if not len(total.values):
        rise, bend = float(total.linear) - slope, float(total.quadratic) + curve
        return float(np.clip(rise / bend, 0.0, 1.0)) if bend > 0 else float(rise > 0)
    return float(PARTS[np.argmax(total.values - PARTS * slope - PARTS**2 / 2 * curve)])


# --- accelerated ----------------------------------------------------------------------------------------------------


class Momentum(NamedTuple):
    """State of the accelerated rule. Server only."""

    before: Array  # [p] float64, the w of the round before
    theta: np.float64  # of FISTA's sequence, in which (1 + sqrt(1 + 4 theta^2)) / 2 comes next
    beta: np.float64  # how far the next point is extrapolated


class HyFDCAServer(NamedTuple):
    """The server's state."""

    w: Array  # [p] float64 X'alpha / (lambda N), of the clients' last answers
    returned: Array  # [p] float64 the model; ABSENT where that is w
    least: np.float64  # P of it, infinite before a loss was received; ABSENT where no loss is
    rounds: np.int64  # done
    sigma: np.float64  # lambda_max(XX') or the job's sigma; 0 where it is not needed
    part: np.float64  # of the last direction, which the clients have still to go; ABSENT but for line-search
    momentum: Momentum  # ABSENT but for accelerated
    power: Array  # [p] float64 vector of the power iteration


def momentum(before: Array, theta: float) -> Momentum:
    """The state for the next round, after a round with `theta`, or with theta = 1 after a restart."""
    following = (1 + float(np.sqrt(1 + 4 * theta**2))) / 2
    return Momentum(before, np.float64(following), np.float64((theta - 1) / following))


@by_columns("w")
class HyFDCABroadcast(NamedTuple):
    """Broadcast of the first exchange of a round, as far as the rule needs it."""

    w: Array  # [p] to each client its own columns
    sigma: np.float64
    number: np.float64  # line-search: how much of the last direction to go; accelerated: beta
    gamma: np.float64


@in_memory("sigma_gamma")
class HyFDCAClients(NamedTuple):
    """State of the clients; arrays over a client's rows are padded with zeros to the width S of the block."""

    alpha: Array  # [n, S] of its samples
    scores: Array  # [n, S] x.w, as last received; () where a client has whole rows
    norms: Array  # [n, S] ||x||^2; () where the rule needs none
    sent: Array  # [n, S] the sum of the steps it has sent; () where all clients take part
    other: Array  # [n, S] line-search: the direction; accelerated: alpha of the round before; else ()
    sigma_gamma: Array  # [n, 2] float64 sigma and gamma, of the round's broadcast
    losses: Array  # [n] float64 the sum of the losses at the w of the round; () unless they decide which w is returned
    turned: Array  # [n] accelerated: the sum by which is judged whether to begin anew; else ()


@by_columns("value")
class ByColumns(NamedTuple):
    """One number for each feature."""

    value: Array  # Placed [n, p], or a broadcast [p]


GROWTH = 8  # of the weights of the mean, which is so that of about the last ninth of all rounds


class PrimalUpload(NamedTuple):
    """A client's upload for the server."""

    pulled: Array  # Placed [n, p]: X'alpha, or for line-search X'd
    loss: Array  # [n] the sum of the losses at the w of this round, each sample counted once; () if it decides nothing
    along: Along  # each sample counted once; ABSENT but for line-search
    turned: Array  # [n]; () but for accelerated


def _back(now: Round) -> Array:
    return now.back


TURNS = 20  # of the power iteration
SAFETY = 1.1  # as it comes up to the eigenvalue from below


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

    Those rules that raise D need not lower P on the way, therefore
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
    primal: Literal["clear", "sealed"] = "sealed"
    """X'alpha travels sealed, as `[aggregation] security` says, or in the clear, as in the paper."""
    returns: Literal["best", "mean", "last"] | None = None
    """Which w is the model: best: of least objective, needs all clients; mean: of all rounds, weighted by t^8; last, as
    in the paper. Where absent, best if all take part, else mean."""

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

    @property
    def keeps_steps(self) -> bool:
        """Whether what counts of an absent client are all its steps so far."""
        return self.partial_participation and not self.whole

    @property
    def whole(self) -> bool:
        """Whether every client holds whole rows, disjoint from those of others."""
        return self.problem.split == "rows"

    @property
    def sealed(self) -> bool:
        """Whether X'alpha travels as `[aggregation] security` says."""
        return self.primal == "sealed"

    @property
    def needs_sigma(self) -> bool:
        """Whether lambda_max(XX') determines step sizes."""
        return self.rule not in OWN_NORMS or (self.rule == "paper" and self.inner is None)

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
        fields, keeps = self._by_rows(largest_dual(self.problem)), "duals" if self.keeps_steps else ""
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
        problem, exchanges = self.problem, list[Exchange]()
        by_rows = partial(Field, (problem.samples,), held=problem.rows, to_holders=True, degree=0)
        if self.rule in OWN_NORMS:
            squares = ByRows(by_rows(2.0**-32, 2.0**16))
            norms = Exchange("norms", squares, ask_nothing, self.answer_norms, hear=self.hear_norms)
            exchanges.append(norms)
        if self.needs_sigma and self.sigma is None:
            most, given = power_of_two(float(problem.counts.max())) * 2.0**12, ByRows(by_rows(2.0**-36, 2.0**12))
            back = ByColumns(Field((problem.features,), most * 2.0**-48, most, held=problem.columns, degree=0))
            answer, absorb = self.answer_power_products, self.absorb_power
            products = Exchange("power-products", given, self.ask_power, answer, hear=self.hear_power)
            primal = Exchange("power-primal", back, ask_nothing, self.answer_power, absorb, clear=not self.sealed)
            exchanges += [products, primal] * TURNS
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

    # --- set-up -----------------------------------------------------------------------------------------------------

    def answer_norms(
        self, clients: HyFDCAClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByRows]:
        """||x_k,i||^2 of each client's part of its samples."""
        norms = []
        for shard in block.shards:
            squares = block.xp.empty(shard.samples)
            for at, X in shard.pieces(block.dtype):
                squares[at] = square_norms((X,))[0] if shard.sparse else square_norms(X)
            norms.append(squares)
        return clients, ByRows(placed_by_rows(self.problem, norms, block))

    def hear_norms(self, clients: HyFDCAClients, total: ByRows, block: Block, now: Round) -> HyFDCAClients:
        """Stores ||x_i||^2 of whole samples."""
        norms = (values.astype(block.dtype) for values in told_rows(total.value, block))
        return clients._replace(norms=padded(norms, clients.norms.shape[1]))

    def ask_power(self, server: HyFDCAServer, now: Round) -> ByColumns:
        v = server.power / max(float(np.linalg.norm(server.power)), 1e-300)
        return ByColumns(v.astype(self.problem.dtype))

    def answer_power_products(
        self, clients: HyFDCAClients, broadcast: ByColumns, block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByRows]:
        """The client's partial products X_k v."""
        scores = [partial_scores(shard, own_part(broadcast.value, shard), block.dtype) for shard in block.shards]
        return clients, ByRows(placed_by_rows(self.problem, scores, block))

    def hear_power(self, clients: HyFDCAClients, total: ByRows, block: Block, now: Round) -> HyFDCAClients:
        return clients._replace(alpha=padded(told_rows(total.value, block), clients.alpha.shape[1]))

    def answer_power(
        self, clients: HyFDCAClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByColumns]:
        pairs = zip(block.shards, unpadded(clients.alpha, block), strict=True)
        sums = [pulled(shard, values, block.dtype) for shard, values in pairs]
        return clients._replace(alpha=block.xp.zeros_like(clients.alpha)), ByColumns(
            placed_by_columns(self.problem, sums, block)
        )

    def absorb_power(self, server: HyFDCAServer, total: ByColumns, now: Round) -> HyFDCAServer:
        """||X'Xv|| for ||v|| = 1 is never above the eigenvalue."""
        v: Array = total.value.astype(np.float64)
        return server._replace(power=v, sigma=np.float64(SAFETY * np.linalg.norm(v)))

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
        clients = self._begun(clients, broadcast)
        return clients, ByRows(placed_by_rows(self.problem, self._scores(broadcast, block), block))

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
            clients, scores = self._begun(clients, broadcast), self._scores(broadcast, block)
            clients = self._with_losses(clients, scores, block)
        else:
            scores = unpadded(clients.scores, block)
        steps = self._steps(clients, scores, block, now, shared=not self.whole)
        if len(clients.sent):  # what counts of an absent client are all its steps so far
            steps = [sent + step for sent, step in zip(unpadded(clients.sent, block), steps, strict=True)]
            clients = clients._replace(sent=padded(steps, clients.sent.shape[1]))
        return clients, ByRows(placed_by_rows(self.problem, steps, block))

    def hear_duals(self, clients: HyFDCAClients, total: ByRows, block: Block, now: Round) -> HyFDCAClients:
        """Adds the steps of all holders to alpha; with absent clients the sum of all their steps so far is alpha."""
        if len(clients.sent):
            return self.hear_again(clients, total, block, now)
        return self._moved(clients, told_rows(total.value, block), block)

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
        along = self._along(clients, block) if self.rule == "line-search" else ABSENT
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
        """The states with the sums of the losses at these scores, each sample counted once; clipped to what fits."""
        if self.model_is != "best":
            return clients
        sums, most = [], largest_loss(self.problem) * self.problem.target_scale**2
        for m, shard in zip(scores, block.shards, strict=True):
            once = index(m, counted(self.problem, shard.client))
            losses = self.problem.objective.loss((), m[once][:, None], shard.y[once])
            sums.append(losses.sum(dtype=np.float64).clip(None, most))
        return clients._replace(losses=block.xp.stack(sums))

    # --- a client's part ---------------------------------------------------------------------------------------------

    def start_clients(self, block: Block, now: Round) -> HyFDCAClients:
        """alpha = 0, which is feasible for every loss."""
        n = len(block.clients)

        def zeros(needed: bool = True) -> Array:
            return np.zeros((n, int(block.counts.max())), block.dtype) if needed else ABSENT

        together = self.rule in TOGETHER
        return HyFDCAClients(
            alpha=zeros(),
            scores=zeros(not self.whole),
            norms=zeros(self.rule in OWN_NORMS),
            sent=zeros(self.keeps_steps),
            other=zeros(together),
            sigma_gamma=np.zeros((n, 2)),
            losses=np.zeros(n) if self.model_is == "best" else ABSENT,
            turned=np.zeros(n) if self.rule == "accelerated" else ABSENT,
        )

    def _begun(self, clients: HyFDCAClients, broadcast: HyFDCABroadcast) -> HyFDCAClients:
        """The states at the beginning of a round: moved by the last direction's best part, or extrapolated."""
        n, alpha, number = len(clients.alpha), clients.alpha, clients.alpha.dtype.type
        clients = clients._replace(sigma_gamma=np.tile([broadcast.sigma, broadcast.gamma], (n, 1)))
        if self.rule == "line-search":
            moved = number(broadcast.number) * clients.other
            moved += alpha
            return clients._replace(alpha=moved)
        if self.rule == "accelerated":
            return clients._replace(alpha=alpha + number(broadcast.number) * (alpha - clients.other), other=alpha)
        return clients

    def _scores(self, broadcast: HyFDCABroadcast, block: Block) -> list[Array]:
        """n arrays [s_i] x.w in the client's columns."""
        return [partial_scores(shard, own_part(broadcast.w, shard), block.dtype) for shard in block.shards]

    @property
    def _alike(self) -> bool:
        """Whether all holders of a sample have the same state of it and compute the same step."""
        return not self.keeps_steps and self.draws == "rows"

    def _steps(
        self, clients: HyFDCAClients, scores: Sequence[Array], block: Block, now: Round, shared: bool = False
    ) -> list[Array]:
        """n arrays [s_i] of dual steps; `shared`: divided by the number of the sample's holders."""

        def step(i: int) -> Array:
            steps = self._step(clients, i, scores[i], block.shards[i], now)
            if shared:
                share = _share(self.problem, block.shards[i].client)
                steps *= beside(steps, share) if share.ndim else share
            return steps

        return once_a_group(block, self._alike, step)

    def _step(self, clients: HyFDCAClients, i: int, m: Array, shard: ClientData, now: Round) -> Array:
        """The dual step of the i-th client of a block, for x.w = m [s_i]."""
        dual, (sigma, gamma) = self.problem.dual, clients.sigma_gamma[i].tolist()
        alpha, y = clients.alpha[i, : shard.samples], shard.y
        norms = clients.norms[i, : shard.samples] if len(clients.norms) else None
        at = self._drawn(shard, sigma, now)
        if at is None:
            return local_step(dual, self.rule, alpha, m, y, self._curvature(norms, sigma), gamma)
        steps, at = namespace(alpha).zeros_like(alpha), beside(alpha, at)
        curvature = self._curvature(None if norms is None else norms[at], sigma)
        steps[at] = local_step(dual, self.rule, alpha[at], m[at], y[at], curvature, gamma)
        return steps

    def _curvature(self, norms: Array | None, sigma: float) -> Array | float:
        if norms is None:
            return sigma / lambda_n(self.problem)
        factor = 1 / lambda_n(self.problem) * (self.problem.samples if self.rule == "theory" else 1)
        curvature: Array = norms * norms.dtype.type(factor)
        return curvature

    def _drawn(self, shard: ClientData, sigma: float, now: Round) -> Array | None:
        """D: positions of the samples that move in this round; None: all of them."""
        count, problem = self.moving(sigma), self.problem
        if count is None or count >= problem.samples:
            return None
        if self.draws == "rows":
            return drawn_among(now, shard.rows, problem.samples, count)
        draws = self.inner or max(1, round(count * shard.samples / int(problem.counts.sum())))
        drawn: Array = now.draw("rows", np.array([shard.client]), np.array([shard.samples]), draws)[0]
        return drawn

    def moving(self, sigma: float) -> int | None:
        """How many distinct samples move in a round, over all clients; None: all of them."""
        if self.inner is not None:
            return max(1, round(self.inner * self.problem.samples / float(self.problem.counts.mean())))
        if self.rule != "paper":
            return None
        return stable_samples(lambda_n(self.problem), self.problem.samples, sigma, bend(self.problem))

    def _moved(self, clients: HyFDCAClients, steps: Sequence[Array], block: Block) -> HyFDCAClients:
        """alpha after the steps of all holders, projected back to the domain, which rounding may leave."""
        dual, width = self.problem.dual, clients.alpha.shape[1]
        before = unpadded(clients.alpha, block)
        alpha = once_a_group(block, self._alike, lambda i: dual.feasible(before[i] + steps[i], block.shards[i].y))
        if self.rule == "line-search":
            return clients._replace(other=padded((new - old for new, old in zip(alpha, before, strict=True)), width))
        if self.rule == "accelerated":
            clients = clients._replace(turned=self._turned(clients, before, alpha, block))
        return clients._replace(alpha=padded(alpha, width))

    def _turned(self, clients: HyFDCAClients, start: list[Array], end: list[Array], block: Block) -> Array:
        """[n] (extrapolated - new).(new - old), each sample counted once; positive where the step turns back."""
        sums = []
        for i, (shard, old) in enumerate(zip(block.shards, unpadded(clients.other, block), strict=True)):
            each = (start[i] - end[i]) * (end[i] - old)
            sums.append(each[index(each, counted(self.problem, shard.client))].sum(dtype=np.float64))
        return namespace(clients.alpha).stack(sums)

    def _along(self, clients: HyFDCAClients, block: Block) -> Along:
        """The conjugates along the direction."""
        sums = []
        for i, shard in enumerate(block.shards):
            once, rows = index(clients.alpha, counted(self.problem, shard.client)), slice(0, shard.samples)
            alpha, direction = clients.alpha[i, rows][once], clients.other[i, rows][once]
            sums.append(along_direction(self.problem.dual, alpha, direction, shard.y[once]))
        return map_leaves(lambda *parts: block.xp.stack(parts), *sums)

    # --- the model, checks and reports --------------------------------------------------------------------------------

    def model(self, server: HyFDCAServer) -> Parameters:
        """The best w, the mean, or the last."""
        w = server.w if self.model_is == "last" else server.returned
        return Parameters(w.astype(self.problem.dtype)[:, None], model_template(self.problem).head)

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

    def check(self) -> list[str]:
        return check_duals(self.problem) or list(self._wrong())

    def warnings(self) -> list[str]:
        """What sealed sums do not hide."""
        if self.rule != "paper" or not self.sealed:
            return []
        return [
            '[algorithm] rule = "paper" moves few rows in a round, on small data one: then w moves along that row, and '
            'who receives w has it up to its length, in every channel; `mpifed audit` looks for it ("moved-row"), and '
            'rule = "damped" moves all rows'
        ]

    def _wrong(self) -> Iterator[str]:
        """Errors of the settings, one message each."""
        counts = self.problem.counts
        smallest = int(np.argmin(counts))
        if self.inner is not None and self.rule in TOGETHER:
            yield f'[algorithm] inner = {self.inner}: rule "{self.rule}" moves all samples; leave it out'
        elif self.inner is not None and self.inner > counts[smallest]:
            yield (
                f"[algorithm] inner = {self.inner}: the smallest shard (client {smallest}) has {counts[smallest]} "
                "samples; lower inner"
            )
        if self.gamma is not None and self.rule not in ("paper", "theory"):
            yield f'[algorithm] gamma: rule "{self.rule}" has no step size but its own; leave it out'
        elif self.gamma is not None and self.gamma.at(1) > 1:
            yield f"[algorithm] gamma = {self.gamma.scale:g}: step sizes above 1 leave the domain; lower it"
        if self.sigma is not None and not self.needs_sigma:
            yield f'[algorithm] sigma = {self.sigma:g}: rule "{self.rule}" does not use it; leave it out'
        if self.returns == "best" and self.partial_participation:
            yield (
                '[algorithm] returns = "best": with absent clients the loss at a w is unknown; take "mean" or "last", '
                "or let all clients take part"
            )
        if self.draws == "client" and self.moving(1.0) is None:
            yield f'[algorithm] draws = "client": rule "{self.rule}" draws nothing; leave it out, or give inner'


@lru_cache(maxsize=1024)
def _share(problem: Problem, client: int) -> Array:
    """[s_i], or [] if all are equal: 1 / the number of holders of a client's samples."""
    rows = problem.rows
    share: Array = (1 / rows.holders[rows.of(client)]).astype(problem.dtype)
    return share[0] if (share == share[0]).all() else share
