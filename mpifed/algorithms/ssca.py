"""Mini-batch SSCA, for data split by rows or by columns, with or without constraints.

Y. Cui, Y. Li, C. Ye: "Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex
Optimization via Mini-batch SSCA" (arXiv:2104.06011); C. Ye, Y. Cui: "Sample-based Federated Learning via Mini-batch
SSCA" (ICC 2021, arXiv:2103.09506). Equation numbers are those of the first.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, MinLen

from mpifed.algorithms.algorithm import Algorithm, Rows
from mpifed.algorithms.certificate import known
from mpifed.algorithms.columns import Columns, Pass, PassBroadcast, PassUpload, check_columns, draw_rows
from mpifed.algorithms.functions import (
    Function,
    Statistics,
    all_terms,
    count_samples,
    counts_some,
    objective_term,
    refused,
    sampled,
    slope_of_each,
    stacked,
)
from mpifed.algorithms.refused_steps import check_rows
from mpifed.algorithms.rows import Pooled, pooled_minibatches
from mpifed.algorithms.ssca_tuning import (
    Margins,
    SlackCosts,
    after_round,
    next_costs,
    renewed_estimate,
    steer,
)
from mpifed.core.exchange import Exchange
from mpifed.core.lazy import Lazy
from mpifed.core.record import ABSENT, Array, beside, in_memory, map_leaves, on_host
from mpifed.core.round import Round
from mpifed.data.block import Batch, Block, Features
from mpifed.hyperparameters import Count, Size
from mpifed.maths.arrays import added, zeros
from mpifed.maths.dual import multipliers
from mpifed.maths.objectives import Parameters
from mpifed.maths.problem import Weighted, model_template, start_model, weighted_fields
from mpifed.maths.schedules import StepSize, unmet
from mpifed.maths.surrogate import (
    Floats,
    Forms,
    Start,
    Surrogate,
    forms,
    gram,
    move,
    start_surrogate,
    track,
)

OFTEN = 0.25  # the share of recent rounds at the cap from which on there is a remark
# convergence is proven for them
_RHO, _GAMMA = StepSize(0.9, 0.51), StepSize(0.9, 0.56)


# --- the convex problem of a round ------------------------------------------------------------------------------


class Solution(NamedTuple):
    """The solution of a convex problem."""

    factors: tuple[float, ...]  # [K]: w-bar = - sum_k factors[k] l_k
    multipliers: Array  # [M]
    slack: Array  # [M]
    total: float  # T, the curvature of the Lagrangian


def solve(surrogate: Surrogate, form: Forms, cost: Floats, margin: Floats | float = 0.0) -> Solution:
    """The solution in the closed forms (9), (19) and Lemma 1, or by the dual problem in M variables.

    Parameters
    ----------
    form : the surrogate's, from `mpifed.maths.surrogate.forms`
    cost : [M] c
    margin : [M] how far below its aim each constraint is to be
    """
    constants, curvatures, rows = form
    if not len(constants):  # (9), (19)
        return Solution((1 / (2 * curvatures[0]),), np.zeros(0), np.zeros(0), float(curvatures[0]))
    nu, levels = multipliers(constants + margin, gram(surrogate, rows), curvatures, cost)
    total = float(curvatures[0] + nu @ curvatures[1:])
    weights = zip([1.0, *nu.tolist()], rows, strict=True)
    factors = tuple(multiplier / (2 * total) for multiplier, row in weights if row is not None)
    return Solution(factors, nu, np.maximum(levels, 0), total)


# --- the server, of either split ----------------------------------------------------------------------------------


class Best(NamedTuple):
    """Of the measured models, the one with the least objective among those that meet all limits."""

    model: Parameters
    objective: np.float64  # infinite where none has met them yet
    round: np.int64


class SSCAServer(NamedTuple):
    """The server's state."""

    model: Parameters  # w_t
    previous: Parameters  # w_{t-1}; ABSENT unless gradients are variance-reduced
    surrogate: Surrogate  # of round t - 1
    estimate: Statistics  # variance-reduced d_{t-1} and v_{t-1}; ABSENT otherwise
    shares: Array  # [K] counted samples relative to all; ABSENT where all count
    steps: np.int64  # t - 1; begins again with every stage
    stage: np.int64  # the number of the penalty c_j
    multipliers: Array  # [M] of the last convex problem
    slack: Array  # [M] s of the last convex problem
    slack_costs: SlackCosts
    margins: Margins  # ABSENT where they are "off"
    best: Best  # ABSENT where the last model is returned


