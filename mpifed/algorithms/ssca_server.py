"""The server of mini-batch SSCA, the same for horizontally and vertically split data.

Y. Cui, Y. Li, C. Ye: "Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex
Optimization via Mini-batch SSCA" (arXiv:2104.06011); C. Ye, Y. Cui: "Sample-based Federated Learning via Mini-batch
SSCA" (ICC 2021, arXiv:2103.09506). Equation numbers are those of the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Ge, MinLen

from mpifed.algorithms.certificate import known
from mpifed.algorithms.functions import Function, Statistics, counts_some, objective_term, sampled
from mpifed.algorithms.margins import Margins, start_margins, steer
from mpifed.algorithms.slack_costs import SlackCosts, after_round, largest, next_costs, start_costs
from mpifed.algorithms.ssca_subproblem import quadratics, solve
from mpifed.core.algorithm import Algorithm
from mpifed.core.record import ABSENT, Array, map_leaves, on_host
from mpifed.maths.objectives import Parameters
from mpifed.maths.ranges import Count, Size
from mpifed.maths.schedules import StepSize, unmet
from mpifed.maths.surrogate import (
    Floats,
    Forms,
    Start,
    Surrogate,
    move,
    start_again,
    start_surrogate,
    track,
)


class Best(NamedTuple):
    """Of the measured models, the one with the least objective among those that meet all limits."""

    model: Parameters
    objective: np.float64  # infinite where none has met them yet
    round: np.int64


class SSCAServer(NamedTuple):
    """The server's state."""

    model: Parameters  # w_t
    previous: Parameters  # w_{t-1}; ABSENT unless something needs it
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


OFTEN = 0.25  # the share of recent rounds at the cap from which on there is a remark
# convergence is proven for them
_RHO, _GAMMA = StepSize(0.9, 0.51), StepSize(0.9, 0.56)


