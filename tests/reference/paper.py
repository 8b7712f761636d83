"""SSCA written out from the papers, for tests: sums component by component, convex problems in all d variables.

C. Ye, Y. Cui: arXiv:2103.09506; Y. Cui, Y. Li, C. Ye: arXiv:2104.06011, whose equation numbers these are. Of the
product only the data, the rows drawn and the starting model are used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log, sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ended import run
from jobs_in_python import checked
from records import record_of

from mpifed.core.record import leaves
from mpifed.core.round import Round
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.run.outcome import Result
from mpifed.testing import Job, Solo, rounds

# --- jobs and data -----------------------------------------------------------------------------------------------


def make_data(out: Path, *arguments: object) -> Path:
    """A data folder, made by `mpifed data` unless it is there."""
    from click.testing import CliRunner
    from mapped import with_map

    from mpifed.cli import main

    if not out.exists():
        done = CliRunner().invoke(main, ["data", *with_map(arguments), "--out", str(out)])
        assert done.exit_code == 0, done.output
    return out


def all_digits(shared: Path, split: str, clients: int) -> Path:
    """All of the digits, no test rows."""
    out = shared / f"digits-{split}-{clients}"
    return make_data(out, "digits", "--split", split, "--clients", clients, "--seed", 2)


def job(folder: Path, algorithm: dict[str, Any], objective: dict[str, Any], rounds: int, **more: Any) -> Job:
    """A job in float64 that measures at its end alone; its minibatches meet constraints, miss them and are cut off."""
    return checked({
        "name": "reference", "rounds": rounds, "seed": 26, "data": {"path": str(folder)}, "model": objective,
        "algorithm": algorithm, "record": {"evaluate_every": rounds, "checkpoint_every": 0},
        "compute": {"dtype": "float64"},
        **more,
    })  # fmt: skip


def play(task: Job, out: Path) -> Result:
    """The job's run, on one rank."""
    result = run(task, Solo(), out)
    assert result is not None
    return result


def step_size(setting: Sequence[float] | Mapping[str, float] | float, t: int) -> float:
    """a / t^alpha"""
    if isinstance(setting, Mapping):
        return float(setting["initial"] / (setting.get("offset", 0.0) + t ** setting["exponent"]))
    if isinstance(setting, float):
        return setting
    return float(setting[0] / t ** (setting[1] if len(setting) > 1 else 0.0))


class Data(NamedTuple):
    """All rows of a federation."""

    X: Any  # [N, K]
    y: Any  # [N]
    split: str
    rows: list[Any]  # of each client, those it holds
    columns: list[Any]


def read(folder: str | Path) -> Data:
    """What the shards hold, put together."""
    federation = open_federation(folder)
    X = np.full((federation.samples, federation.features), np.nan)
    shards = [shard_of(federation, i) for i in range(federation.clients)]
    y = np.zeros(federation.samples, dtype=shards[0].y.dtype)
    for shard in shards:
        part = np.empty((shard.samples, shard.features))
        shard.take(np.arange(shard.samples), part)
        X[np.ix_(shard.rows, shard.columns)] = part
        y[shard.rows] = shard.y
    assert not np.isnan(X).any()
    return Data(X, y, federation.split, [s.rows for s in shards], [s.columns for s in shards])


Drawn = list[tuple[float, Any]]  # (weight of each row, rows) of every client that takes part


def draw(task: Job, data: Data, t: int) -> Drawn:
    """Round t's minibatches: N_i/(B N) by client, with N counted over those present; or 1/B."""
    B, now = task.algorithm["batch_size"], Round(t - 1, task.seed, np.ones(len(data.rows), dtype=bool))
    if data.split == "columns":  # drawn by the server
        rows = now.draw("minibatch", np.array([0]), np.array([len(data.y)]), B)[0]
        return [(1 / B, data.rows[0][rows])]
    clients, some = list(range(len(data.rows))), task.participation.clients_per_round
    if some is not None:
        clients = sorted(now.rng("participation").choice(len(clients), some, replace=False).tolist())
    N = sum(len(data.rows[i]) for i in clients)
    drawn = []
    for i in clients:
        held = data.rows[i]
        rows = now.draw("minibatch", np.array([i]), np.array([len(held)]), B)[0]
        drawn.append((len(held) / (B * N), held[rows]))
    return drawn


