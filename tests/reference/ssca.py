"""SSCA in plain loops: surrogates of all functions in all d variables.

C. Ye, Y. Cui: arXiv:2103.09506; Y. Cui, Y. Li, C. Ye: arXiv:2104.06011, whose equation numbers these are.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from definitions import OF_LOSS
from loops import Objective, step_size
from scipy.optimize import minimize

from jobs.hyfdca.rows import read_rows
from mpifed.core.round import Round
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.testing import Job

Drawn = list[tuple[float, Any]]  # (weight of each row, rows) of every client that takes part


class Course(NamedTuple):
    """What a loop leaves."""

    w: Any  # [d]
    nu: Any  # [t, M] multipliers, where Lemma 1 gives them
    slack: Any  # [t, M]
    level: Any  # [t, M] the surrogates at w-bar: 0 where a constraint binds, above where c has cut its multiplier


class SSCA:
    """Algorithms 1 to 4, with A-bar as the errata have it; "recursive" as A. Cutkosky, F. Orabona (NeurIPS 2019)."""

    def __init__(self, task: Job, cost: Callable[[int], float] = lambda t: inf, stage: int = 10**9) -> None:
        """`cost` of slack in round t; the recursion begins anew after `stage` rounds, twice at most."""
        self.task, self.rule, self.cost, self.stage = task, task.algorithm, cost, stage
        self.objective, table = Objective(task), task.table()
        self.tables = [table.get("minimize", {"name": "loss"}), *table.get("constraint", ())]
        self.limits = np.array([0.0, *(one["limit"] for one in self.tables[1:])])
        ((self.X, self.y),) = read_rows(Path(task.data.path)).pieces(10**6)
        federation = open_federation(task.data.path)
        self.columns = federation.split == "columns"
        self.held = [shard_of(federation, i).rows for i in range(federation.clients)]

    def draw(self, t: int) -> Drawn:
        """Round t's minibatches: N_i/(B N) by client, with N counted over those present; or 1/B, by the server."""
        B, now = self.rule["batch_size"], Round(t - 1, self.task.seed, np.ones(len(self.held), dtype=bool))
        who, some = list(range(len(self.held))), self.task.participation.clients_per_round
        if self.columns:
            who = who[:1]
        elif some is not None:
            who = sorted(now.rng("participation").choice(len(who), some, replace=False).tolist())
        N, drawn = sum(len(self.held[i]) for i in who), []
        for i in who:
            rows = now.draw("minibatch", np.array([i]), np.array([len(self.held[i])]), B)[0]
            drawn.append((len(self.held[i]) / (B * N), self.held[i][rows]))
        return drawn

    def function(self, m: int, w: Any, drawn: Drawn | None = None) -> tuple[float, Any, Any]:
        """(F_m - limit, its gradient, the term of each sample that counts) at w, from weighted rows or from all."""
        table, value, slope, terms = self.tables[m], 0.0, np.zeros_like(w), np.array([w @ w])
        if table["name"] == "norm":
            return float(w @ w - self.limits[m]), 2 * w, terms
        some = np.ones(len(self.y), bool) if table.get("classes") is None else np.isin(self.y, table["classes"])
        phi, derivative = OF_LOSS[table["name"]](table)
        for weight, rows in drawn or [(1 / len(self.y), np.arange(len(self.y)))]:
            losses, pull = self.objective.losses(w, self.X[rows], self.y[rows])
            u = weight * some[rows] / some.mean()
            value += float(u @ (phi(losses) - self.limits[m]))
            slope += pull(u * derivative(losses))
            terms = phi(losses)[some[rows]]
        penalty, pull_down = self.objective.penalty(w) if m == 0 else (0.0, 0.0)
        return value + penalty, slope + pull_down, terms

    def play(self) -> Course:
        """All rounds: (3) to (5), with surrogates a_m + f_m.w + T_m ||w||^2 in the place of the sums of quadratics."""
        w = before = self.objective.start
        exact, M, tau = [one["name"] == "norm" for one in self.tables], len(self.tables), self.rule["tau"]
        recursive, course = self.rule.get("variance_reduction") == "recursive", []
        for now in range(1, self.task.rounds + 1):
            t = now - self.stage * min((now - 1) // self.stage, 2)
            if t == 1:  # F-bar^(0) = 0, or as printed: tau and U count in full from the start
                a, f, T = np.zeros(M), np.zeros((M, len(w))), np.zeros(M)
                if self.rule.get("start") == "paper":
                    a, T = a - self.limits, T + tau
            rho, gamma, drawn = step_size(self.rule["rho"], t), step_size(self.rule["gamma"], t), self.draw(now)
            at = [self.function(m, w, drawn)[:2] for m in range(M)]
            values, slopes = np.array([value for value, _ in at]), np.array([slope for _, slope in at])
            excess = values[1:]
            if recursive:  # one quadratic around w
                if t > 1:
                    old = [self.function(m, before, drawn)[:2] for m in range(M)]
                    values = values + (1 - rho) * (self.v - [value for value, _ in old])
                    slopes = slopes + (1 - rho) * (self.d - [slope for _, slope in old])
                self.v, self.d = values, slopes
            share = 1.0 if recursive else rho
            a = (1 - share) * a + share * (values - slopes @ w + tau * (w @ w))  # (32), (39)
            f = (1 - share) * f + share * (slopes - 2 * tau * w)  # (30), (31)
            T = (1 - share) * T + share * tau
            a[exact], f[exact], T[exact] = -self.limits[exact], 0.0, 1.0
            margin, c = self.margin(t, rho, excess), self.price(now, T)
            w_bar, nu, level = problem_5(a + np.append(0.0, margin), f, T, c, exact[0])
            self.after(t, T, nu, c)
            before, w = w, (1 - gamma) * w + gamma * w_bar  # (5)
            course.append((nu, np.maximum(level, 0), level))
        return Course(w, *map(np.array, zip(*course, strict=True)))

    def price(self, t: int, T: Any) -> float:
        """c of a round."""
        return self.cost(t)

    def margin(self, t: int, rho: float, excess: Any) -> Any:
        """[M] taken off the limits."""
        return np.zeros(len(excess))

    def after(self, t: int, T: Any, nu: Any, c: float) -> None:
        """What a round leaves to the next."""


class Tuned(SSCA):
    """One limit under ||w||^2, whose cost of slack and, if asked, margin are chosen in the run."""

    inverse = ratio = short = now = variance = last = 0.0

    def window(self, t: int) -> float:
        return max(1 / t, min(1 / 20, 10 / t))

    def price(self, t: int, T: Any) -> float:
        low, high = 1 / T[1], 1e6 / T[1]
        self.paid = min(max(1.5 * self.ratio / self.inverse if t > 1 else 0.0, low), high)
        return self.paid

    def margin(self, t: int, rho: float, excess: Any) -> Any:
        (e,), b = excess, self.window(t)
        if self.rule["margins"] == "off":
            return np.zeros(1)
        if t > 1:
            c = max(b, 1 / (t - 1))
            self.variance = (1 - c) * self.variance + c * (e - self.last) ** 2 / 2
        self.now += b * (e + 3 * sqrt(rho / (2 - rho) * self.variance))
        self.now, self.last = min(max(self.now, 0.0), 1.5 * sqrt(self.variance)), e
        return np.array([self.now])

    def after(self, t: int, T: Any, nu: Any, c: float) -> None:
        b, total = self.window(t), 1 + nu[0] * T[1]
        q = max(b, 1 / 4) if self.short >= 0.9 else b
        self.inverse, self.ratio = (1 - q) * self.inverse + q / total, (1 - q) * self.ratio + q * nu[0] / total
        self.short = (1 - b) * self.short + b * (nu[0] >= 0.999 * c)


def problem_5(a: Any, f: Any, T: Any, c: float, norm: bool) -> tuple[Any, Any, Any]:
    """(w-bar [d], nu [M], F-bar_m at w-bar [M]): min F-bar_0 + c sum s, F-bar_m <= s_m, s_m >= 0.

    By Lemma 1, (40) to (42), where ||w||^2 is minimized under one limit, otherwise by SLSQP, which gives no nu.
    """
    M, d = len(a) - 1, f.shape[1]

    def levels(w: Any) -> Any:
        return a[1:] + f[1:] @ w + T[1:] * (w @ w)

    if norm and M == 1:
        b, tau = f[1] @ f[1], T[1]
        room = b - 4 * tau * a[1]
        nu = c if room <= 0 else min(max((sqrt(b / room) - 1) / tau, 0.0), c)
        w = -nu / (2 * (1 + nu * tau)) * f[1]
        return w, np.array([nu]), levels(w)
    w = -f[0] / (2 * T[0])  # without constraints: (9), (35), (36)
    if max(levels(w), default=0.0) <= 0:
        return w, np.zeros(M), levels(w)
    u, scale = np.concatenate([w, np.maximum(levels(w), 0)]), 1 / max(1.0, c)
    for _ in range(20):  # SLSQP forgets its curvature, and ends where it begins
        best = minimize(
            lambda u: scale * (f[0] @ u[:d] + T[0] * (u[:d] @ u[:d]) + c * u[d:].sum()), u,
            jac=lambda u: scale * np.concatenate([f[0] + 2 * T[0] * u[:d], np.full(M, c)]),
            bounds=[(None, None)] * d + [(0, None)] * M, method="SLSQP", options={"ftol": 1e-15, "maxiter": 1000},
            constraints={
                "type": "ineq", "fun": lambda u: u[d:] - levels(u[:d]),
                "jac": lambda u: np.hstack([-f[1:] - 2 * np.outer(T[1:], u[:d]), np.eye(M)]),
            },
        )  # fmt: skip
        moved, u = abs(best.x - u).max(), best.x
        if moved < 1e-9:
            return u[:d], np.full(M, np.nan), levels(u[:d])
    raise AssertionError(f"SLSQP found no end: {best.message}, {moved}")