@dataclass(frozen=True)
class SSCABase(Algorithm):
    """Algorithms 1-4: the hyper-parameters, and everything that the server computes.

    The split of the data decides between 1, 2 (rows, `SSCAHorizontal`) and 3, 4 (columns, `SSCAVertical`); constraints
    between 1, 3 and 2, 4. In the paper B = `batch_size`, c = `slack_cost`; the step sizes are
    a1/t^alpha and a2/t^(alpha + 0.05); here `rho` and `gamma` are `[scale, decay]` each, scale / t^decay.
    For `slack_cost = "auto"` see `mpifed.algorithms.slack_costs`, for `margins = "auto"` `mpifed.algorithms.margins`. A
    list of slack costs is the paper's sequence c_j: with the next one, surrogates and step sizes start again, and the
    model stays.

    `variance_reduction = "recursive"`: the estimates d_t = g(w_t) + (1 - rho_t) (d_{t-1} - g(w_{t-1})), both gradients
    from one minibatch (STORM: A. Cutkosky, F. Orabona, NeurIPS 2019, arXiv:1905.10018), and alike for the values of
    constraints; the surrogate is one quadratic around w_t. Twice the arithmetic, two models down, the same bytes up.
    # differs from the paper: an addition.
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
    arithmetic."""
    margins: Literal["off", "auto"] = "off"
    """auto: aim below the limits, so that the noise of minibatches does not exceed them; off: aim at them."""
    returns: Literal["last", "best feasible"] = "last"
    """Which model a run returns: the last; or, of the models that it evaluates, the one with the least objective among
    those that meet all limits, and the last where none does."""
    label_holder: Annotated[int, Ge(0)] | None = None
    """The client who holds the labels, on data split by columns; every client holds them where absent."""

    # takes `minimize` and constraints
    constrained = True

    @property
    def costs(self) -> tuple[float, ...]:
        """The penalty sequence c_j; empty where the costs are chosen in the run."""
        if self.slack_cost == "auto":
            return ()
        return self.slack_cost if isinstance(self.slack_cost, tuple) else (self.slack_cost,)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        return sampled(self.problem)

    @property
    def recursive(self) -> bool:
        return self.variance_reduction == "recursive"

    def check(self) -> list[str]:
        """Errors of the settings that do not depend on the split."""
        wrong: list[str] = []
        for name, size in (("rho", self.rho), ("gamma", self.gamma)):
            if size.scale > 1:
                wrong.append(f"[algorithm] {name} = {list(size)}: is the weight of a mean, at most 1; lower its scale")
        if len(self.costs) > 1 and self.stage_rounds is None:
            wrong.append("[algorithm] stage_rounds: missing; after how many rounds may the next slack_cost be taken?")
        if list(self.costs) != sorted(set(self.costs)):
            wrong.append(f"[algorithm] slack_cost = {list(self.costs)}: a penalty sequence must grow")
        if not objective_term(self.problem).sampled and self.problem.objective.l2:
            wrong.append(
                f'[model] l2 = {self.problem.objective.l2:g}: with [minimize] name = "norm" it is '
                "||w||^2 that is minimized, without a factor; set l2 = 0"
            )
        if not self.functions:
            wrong.append('[minimize] name = "norm" without a [[constraint]] that needs data: the solution is zero')
        return wrong

    def warnings(self) -> list[str]:
        """Step sizes for which convergence is not proven, and settings without effect."""
        warnings = []
        if missing := unmet(self.rho, self.gamma):
            warnings.append(
                f"[algorithm] rho = {list(self.rho)}, gamma = {list(self.gamma)}: convergence is proven under "
                f"{' and '.join(missing)}, which these step sizes do not fulfil (nor do the paper's)"
            )
        return warnings + self._without_effect()

    def _without_effect(self) -> list[str]:
        """Settings of constraints where there are none, and of stages where there is only one."""
        idle, warnings = {"margins": self.margins != "off", "slack_cost": self.slack_cost != "auto"}, []
        if not self.problem.constraints:
            warnings = [f"[algorithm] {key}: has no effect without a [[constraint]]" for key in idle if idle[key]]
        if self.stage_rounds is not None and len(self.costs) <= 1:
            warnings.append("[algorithm] stage_rounds: has no effect where slack_cost is not a list of several costs")
        return warnings

    # --- the state --------------------------------------------------------------------------------------------------

    def begin(self, model: Parameters) -> SSCAServer:
        """Step 1: any w_1, and empty surrogates."""
        surrogate = start_surrogate(model, len(self.functions))
        constraints = len(self.problem.constraints)
        estimate: Statistics = ABSENT
        if self.recursive:
            level = np.zeros(len(self.functions)) if constraints else ABSENT
            estimate = Statistics(map_leaves(np.zeros_like, surrogate.linear), level)
        return SSCAServer(
            model=model,
            previous=map_leaves(np.copy, model) if self.recursive else ABSENT,
            surrogate=surrogate,
            estimate=estimate,
            shares=np.ones(len(self.functions)) if counts_some(self.problem) else ABSENT,
            steps=np.int64(0),
            stage=np.int64(0),
            multipliers=np.zeros(constraints),
            slack=np.zeros(constraints),
            slack_costs=start_costs(constraints),
            margins=start_margins(constraints) if self.margins == "auto" and constraints else ABSENT,
            best=Best(model, np.float64(np.inf), np.int64(0)) if self.returns == "best feasible" else ABSENT,
        )

    def measured(self, server: SSCAServer, columns: Mapping[str, float | None]) -> SSCAServer:
        """The state in which this model is the best, if it is."""
        values = [known(columns, f"constraint_{m}") for m in range(1, len(self.problem.constraints) + 1)]
        limits = [constraint.limit for constraint in self.problem.constraints]
        objective = known(columns, "objective")
        met = all(value is not None and value <= limit for value, limit in zip(values, limits, strict=True))
        if not server.best or not met or objective is None or objective >= server.best.objective:
            return server
        return server._replace(best=Best(server.model, np.float64(objective), np.int64(columns["round"] or 0)))

    def returned(self, server: SSCAServer) -> tuple[SSCAServer, int | None]:
        """The state whose model is the best that was measured, if any has met all limits."""
        if not server.best or np.isinf(server.best.objective):
            return server, None
        return server._replace(model=server.best.model), int(server.best.round)

    def keep(self, server: SSCAServer) -> np.float64:
        """1 - rho_t, the weight of the last estimate: 0 in the first round of a stage."""
        kept: np.float64 = np.float64(1 - self.rho.at(int(server.steps) + 1) if server.steps else 0.0)
        return kept

    def advance(self, server: SSCAServer, sums: Statistics, weight: float) -> SSCAServer:
        """Step 5 or 7: the surrogates (3), (10), (13), (20), the convex problem, and the step (5).

        Parameters
        ----------
        sums : `weight` times the means at w_t, leaves [K, ...]; variance-reduced differences of them if `recursive`
        """
        t = int(server.steps) + 1
        rho, carried = self.rho.at(t), float(self.keep(server)) if self.recursive else 0.0
        estimate: Statistics = ABSENT
        surrogate, at = server.surrogate, server.model
        if self.recursive:
            estimate = _renewed(server.estimate, sums, weight, carried)
            surrogate, sums, weight = start_again(surrogate), estimate, 1.0
        gradient, level = self._with_server_parts(at, sums, weight)
        penalties = [function.penalty for function in self.functions]
        parts = self.problem.objective.penalized(at) if any(penalties) else None
        newest = 1.0 if self.recursive else rho
        surrogate = track(surrogate, newest, gradient, level, at, self.tau, penalties, weight, parts)
        margins = server.margins
        if margins:
            margins = steer(margins, t, self._excess(on_host(level) / weight), rho, carried)
        return self._after(server._replace(estimate=estimate, margins=margins), surrogate)

    def with_shares(self, server: SSCAServer, shares: Array) -> SSCAServer:
        """The state after the set-up, in which the clients have counted."""
        return server._replace(shares=shares)

    def _excess(self, level: Array) -> Floats:
        """[M] F - aim from the values [K] of the functions that are means over samples; 0 for other constraints."""
        needs = np.array([constraint.term.sampled for constraint in self.problem.constraints])
        excess = np.zeros(len(needs))
        excess[needs] = level[len(level) - int(needs.sum()) :]
        return excess

    def _after(self, server: SSCAServer, surrogate: Surrogate) -> SSCAServer:
        """The state after round t, from its surrogates."""
        t = int(server.steps) + 1
        form = self._quadratics(surrogate)
        cost = self._cost(server, form.curvatures)
        solution = solve(surrogate, form, cost, server.margins.margin if server.margins else 0.0)
        model = move(surrogate, solution.factors, self.gamma.at(t), server.model)
        nu, slack = solution.multipliers, solution.slack
        cap = cost if self.costs else largest(form.curvatures)
        new = server._replace(
            model=model,
            previous=server.model if self.recursive else ABSENT,
            surrogate=surrogate,
            steps=np.int64(t),
            multipliers=nu,
            slack=slack,
            slack_costs=after_round(server.slack_costs, t, cost, cap, nu, solution.total),
        )
        return self._next_stage(new)

    def _quadratics(self, surrogate: Surrogate) -> Forms:
        """The quadratic forms of the convex problem after a round."""
        return quadratics(self.problem, surrogate, self.tau, self.start)

    def _cost(self, server: SSCAServer, curvatures: Floats) -> Floats:
        """[M] c of the convex problem of surrogates with these curvatures."""
        if self.costs:
            return np.full(len(curvatures) - 1, self.costs[int(server.stage)])
        return next_costs(server.slack_costs, curvatures)

    def _with_server_parts(self, model: Parameters, sums: Statistics, weight: float) -> Statistics:
        """`weight` times the means, plus the parts of the functions that need no samples."""
        for k, function in enumerate(self.functions):
            part = function.term.server(model)
            if part is None:
                continue

            def added(leaf: Array, part_k: Array, k: int = k) -> Array:
                leaf = leaf.copy()
                leaf[k] += part_k * leaf.dtype.type(weight)
                return leaf

            level = np.array(sums.level)
            if len(level):
                level[k] += weight * float(part[0])
            sums = Statistics(map_leaves(added, sums.gradient, part[1]), level if len(level) else ABSENT)
        return sums

    def _next_stage(self, server: SSCAServer) -> SSCAServer:
        """At the end of a stage: the next penalty c_j, or, if ||s|| is small, another stage with the same."""
        last = int(server.stage) >= len(self.costs) - 1
        if last or int(server.steps) % (self.stage_rounds or 1):
            return server
        if float(np.linalg.norm(server.slack)) <= self.slack_tolerance:
            return server
        return server._replace(
            surrogate=start_again(server.surrogate),
            estimate=map_leaves(np.zeros_like, server.estimate),
            steps=np.int64(0),
            stage=server.stage + 1,
            slack_costs=start_costs(len(server.slack)),
            margins=start_margins(len(server.slack)) if server.margins else ABSENT,
        )

    # --- columns of the history, and remarks -------------------------------------------------------------------------

    def report(self, server: SSCAServer) -> dict[str, float]:
        """Columns of the history: multipliers, and ||s|| of the last convex problem."""
        if not self.problem.constraints:
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
        if not server.steps:
            return []
        capped, remarks = server.slack_costs.capped, []
        if int(server.stage) < len(self.costs) - 1:  # the next cost is due, if there are rounds for it
            capped = np.zeros_like(capped)
        for m, (constraint, share) in enumerate(zip(self.problem.constraints, capped.tolist(), strict=True), 1):
            value = known(measured, f"constraint_{m}")
            above = 0.0 if value is None else max(value - constraint.limit, 0.0)
            if above or share >= OFTEN:
                remarks.append(
                    f"constraint {m}: {above:.3g} above its limit {constraint.limit:g}; its multiplier was at its cap "
                    f"in {share:.0%} of recent rounds"
                )
        return remarks


def _renewed(old: Statistics, sums: Statistics, weight: float, keep: float) -> Statistics:
    """d_t and v_t, from those of the last round and `sums`, which are `weight` times this round's estimates."""

    def renewed(old: Array, new: Array) -> Array:
        fresh: Array = old * old.dtype.type(keep)
        fresh += new * old.dtype.type(1 / weight)
        return fresh

    slope = map_leaves(renewed, old.gradient, sums.gradient)
    return Statistics(slope, keep * old.level + sums.level / weight if len(sums.level) else ABSENT)
