"""Algorithm 2 of SSCA against the component formulas and Lemma 1, and against convex problems solved in all variables.

Y. Cui, Y. Li, C. Ye: arXiv:2104.06011: (29)-(34), (37)-(42), Problem 5.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering, long_unless
from paper import (
    Behind,
    Data,
    Function,
    Omega,
    Part,
    Quadratic,
    Trajectory,
    around,
    behind,
    close,
    combine,
    constrained,
    draw,
    estimate,
    first_model,
    flat,
    in_all_variables,
    inner,
    job,
    lemma_1,
    make_data,
    model_flat,
    network,
    omega,
    partial_sums,
    play,
    problem_5,
    read,
    softmax,
    value_of,
)

from mpifed.testing import Job

ROUNDS, B, TAU, HIDDEN = 7, 3, 0.15, 4
RULE = {"name": "ssca", "batch_size": B, "rho": [0.8, 0.3], "gamma": [0.7, 0.35], "tau": TAU}
NORM, LOSS = {"name": "norm"}, {"name": "loss"}
# SLSQP ends within 1e-8 or so of the solution of each round's problem, as with Lemma 1 below
SLSQP = 1e-7


def norm_job(
    folder: Path, limit: float, c: Any, rounds: int = ROUNDS, bias: bool = False, per_round: int | None = None,
    margin: float = 0.0, numbers: str = "exact", **rule: Any,
) -> Job:  # fmt: skip
    """(37); `numbers` = "float" computes three clients at once, and their sum from one product."""
    return job(
        folder, {**RULE, "slack_cost": c, **rule},
        {"name": "mlp", "hidden": HIDDEN, "bias": bias}, rounds,
        minimize=NORM, constraint=[{**LOSS, "limit": limit, "margin": margin}],
        participation={} if per_round is None else {"clients_per_round": per_round},
        aggregation={"arithmetic": numbers},
        data={"path": str(folder), "block": 1 if numbers == "exact" else 3},
    )  # fmt: skip


# --- the references themselves -----------------------------------------------------------------------------------


def numerical(function: Any, w: Any, h: float = 1e-6) -> Any:
    """Central differences."""
    unit = np.eye(len(w))
    return np.array([(function(w + h * e) - function(w - h * e)) / (2 * h) for e in unit])


@pytest.mark.parametrize("biases", [False, True])
def test_slopes_of_the_component_formulas(biases: bool) -> None:
    rng = np.random.default_rng(1)
    J, K, L, N = 3, 4, 3, 5
    shapes = [(J, K), (L, J), (J,), (L,)][: 4 if biases else 2]
    w = [rng.normal(size=shape) for shape in shapes]
    data = Data(rng.normal(size=(N, K)), rng.integers(L, size=N), "columns", [], [np.array([2, 0]), np.array([1, 3])])
    drawn = [(0.3, np.array([0, 3])), (0.1, np.array([1, 4]))]
    cuts = np.cumsum([np.prod(shape) for shape in shapes])[:-1]

    def cost(point: Any) -> float:
        parts = [part.reshape(shape) for part, shape in zip(np.split(point, cuts), shapes, strict=True)]
        return estimate(parts, data, drawn).cost

    slopes = flat(estimate(w, data, drawn).slopes)
    np.testing.assert_allclose(slopes, numerical(cost, flat(w)), rtol=0, atol=1e-8)  # differences of h^2 = 1e-12
    rows = data._replace(split="rows")
    assert estimate(w, rows, drawn).cost == pytest.approx(cost(flat(w)), rel=1e-14)
    np.testing.assert_allclose(estimate(w, rows, drawn).slopes[0], estimate(w, data, drawn).slopes[0], atol=1e-15)


@pytest.mark.parametrize("function", [Function("loss", (0, 2), 0.3), Function("error-rate", (1,), 0.2)], ids=str)
@pytest.mark.parametrize("part", [softmax, network(2, 3)], ids=["softmax", "network"])
def test_slopes_of_terms(part: Part, function: Function) -> None:
    rng = np.random.default_rng(2)
    K, L, N = 4, 3, 9
    data = Data(rng.normal(size=(N, K)), np.arange(N) % L, "rows", [np.arange(N)], [np.arange(K)])
    drawn = [(1 / N, np.arange(N))]
    w = rng.normal(size=K * L if part is softmax else K * 2 + 2 * L)
    value, slope = around(part, w, function, data, drawn)
    np.testing.assert_allclose(slope, numerical(lambda w: around(part, w, function, data, drawn)[0], w), atol=1e-8)
    assert function.classes is not None
    each = part(w, function, data.X, data.y)[0][np.isin(data.y, function.classes)]
    assert value == pytest.approx(each.mean() - function.limit, rel=1e-12)  # the mean over those classes


@pytest.mark.parametrize("start", ["exact", "paper"])
@pytest.mark.parametrize("limit, c", [(2.2, 1e5), (1.5, 1e5), (2.2, 30.0), (1.8, 0.5), (6.0, 1e5)])
def test_lemma_1_solves_38(skewed: Path, start: str, limit: float, c: float) -> None:
    """Every round's problem of the reference, in all d variables and the slack."""
    task = norm_job_without_product(skewed)
    done = constrained(task, read(skewed), limit, lambda t: c, start)
    for nu, s, (BC, constant, tau, w_bar) in zip(done.nu, done.slack, done.problems, strict=True):
        slope, zero = flat(BC), np.zeros_like(flat(BC))
        norm, surrogate = Quadratic(0, zero, zero, 1.0), Quadratic(constant, slope, zero, tau)
        best, slack = problem_5([(1.0, norm)], [[(1.0, surrogate)]], c)
        np.testing.assert_allclose(flat(w_bar), best, rtol=0, atol=1e-7)
        assert slack[0] == pytest.approx(s, abs=1e-7)
        assert (nu == 0) == (constant <= 0)
        assert nu < c or s > 0


