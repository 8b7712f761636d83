"""The server of mini-batch SSCA, the same for horizontally and vertically split data.

Y. Cui, Y. Li, C. Ye: "Sample-based and Feature-based Federated Learning for Unconstrained and Constrained Nonconvex
Optimization via Mini-batch SSCA" (arXiv:2104.06011); C. Ye, Y. Cui: "Sample-based Federated Learning via Mini-batch
SSCA" (ICC 2021, arXiv:2103.09506). Equation numbers are those of the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal, NamedTuple

import numpy as np
from annotated_types import Gt, MinLen

from mpifed.algorithms.functions import Function, Statistics, counts_some, objective_term, sampled
from mpifed.core.exchange import Problem
from mpifed.core.record import Array, Record, map_leaves
from mpifed.maths.dual import lemma_1, levels, multipliers
from mpifed.maths.objectives import Parameters
from mpifed.maths.schedules import StepSize, unmet
from mpifed.maths.surrogate import (
    Start,
    Surrogate,
    curvature_of,
    forms,
    gram,
    move,
    start_again,
    start_surrogate,
    track,
)

Positive = Annotated[float, Gt(0)]


class Server(NamedTuple):
    """Server only."""

    model: Parameters  # w_t
    previous: Record  # w_{t-1}; () unless something needs it
    surrogate: Surrogate  # of round t - 1
    estimate: Record  # Statistics: variance-reduced d_{t-1} and v_{t-1}; () otherwise
    shares: Array  # [K] counted samples relative to all; () where all count
    steps: Array  # [] int64, t - 1; begins again with every stage
    stage: Array  # [] int64, the number of the penalty c_j
    multipliers: Array  # [M] of the last convex problem
    slack: Array  # [M] s of the last convex problem


class Solution(NamedTuple):
    """Of a convex problem (2, 5, 7 or 10)."""

    factors: tuple[float, ...]  # [K]: w-bar = - sum_k factors[k] l_k
    multipliers: Array  # [M]
    slack: Array  # [M]


@dataclass(frozen=True)
class SSCA:
    """What Algorithms 1-4 have in common: hyper-parameters, and everything that the server does.

    In the paper B = `batch`, c = `slack_cost`; `rho` and `gamma` are the step sizes a1/t^alpha and a2/t^(alpha + 0.05).
    A list of slack costs is the paper's sequence c_j: after every `stage_rounds` rounds the next is taken if ||s|| is
    above `slack_tolerance`; the surrogates and step sizes then start again and the model stays.

    `variance_reduction = "recursive"`: the estimates d_t = g(w_t) + (1 - rho_t) (d_{t-1} - g(w_{t-1})), both gradients
    from one minibatch (STORM: A. Cutkosky, F. Orabona, NeurIPS 2019, arXiv:1905.10018), and alike for the values of
    constraints; the surrogate is one quadratic around w_t. Twice the arithmetic, two models down, the same bytes up.
    # differs from the paper: an addition.
    """

    problem: Problem
    batch: Annotated[int, Gt(0)]
    rho: StepSize
    gamma: StepSize
    tau: Positive = 0.1
    start: Start = "exact"
    slack_cost: Positive | Annotated[tuple[Positive, ...], MinLen(1)] = 1e5
    stage_rounds: Annotated[int, Gt(0)] | None = None
    slack_tolerance: Positive = 1e-3
    variance_reduction: Literal["none", "recursive"] = "none"

    # takes `minimize` and constraints
    constrained = True

    @property
    def costs(self) -> tuple[float, ...]:
        """The penalty sequence c_j."""
        return self.slack_cost if isinstance(self.slack_cost, tuple) else (self.slack_cost,)

    @cached_property
    def functions(self) -> tuple[Function, ...]:
        """[K] those that need samples."""
        return sampled(self.problem)

    @property
    def recursive(self) -> bool:
        """Whether estimates are variance-reduced."""
        return self.variance_reduction == "recursive"

    def check(self) -> list[str]:
        """What is wrong whatever the split."""
        wrong: list[str] = []
        for name, size in (("rho", self.rho), ("gamma", self.gamma)):
            if size.scale > 1:
                wrong.append(f"[algorithm] {name} = {list(size)}: is the weight of a mean, at most 1; lower its scale")
        if len(self.costs) > 1 and self.stage_rounds is None:
            wrong.append("[algorithm] stage_rounds: missing; after how many rounds may the next slack_cost be taken?")
        if list(self.costs) != sorted(set(self.costs)):
            wrong.append(f"[algorithm] slack_cost = {list(self.costs)}: a penalty sequence must grow")
        if not objective_term(self.problem).sampled and self.problem.objective.penalty:
            wrong.append(
                f'[objective] penalty = {self.problem.objective.penalty:g}: with [minimize] name = "norm" it is '
                "||w||^2 that is minimized, without a factor; set penalty = 0"
            )
        if not self.functions:
            wrong.append('[minimize] name = "norm" without a [[constraint]] that needs data: the solution is zero')
        return wrong

    def warnings(self) -> list[str]:
        """What is allowed and may still surprise."""
        found = []
        if missing := unmet(self.rho, self.gamma):
            found.append(
                f"[algorithm] rho = {list(self.rho)}, gamma = {list(self.gamma)}: convergence is proven under "
                f"{' and '.join(missing)}, which these step sizes do not fulfil; the paper's do not either, and work"
            )
        return found

    # --- the state --------------------------------------------------------------------------------------------------

    def begin(self, model: Parameters) -> Server:
        """Step 1: any w_1, and the surrogates of nothing."""
        surrogate = start_surrogate(model, len(self.functions))
        constraints = len(self.problem.constraints)
        estimate: Record = ()
        if self.recursive:
            level = np.zeros(len(self.functions)) if constraints else ()
            estimate = Statistics(map_leaves(np.zeros_like, surrogate.linear), level)
        return Server(
            model=model,
            previous=map_leaves(np.copy, model) if self.recursive else (),
            surrogate=surrogate,
            estimate=estimate,
            shares=np.ones(len(self.functions)) if counts_some(self.problem) else (),
            steps=np.int64(0),
            stage=np.int64(0),
            multipliers=np.zeros(constraints),
            slack=np.zeros(constraints),
        )

    def keep(self, server: Server) -> Array:
        """[] 1 - rho_t, how much of the last estimate is kept: 0 in the first round of a stage."""
        return np.float64(1 - self.rho.at(int(server.steps) + 1) if server.steps else 0.0)

    def advance(self, server: Server, found: Statistics, weight: float) -> Server:
        """Step 5 or 7: the surrogates (3), (10), (13), (20), the convex problem, and the step (5).

        Parameters
        ----------
        found : of `weight` times the means at w_t, leaves [K, ...]; variance-reduced differences of them if `recursive`
        """
        t = int(server.steps) + 1
        surrogate, estimate = self._track(server, found, weight, self.rho.at(t))
        return self.after(server._replace(estimate=estimate), None, surrogate)

    def after(self, server: Server, model: Parameters | None, surrogate: Surrogate) -> Server:
        """The state after round t, of which the surrogates are known; the model too, or it follows from them."""
        t = int(server.steps) + 1
        solution = self.solve(surrogate, self.costs[int(server.stage)])
        if model is None:
            model = move(surrogate, solution.factors, self.gamma.at(t), server.model)
        new = server._replace(
            model=model,
            previous=server.model if self.recursive else (),
            surrogate=surrogate,
            steps=np.int64(t),
            multipliers=solution.multipliers,
            slack=solution.slack,
        )
        return self._next_stage(new)

    def _track(self, server: Server, found: Statistics, weight: float, rho: float) -> tuple[Surrogate, Record]:
        """The surrogates of round t, and the estimates where they are variance-reduced."""
        at, penalties = server.model, [one.penalty for one in self.functions]
        if not self.recursive:
            gradient, level = self.with_server_parts(at, found, weight)
            return track(server.surrogate, rho, gradient, level, at, self.tau, penalties, weight), ()
        keep = float(self.keep(server))

        def renewed(old: Array, new: Array) -> Array:
            fresh = old * old.dtype.type(keep)
            fresh += new * old.dtype.type(1 / weight)
            return fresh

        slope = map_leaves(renewed, server.estimate.gradient, found.gradient)
        value = keep * server.estimate.level + found.level / weight if len(found.level) else ()
        estimate = Statistics(slope, value)
        gradient, level = self.with_server_parts(at, estimate, 1.0)
        return track(start_again(server.surrogate), 1.0, gradient, level, at, self.tau, penalties), estimate

    def with_server_parts(self, model: Parameters, found: Statistics, weight: float) -> Statistics:
        """`weight` times the means, plus what the functions have without samples."""
        for k, function in enumerate(self.functions):
            part = function.term.server(model)
            if part is None:
                continue

            def added(leaf: Array, one: Array, k: int = k) -> Array:
                leaf = leaf.copy()
                leaf[k] += one * leaf.dtype.type(weight)
                return leaf

            level = np.array(found.level)
            if len(level):
                level[k] += weight * float(part[0])
            found = Statistics(map_leaves(added, found.gradient, part[1]), level if len(level) else ())
        return found

    def solve(self, surrogate: Surrogate, cost: float) -> Solution:
        """The convex problem in the closed forms (9), (19) and Lemma 1, or by its dual in M numbers."""
        problem = self.problem
        if not problem.constraints:  # (9), (19)
            return Solution((1 / (2 * curvature_of(surrogate, self.tau, self.start)),), np.zeros(0), np.zeros(0))
        tracked = [objective_term(problem).sampled, *(one.term.sampled for one in problem.constraints)]
        aims = [0.0, *(one.aim for one in problem.constraints)]
        constants, curvatures, rows = forms(surrogate, aims, tracked, self.tau, self.start)
        products = gram(surrogate, rows)
        if rows == (None, 0):  # (38)
            nu = np.array([lemma_1(float(constants[0]), float(products[1, 1]), float(curvatures[1]), cost)])
        else:
            nu = multipliers(constants, products, curvatures, cost)
        total = float(curvatures[0] + nu @ curvatures[1:])
        factors = [one / (2 * total) for one, row in zip([1.0, *nu.tolist()], rows, strict=True) if row is not None]
        return Solution(tuple(factors), nu, np.maximum(levels(nu, constants, products, curvatures), 0))

    def _next_stage(self, server: Server) -> Server:
        """At the end of a stage: the next penalty c_j, or another stage with the same if ||s|| is small."""
        last = int(server.stage) == len(self.costs) - 1
        if last or int(server.steps) % (self.stage_rounds or 1):
            return server
        if float(np.linalg.norm(server.slack)) <= self.slack_tolerance:
            return server
        return server._replace(
            surrogate=start_again(server.surrogate),
            estimate=map_leaves(np.zeros_like, server.estimate),
            steps=np.int64(0),
            stage=server.stage + 1,
        )

    # --- what is told of the state ----------------------------------------------------------------------------------

    def model(self, server: Server) -> Parameters:
        """w_t."""
        return server.model

    def report(self, server: Server) -> dict[str, float]:
        """Columns of the history: multipliers, and ||s|| of the last convex problem."""
        if not self.problem.constraints:
            return {}
        columns = {f"multiplier_{m}": float(nu) for m, nu in enumerate(server.multipliers, 1)}
        return columns | {"slack": float(np.linalg.norm(server.slack))}

    def remarks(self, server: Server) -> list[str]:
        """Which constraints' multipliers have reached the largest slack cost without ending the slack."""
        cost = self.costs[-1]
        if int(server.stage) < len(self.costs) - 1:
            return []
        return [
            f"constraint {m}: its multiplier has reached slack_cost = {cost:g} and its surrogate is still "
            f"{slack:.3g} above the limit; raise slack_cost, or the limit cannot be reached"
            for m, (nu, slack) in enumerate(zip(server.multipliers, server.slack, strict=True), 1)
            if nu >= 0.999 * cost and slack > self.slack_tolerance
        ]