def first_model(task: Job) -> Any:
    """w^1, "any": the product's."""
    return record_of(next(rounds(task)).model)


# --- the network, component by component -------------------------------------------------------------------------

Omega = list[Any]  # omega_1 [J, K], omega_2 [L, J], and with biases those of the hidden [J] and of the output layer [L]


def omega(model: Any) -> Omega:
    """The product's model in the paper's letters."""
    head = model.head._asdict()
    biases = [head[name] for name in sorted(head, key=lambda name: ("hidden" not in name, name)) if name != "second"]
    return [model.first.T.copy(), head["second"].T.copy(), *(np.array(bias) for bias in biases)]


def close(model: Any, w: Omega, atol: float = 1e-10) -> None:
    """The product's model is `w`; scores, gradients and values are rounded to multiples of 2^-40 = 1e-12."""
    for found, expected in zip(omega(model), w, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def sigmoid(z: float) -> float:
    return 1 / (1 + exp(-z))


def swish(z: float) -> float:
    return z * sigmoid(z)


def swish_slope(z: float) -> float:
    """S'(z), as printed below (27)."""
    return 1 / (1 + exp(-z)) * (1 + z * exp(-z) / (1 + exp(-z)))


def partial_sums(w1: Any, x: Any, columns: Any) -> list[float]:
    """h_i [J]: sum over a client's features k of omega_1jk x_nk (errata: the sum alone is sent)."""
    return [sum(w1[j, k] * x[k] for k in columns) for j in range(len(w1))]


class Behind(NamedTuple):
    """What the sums over k suffice for, of one sample."""

    cost: float  # -log Q of its class
    hidden: list[float]  # [J] sum over l of (Q_l - y_nl) S'(z_j) omega_2lj
    output: list[float]  # [L] Q_l - y_nl
    active: list[float]  # [J] S(z_j)


def behind(w: Omega, z: list[float], label: int) -> Behind:
    """From the sums z [J] over all features."""
    w2, biases = w[1], w[2:]
    J, L = w2.shape[1], len(w2)
    if biases:
        z = [z[j] + biases[0][j] for j in range(J)]
    logits = [sum(w2[l, j] * swish(z[j]) for j in range(J)) for l in range(L)]
    if biases:
        logits = [logits[l] + biases[1][l] for l in range(L)]
    total = sum(exp(v) for v in logits)
    Q = [exp(v) / total for v in logits]  # (26)
    error = [Q[l] - (l == label) for l in range(L)]
    hidden = [sum(error[l] * w2[l, j] for l in range(L)) * swish_slope(z[j]) for j in range(J)]
    return Behind(-log(Q[label]), hidden, error, [swish(v) for v in z])


class Estimate(NamedTuple):
    """Weighted sums over a minibatch."""

    cost: float  # A-bar without tau ||omega||^2: minus the sum of y log Q (errata)
    slopes: Omega  # B-bar (33), C-bar (34), and the same by the biases


def estimate(w: Omega, data: Data, drawn: Drawn) -> Estimate:
    """Step 4 of Algorithms 1 and 2, and steps 4 to 6 of Algorithms 3 and 4."""
    cost, slopes = 0.0, [np.zeros_like(part) for part in w]
    blocks = data.columns if data.split == "columns" else [range(data.X.shape[1])]
    for weight, rows in drawn:
        for n in rows:
            x = data.X[n]
            h = [partial_sums(w[0], x, columns) for columns in blocks]  # step 4: every client i
            z = [sum(h_i[j] for h_i in h) for j in range(len(w[0]))]
            one = behind(w, z, int(data.y[n]))
            cost += weight * one.cost
            for columns in blocks:  # step 5: every client i, of its own features
                for k in columns:
                    for j, d in enumerate(one.hidden):
                        slopes[0][j, k] += weight * d * x[k]
            for l, error in enumerate(one.output):  # step 6: one client
                for j, active in enumerate(one.active):
                    slopes[1][l, j] += weight * error * active
            if len(w) > 2:
                slopes[2] += weight * np.array(one.hidden)
                slopes[3] += weight * np.array(one.output)
    return Estimate(cost, slopes)


def flat(w: Omega) -> Any:
    """[d]"""
    return np.concatenate([part.ravel() for part in w])


def inner(one: Omega, other: Omega) -> float:
    """Sum of products over all components."""
    return sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))