def norm_job_without_product(folder: Path) -> Job:
    """A job that gives data, draws and start alone."""
    return job(folder, RULE, {"name": "mlp", "bias": False, "hidden": HIDDEN}, ROUNDS)


# --- Algorithm 2 for (37), horizontally --------------------------------------------------------------------------

CASES = {"meets": (2.2, 1e5), "cannot": (1.5, 1e5), "cut": (1.8, 0.5), "loose": (6.0, 1e5)}


def check_case(case: str, done: Trajectory, c: float) -> None:
    """The case is what its name says."""
    nu, slack = np.array(done.nu), np.array(done.slack)
    if case == "meets":
        assert ((nu > 0) & (nu < c)).sum() >= 4
    elif case == "loose":
        assert (nu == 0).all() and (slack == 0).all()
    else:
        assert (nu[1:] == c).all() and (slack[1:] > 0.1).all()


@pytest.mark.parametrize(
    ("start", "case", "settings"),
    long_unless(
        lambda start, case, settings: (settings[1] == (list(CASES).index(case) % 2 == 0)) == (start == "exact"),
        itertools.product(
            ("exact", "paper"), CASES,
            [(None, False, "exact"), (3, False, "float"), (None, True, "float"), (4, True, "exact")],
        ),
    ),
)  # fmt: skip
def test_algorithm_2(
    skewed: Path, tmp_path: Path, start: str, case: str, settings: tuple[int | None, bool, str]
) -> None:
    per_round, bias, numbers = settings
    limit, c = CASES[case]
    task = norm_job(skewed, limit, c, bias=bias, per_round=per_round, numbers=numbers, start=start)
    data = read(skewed)
    counts = [len(rows) for rows in data.rows]
    assert max(counts) > 2 * min(counts)  # unequal, so that the weights N_i/(B N) matter
    result = play(task, tmp_path / "run")
    expected = constrained(task, data, limit, lambda t: c, start)
    if per_round is None:
        check_case(case, expected, c)
    assert len(expected.w) == (4 if bias else 2)
    close(result.model, expected.w)
    assert result.columns["subproblem_multiplier_1"] == pytest.approx(expected.nu[-1], rel=1e-6, abs=1e-9)
    assert result.columns["slack"] == pytest.approx(expected.slack[-1], abs=1e-8)
    costs = np.array([of_one(expected.w, data, n).cost for n in range(len(data.y))])
    assert result.columns["constraint_1"] == pytest.approx(costs.mean(), abs=1e-8)
    assert result.columns["margin_1"] == pytest.approx(1.96 * costs.std() / np.sqrt(len(costs)), abs=1e-8)
    assert result.columns["objective"] == pytest.approx(inner(expected.w, expected.w), abs=1e-8)


