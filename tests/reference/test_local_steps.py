"""SSCA with several local steps against a loop over clients that keeps every quadratic, and against known optima."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from paper import (
    Data,
    Function,
    Mix,
    Part,
    Quadratic,
    around,
    first_model,
    job,
    make_data,
    model_flat,
    network,
    play,
    problem_5,
    read,
    slope_of,
    softmax,
    step_size,
    value_of,
)

from mpifed.core.errors import UsageError
from mpifed.core.exchange import play as play_round
from mpifed.core.round import Round
from mpifed.maths.objectives import Parameters
from mpifed.maths.surrogate import Surrogate
from mpifed.run.setup import prepare
from mpifed.testing import Alone, Job

ROUNDS, TAU, HIDDEN = 5, 0.3, 3
RULE: dict[str, Any] = {
    "name": "ssca", "batch_size": 3, "rho": [0.7, 0.3], "gamma": [0.5, 0.35], "tau": TAU, "local_steps": 3,
}  # fmt: skip
NETWORK = {"name": "mlp", "bias": False, "hidden": HIDDEN}
MARGIN = 0.125
# surrogates and changes are rounded to multiples of 2^-40 = 1e-12, once a client and round; constraints magnify that
EXACT = 1e-9
# SLSQP ends within 1e-8 or so of the solution of each step's problem
SLSQP = 1e-7


# --- the loop ------------------------------------------------------------------------------------------------------


class Present(NamedTuple):
    """A client of a round."""

    share: float  # N_i / N, with N counted over those present
    rows: Any  # [E, B]


def present(task: Job, data: Data, t: int) -> list[Present]:
    """Who takes part in round t, and all their minibatches, drawn at once."""
    E, B = task.algorithm["local_steps"], task.algorithm["batch_size"]
    now = Round(t - 1, task.seed, np.ones(len(data.rows), dtype=bool))
    clients, some = list(range(len(data.rows))), task.participation.clients_per_round
    if some is not None:
        clients = sorted(now.rng("participation").choice(len(clients), some, replace=False).tolist())
    held = [data.rows[i] for i in clients]
    N, found = sum(map(len, held)), []
    for i, rows in zip(clients, held, strict=True):
        size = min(B, len(rows))
        own = now.draw("minibatch", np.array([i]), np.array([len(rows)]), E * size)[0]
        found.append(Present(len(rows) / N, rows[own].reshape(E, size)))
    return found


class Best(NamedTuple):
    """Of a convex problem."""

    w: Any  # [d]
    nu: Any  # [M]; nan where SLSQP has solved it
    slack: Any  # [M]


def best(mixes: list[Mix], c: float) -> Best:
    """min F-bar_0 + c sum s, F-bar_m <= s_m: every F-bar is a level plus T ||w - its center||^2.

    With one constraint the best w lies between the centers, as near to the constraint's as its ball is wide, or as
    far as the multiplier c carries it.
    """
    T = [sum(a * q.tau for a, q in mix) for mix in mixes]
    centers = [sum(a * (q.tau * q.at - q.slope / 2) for a, q in mix) / t for mix, t in zip(mixes, T, strict=True)]
    if len(mixes) == 1:
        return Best(centers[0], np.zeros(0), np.zeros(0))
    if len(mixes) > 2:
        w, slack = problem_5(mixes[0], mixes[1:], c)
        return Best(w, np.full(len(slack), np.nan), slack)
    apart, level = np.linalg.norm(centers[0] - centers[1]), value_of(mixes[1], centers[1])
    radius, nu = np.sqrt(max(-level / T[1], 0.0)), 0.0
    if apart > radius:
        nu = c if radius == 0 else min(c, T[0] / T[1] * (apart / radius - 1))
    w = (T[0] * centers[0] + nu * T[1] * centers[1]) / (T[0] + nu * T[1])
    return Best(w, np.array([nu]), np.array([max(0.0, value_of(mixes[1], w))]) * (nu == c))


class Course(NamedTuple):
    """What the loop leaves."""

    first: Any  # [d]
    w: Any  # [d]
    nu: Any  # [t, M]
    slack: Any  # [t, M]


def local_steps(task: Job, data: Data, part: Part, functions: list[Function]) -> Course:
    """Objective and constraints; the clients one after the other, each with surrogates that are sums of quadratics.

    A client moves by F-bar_k as they were, to which it adds quadratics whose value and slope at its point u are those
    of F-bar_k at w_t plus what its own f_k has at u and not at w_t. It sends its model and the quadratics of its own
    f_k at the same points. Nobody moves while F-bar is nothing.
    """
    rule, penalty, start = task.algorithm, task.model.get("l2", 0.0), task.algorithm.get("start", "exact")
    costs = rule.get("slack_cost", 1e5)
    costs = costs if isinstance(costs, list) else [costs]
    tracked = [k for k, function in enumerate(functions) if function.term != "norm"]
    w = first = model_flat(first_model(task))
    zero = np.zeros_like(w)

    def seen(k: int, u: Any, rows: Any) -> tuple[float, Any]:
        value, slope = around(part, u, functions[k], data, [(1 / len(rows), rows)])
        return value, slope + 2 * penalty * u if k == 0 else slope

    def nothing(k: int) -> Mix:
        if k not in tracked:
            return [(1.0, Quadratic(-functions[k].limit, zero, zero, 1.0))]
        return [(1.0, Quadratic(-functions[k].limit, zero, zero, rule["tau"]))] if start == "paper" else []

    def older(mix: Mix, factor: float) -> Mix:
        return [(factor * a, q) for a, q in mix]

    course, t, stage = Course(first, w, [], []), 0, 0
    for now in range(1, task.rounds + 1):
        t += 1
        if t == 1:
            bars = [nothing(k) for k in range(len(functions))]
        rho, gamma, c = step_size(rule["rho"], t), step_size(rule["gamma"], t), costs[stage]
        told = {k: (value_of(bars[k], w), slope_of(bars[k], w)) for k in tracked if t > 1}
        change, sent = zero, {k: Mix() for k in tracked}
        for client in present(task, data, now):
            u, moving = w, list(bars)
            for e, rows in enumerate(client.rows):
                weight = client.share * rho * (1 - rho) ** (rule["local_steps"] - 1 - e)  # what later steps leave of it
                for k in tracked:
                    value, slope = seen(k, u, rows)
                    sent[k].append((weight, Quadratic(value, slope, u, rule["tau"])))
                    if t > 1:
                        old_value, old_slope = seen(k, w, rows)
                        value, slope = value + told[k][0] - old_value, slope + told[k][1] - old_slope
                        moving[k] = [*older(moving[k], 1 - rho), (rho, Quadratic(value, slope, u, rule["tau"]))]
                if t > 1:
                    u = (1 - gamma) * u + gamma * best(moving, c).w
            change = change + client.share * (u - w)
        w = w + change
        for k in tracked:
            bars[k] = older(bars[k], (1 - rho) ** rule["local_steps"]) + sent[k]
        found = best(bars, c)
        course = Course(first, w, [*course.nu, found.nu], [*course.slack, found.slack])
        ends = t % rule.get("stage_rounds", 10**6) == 0 and stage + 1 < len(costs)
        if ends and np.linalg.norm(found.slack) > rule["slack_tolerance"]:
            t, stage = 0, stage + 1
    return Course(first, w, np.array(course.nu), np.array(course.slack))


def as_table(function: Function) -> dict[str, Any]:
    return {"name": function.term, **({} if function.classes is None else {"classes": list(function.classes)})}


def compare(
    folder: Path, out: Path, functions: list[Function], objective: dict[str, Any], part: Part,
    rule: dict[str, Any], atol: float = EXACT, rounds: int = ROUNDS, **more: Any,
) -> Course:  # fmt: skip
    """The run's last row and model are those of the loop."""
    if functions != [Function("loss")]:
        more["minimize"] = as_table(functions[0])
    limits = [{"limit": one.limit + MARGIN, "margin": MARGIN} for one in functions[1:]]
    more["constraint"] = [as_table(one) | limit for one, limit in zip(functions[1:], limits, strict=True)]
    task = job(folder, RULE | rule, objective, rounds, **more)
    expected = local_steps(task, read(folder), part, functions)
    result = play(task, out)
    np.testing.assert_allclose(model_flat(result.model), expected.w, rtol=0, atol=atol)
    assert abs(expected.w - expected.first).max() > 0.01
    if len(functions) > 1:
        assert result.columns["slack"] == pytest.approx(np.linalg.norm(expected.slack[-1]), abs=10 * atol)
    if len(functions) == 2:
        assert result.columns["subproblem_multiplier_1"] == pytest.approx(expected.nu[-1, 0], rel=1e-6, abs=1e-8)
    return expected