def combine(*terms: tuple[float, Omega]) -> Omega:
    """Sum of factor times arrays."""
    return [sum(factor * part for factor, part in zip([f for f, _ in terms], parts, strict=True))
            for parts in zip(*(w for _, w in terms), strict=True)]  # fmt: skip


def without_biases(w: Omega) -> Omega:
    """w with zeros for the biases, which no penalty counts."""
    return [*w[:2], *(0.0 * bias for bias in w[2:])]


# --- the algorithms ----------------------------------------------------------------------------------------------


def heavy_ball(
    task: Job, data: Data, step: Callable[[int], float], momentum: Callable[[int], float] = lambda t: 0.0
) -> Omega:
    """w after all rounds of w - step (mean gradient of the rows drawn + 2 l2 weights) + momentum (w - the last w)."""
    w = last = omega(first_model(task))
    for t in range(1, task.rounds + 1):
        slopes, beta = estimate(w, data, draw(task, data, t)).slopes, momentum(t)
        decay = (-2 * step(t) * task.model["l2"], without_biases(w))
        last, w = w, combine((1 + beta, w), (-beta, last), decay, (-step(t), slopes))
    return w


def unconstrained(task: Job, data: Data, start: str = "exact") -> Omega:
    """Algorithms 1 and 3 by (30), (31), (35), (36): omega after all rounds."""
    rule, penalty = task.algorithm, task.model["l2"]
    w = omega(first_model(task))
    BC = beta = combine((0.0, w))
    missing = 1.0  # prod (1 - rho_s)
    for t in range(1, task.rounds + 1):
        rho, gamma = step_size(rule["rho"], t), step_size(rule["gamma"], t)
        bar = estimate(w, data, draw(task, data, t)).slopes
        BC = combine((1 - rho, BC), (rho, bar), (-2 * rho * rule["tau"], w))  # (30), (31)
        beta = combine((1 - rho, beta), (rho, without_biases(w)))
        missing *= 1 - rho
        tau = rule["tau"] * (1.0 if start == "paper" else 1 - missing)  # errata: tau Q_t
        w = combine((1 - gamma, w), (-gamma / (2 * tau), BC), (-gamma * penalty / tau, beta))  # (35), (36), (5)
    return w


def lemma_1(BC: Omega, A: float, U: float, tau: float, c: float) -> tuple[Omega, float]:
    """(40)-(42): (w-bar, nu)"""
    b = inner(BC, BC)
    room = b + 4 * tau * (U - A)
    nu = c if room <= 0 else min(max((sqrt(b / room) - 1) / tau, 0.0), c)
    return combine((-nu / (2 * (1 + nu * tau)), BC)), nu


class Trajectory(NamedTuple):
    """What a loop of Algorithm 2 or 4 leaves."""

    w: Omega
    nu: list[float]  # of every round
    slack: list[float]  # s of every round
    problems: list[tuple[Omega, float, float, Omega]]  # of every round BC, A - U, curvature, w-bar