@dataclass(frozen=True)
class SSCA(Algorithm):
    """Algorithms 1 to 4: the hyper-parameters, and everything that the server computes.

    The split of the data decides between 1, 2 (rows, `SSCAHorizontal`) and 3, 4 (columns, `SSCAVertical`); constraints
    between 1, 3 and 2, 4. In the paper B = `batch_size`, c = `slack_cost`; the step sizes are
    a1/t^alpha and a2/t^(alpha + 0.05); here `rho` and `gamma` are `[scale, decay]` each, scale / t^decay.
    For `slack_cost = "auto"`, `margins = "auto"` and `variance_reduction` see `mpifed.algorithms.ssca_tuning`. A
    list of slack costs is the paper's sequence c_j: with the next one, surrogates and step sizes start again, and the
    model stays.

    `variance_reduction = "recursive"`: the surrogate is one quadratic around w_t, of estimates that are corrected
    recursively. Twice the arithmetic, two models down, the same bytes up. # differs from the paper: an addition.
    """

    batch_size: Count
    """Rows in a minibatch, B in the paper: of each client's own, or of all where clients hold columns."""
    rho: StepSize = _RHO
    """Weight of the newest gradient in the surrogate, scale / t^decay in round t; scale at most 1."""
    gamma: StepSize = _GAMMA
    """How far the model moves towards the surrogate's minimizer, scale / t^decay in round t; scale at most 1."""
    tau: Size = 0.1
    """Curvature of the surrogates: the larger, the smaller the steps."""
    start: Start = "exact"
    """How the surrogates begin: exact: from zero, with the weights corrected for it; paper: as printed."""
    slack_cost: Literal["auto"] | Size | Annotated[tuple[Size, ...], MinLen(1)] = "auto"
    """Cost c of each unit by which a constraint is exceeded: a number; a growing list, the next taken by stages; auto:
    chosen for each constraint in the run."""
    stage_rounds: Count | None = None
    """Rounds after which the next of a list of slack costs may be taken; rho and gamma then begin again."""
    slack_tolerance: Size = 1e-3
    """The next slack cost is taken only where the norm of the slack is above this."""
    variance_reduction: Literal["none", "recursive"] = "none"
    """none; or recursive: gradients at the last model too, by the same minibatch (STORM): less noise for twice the
    arithmetic; on data split by rows."""
    margins: Literal["off", "auto"] = "off"
    """auto: aim below the limits, so that the noise of minibatches does not exceed them; off: aim at them."""
    returns: Literal["last", "best feasible"] = "last"
    """Which model a run returns: the last; or, of the models that it evaluates, the one with the least objective among
    those that meet all limits, and the last where none does."""
    label_holder: Annotated[int, Ge(0)] | None = None
    """The client who holds the labels, on data split by columns; every client holds them where absent."""

    # takes `minimize` and constraints
    constrained = True

    @classmethod
    def for_split(cls, split: str) -> type[SSCA]:
        """The class for data split by rows or by columns; one derived from this is for either."""
        if cls is not SSCA:
            return cls
        return SSCAVertical if split == "columns" else SSCAHorizontal

    @property
    def costs(self) -> tuple[float, ...]:
        """The penalty sequence c_j; empty where the costs are chosen in the run."""
        if self.slack_cost == "auto":
            return ()
        return self.slack_cost if isinstance(self.slack_cost, tuple) else (self.slack_cost,)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        return sampled(self.problem)

    @cached_property
    def rows(self) -> tuple[int | None, ...]:
        """[M + 1] the place among `functions` of the objective and of each constraint; None: ||w||^2."""
        numbers = itertools.count()
        return tuple(next(numbers) if term.sampled else None for term in all_terms(self.problem))

    @property
    def recursive(self) -> bool:
        return self.variance_reduction == "recursive"

    @property
    def limits(self) -> int:
        """M, the number of constraints."""
        return len(self.problem.constraints)

    def check(self) -> list[str]:
        """Errors of the settings that do not depend on the split."""
        l2 = self.problem.objective.l2
        return refused(
            (
                len(self.costs) > 1 and self.stage_rounds is None,
                "[algorithm] stage_rounds: missing; after how many rounds may the next slack_cost be taken?",
            ),
            (
                list(self.costs) != sorted(set(self.costs)),
                f"[algorithm] slack_cost = {list(self.costs)}: a penalty sequence must grow",
            ),
            (
                l2 and not objective_term(self.problem).sampled,
                f'[model] l2 = {l2:g}: with [minimize] name = "norm" it is ||w||^2 that is minimized, without a '
                "factor; set l2 = 0",
            ),
            (
                not self.functions,
                '[minimize] name = "norm" without a [[constraint]] that needs data: the solution is zero',
            ),
        )

    def warnings(self) -> list[str]:
        """Step sizes for which convergence is not proven, and settings without effect."""
        missing, idle = unmet(self.rho, self.gamma), "has no effect without a [[constraint]]"
        return refused(
            (
                missing,
                f"[algorithm] rho = {list(self.rho)}, gamma = {list(self.gamma)}: convergence is proven under "
                f"{' and '.join(missing)}, which these step sizes do not fulfil (nor do the paper's)",
            ),
            (not self.limits and self.margins != "off", f"[algorithm] margins: {idle}"),
            (not self.limits and self.slack_cost != "auto", f"[algorithm] slack_cost: {idle}"),
            (
                self.stage_rounds is not None and len(self.costs) <= 1,
                "[algorithm] stage_rounds: has no effect where slack_cost is not a list of several costs",
            ),
        )

    def start_server(self, now: Round) -> SSCAServer:
        """Step 1: any w_1, and empty surrogates."""
        return self.begin(start_model(self.problem, now))

    def begin(self, model: Parameters) -> SSCAServer:
        """The state before round 1."""
        surrogate = start_surrogate(model, len(self.functions))
        nothing = np.zeros(self.limits)
        level = np.zeros(len(self.functions)) if self.limits else ABSENT
        return SSCAServer(
            model=model,
            previous=map_leaves(np.copy, model) if self.recursive else ABSENT,
            surrogate=surrogate,
            estimate=Statistics(zeros(surrogate).linear, level) if self.recursive else ABSENT,
            shares=np.ones(len(self.functions)) if counts_some(self.problem) else ABSENT,
            steps=np.int64(0),
            stage=np.int64(0),
            multipliers=nothing,
            slack=nothing,
            slack_costs=SlackCosts(*np.zeros((5, self.limits))),
            margins=Margins(*np.zeros((3, self.limits))) if self.margins == "auto" and self.limits else ABSENT,
            best=Best(model, np.float64(np.inf), np.int64(0)) if self.returns == "best feasible" else ABSENT,
        )

    def shares_exchanges(self, sender: int | None = None) -> tuple[Exchange, ...]:
        """Counts the samples of each function, where any averages over a subset; `sender` where all have all rows."""
        counted = count_samples(self.problem, lambda server, shares: server._replace(shares=shares), sender)
        return (counted,) if counts_some(self.problem) else ()

    def keep(self, server: SSCAServer) -> np.float64:
        """1 - rho_t, the weight of the last estimate: 0 in the first round of a stage; ABSENT unless `recursive`."""
        kept: np.float64 = ABSENT
        if self.recursive:
            kept = np.float64(1 - self.rho.at(int(server.steps) + 1) if server.steps else 0.0)
        return kept

    def advance(self, server: SSCAServer, sums: Statistics, weight: float) -> SSCAServer:
        """Step 5 or 7: the surrogates (3), (10), (13), (20), the convex problem, and the step (5).

        Parameters
        ----------
        sums : `weight` times the means at w_t, leaves [K, ...]; variance-reduced differences of them if `recursive`
        """
        t, w = int(server.steps) + 1, server.model
        rho, newest, carried = self.rho.at(t), self.rho.at(t), 0.0
        surrogate, estimate = server.surrogate, server.estimate
        if self.recursive:
            newest, carried = 1.0, float(self.keep(server))
            sums = estimate = renewed_estimate(estimate, sums, weight, carried)
            surrogate, weight = zeros(surrogate), 1.0
        gradient, level = sums
        penalties = [function.penalty for function in self.functions]
        parts = self.problem.objective.penalized(w)
        surrogate = track(surrogate, newest, gradient, level, w, self.tau, penalties, weight, parts)
        form = forms(surrogate, self.rows, self.problem.constraints, self.tau, self.start)
        costs, margins = server.slack_costs, server.margins
        if margins:
            excess = on_host(level) / weight  # F - aim, known exactly where no samples are needed
            excess = np.array([0.0 if row is None else float(excess[row]) for row in self.rows[1:]])
            margins = steer(margins, t, excess, rho, carried)
        cost, cap = next_costs(costs, form.curvatures)
        if self.costs:
            cost = cap = np.full(self.limits, self.costs[int(server.stage)])
        solution = solve(surrogate, form, cost, margins.margin if margins else 0.0)
        new = server._replace(
            model=move(surrogate, solution.factors, self.gamma.at(t), w),  # (5)
            previous=w if self.recursive else ABSENT,
            surrogate=surrogate,
            estimate=estimate,
            steps=np.int64(t),
            multipliers=solution.multipliers,
            slack=solution.slack,
            slack_costs=after_round(costs, t, cost, cap, solution.multipliers, solution.total),
            margins=margins,
        )
        return self._next_stage(new)

    def _next_stage(self, server: SSCAServer) -> SSCAServer:
        """At the end of a stage: the next penalty c_j, or, if ||s|| is small, another stage with the same."""
        last = int(server.stage) >= len(self.costs) - 1
        met = float(np.linalg.norm(server.slack)) <= self.slack_tolerance
        if last or met or int(server.steps) % (self.stage_rounds or 1):
            return server
        begun = self.begin(server.model)
        return server._replace(
            surrogate=begun.surrogate,
            estimate=begun.estimate,
            steps=begun.steps,
            stage=server.stage + 1,
            slack_costs=begun.slack_costs,
            margins=begun.margins,
        )

    # --- the best model, columns of the history, and remarks ------------------------------------------------------

    def measured(self, server: SSCAServer, columns: Mapping[str, float | None]) -> SSCAServer:
        """The state in which this model is the best, if it is."""
        objective = known(columns, "objective")
        met = bool((self._above(columns) <= 0).all())
        if not server.best or objective is None or objective >= server.best.objective or not met:
            return server
        return server._replace(best=Best(server.model, np.float64(objective), np.int64(columns["round"] or 0)))

    def returned(self, server: SSCAServer) -> tuple[SSCAServer, int | None]:
        """The state whose model is the best that was measured, if any has met all limits."""
        if not server.best or np.isinf(server.best.objective):
            return server, None
        return server._replace(model=server.best.model), int(server.best.round)

    def report(self, server: SSCAServer) -> dict[str, float]:
        """Columns of the history: multipliers, and ||s|| of the last convex problem."""
        if not self.limits:
            return {}
        columns = {f"subproblem_multiplier_{m}": float(nu) for m, nu in enumerate(server.multipliers, 1)}
        if not self.costs:
            columns |= {f"slack_cost_{m}": float(cost) for m, cost in enumerate(server.slack_costs.cost, 1)}
        return columns | {"slack": float(np.linalg.norm(server.slack))}

    def remarks(self, server: SSCAServer, measured: Mapping[str, float | None]) -> list[str]:
        """By how much limits are not met, and how often multipliers were at their caps; one for a constraint.

        Parameters
        ----------
        measured : columns of the history, of the last model
        """
        due = int(server.stage) < len(self.costs) - 1  # the next cost, if there are rounds for it
        shares = np.where(due, 0.0, server.slack_costs.capped).tolist()
        return [
            f"constraint {m}: {above:.3g} above its limit {constraint.limit:g}; its multiplier was at its cap "
            f"in {share:.0%} of recent rounds"
            for m, (constraint, above, share) in enumerate(
                zip(self.problem.constraints, np.fmax(self._above(measured), 0), shares, strict=True), 1
            )
            if server.steps and (above or share >= OFTEN)
        ]

    def _above(self, columns: Mapping[str, float | None]) -> Floats:
        """[M] by how much the limits are exceeded; nan where that is not known."""
        values = [columns.get(f"constraint_{m}") for m in range(1, self.limits + 1)]
        return np.array(values, "f8") - [constraint.limit for constraint in self.problem.constraints]


