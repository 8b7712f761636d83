"""SSCA's four algorithms, and SGD on columns: against loops in all variables, as heavy-ball SGD, at known optima."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import close, local_job, make_data, played, step_size
from scipy.optimize import minimize
from ssca import SSCA, Course, Tuned
from whole_runs import run

from mpifed.files.history import read_history
from mpifed.testing import Job, Solo

RULE: dict[str, Any] = {"name": "ssca", "batch_size": 3, "rho": [0.8, 0.3], "gamma": [0.7, 0.35], "tau": 0.15}
NETWORK: dict[str, Any] = {"name": "mlp", "bias": False, "hidden": 4}
PENALIZED, BIASED = NETWORK | {"l2": 2e-3}, NETWORK | {"bias": True}
STARTS = ["exact", "paper"]


def job(folder: Path, rule: dict[str, Any], model: dict[str, Any], rounds: int = 6, **tables: Any) -> Job:
    return local_job(folder, RULE | rule, **{"seed": 26, "model": model, "rounds": rounds} | tables)


def under(limit: float) -> dict[str, Any]:
    """(37)"""
    return {"minimize": {"name": "norm"}, "constraint": [{"name": "loss", "limit": limit}]}


def same(loop: SSCA, atol: float = 1e-10) -> tuple[Course, dict[str, Any]]:
    """Model and columns are those of the loop, to rounding; (its course, the product's columns)."""
    course, found = loop.play(), played(loop.task, measured=True)
    close(found.model, course.w, atol)
    values = [loop.function(m, course.w) for m in range(len(loop.tables))]
    for m, (value, _, terms) in enumerate(values):
        name = f"constraint_{m}" if m else "objective"
        assert found.columns[name] == pytest.approx(value + loop.limits[m], abs=max(1e-8, 10 * atol))
        if m:
            spread = 1.96 * terms.std() / np.sqrt(len(terms))
            assert found.columns[f"margin_{m}"] == pytest.approx(spread, abs=max(1e-8, 10 * atol))
    if len(values) > 1:
        slack = np.linalg.norm(course.slack[-1])
        assert found.columns["slack"] == pytest.approx(slack, abs=max(1e-8, 10 * atol))
        if not np.isnan(course.nu[-1]).any():
            of_last = [found.columns[f"subproblem_multiplier_{m}"] for m in range(1, len(values))]
            assert of_last == pytest.approx(course.nu[-1].tolist(), rel=1e-6, abs=1e-9)
    return course, found.columns


# --- Algorithms 1 and 3 ----------------------------------------------------------------------------------------------


@covering({
    "split, holder": [("skewed", {}), ("sides", {}), ("sides", {"label_holder": 3}), ("sides", {"label_holder": 0})],
    "model": [PENALIZED, PENALIZED | BIASED], "start": STARTS,
})  # fmt: skip
def test_without_constraints(
    request: Any, split: str, holder: dict[str, int], model: dict[str, Any], start: str
) -> None:
    """Of clients whose shards are unequal, so that the weights N_i/(B N) matter; or by whoever has the labels."""
    same(SSCA(job(request.getfixturevalue(split), {"start": start, **holder}, model)))


@pytest.mark.parametrize("start", STARTS)
def test_some_clients(skewed: Path, start: str) -> None:
    same(SSCA(job(skewed, {"start": start}, PENALIZED, participation={"clients_per_round": 3})))


def heavy_ball(task: Job, step: Callable[[int], float], momentum: Callable[[int], float] = lambda t: 0.0) -> None:
    """The product has w after all rounds of w - step (gradient of the rows drawn) + momentum (w - the last w)."""
    loop = SSCA(task)
    w = last = loop.objective.start
    for t in range(1, task.rounds + 1):
        last, w = w, w - step(t) * loop.function(0, w, loop.draw(t))[1] + momentum(t) * (w - last)
    close(played(task).model, w)


@pytest.mark.parametrize("start", STARTS)
def test_it_is_heavy_ball_sgd(digits: Path, start: str) -> None:
    """With rho_1 = 1: step gamma_t rho_t/(2 tau), momentum (1-rho_t)(1-gamma_{t-1}) gamma_t/gamma_{t-1} (errata)."""
    rho, gamma, tau = [1.0, 0.3], [0.7, 0.35], 0.6

    def momentum(t: int) -> float:
        last = step_size(gamma, t - 1) if t > 1 else 1.0
        return (1 - step_size(rho, t)) * (1 - last) * step_size(gamma, t) / last

    task = job(digits, {"start": start, "rho": rho, "gamma": gamma, "tau": tau}, NETWORK)
    heavy_ball(task, lambda t: step_size(gamma, t) * step_size(rho, t) / (2 * tau), momentum)


@pytest.mark.parametrize(("bias", "holder"), [(False, {}), (True, {"label_holder": 3})], ids=str)
def test_vertical_sgd(sides: Path, bias: bool, holder: dict[str, int]) -> None:
    step = {"initial": 0.4, "exponent": 0.25}
    rule = {"name": "vertical-sgd", "batch_size": 16, "server_optimizer": {"learning_rate": step}, **holder}
    task = local_job(sides, rule, model=PENALIZED | {"bias": bias})
    heavy_ball(task, lambda t: step_size(step, t))


# --- Algorithms 2 and 4 ----------------------------------------------------------------------------------------------

# limit, c; the last multipliers are within [0, c], at c, at c where slack costs little, and 0
REGIMES = {"meets": (2.2, 1e5), "cannot": (1.4, 1e5), "cut": (1.4, 0.5), "loose": (6.0, 1e5)}
BLOCKS = {"aggregation": {"arithmetic": "exact-blocks"}}  # a block's sum comes from one product


@covering({
    "split, rule": [("skewed", {}), ("sides", {"batch_size": 16}), ("sides", {"batch_size": 16, "label_holder": 3})],
    "regime": REGIMES, "start": STARTS, "bias": [False, True], "numbers": [{}, BLOCKS],
})  # fmt: skip
def test_a_limit(
    request: Any, split: str, rule: dict[str, Any], regime: str, start: str, bias: bool, numbers: dict[str, Any]
) -> None:
    (limit, c), folder = REGIMES[regime], request.getfixturevalue(split)
    tables = under(limit) | ({} if split == "sides" else numbers)
    some = job(folder, rule | {"start": start, "slack_cost": c}, NETWORK | {"bias": bias}, 7, **tables)
    nu = same(SSCA(some, lambda t: c))[0].nu[1:]
    assert {"meets": (nu > 0) & (nu < c), "loose": nu == 0}.get(regime, nu == c).any()


def test_a_limit_of_some_clients(skewed: Path) -> None:
    tables = under(2.2) | {"participation": {"clients_per_round": 4}}
    same(SSCA(job(skewed, {"slack_cost": 1e5}, BIASED, 7, **tables, **BLOCKS), lambda t: 1e5))


def test_a_penalty_sequence_begins_again(skewed: Path) -> None:
    """Every stage ends with slack: t = 1, and surrogates of nothing; the last has no next."""
    costs, rounds = [0.5, 2.0, 8.0], 3
    rule = {"slack_cost": costs, "stage_rounds": rounds, "slack_tolerance": 1e-3}
    task = job(skewed, rule, NETWORK, 11, **under(1.8))
    course, _ = same(SSCA(task, lambda t: costs[min((t - 1) // rounds, 2)], rounds))
    assert (course.slack[[rounds - 1, 2 * rounds - 1]] > 1e-3).all()


@pytest.fixture(scope="session")
def uneven_classes(shared_path: Path) -> Path:
    """5 clients of different sizes with rows of 4 classes, 5 features."""
    return make_data(
        shared_path / "uneven", "synthetic", "--split", "rows", "--clients", 5, "--samples", 260, "--features", 5,
        "--task", "classification", "--classes", 4, "--noise", 0.5, "--partition", "dirichlet:2", "--skew", 3,
        "--seed", 5,
    )  # fmt: skip


def loss(*classes: int, limit: float = 0.0, name: str = "loss") -> dict[str, Any]:
    return {"name": name, "limit": limit, **({"classes": list(classes)} if classes else {})}


NORM = [{"name": "norm", "limit": limit} for limit in (0.4, 0.05, 50.0)]
GROUPS = [loss(0, limit=1.0), loss(1, 3, limit=1.1), loss(2, limit=1.3)]
# minimized, limits, l2, c, other tables, where surrogates are: -1 below the limit, 0 at it, 1 above it
SEVERAL: list[tuple[dict[str, Any], list[dict[str, Any]], float, float, dict[str, Any], set[int]]] = [
    (loss(), GROUPS, 0.02, 1e4, {}, {-1, 0, 1}),
    (loss(), GROUPS, 0.02, 1.0, {"participation": {"clients_per_round": 3}}, {-1, 0, 1}),
    (loss(0), [loss(1, limit=0.62, name="error-rate")], 0.01, 50.0, {}, {0, 1}),
    (loss(), NORM[:1], 0.0, 1e4, {}, {-1, 0}),
    (loss(), NORM[1:2], 0.0, 0.5, {}, {0, 1}),
    (loss(), NORM[2:], 0.0, 1e4, {}, {-1}),
]


def of_slsqp(
    folder: Path, rule: dict[str, Any], least: dict[str, Any], limits: Any, l2: float, c: float, **tables: Any
) -> set[int]:
    least = {key: value for key, value in least.items() if key != "limit"}
    tables |= {"minimize": least, "constraint": limits}
    task = job(folder, rule | {"slack_cost": c}, {"name": "softmax", "bias": False, "l2": l2}, **tables)
    level = same(SSCA(task, lambda t: c), 1e-7)[0].level  # as well as SLSQP solves
    return set(np.where(abs(level) < 1e-6, 0, np.sign(level)).ravel())


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(("least", "limits", "l2", "c", "tables", "levels"), SEVERAL)
def test_several_functions(
    uneven_classes: Path, start: str, least: Any, limits: Any, l2: float, c: float, tables: Any, levels: set[int]
) -> None:
    rule = {"start": start, "tau": 0.4, "batch_size": 12}
    assert of_slsqp(uneven_classes, rule, least, limits, l2, c, rounds=7, **tables) == levels


def test_several_functions_on_columns(sides: Path) -> None:
    limits = [loss(0, 1, 2, limit=1.9), loss(5, 8, limit=2.0), {"name": "norm", "limit": 1.0}]
    rule = {"tau": 0.5, "batch_size": 60, "label_holder": 2}
    assert of_slsqp(sides, rule, loss(), limits, 1e-3, 30.0, rounds=5) >= {-1, 0}


# --- additions: recursive estimates, costs and margins that are chosen in the run ------------------------------------

RECURSIVE = {"variance_reduction": "recursive", "tau": 0.3, "batch_size": 4}


@pytest.mark.parametrize(("limit", "c", "at"), [(2.2, 1e5, 2.0), (1.7, 0.5, 0.5), (9.0, 1e5, 0.0)])
def test_recursive_estimates_of_a_constraint(skewed: Path, limit: float, c: float, at: float) -> None:
    """d_t = g(w_t) + (1 - rho_t) (d_{t-1} - g(w_{t-1})), on the same rows."""
    course, _ = same(SSCA(job(skewed, RECURSIVE | {"slack_cost": c}, NETWORK, 7, **under(limit)), lambda t: c))
    assert (course.nu.max() > 0) if at == 2.0 else (course.nu.max() == at)


@pytest.mark.parametrize("numbers", [{}, BLOCKS], ids=str)
def test_recursive_estimates_of_some_clients(skewed: Path, tmp_path: Path, numbers: dict[str, Any]) -> None:
    """Those present take both gradients, weighted over them, and both count."""
    tables = {"participation": {"clients_per_round": 4}, "record": {"evaluate_every": 7}, **numbers}
    loop = SSCA(job(skewed, RECURSIVE, PENALIZED | BIASED, 7, **tables))
    same(loop)
    run(loop.task, Solo(), tmp_path / "run")
    rows = [sum(len(held) for _, held in loop.draw(t)) for t in range(1, 8)]
    assert read_history(tmp_path / "run")["gradients"][-1] == rows[0] + 2 * sum(rows[1:])


@pytest.mark.parametrize(("split", "margins"), [("skewed", "auto"), ("sides", "off")])
def test_costs_and_margins(request: Any, split: str, margins: str) -> None:
    rule = {"batch_size": 4, "slack_cost": "auto", "margins": margins}
    loop = Tuned(job(request.getfixturevalue(split), rule, NETWORK, 30, **under(2.2)))
    _, columns = same(loop)
    assert columns["slack_cost_1"] == pytest.approx(loop.paid, rel=1e-6)
    assert (loop.now > 0) == (margins == "auto")


@pytest.mark.parametrize("batch", [20, pytest.param(60, marks=pytest.mark.long)])
def test_costs_end_a_little_above_the_multipliers(classes: Path, batch: int) -> None:
    """Those of min ||w||^2 under limits on groups' losses, by scipy; with all rows and a third of them."""
    limits = [loss(0, limit=0.7), loss(1, 2, limit=0.6)]
    rule = {"batch_size": batch, "rho": [0.9, 0.55], "gamma": [0.9, 0.6], "tau": 0.1, "slack_cost": "auto"}
    task = job(classes, rule, {"name": "softmax", "bias": False}, 600, minimize={"name": "norm"}, constraint=limits)
    loop = SSCA(task)
    known = [
        {"type": "ineq", "fun": lambda w, m=m: -loop.function(m, w)[0], "jac": lambda w, m=m: -loop.function(m, w)[1]}
        for m in (1, 2)
    ]
    best = minimize(
        lambda w: (w @ w, 2 * w), loop.objective.start, jac=True, constraints=known, method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 500},
    ).x  # fmt: skip
    nu = np.linalg.lstsq(np.array([loop.function(m, best)[1] for m in (1, 2)]).T, -2 * best, rcond=None)[0]
    assert nu.min() > 1
    row, away = played(task, measured=True).columns, 0.02 if batch == 60 else 0.2
    costs = [row["slack_cost_1"], row["slack_cost_2"]]
    np.testing.assert_allclose(costs, np.maximum(1.5 * nu, 1 / 0.1), rtol=away)  # no less than tau_0 / tau_m
    assert row["objective"] == pytest.approx(best @ best, rel=away)