def constrained(
    task: Job, data: Data, limit: float, c: Callable[[int], float], start: str = "exact",
    restart: Callable[[Trajectory], bool] = lambda done: False,
) -> Trajectory:  # fmt: skip
    """Algorithms 2 and 4 for (37): Lemma 1 on (38), where A-bar has the sign of the errata.

    `exact` replaces tau by tau Q_t and U by U Q_t, as the recursion from F-bar^(0) = 0 has it. `c` is that of round
    t; `restart` tells whether the recursion begins anew before the next round.
    """
    rule = task.algorithm
    w = omega(first_model(task))
    done = Trajectory(w, [], [], [])
    begun = 0  # rounds before this stage
    for now in range(1, task.rounds + 1):
        t = now - begun
        if t == 1:
            A, BC, missing = 0.0, combine((0.0, w)), 1.0
        rho, gamma = step_size(rule["rho"], t), step_size(rule["gamma"], t)
        cost, bar = estimate(w, data, draw(task, data, now))
        A_bar = cost + rule["tau"] * inner(w, w)  # (32)
        A = (1 - rho) * A + rho * (A_bar - inner(bar, w))  # (39)
        BC = combine((1 - rho, BC), (rho, bar), (-2 * rho * rule["tau"], w))  # (30), (31)
        missing *= 1 - rho
        share = 1.0 if start == "paper" else 1 - missing
        w_bar, nu = lemma_1(BC, A, limit * share, rule["tau"] * share, c(now))
        value = A - limit * share + inner(BC, w_bar) + rule["tau"] * share * inner(w_bar, w_bar)
        w = combine((1 - gamma, w), (gamma, w_bar))  # (5)
        done.problems.append((BC, A - limit * share, rule["tau"] * share, w_bar))
        done = Trajectory(w, [*done.nu, nu], [*done.slack, max(0.0, value)], done.problems)
        if restart(done):
            begun = now
    return done


# --- Problem 5 in all d variables --------------------------------------------------------------------------------


class Quadratic(NamedTuple):
    """value + <slope, w - at> + tau ||w - at||^2, never multiplied out."""

    value: float
    slope: Any  # [d]
    at: Any  # [d]
    tau: float


Mix = list[tuple[float, Quadratic]]  # weighted sum


def value_of(mix: Mix, w: Any) -> float:
    return float(sum(
        a * (q.value + q.slope @ (w - q.at) + q.tau * ((w - q.at) ** 2).sum()) for a, q in mix
    ))  # fmt: skip


def slope_of(mix: Mix, w: Any) -> Any:
    return sum(a * (q.slope + 2 * q.tau * (w - q.at)) for a, q in mix)


def problem_5(objective: Mix, constraints: list[Mix], c: float) -> tuple[Any, Any]:
    """(w-bar [d], s [M]) by SLSQP: min F-bar_0 + c sum s, F-bar_m <= s_m, s_m >= 0."""
    from scipy.optimize import minimize

    d, M, scale = len(objective[0][1].at), len(constraints), 1 / max(1.0, c)
    curvature = sum(a * q.tau for a, q in objective)
    w = sum(a * (q.tau * q.at - q.slope / 2) for a, q in objective) / curvature  # without constraints
    values = [value_of(mix, w) for mix in constraints]
    if max(values, default=0.0) <= 0:
        return w, np.zeros(M)
    u = np.concatenate([w, np.maximum(values, 0)])
    for _ in range(20):  # SLSQP forgets its curvature, and ends where it begins
        best = minimize(
            lambda u: scale * (value_of(objective, u[:d]) + c * u[d:].sum()),
            u,
            jac=lambda u: scale * np.concatenate([slope_of(objective, u[:d]), np.full(M, c)]),
            bounds=[(None, None)] * d + [(0, None)] * M,
            constraints={
                "type": "ineq",
                "fun": lambda u: u[d:] - [value_of(mix, u[:d]) for mix in constraints],
                "jac": lambda u: np.hstack([[-slope_of(mix, u[:d]) for mix in constraints], np.eye(M)]),
            },
            method="SLSQP",
            options={"ftol": 1e-15, "maxiter": 1000},
        )
        moved, u = abs(best.x - u).max(), best.x
        if moved < 1e-9:
            return u[:d], u[d:]
    raise AssertionError(f"SLSQP found no end: {best.message}, {moved}")


# --- any functions, in all d variables ---------------------------------------------------------------------------


class Function(NamedTuple):
    """The mean of a term over the samples of some classes, minus its limit; `norm` is ||w||^2."""

    term: str
    classes: tuple[int, ...] | None = None
    limit: float = 0.0