# --- data split by rows --------------------------------------------------------------------------------------------


@in_memory("shares", "keep")
class SSCABroadcast(NamedTuple):
    """Broadcast of a round."""

    model: Parameters  # w_t
    previous: Parameters  # w_{t-1}, where gradients are variance-reduced; else ABSENT
    shares: Array  # [K], or ABSENT
    keep: np.float64  # 1 - rho_t, where gradients are variance-reduced; else ABSENT


@dataclass(frozen=True)
class SSCAHorizontal(SSCA, Rows):
    """Algorithms 1 and 2: in every round each client draws `batch_size` rows and uploads the sums of their gradients.

    With all clients present the weights are the paper's N_i/(B N); otherwise they are normalized over those present. A
    client with fewer rows takes all of them.
    """

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """One exchange: the server receives weighted sums of minibatch gradients."""
        stacked = start_surrogate(model_template(self.problem), len(self.functions)).linear
        level = np.empty(len(self.functions)) if self.limits else ABSENT
        fields = weighted_fields(self.problem, Statistics(stacked, level))
        return (Exchange("gradients", fields, self.ask, self.answer, self.absorb),)

    @property
    def setup(self) -> tuple[Exchange, ...]:
        return self.shares_exchanges()

    def check(self) -> list[str]:
        """Split and batch size must fit the data."""
        held = f"[algorithm] label_holder = {self.label_holder}: is for data split by columns; leave it out"
        rows = check_rows(self.problem, self.batch_size)
        return super().check() + rows + refused((self.label_holder is not None, held))

    def ask(self, server: SSCAServer, now: Round) -> SSCABroadcast:
        """Step 3: w_t."""
        return SSCABroadcast(server.model, server.previous, server.shares, self.keep(server))

    def answer(self, clients: tuple[()], broadcast: SSCABroadcast, block: Block, now: Round) -> tuple[tuple[()], Lazy]:
        """Step 4: the mean gradients over each client's minibatch, weighted by its rows."""
        weight = self.problem.weights[block.clients]

        def sums_of(who: Array, part: Block, rows: int) -> Statistics:
            batch = part.take(part.draw(now, "minibatch", rows))
            each = beside(batch.y, np.repeat(weight[who, None] / rows, rows, axis=1))
            keys = self.problem.objective.pass_keys(now, 0, part.clients)
            return self._statistics(part, broadcast, batch, each, *keys)

        def parts() -> Iterator[tuple[Array, Weighted]]:
            yield np.arange(len(weight)), Weighted(block.joined(self.batch_size, sums_of), weight)

        return clients, Lazy(parts, partial(self._total, broadcast, block, now))

    def _total(self, broadcast: SSCABroadcast, block: Block, now: Round) -> Weighted:
        """The weighted sum of the clients' uploads, from products over many clients' minibatches at once."""

        def sums_of(few: Pooled) -> Statistics:
            each = self.problem.weights[few.clients].repeat(few.rows)[None] / few.rows
            return self._statistics(block, broadcast, few.batch, beside(few.batch.y, each), *few.keys)

        total = added(map(sums_of, pooled_minibatches(self.problem, block, now, self.batch_size)))
        return Weighted(map_leaves(lambda leaf: leaf[0], total), self.problem.weights[block.clients].sum())

    def _statistics(
        self, block: Block, broadcast: SSCABroadcast, batch: Batch, each: Array, *keys: Array
    ) -> Statistics:
        """[n, K, ...] at w_t, less what is to be forgotten of those at w_{t-1} where they are variance-reduced."""

        def of_piece(model: Parameters, X: Features, y: Array, weights: Array, *keys: Array) -> Statistics:
            scores, backward = self.problem.objective.forward(model, X, *keys)
            slopes, level = slope_of_each(
                self.problem, self.functions, model.head, scores, y, weights, broadcast.shares
            )
            return Statistics(stacked([backward(slope) for slope in slopes], y), level)

        at = self.problem.objective.in_pieces
        now = at(of_piece, broadcast.model, *batch, each, *keys)
        if not self.recursive or not broadcast.keep:
            return now
        block.drawn[0] += batch.y.size  # a second gradient of each row
        before = at(of_piece, broadcast.previous, *batch, each * -float(broadcast.keep), *keys)
        return map_leaves(operator.add, now, before)

    def absorb(self, server: SSCAServer, total: Weighted, now: Round) -> SSCAServer:
        """Step 5: the surrogates (3), (10), the convex problem, the step (5)."""
        return self.advance(server, total.value, float(total.weight))