# --- the run is the loop -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uneven(shared_path: Path) -> Path:
    """6 clients of very different sizes with rows of 4 classes, 5 features; some lack classes."""
    return make_data(
        shared_path / "uneven-local", "synthetic", "--split", "rows", "--clients", 6, "--samples", 260, "--features", 5,
        "--task", "classification", "--classes", 4, "--noise", 0.5, "--partition", "dirichlet:0.5", "--skew", 3,
        "--pack", 2, "--seed", 5,
    )  # fmt: skip


@pytest.mark.parametrize("start", ["exact", "paper"])
@pytest.mark.parametrize(
    "steps, per_round, numbers", [(3, None, "exact"), (2, 4, "float"), (5, 3, "exact"), (6, None, "exact")]
)
def test_without_constraints(
    uneven: Path, tmp_path: Path, start: str, steps: int, per_round: int | None, numbers: str
) -> None:
    """Five steps take more rows than the smallest shard has; of six each takes all of it."""
    counts = [len(rows) for rows in read(uneven).rows]
    assert max(counts) > 4 * min(counts)
    compare(
        uneven, tmp_path / "run", [Function("loss")], {**NETWORK, "l2": 2e-2}, network(HIDDEN, 4),
        {"start": start, "local_steps": steps, "batch_size": {5: min(counts) // 2, 6: min(counts) + 9}.get(steps, 3)},
        aggregation={"arithmetic": numbers},
        participation={} if per_round is None else {"clients_per_round": per_round},
        data={"path": str(uneven), "block": 1 if numbers == "exact" else 4},
    )  # fmt: skip


CASES = {"meets": (1.45, 1e5), "cannot": (1.0, 1e5), "cut": (1.3, 0.5), "loose": (6.0, 1e5)}
STARTED = [("exact", case) for case in ("meets", "cut", "loose")] + [("paper", case) for case in ("meets", "cannot")]


@pytest.mark.parametrize("start, case", STARTED)
def test_the_norm_under_a_constraint(uneven: Path, tmp_path: Path, start: str, case: str) -> None:
    limit, c = CASES[case]
    some: dict[str, Any] = {"participation": {"clients_per_round": 5}} if case == "cut" else {}
    expected = compare(
        uneven, tmp_path / "run", [Function("norm"), Function("loss", None, limit)], NETWORK, network(HIDDEN, 4),
        {"start": start, "slack_cost": c}, **some,
    )  # fmt: skip
    nu = expected.nu[1:, 0]
    assert {"meets": (nu > 0) & (nu < c), "cannot": nu == c, "cut": nu == c, "loose": nu == 0}[case].all()


PAIRS = {
    "classes": [Function("loss", (0, 1)), Function("loss", (2, 3), 1.3)],
    "error": [Function("error-rate", (0, 3)), Function("error-rate", None, 0.74)],
    "ball": [Function("loss"), Function("norm", None, 0.04)],
}


@pytest.mark.parametrize(
    "start, pair", [("exact", "classes"), ("paper", "classes"), ("exact", "error"), ("paper", "ball")]
)
def test_a_loss_under_a_constraint(uneven: Path, tmp_path: Path, start: str, pair: str) -> None:
    """Clients without a sample of the counted classes too."""
    expected = compare(
        uneven, tmp_path / "run", PAIRS[pair], {"name": "softmax", "bias": False, "l2": 5e-3}, softmax,
        {"start": start, "tau": 0.8, "slack_cost": 300.0}, seed=38,  # its minibatches meet, and cut off
    )  # fmt: skip
    assert ((expected.nu > 0) & (expected.nu < 300)).sum() >= 2


@pytest.mark.parametrize("start", ["exact", "paper"])
def test_two_constraints(uneven: Path, tmp_path: Path, start: str) -> None:
    """Every step solved by SLSQP."""
    groups = [Function("loss"), Function("loss", (0,), 0.9), Function("loss", (1, 2), 1.0)]
    compare(
        uneven, tmp_path / "run", groups, {"name": "softmax", "bias": False, "l2": 1e-2}, softmax,
        {"start": start, "batch_size": 5, "local_steps": 2, "slack_cost": 20.0}, SLSQP, 3,
        participation={"clients_per_round": 3},
    )  # fmt: skip


def test_a_penalty_sequence_begins_again(uneven: Path, tmp_path: Path) -> None:
    """The first round of every stage only gathers; the second ends with little slack, and goes on."""
    expected = compare(
        uneven, tmp_path / "run", [Function("norm"), Function("loss", None, 1.4)], NETWORK, network(HIDDEN, 4),
        {"slack_cost": [0.5, 1e3, 1e5], "stage_rounds": 2, "slack_tolerance": 0.1}, rounds=7,
    )  # fmt: skip
    assert expected.slack[1, 0] > 0.1 and (expected.slack[3::2, 0] <= 0.1).all()


# --- where it ends -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sorted_rows(shared_path: Path) -> Path:
    """4 clients with 60 rows each, sorted by their 4 classes."""
    source = [
        "synthetic", "--samples", 240, "--features", 6, "--task", "classification", "--classes", 4, "--noise", 0.5,
        "--seed", 1,
    ]  # fmt: skip
    together = make_data(shared_path / "unsorted", *source, "--split", "rows", "--clients", 1)
    order = np.argsort(read(together).y, kind="stable").reshape(4, -1)
    path = shared_path / "sorted.csv"
    lines = [f"{client},{' '.join(map(str, rows))},all\n" for client, rows in enumerate(order)]
    path.write_text("client,rows,columns\n" + "".join(lines), encoding="utf-8")
    return make_data(shared_path / "sorted", *source, "--split", "grid", "--map", path)


@pytest.fixture(scope="module")
def copies(shared_path: Path) -> Path:
    """6 clients with 3 to 18 copies of one row: every minibatch has the gradient of all a client's rows."""
    rows, lines, start = [], [], 0
    for client, x in enumerate(np.random.default_rng(4).integers(-8, 9, size=(6, 3)) / 8):
        count = 3 * (client + 1)
        rows += [f"{','.join(map(str, x))},{client % 3}\n"] * count
        lines.append(f"{client},{start}-{start + count - 1},all\n")
        start += count
    table, path = shared_path / "copies-table.csv", shared_path / "copies-map.csv"
    table.write_text("".join(rows), encoding="utf-8")
    path.write_text("client,rows,columns\n" + "".join(lines), encoding="utf-8")
    return make_data(shared_path / "copies", "csv", table, "--split", "grid", "--map", path)


class Optimum(NamedTuple):
    w: Any  # [d]
    nu: Any  # [M]


def whole(data: Data, function: Function, w: Any, penalty: float = 0.0) -> tuple[float, Any]:
    """F - limit and its gradient over all rows of all clients; of ||w||^2 too."""
    if function.term == "norm":
        return float(w @ w) - function.limit, 2 * w
    value, slope = around(softmax, w, function, data, [(1 / len(data.y), np.arange(len(data.y)))])
    return value + penalty * float(w @ w), slope + 2 * penalty * w


def optimum(data: Data, functions: list[Function], penalty: float = 0.0) -> Optimum:
    """Of a convex problem whose constraints all bind: L-BFGS or SLSQP, and from there the KKT equations themselves."""
    from scipy.optimize import minimize, root

    d = data.X.shape[1] * (int(data.y.max()) + 1)

    def levels(w: Any) -> Any:
        return np.array([whole(data, one, w)[0] for one in functions[1:]])

    def slopes(w: Any) -> Any:
        return np.array([whole(data, one, w)[1] for one in functions[1:]]).reshape(-1, d)

    def equations(u: Any) -> Any:
        w, nu = u[:d], u[d:]
        return np.append(whole(data, functions[0], w, penalty)[1] + nu @ slopes(w), levels(w))

    near: dict[str, Any] = {"method": "L-BFGS-B", "tol": 1e-12}
    if len(functions) > 1:
        inside = {"type": "ineq", "fun": lambda w: -levels(w), "jac": lambda w: -slopes(w)}
        near = {"method": "SLSQP", "tol": 1e-9, "constraints": inside}
    w = minimize(lambda w: whole(data, functions[0], w, penalty), np.full(d, 0.01), jac=True, **near).x
    nu = np.linalg.lstsq(slopes(w).T, -whole(data, functions[0], w, penalty)[1], rcond=None)[0]
    u = root(equations, np.append(w, nu), tol=1e-14).x
    assert np.linalg.norm(equations(u)) < 1e-12 and (u[d:] > 0).all()
    return Optimum(u[:d], u[d:])


def away(w: Any, best: Optimum) -> float:
    """Relative distance."""
    return float(np.linalg.norm(w - best.w) / np.linalg.norm(best.w))


STEEP: dict[str, Any] = {"name": "ssca", "tau": 0.1, "local_steps": 4}
SIZES = {"constant": {"rho": [0.9], "gamma": [0.3]}, "decaying": {"rho": [0.9, 0.3], "gamma": [0.9, 0.35]}}


def reached(
    folder: Path, out: Path, rule: dict[str, Any], rounds: int, functions: list[Function], penalty: float = 0.0
) -> tuple[Any, dict[str, Any]]:
    """(w, the last row), by steps on all rows of every client."""
    data = read(folder)
    more: dict[str, Any] = {"constraint": [as_table(one) | {"limit": one.limit} for one in functions[1:]]}
    if rule["name"] != "fedavg":
        more["minimize"] = as_table(functions[0])
    batch = {"batch_size": min(len(rows) for rows in data.rows)}
    result = play(job(folder, batch | rule, {"name": "softmax", "bias": False, "l2": penalty}, rounds, **more), out)
    return model_flat(result.model), result.columns


@pytest.mark.parametrize("sizes", SIZES)
def test_it_ends_at_the_optimum_of_all(sorted_rows: Path, tmp_path: Path, sizes: str) -> None:
    """In fewer rounds than single steps take."""
    penalty, loss, rule = 1e-2, [Function("loss")], STEEP | SIZES[sizes]
    best = optimum(read(sorted_rows), loss, penalty)
    w, row = reached(sorted_rows, tmp_path / "run", rule, 50, loss, penalty)
    assert away(w, best) < 1e-6
    assert row["kkt_residual"] < 1e-7
    single, _ = reached(sorted_rows, tmp_path / "single", rule | {"local_steps": 1}, 50, loss, penalty)
    assert away(single, best) > 1e-4


def test_averaging_of_models_ends_elsewhere(sorted_rows: Path, tmp_path: Path) -> None:
    """Steps gamma / (2 tau) of federated averaging, and a third of them; with one local step it would arrive."""
    penalty, loss = 1e-2, [Function("loss")]
    best = optimum(read(sorted_rows), loss, penalty)
    for step, rounds in (1.5, 50), (0.5, 80):
        rule = {"name": "fedavg", "client_optimizer": {"learning_rate": step}, "local_steps": 4}
        w, _ = reached(sorted_rows, tmp_path / f"{step}", rule, rounds, loss, penalty)
        assert away(w, best) > 0.05
    w, _ = reached(
        sorted_rows,
        tmp_path / "one",
        rule | {"client_optimizer": {"learning_rate": 1.5}, "local_steps": 1},
        100,
        loss,
        penalty,
    )
    assert away(w, best) < 1e-5


def test_shards_of_different_sizes(copies: Path, tmp_path: Path) -> None:
    penalty, loss = 1e-2, [Function("loss")]
    best = optimum(read(copies), loss, penalty)
    rule = STEEP | {"rho": [0.9], "gamma": [0.6], "batch_size": 2}
    w, _ = reached(copies, tmp_path / "run", rule, 50, loss, penalty)
    assert away(w, best) < 1e-5
    averaged = {"name": "fedavg", "client_optimizer": {"learning_rate": 2.0}, "local_steps": 4, "batch_size": 2}
    w, _ = reached(copies, tmp_path / "averaged", averaged, 50, loss, penalty)
    assert away(w, best) > 0.05


BOUND = {
    "norm under loss": ([Function("norm"), Function("loss", None, 1.0)], 0.0),
    "norm under two": ([Function("norm"), Function("loss", (0, 1), 0.95), Function("loss", (2, 3), 1.0)], 0.0),
    "loss under two": ([Function("loss"), Function("loss", (0,), 0.7), Function("norm", None, 4.0)], 1e-2),
}


@pytest.mark.parametrize(
    "problem, sizes",
    [
        ("loss under two", "constant"),
        pytest.param("norm under loss", "constant", marks=pytest.mark.long),
        pytest.param("norm under two", "decaying", marks=pytest.mark.long),
    ],
)
def test_it_ends_at_the_constrained_optimum_of_all(sorted_rows: Path, tmp_path: Path, problem: str, sizes: str) -> None:
    """Model and multipliers; the constraints hold."""
    functions, penalty = BOUND[problem]
    data = read(sorted_rows)
    best = optimum(data, functions, penalty)
    w, row = reached(sorted_rows, tmp_path / "run", STEEP | SIZES[sizes], 25, functions, penalty)
    assert away(w, best) < 1e-6
    for m, one in enumerate(functions[1:]):
        assert row[f"subproblem_multiplier_{m + 1}"] == pytest.approx(best.nu[m], rel=1e-6)
        assert whole(data, one, w)[0] < 1e-8
    assert row["slack"] < 1e-12
    assert row["kkt_residual"] < 1e-6


# --- where it rests ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch, start", [(2, "exact"), (60, "paper")])
@pytest.mark.parametrize("problem", ["loss", "norm under loss"])
def test_at_an_optimum_with_exact_surrogates_nothing_moves(
    sorted_rows: Path, problem: str, batch: int, start: str
) -> None:
    """Whatever the steps and the clients' data: with any minibatches in one round, with all rows in all of them."""
    functions, penalty = BOUND.get(problem, ([Function("loss")], 1e-2))
    data = read(sorted_rows)
    best, large = optimum(data, functions, penalty), {"rho": [0.9], "gamma": [1.0], "local_steps": 7, "slack_cost": 1e5}
    task = job(
        sorted_rows, STEEP | large | {"batch_size": batch, "start": start},
        {"name": "softmax", "bias": False, "l2": penalty}, 4,
        minimize=as_table(functions[0]),
        constraint=[as_table(one) | {"limit": one.limit} for one in functions[1:]],
    )  # fmt: skip
    value, slope = whole(data, functions[-1], best.w, penalty)
    linear = (slope - 2 * STEEP["tau"] * best.w).reshape(1, 6, 4)
    constant = np.array([value - slope @ best.w + STEEP["tau"] * best.w @ best.w])
    ready = prepare(task, Alone())
    at, everybody, clients = Parameters(best.w.reshape(6, 4), ()), np.ones(4, dtype=bool), ready.clients
    surrogate = Surrogate(constant, Parameters(linear, ()), np.float64(1))
    server = ready.server._replace(model=at, surrogate=surrogate, steps=np.int64(9))
    for t in range(9, 10 if batch < 60 else 13):
        now = Round(t, task.seed, everybody)
        server, clients = play_round(ready.algorithm.exchanges, server, clients, now, ready.aggregator)
        np.testing.assert_allclose(server.model.first, at.first, rtol=0, atol=1e-10)  # rounded to 1e-12
    if batch == 60:
        np.testing.assert_allclose(server.surrogate.linear.first, linear, rtol=0, atol=1e-10)
        np.testing.assert_allclose(server.multipliers, best.nu, rtol=1e-8)


# --- what it takes -------------------------------------------------------------------------------------------------


def test_bytes_do_not_depend_on_the_number_of_steps(uneven: Path, tmp_path: Path) -> None:
    """Up the model, a surrogate and two single numbers; down the same, and the round and the slack cost."""
    clients, rounds, d, found = 6, 2, 20, {}
    for steps in 2, 7:
        task = job(
            uneven, RULE | {"local_steps": steps}, {"name": "softmax", "bias": False},
            rounds, minimize={"name": "norm"},
            constraint=[{"name": "loss", "limit": 1.2}],
        )  # fmt: skip
        row = play(task, tmp_path / str(steps)).columns
        found[steps] = row["up_bytes"], row["down_bytes"]
    assert found[2] == found[7] == (8 * clients * rounds * (2 * d + 2), 8 * clients * rounds * (2 * d + 4))


def test_recursive_estimates_have_no_surrogates_to_share(uneven: Path) -> None:
    rule = RULE | {"variance_reduction": "recursive"}
    with pytest.raises(UsageError, match=r"recursive.*local_steps > 1"):
        prepare(job(uneven, rule, {"name": "softmax", "bias": False}, 2), Alone())
    prepare(job(uneven, rule | {"local_steps": 1}, {"name": "softmax", "bias": False}, 2), Alone())