class Samples(NamedTuple):
    """Of every sample its cross-entropy and the probability that it is misclassified, with slopes by the logits."""

    loss: tuple[Any, Any]  # [s], [s, L]
    error: tuple[Any, Any]


def model_flat(model: Any) -> Any:
    """[d] `first`, then the head's arrays."""
    return np.concatenate([leaf.ravel() for _, leaf in leaves(model)])


def of_logits(logits: Any, y: Any) -> Samples:
    """-log Q_y has the slope Q - e_y; 1 - Q_y has Q_y (Q - e_y)."""
    power = np.exp(logits - logits.max(axis=1, keepdims=True))
    Q = power / power.sum(axis=1, keepdims=True)
    right = Q[np.arange(len(y)), y]
    slope = Q - np.eye(Q.shape[1])[y]
    return Samples((-np.log(right), slope), (1 - right, right[:, None] * slope))


Part = Callable[[Any, Function, Any, Any], tuple[Any, Callable[[Any], Any]]]


def softmax(w: Any, function: Function, X: Any, y: Any) -> tuple[Any, Callable[[Any], Any]]:
    """(term of every sample [s], weights [s] -> slope [d] of the weighted sum) of w [K * L]."""
    K = X.shape[1]
    samples = of_logits(X @ w.reshape(K, -1), y)
    value, slope = samples.loss if function.term == "loss" else samples.error
    return value, lambda u: (X.T @ (u[:, None] * slope)).ravel()


def counted(function: Function, y: Any) -> Any:
    """[s] whether a sample counts."""
    return np.ones(len(y), bool) if function.classes is None else np.isin(y, function.classes)


def around(part: Part, w: Any, function: Function, data: Data, drawn: Drawn) -> tuple[float, Any]:
    """Estimates of F - limit and of its gradient at w, from weighted rows."""
    share = counted(function, data.y).mean()
    value, slope = 0.0, np.zeros_like(w)
    for weight, rows in drawn:
        each, pull = part(w, function, data.X[rows], data.y[rows])
        u = weight * counted(function, data.y[rows]) / share
        value += float(u @ (each - function.limit))
        slope += pull(u)
    return value, slope


class Course(NamedTuple):
    """What `in_all_variables` leaves."""

    w: Any  # [d]
    slack: Any  # [t, M]
    level: Any  # [t, M] the surrogates at w-bar: 0 where a constraint binds, above where c has cut its multiplier


def in_all_variables(
    task: Job, data: Data, part: Part, functions: list[Function], c: float, start: str = "exact"
) -> Course:
    """Algorithms 2 and 4 with every surrogate as the sum of all its quadratics, and Problem 5 solved by SLSQP.

    `functions` are the objective and the constraints. The start `paper` is the one from tau ||w||^2 - limit instead
    of zero.
    """
    rule, penalty, tau = task.algorithm, task.model["l2"], task.algorithm["tau"]
    w = model_flat(first_model(task))
    zero, slack, level = np.zeros_like(w), [], []
    nothing = [[(1.0, Quadratic(-f.limit, zero, zero, tau))] if start == "paper" else [] for f in functions]
    mixes: list[Mix] = [[(1.0, Quadratic(-f.limit, zero, zero, 1.0))] if f.term == "norm" else mix
                        for f, mix in zip(functions, nothing, strict=True)]  # fmt: skip
    for t in range(1, task.rounds + 1):
        rho, gamma, drawn = step_size(rule["rho"], t), step_size(rule["gamma"], t), draw(task, data, t)
        for k, function in enumerate(functions):
            if function.term == "norm":
                continue
            v, g = around(part, w, function, data, drawn)
            new = Quadratic(v, g + 2 * penalty * w if k == 0 else g, w, tau)
            mixes[k] = [*((a * (1 - rho), q) for a, q in mixes[k]), (rho, new)]
        w_bar, s = problem_5(mixes[0], mixes[1:], c)
        slack.append(s)
        level.append([value_of(mix, w_bar) for mix in mixes[1:]])
        w = (1 - gamma) * w + gamma * w_bar
    return Course(w, np.array(slack), np.array(level))