# --- data split by columns -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SSCAVertical(SSCA, Columns):
    """Algorithms 3 and 4: the server draws `batch_size` rows; clients sum scores and upload gradients of their columns.

    All clients have the labels, or `label_holder` alone has them. The holder, or client 0, sends the head's gradient
    and the constraints' values: in the paper that is the fastest client, or any.
    """

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The clients receive the sum of the scores, the server the gradients."""
        batch_pass = Pass(self.problem, self.batch_size, self.label_holder, self.sender)
        return batch_pass.exchanges(self.ask, self.absorb)

    @property
    def setup(self) -> tuple[Exchange, ...]:
        return self.shares_exchanges(self.sender)

    def check(self) -> list[str]:
        """Split and batch size must fit the data."""
        reduced = '[algorithm] variance_reduction = "recursive": is for data split by rows; leave it out'
        columns = check_columns(self.problem, self.batch_size, self.label_holder)
        return super().check() + columns + refused((self.recursive, reduced))

    def ask(self, server: SSCAServer, now: Round) -> PassBroadcast:
        """Step 3: row indices and w_t."""
        rows = draw_rows(self.problem, now, self.batch_size)
        return PassBroadcast(rows, server.model, server.shares)

    def absorb(self, server: SSCAServer, total: PassUpload, now: Round) -> SSCAServer:
        """Step 7: the surrogates (13), (20), the convex problem, the step (5)."""
        return self.advance(server, total.statistics, 1.0)
