"""HyFDCA: primal-dual learning where clients hold some samples and some features.

T. Overman, G. Blum, D. Klabjan: "A Primal-Dual Algorithm for Hybrid Federated Learning" (AAAI 2024, arXiv:2210.08106).
Fenchel duality, with lambda = 2 l2: P(w) = lambda/2 ||w||^2 + 1/N sum l_i(x_i.w) is bounded below by
D(alpha) = -lambda/2 ||w(alpha)||^2 - 1/N sum l_i*(-alpha_i), w(alpha) = X'alpha / (lambda N). (1), (2)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from mpifed.algorithms.cells import (
    ByColumns,
    ByRows,
    Grid,
    Point,
    answer_pulled,
    ask_nothing,
    by_rows,
    check_duals,
    field_of_losses,
    field_of_pulled,
    hear_rows,
    holder_shares,
    labels,
    lambda_n,
    largest_dual,
    largest_score,
    measures_of_cells,
    most_rows,
    of_pieces,
    on_grid,
    own_rows,
    padded,
    partial_scores,
    placed_by_rows,
    products,
    pulled,
    summed_once,
    trust_of_duals,
)
from mpifed.algorithms.functions import refused
from mpifed.algorithms.measure import Measure
from mpifed.core.exchange import Exchange
from mpifed.core.holdings import by_columns
from mpifed.core.record import ABSENT, Array, beside, namespace
from mpifed.core.round import Round
from mpifed.data.block import Block
from mpifed.hyperparameters import Count
from mpifed.maths.arrays import square_norms
from mpifed.maths.duals import Dual
from mpifed.maths.objectives import Parameters
from mpifed.maths.problem import Problem
from mpifed.maths.schedules import StepSize

Rule: TypeAlias = Literal["paper", "theory", "damped", "line-search", "accelerated"]

TOGETHER: tuple[Rule, ...] = ("line-search", "accelerated")  # need all clients
OWN_NORMS: tuple[Rule, ...] = ("paper", "theory", "line-search")  # their curvatures are the samples' own
# the parts of a direction that are tried where D is not quadratic along it
PARTS = np.append(0.0, 2.0 ** (np.arange(-15, 1) / 2))
GROWTH = 8  # of the weights of the mean, which is so that of about the last ninth of all rounds
TURNS = 20  # of the power iteration
SAFETY = 1.1  # as it comes up to the eigenvalue from below


def stable_samples(problem: Problem, largest: float) -> int:
    """How many distinct samples rule `paper` can move at once.

    b of them overlap by about 1 + b lambda_max / N. With l* of curvature `bend`, a step then overshoots by less than
    itself up to b = (1 + bend lambda N) N / lambda_max; where alpha is bounded, and so all overshooting, up to about
    max(2, 4 lambda N) N / lambda_max.

    Parameters
    ----------
    largest : lambda_max(XX'), for rows of norm 1
    """
    dual, scale = problem.dual, lambda_n(problem)
    factor = 1 + (dual.bend or 0.0) * scale if np.isinf(dual.high) else max(2.0, 4 * scale)
    return int(min(max(1.0, factor * problem.samples / max(largest, 1e-300)), problem.samples))


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
    number = step.dtype.type(gamma)
    if rule != "theory" or gamma == 1:
        step *= number
        return step
    xp = namespace(step)
    most = number * (dual.toward(scores.astype(step.dtype, copy=False), y) - alpha)  # gamma (u - alpha), of s = 1
    return xp.clip(step, xp.minimum(most, 0), xp.maximum(most, 0), out=step)


# --- line-search ----------------------------------------------------------------------------------------------------


def along_direction(dual: Dual, y: Array, alpha: Array, direction: Array) -> Array:
    """sum -l*(-(alpha + s d)) of samples [s], as a function of s and but for a constant; float64.

    [2] a and b where it is a s - b s^2 / 2; else [J] at the parts `PARTS`, less that at 0. Each point alpha + s d is
    replaced by the nearest feasible one, since rounding may have moved it out of the domain.
    """
    if dual.bend is not None:
        slopes = direction * (dual.signs(y.astype(alpha.dtype))[1] - alpha * dual.bend)
        squares = (direction * direction).sum(dtype=np.float64) * dual.bend
        return namespace(alpha).stack((slopes.sum(dtype=np.float64), squares))
    points = (dual.feasible(alpha + alpha.dtype.type(s) * direction, y) for s in PARTS)
    values = -np.stack([dual.conjugate(point, y).sum(dtype=np.float64) for point in points])
    changes: Array = values - values[0]
    return changes


def best_part(along: Array, slope: float, curve: float) -> float:
    """The s in [0, 1] that maximizes N D(alpha + s d); where that is not quadratic, the best of `PARTS`.

    N D(alpha + s d) is sum -l*(-(alpha + s d)) - s w.X'd - s^2 / 2 ||X'd||^2 / (lambda N), and a constant.

    Parameters
    ----------
    along : `along_direction`, summed over all samples
    slope : w.X'd
    curve : ||X'd||^2 / (lambda N)
    """
    if len(along) > 2:
        return float(PARTS[np.argmax(along - PARTS * slope - PARTS**2 / 2 * curve)])
    rise, fall = float(along[0]) - slope, float(along[1]) + curve
    return float(np.clip(rise / fall, 0.0, 1.0)) if fall > 0 else float(rise > 0)


# --- records --------------------------------------------------------------------------------------------------------


class HyFDCAServer(NamedTuple):
    """The server's state."""

    w: Array  # [p] float64 X'alpha / (lambda N), of the clients' last answers
    asked: Array  # [p] float64 what the next round begins with: w, or the extrapolated point of the accelerated rule
    returned: Array  # [p] float64 the model
    least: np.float64  # P of it, infinite before a loss was received
    sigma: np.float64  # lambda_max(XX'); 0 where it is not needed
    # line-search: how much of their last direction the clients have still to go; accelerated: how much of the last
    # step they go on, beta of FISTA's sequence; else 0
    part: np.float64
    theta: np.float64  # of FISTA's sequence, in which (1 + sqrt(1 + 4 theta^2)) / 2 comes next
    power: Array  # [p] float64 vector of the power iteration, of length 1


@by_columns("w")
class HyFDCABroadcast(NamedTuple):
    """Broadcast of the exchange in which dual variables move."""

    w: Array  # [p] to each client its own columns; ABSENT but for whole rows
    sigma: np.float64
    number: np.float64  # `HyFDCAServer.part`


class HyFDCAClients(NamedTuple):
    """State of the clients; arrays [n, S] over a client's rows."""

    alpha: Array
    scores: Array  # x.w
    norms: Array  # ||x||^2; ABSENT where the rule takes sigma for it
    sent: Array  # the sum of all steps so far, which counts while a client is absent; ABSENT if nobody may be
    other: Array  # line-search: the direction; accelerated: alpha of the round before; else ABSENT
    told: Array  # the sum of all holders' steps


class PrimalUpload(NamedTuple):
    """A client's upload for the server."""

    pulled: Array  # Placed [n, p]: X'alpha, or for line-search X'd
    loss: Array  # [n] the sum of the losses at the w of this round, each sample counted once; or ABSENT
    along: Array  # [n, J] line-search: `along_direction`, each sample counted once; else ABSENT
    turned: Array  # [n] accelerated: the sum by which is judged whether to begin anew; else ABSENT


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
    why_no_start: ClassVar[str] = "its dual variables begin at 0"
    why_no_gap: ClassVar[str] = (
        'rule "paper" leaves it large while the model is good already; take rule = "damped", "line-search" or '
        '"accelerated"'
    )
    rule: Rule = "line-search"
    """How local dual steps are chosen: paper, theory, damped, line-search or accelerated; the last two need all
    clients."""
    inner: Count | None = None
    """Samples that a client draws in a round, on average, with rule paper; where absent as many as are stable for rows
    of norm 1."""
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
    def whole(self) -> bool:
        """Whether every client holds whole rows, disjoint from those of others."""
        return self.problem.split == "rows"

    @property
    def keeps_steps(self) -> bool:
        """Whether what counts of an absent client are all its steps so far."""
        return self.partial_participation and not self.whole

    @property
    def needs_sigma(self) -> bool:
        """Whether lambda_max(XX') determines step sizes, or how many samples move."""
        return self.rule in ("damped", "accelerated") or (self.rule == "paper" and self.inner is None)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Two for whole rows, else three; two more if clients may be absent."""
        problem, absent = self.problem, self.partial_participation
        duals = Exchange(
            "duals", by_rows(problem, largest_dual(problem)), self.ask, self.answer_duals,
            hear=partial(hear_rows, problem, "told"),
            keeps="duals" if self.keeps_steps else "",
        )  # fmt: skip
        losses, curve = field_of_losses(problem), (2,) if problem.dual.bend is not None else PARTS.shape
        upload = PrimalUpload(
            field_of_pulled(problem),
            losses if self.model_is == "best" else ABSENT,
            field_of_losses(problem, curve, wide=True) if self.rule == "line-search" else ABSENT,
            losses if self.rule == "accelerated" else ABSENT,
        )
        primal = Exchange(
            "primal", upload, ask_nothing, self.answer_primal, self.absorb, keeps="primal" if absent else "",
            clear=self.primal == "clear",
        )  # fmt: skip
        if self.whole:
            return duals, primal
        inner = products(
            problem, "products", by_rows(problem, largest_score(problem)),
            lambda server, now: Point(server.asked.astype(problem.dtype)), "products" if absent else "",
        )  # fmt: skip
        if not absent:
            return inner, duals, primal
        back = attrgetter("back")
        return_duals = Exchange(
            "return-duals", duals.fields, ask_nothing, None, hear=duals.hear, who=back, keeps="duals"
        )
        return_primal = replace(primal, name="return-primal", absorb=self.absorb_again, who=back)
        return return_duals, return_primal, inner, duals, primal

    @property
    def setup(self) -> tuple[Exchange, ...]:
        """Row norms and the largest eigenvalue of XX', where the rule needs them."""
        problem, exchanges = self.problem, list[Exchange]()
        if self.rule in OWN_NORMS:
            squares, hear = by_rows(problem, 2.0**16, degree=0), partial(hear_rows, problem, "norms")
            norms = Exchange("norms", squares, ask_nothing, self.answer_norms, hear=hear)
            exchanges.append(norms)
        if self.needs_sigma:
            fields = ByColumns(on_grid(problem, problem.columns, most_rows(problem) * 2.0**12, degree=0))
            inner = products(
                problem, "power-products", by_rows(problem, 2.0**12, degree=0),
                lambda server, now: Point(server.power.astype(problem.dtype)),
            )  # fmt: skip
            back = Exchange(
                "power-primal", fields, ask_nothing, partial(answer_pulled, problem, "scores"), self.absorb_power,
                clear=self.primal == "clear",
            )  # fmt: skip
            exchanges += [inner, back] * TURNS
        return tuple(exchanges)

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Losses, dual value and duality gap."""
        return measures_of_cells(self, self.shares, lambda server: server.part, private=self.primal == "sealed")

    # --- starts ------------------------------------------------------------------------------------------------------

    def start_server(self, now: Round) -> HyFDCAServer:
        zero, power = np.zeros(self.problem.features), now.rng("power").standard_normal(self.problem.features)
        none, one = np.float64(0.0), np.float64(1.0)
        return HyFDCAServer(zero, zero, zero, np.float64(np.inf), none, none, one, power / np.linalg.norm(power))

    def start_clients(self, block: Block, now: Round) -> HyFDCAClients:
        """alpha = 0, which is feasible for every loss."""
        shape = len(block.clients), int(block.counts.max())
        needed = True, True, self.rule in OWN_NORMS, self.keeps_steps, self.rule in TOGETHER, True
        tables: Iterator[Array] = (np.zeros(shape, block.dtype) if each else ABSENT for each in needed)
        return HyFDCAClients._make(tables)

    # --- set-up -----------------------------------------------------------------------------------------------------

    def answer_norms(
        self, clients: HyFDCAClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByRows]:
        """||x_k,i||^2 of each client's part of its samples."""
        norms = of_pieces(block, lambda X, i: square_norms((X,))[0] if block.sparse else square_norms(X))
        return clients, ByRows(placed_by_rows(self.problem, norms, block))

    def absorb_power(self, server: HyFDCAServer, total: ByColumns, now: Round) -> HyFDCAServer:
        """||X'Xv|| for ||v|| = 1 is never above the eigenvalue."""
        v: Array = total.pulled.astype(np.float64)
        length = np.linalg.norm(v)
        return server._replace(power=v / max(length, 1e-300), sigma=SAFETY * length)

    # --- a round -----------------------------------------------------------------------------------------------------

    def ask(self, server: HyFDCAServer, now: Round) -> HyFDCABroadcast:
        w = server.asked.astype(self.problem.dtype) if self.whole else ABSENT
        return HyFDCABroadcast(w, server.sigma, server.part)

    def answer_duals(
        self, clients: HyFDCAClients, broadcast: HyFDCABroadcast, block: Block, now: Round
    ) -> tuple[HyFDCAClients, ByRows]:
        """Algorithms 3 and 5: the local steps, each divided by the number of the sample's holders."""
        problem, (w, sigma, number), (alpha, scores, norms, sent, other, _) = self.problem, broadcast, clients
        part, width = alpha.dtype.type(number), alpha.shape[1]
        if self.rule == "line-search":  # moved by the last direction's best part
            alpha = alpha + part * other
        if self.rule == "accelerated":  # extrapolated
            alpha, other = alpha + part * (alpha - other), alpha
        if self.whole:
            scores = padded(partial_scores(w, block), width)
        half = 0.5 if self.rule == "damped" else 1.0  # of the eigenvalue is enough, and twice as fast
        curvature: Array | float = half * float(sigma) / lambda_n(problem)
        if self.rule in OWN_NORMS:  # with rule `theory` without N
            curvature = norms * norms.dtype.type(
                1 / lambda_n(problem) * (problem.samples if self.rule == "theory" else 1)
            )
        gamma = 1.0 if self.gamma is None else self.gamma.at(now.index + 1)
        steps = local_step(problem.dual, self.rule, alpha, scores, labels(block, width, alpha.dtype), curvature, gamma)
        steps *= holder_shares(problem, steps, block)
        if self.rule == "paper":
            steps *= self._drawn(block, steps, float(sigma), now)
        clients = clients._replace(alpha=alpha, scores=scores, other=other)
        if self.keeps_steps:
            steps += sent
            clients = clients._replace(sent=steps)
        return clients, ByRows(placed_by_rows(problem, steps, block))

    def _drawn(self, block: Block, like: Array, sigma: float, now: Round) -> Array:
        """[n, S] whether a sample is in D: whether it moves in this round; where `like` [n, S] is."""
        problem, size = self.problem, self.problem.samples
        if self.draws == "client":
            drawn = np.zeros(like.shape, dtype=bool)
            np.put_along_axis(drawn, block.draw(now, "rows", self.inner or 0), values=True, axis=1)
            return beside(like, drawn)
        count = round((self.inner or 0) * size / float(problem.counts.mean())) or stable_samples(problem, sigma)
        moves = np.zeros(size, dtype=bool)
        moves[now.draw("rows", np.array([0]), np.array([size]), min(count, size))] = True
        return own_rows(problem, beside(like, moves), block, like.shape[1])

    def answer_primal(
        self, clients: HyFDCAClients, broadcast: tuple[()], block: Block, now: Round
    ) -> tuple[HyFDCAClients, PrimalUpload]:
        """Adds the steps of all holders to alpha; Algorithm 4: X'alpha in the client's columns, with line-search X'd.

        With absent clients the sum of all their steps so far is alpha. It is projected back to the domain, which
        rounding may leave.
        """
        problem, dual, start = self.problem, self.problem.dual, clients.alpha
        alpha = clients.told if self.keeps_steps else start + clients.told
        alpha = dual.feasible(alpha, labels(block, alpha.shape[1], alpha.dtype))
        once, loss, turned = partial(summed_once, problem, block), ABSENT, ABSENT
        if self.model_is == "best":
            most = field_of_losses(problem).bound * problem.target_scale**2
            sums = once(lambda y, z: problem.objective.loss((), z[:, None], y).sum(dtype=np.float64), clients.scores)
            loss = np.minimum(sums, most)
        if self.rule == "line-search":
            moved = alpha - start
            along = once(partial(along_direction, dual), start, moved)
            return clients._replace(other=moved), PrimalUpload(pulled(problem, moved, block), loss, along, ABSENT)
        if self.rule == "accelerated":  # positive where the step turns back
            turned = once(
                lambda y, start, end, old: ((start - end) * (end - old)).sum(dtype=np.float64),
                start, alpha, clients.other,
            )  # fmt: skip
        return clients._replace(alpha=alpha), PrimalUpload(pulled(problem, alpha, block), loss, ABSENT, turned)

    def absorb_again(self, server: HyFDCAServer, total: PrimalUpload, now: Round) -> HyFDCAServer:
        """Updates w by what returning clients missed while they were absent."""
        w = np.multiply(total.pulled, 1 / lambda_n(self.problem), dtype=np.float64)
        return server._replace(w=w, asked=w)

    def absorb(self, server: HyFDCAServer, total: PrimalUpload, now: Round) -> HyFDCAServer:
        """Updates w as the rule says (Alg. 4), and the model."""
        problem, after = self.problem, self.absorb_again(server, total, now)
        w = after.w
        if self.rule == "line-search":
            slope, curve = (lambda_n(problem) * float(v @ w) for v in (server.w, w))
            part = best_part(total.along, slope, curve)
            w = w * part + server.w
            after = after._replace(w=w, asked=w, part=np.float64(part))
        if self.rule == "accelerated":
            theta = np.float64(1.0) if total.turned > 0 else server.theta
            following = (1 + np.sqrt(1 + 4 * theta**2)) / 2
            beta = (theta - 1) / following
            after = after._replace(asked=w + beta * (w - server.w), part=beta, theta=following)
        if self.model_is == "last":
            return after._replace(returned=w)
        if self.model_is == "mean":
            weight = (GROWTH + 1) / (GROWTH + now.index + 1)
            return after._replace(returned=server.returned + weight * (w - server.returned))
        value = np.float64(total.loss / problem.samples + problem.objective.l2 * (server.asked @ server.asked))
        return after._replace(returned=server.asked, least=value) if value < server.least else after

    # --- the model, checks and reports --------------------------------------------------------------------------------

    def model(self, server: HyFDCAServer) -> Parameters:
        """The best w, the mean, or the last."""
        return self.of_weights(server.returned)

    def trust(self, plain: bool) -> Iterator[str]:
        """The paper's trust model, for the audit's report."""
        return trust_of_duals(self.problem, "X'alpha", self.primal == "clear", plain)

    def shares(self, clients: HyFDCAClients, part: Array, block: Block) -> Array:
        """The clients' summands of alpha, for the evaluation: what all its holders know, each sends a part of."""
        if self.keeps_steps:
            return clients.sent
        alpha = clients.alpha
        if self.rule == "line-search":
            alpha = alpha + alpha.dtype.type(part) * clients.other
        alpha = alpha.astype(np.float64)
        return alpha * holder_shares(self.problem, alpha, block)

    def check(self) -> list[str]:
        """Which settings the rule reads, and that all fit the data and who takes part."""
        few, gamma = int(np.argmin(self.problem.counts)), 0.0 if self.gamma is None else self.gamma.at(1)
        return check_duals(self.problem) or refused(
            (
                self.inner is not None and self.rule != "paper",
                f'[algorithm] inner = {self.inner}: rule "{self.rule}" moves all samples; leave it out',
            ),
            (
                (self.inner or 0) > self.problem.counts[few],
                f"[algorithm] inner = {self.inner}: the smallest shard ({self.problem.name_of(few)}) has "
                f"{self.problem.counts[few]} samples; lower inner",
            ),
            (
                gamma > 0 and self.rule not in ("paper", "theory"),
                f'[algorithm] gamma: rule "{self.rule}" has no step size but its own; leave it out',
            ),
            (gamma > 1, f"[algorithm] gamma = {gamma:g}: step sizes above 1 leave the domain; lower it"),
            (
                self.returns == "best" and self.partial_participation,
                '[algorithm] returns = "best": with absent clients the loss at a w is unknown; take "mean" or "last", '
                "or let all clients take part",
            ),
            (
                self.draws == "client" and self.inner is None,
                '[algorithm] draws = "client": is for rule "paper" with inner, the number that each client draws',
            ),
        )

    def warnings(self) -> list[str]:
        """What sealed sums do not hide."""
        return refused(
            (
                self.rule == "paper" and self.primal == "sealed",
                '[algorithm] rule = "paper" moves few rows in a round, on small data one: then w moves along that row, '
                'and who receives w has it up to its length, in every channel; rule = "damped" moves all rows',
            )
        )