def of_one(w: Omega, data: Data, n: int) -> Behind:
    """What one sample gives."""
    return behind(w, list(w[0] @ data.X[n]), int(data.y[n]))


def test_a_margin_lowers_the_limit(skewed: Path, tmp_path: Path) -> None:
    one = play(norm_job(skewed, 2.5, 1e5, margin=0.3), tmp_path / "margin").model
    two = play(norm_job(skewed, 2.2, 1e5), tmp_path / "limit").model
    close(one, omega(two), 1e-12)


# --- a sequence of penalties -------------------------------------------------------------------------------------


def test_a_penalty_sequence_begins_again(skewed: Path, tmp_path: Path) -> None:
    """Every stage ends with slack: t = 1 and surrogates of nothing, at the model that is there."""
    costs, rounds = [0.5, 2.0, 8.0], 3
    task = norm_job(skewed, 1.8, costs, rounds=11, stage_rounds=rounds, slack_tolerance=1e-3)
    expected = constrained(
        task, read(skewed), 1.8, lambda t: costs[min((t - 1) // rounds, 2)],
        restart=lambda done: len(done.nu) in (rounds, 2 * rounds),  # the last has no next
    )  # fmt: skip
    assert all(expected.slack[t - 1] > 1e-3 for t in (rounds, 2 * rounds))
    result = play(task, tmp_path / "run")
    close(result.model, expected.w)
    assert result.columns["subproblem_multiplier_1"] == pytest.approx(expected.nu[-1], rel=1e-6)


@pytest.mark.parametrize("start", ["exact", "paper"])
def test_a_penalty_sequence_stays_where_the_slack_is_small(skewed: Path, tmp_path: Path, start: str) -> None:
    """The second penalty suffices: from then on nothing begins again."""
    limit, costs, rounds = 2.25, [2.0, 1e4, 1e5], 2
    task = norm_job(skewed, limit, costs, rounds=8, start=start, stage_rounds=rounds, slack_tolerance=0.1)
    expected = constrained(
        task, read(skewed), limit, lambda t: costs[0 if t <= rounds else 1], start,
        restart=lambda done: len(done.nu) == rounds,
    )  # fmt: skip
    assert expected.slack[rounds - 1] > 0.2
    assert max(expected.slack[rounds:]) < 0.1
    close(play(task, tmp_path / "run").model, expected.w)


def test_one_penalty_is_a_sequence_of_one(skewed: Path, tmp_path: Path) -> None:
    one = play(norm_job(skewed, 1.8, 5.0), tmp_path / "one").model
    two = play(norm_job(skewed, 1.8, [5.0], stage_rounds=2), tmp_path / "list").model
    close(one, omega(two), 0)


# --- several constraints, other terms ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def uneven_classes(shared_path: Path) -> Path:
    """5 clients of different sizes with rows of 4 classes, 5 features."""
    return make_data(
        shared_path / "uneven", "synthetic", "--split", "rows", "--clients", 5, "--samples", 260, "--features", 5,
        "--task", "classification", "--classes", 4, "--noise", 0.5, "--partition", "dirichlet:2", "--skew", 3,
        "--seed", 5,
    )  # fmt: skip


@pytest.fixture(scope="session")
def two_classes(shared_path: Path) -> Path:
    """3 clients with rows of 2 classes, 4 features."""
    return make_data(
        shared_path / "two", "synthetic", "--split", "rows", "--clients", 3, "--samples", 200, "--features", 4,
        "--task", "classification", "--classes", 2, "--noise", 0.5, "--seed", 6,
    )  # fmt: skip


GENTLE = {"name": "ssca", "batch_size": 12, "rho": [0.8, 0.3], "gamma": [0.7, 0.35], "tau": 0.4}


def as_table(function: Function) -> dict[str, Any]:
    return {"name": function.term, **({} if function.classes is None else {"classes": list(function.classes)})}


def compare(
    folder: Path, out: Path, functions: list[Function], objective: dict[str, Any], part: Part, c: float,
    start: str = "exact", per_round: int | None = None, rounds: int = ROUNDS,
) -> Any:  # fmt: skip
    """The run's model against the loop that keeps every quadratic and solves Problem 5 by SLSQP.

    [t, M] of the loop, where each constraint's surrogate was: -1 below its limit, 0 at it, 1 above it.
    """
    task = job(
        folder, {**GENTLE, "start": start, "slack_cost": c}, objective, rounds, minimize=as_table(functions[0]),
        constraint=[{**as_table(one), "limit": one.limit} for one in functions[1:]],
        participation={} if per_round is None else {"clients_per_round": per_round},
    )  # fmt: skip
    data = read(folder)
    result = play(task, out)
    expected = in_all_variables(task, data, part, functions, c, start)
    np.testing.assert_allclose(model_flat(result.model), expected.w, rtol=0, atol=SLSQP)
    assert result.columns["slack"] == pytest.approx(np.linalg.norm(expected.slack[-1]), abs=10 * SLSQP)
    found = dict(zip(("objective", "constraint_1", "constraint_2", "constraint_3"), functions, strict=False))
    for m, (column, one) in enumerate(found.items()):
        each = np.array([expected.w @ expected.w])
        if one.term != "norm":
            counts = np.isin(data.y, one.classes) if one.classes else np.ones(len(data.y), bool)
            each = part(expected.w, one, data.X[counts], data.y[counts])[0]
        penalty = 0.0 if m else objective.get("l2", 0.0) * expected.w @ expected.w
        assert result.columns[column] == pytest.approx(each.mean() + penalty, abs=10 * SLSQP)
        if m:
            margin = 1.96 * each.std() / np.sqrt(len(each))
            assert result.columns[f"margin_{m}"] == pytest.approx(margin, abs=10 * SLSQP)
    return np.where(abs(expected.level) < 1e-6, 0, np.sign(expected.level))


THREE = [Function("loss"), Function("loss", (0,), 1.0), Function("loss", (1, 3), 1.1), Function("loss", (2,), 1.3)]


@covering({"c": [1e4, 1.0], "per_round": [None, 3], "start": ["exact", "paper"]})
def test_three_groups_of_classes(
    uneven_classes: Path, tmp_path: Path, start: str, per_round: int | None, c: float
) -> None:
    objective = {"name": "softmax", "bias": False, "l2": 0.02}
    where = compare(uneven_classes, tmp_path / "run", THREE, objective, softmax, c, start, per_round)
    assert set(where.ravel()) == {-1, 0, 1}
    assert len({tuple(row) for row in where}) > 3


def test_three_groups_of_classes_and_a_network(uneven_classes: Path, tmp_path: Path) -> None:
    groups = [Function("loss", (0,), 1.4), Function("loss", (1, 3), 1.4), Function("norm", None, 3.0)]
    objective = {"name": "mlp", "bias": False, "hidden": 3, "l2": 0.01}
    where = compare(uneven_classes, tmp_path / "run", [Function("loss"), *groups], objective, network(3, 4), 1e3)
    assert set(where.ravel()) == {-1, 0, 1}


@pytest.mark.parametrize("start", ["exact", "paper"])
def test_neyman_and_pearson(two_classes: Path, tmp_path: Path, start: str) -> None:
    """The loss on class 0 is minimized while class 1 is misclassified with probability 0.35 at most."""
    functions = [Function("loss", (0,)), Function("error-rate", (1,), 0.35)]
    objective = {"name": "softmax", "bias": False, "l2": 0.01}
    where = compare(two_classes, tmp_path / "run", functions, objective, softmax, 50.0, start)
    assert set(where.ravel()) == {-1, 0, 1}


@pytest.mark.parametrize("start", ["exact", "paper"])
@pytest.mark.parametrize("radius, c", [(0.4, 1e4), (0.05, 0.5), (50.0, 1e4)])
def test_a_bound_on_the_norm(two_classes: Path, tmp_path: Path, start: str, radius: float, c: float) -> None:
    functions = [Function("loss"), Function("norm", None, radius)]
    where = compare(two_classes, tmp_path / "run", functions, {"name": "softmax", "bias": False}, softmax, c, start)
    assert set(where.ravel()) == {{0.4: 0, 0.05: 1, 50.0: -1}[radius]}


def test_the_norm_under_three_constraints(uneven_classes: Path, tmp_path: Path) -> None:
    functions = [Function("norm"), *(one._replace(limit=one.limit + 0.1) for one in THREE[1:])]
    where = compare(uneven_classes, tmp_path / "run", functions, {"name": "softmax", "bias": False}, softmax, 20.0)
    assert set(where.ravel()) == {-1, 0, 1}


# --- the recursion is a weighted sum -----------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["exact", "paper"])
@pytest.mark.parametrize("constrains", [False, True])
def test_the_surrogate_is_a_weighted_sum(skewed: Path, tmp_path: Path, start: str, constrains: bool) -> None:
    """F-bar_t = sum over s of rho_s prod_{r > s} (1 - rho_r) times the quadratic of round s.

    From zero with `exact`; `paper` is the same from tau ||w||^2 - U in place of zero.
    """
    penalty, limit = 5e-3, 2.2
    if constrains:
        task = norm_job(skewed, limit, 1e5, start=start)
    else:
        task = job(
            skewed, {**RULE, "start": start}, {"name": "mlp", "bias": False, "hidden": HIDDEN, "l2": penalty}, ROUNDS
        )
    data, w = read(skewed), omega(first_model(task))
    shapes, kept = [part.shape for part in w], []
    for t in range(1, ROUNDS + 1):
        rho = [0.8 / s**0.3 for s in range(1, t + 1)]
        cost, slopes = estimate(w, data, draw(task, data, t))
        slope = flat(slopes) if constrains else flat(slopes) + 2 * penalty * flat(w)
        kept.append(Quadratic(cost - limit, slope, flat(w), TAU))
        weights = [rho[s] * np.prod([1 - r for r in rho[s + 1 :]]) for s in range(t)]
        mix = list(zip(weights, kept, strict=True))
        zero = np.zeros_like(slope)
        if start == "paper":
            mix.append((np.prod([1 - r for r in rho]), Quadratic(-limit, zero, zero, TAU)))
            assert sum(a for a, _ in mix) == pytest.approx(1.0)
        if constrains:
            best, slack = problem_5([(1.0, Quadratic(0, zero, zero, 1.0))], [mix], 1e5)
            assert value_of(mix, best) < slack[0] + 1e-8
        else:  # the mean of the quadratics' minimizers
            best = sum(a * (q.at - q.slope / (2 * TAU)) for a, q in mix) / sum(a for a, _ in mix)
        parts = np.split(best, np.cumsum([np.prod(shape) for shape in shapes])[:-1])
        gamma = 0.7 / t**0.35
        bar = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        w = combine((1 - gamma, w), (gamma, bar))
    close(play(task, tmp_path / "run").model, w, SLSQP if constrains else 1e-10)


def test_partial_sums_and_lemma_1_by_hand() -> None:
    """w-bar on the edge of the ball |w + 1| <= 1/2 (errata: the surrogate's feasible set), nearest to zero: -1/2."""
    w_bar, nu = lemma_1([np.array([2.0])], 1.75, 1.0, 1.0, 1e5)  # w^2 + 2 w + 1.75 <= 1
    np.testing.assert_allclose(w_bar[0], -0.5)
    assert nu == pytest.approx(1.0)
    assert partial_sums(np.array([[1.0, 2.0, 4.0]]), [1.0, 10.0, 100.0], [0, 2]) == [401.0]
