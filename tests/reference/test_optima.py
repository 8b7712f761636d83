"""Where methods rest: at optima known otherwise, to 1e-8, although clients are unlike and take several steps.

With a regularizer the server's prox must have as its step how far a constant gradient moves the model in a round;
otherwise the model rests at the optimum of another weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering, long_unless
from loops import Objective, close, local_job, make_data, played, rows_of
from whole_runs import run

import mpifed as mf
from mpifed.core.record import map_leaves
from mpifed.data.store import open_federation
from mpifed.files.history import read_history
from mpifed.testing import Job, Solo

L2 = 0.05
FOUR = {"local_steps": 4, "client_optimizer": {"learning_rate": 0.4}}  # of FedLin: 0.1 a step
SOME = {"participation": {"clients_per_round": 3}}
ONE = {"name": "top-k", "k": 1}
FAST = {"participation": {"stragglers": 0.5, "drop_stragglers": True}}
# name, [algorithm], other tables, rounds, whether clients count alike
REST: list[tuple[str, dict[str, Any], dict[str, Any], int, bool]] = [
    ("scaffold", {"local_steps": 4}, SOME, 1500, False),
    ("fedpdm", {"local_steps": 6, "rho": 3.0}, {}, 400, False),
    ("proxskip", {"p": 0.3}, SOME, 1500, False),
    ("tamuna", {"p": 0.3, "senders": 2}, FAST, 1500, True),
    ("fedlin", FOUR, {}, 400, False),
    ("mime", {"local_steps": 4, "alpha": 0.5, "batch_size": 2}, {}, 800, False),
    ("feddyn", {"local_steps": 4, "alpha": 0.3}, SOME, 600, True),
    ("fedadmm", {"local_steps": 4, "rho": 0.3, "weights": "rows"}, SOME, 600, False),
    ("fedsplit", {"local_steps": 4, "s": 2.0, "start": "own", "weights": "rows"}, {}, 400, False),
    ("fedavg", {}, {"compression": ONE | {"memory": "ef21"}}, 800, False),
    ("fedavg", {}, SOME | {"compression": ONE | {"memory": "ef21-sgdm"}}, 1500, False),
    ("fedavg", {}, SOME | {"compression": {"name": "natural", "memory": "diana"}}, 1000, False),
    ("fedavg", {}, {"compression": {"name": "rand-k", "k": 1, "memory": "diana"}}, 1000, False),
]


@pytest.fixture(scope="module")
def unlike(shared_path: Path) -> Path:
    """6 clients with 2 to 17 rows of 4 features, and targets that are mostly noise."""
    who, starts = shared_path / "unlike.csv", [0, 2, 6, 13, 23, 33, 50]
    rows = [f"{i},{start}-{stop - 1},all" for i, (start, stop) in enumerate(pairwise(starts))]
    who.write_text("\n".join(["client,rows,columns", *rows]))
    asked = ("--samples", 50, "--features", 4, "--task", "regression", "--noise", 2)
    return make_data(shared_path / "unlike", "synthetic", *asked, "--split", "rows", "--map", who)


def resting(folder: Path, name: str, rounds: int = 400, **more: Any) -> Job:
    """A job of least squares in which every minibatch is the whole shard."""
    own = ("participation", "simulated_network", "compression", "regularizer")
    tables = {"model": {"name": "least-squares", "bias": False, "l2": more.pop("l2", L2)}}
    tables |= {table: more.pop(table) for table in own if table in more}
    hyper = {"name": name, "batch_size": 100, "client_optimizer": {"learning_rate": 0.1}, **more}
    return local_job(folder, hyper, rounds=rounds, **tables)


def optimum(folder: Path, uniform: bool = False) -> tuple[Any, Any]:
    """(the clients' weights [N], the minimum [d] of the mean with these)."""
    data = rows_of(folder)
    weights = np.array([1 if uniform else len(y) for _, y in data], float)
    weights /= weights.sum()
    H = sum(p * X.T @ X / len(y) for p, (X, y) in zip(weights, data, strict=True)) + 2 * L2 * np.eye(4)
    return weights, np.linalg.solve(H, sum(p * X.T @ y / len(y) for p, (X, y) in zip(weights, data, strict=True)))


@pytest.mark.parametrize(
    ("name", "settings", "tables", "rounds", "uniform"), long_unless(lambda *case: case[3] < 1500, REST)
)
def test_it_rests_at_the_optimum(
    unlike: Path, name: str, settings: dict[str, Any], tables: dict[str, Any], rounds: int, uniform: bool
) -> None:
    weights, best = optimum(unlike, uniform)
    found = played(resting(unlike, name, rounds, **settings, **tables))
    close(found.model, best, 1e-8)
    if name in ("proxskip", "tamuna"):  # whose control variates are what keeps it there
        close(weights @ found.kept(""), 0)
        assert np.abs(found.kept("")).max() > 0.1


@pytest.mark.parametrize(("name", "settings", "uniform"), [
    ("fedavg", {"local_steps": 4}, False),
    ("fedavg", {"compression": ONE}, False),
    ("fedavg", {"compression": ONE | {"memory": "error-feedback"}}, False),
    ("fedsplit", {"local_steps": 4, "s": 2.0, "start": "paper"}, True),
    ("fedspeed", {"local_steps": 4, "alpha": 0.3}, True),
], ids=str)  # fmt: skip
def test_it_does_not(unlike: Path, name: str, settings: dict[str, Any], uniform: bool) -> None:
    found = played(resting(unlike, name, **settings)).model
    assert np.abs(found - optimum(unlike, uniform)[1]).max() > 1e-3


@pytest.mark.parametrize("name", ["fedavg", "fednova"])
def test_it_rests_where_its_closed_form_says(unlike: Path, name: str) -> None:
    """Of clients who take 1 to 9 steps of .1: sum p_i c_i (I - (I - .1 H_i)^K_i) (x - x_i) = 0, c_i = 1 or 1 / K_i."""
    counts = [1, 9, 2, 5, 3, 4]
    late = {"deadline_s": 1.0, "speeds": [float(count) for count in counts]}
    weights, best = optimum(unlike)
    left, right = np.zeros((4, 4)), np.zeros(4)
    for p, count, (X, y) in zip(weights, counts, rows_of(unlike), strict=True):
        H = X.T @ X / len(y) + 2 * L2 * np.eye(4)
        pull = p * (np.eye(4) - np.linalg.matrix_power(np.eye(4) - 0.1 * H, count)) / (count if name != "fedavg" else 1)
        left, right = left + pull, right + pull @ np.linalg.solve(H, X.T @ y / len(y))
    found = played(resting(unlike, name, 600, local_steps=9, simulated_network=late)).model
    close(found, np.linalg.solve(left, right), 1e-8)
    assert np.abs(found - best).max() > 1e-3


def test_fedvarp_with_some_clients_comes_to_where_fedavg_does_with_all(unlike: Path) -> None:
    """Three full gradients a round, whose limit is not the optimum; the server keeps the mean of what clients do."""
    varp = played(resting(unlike, "fedvarp", 600, local_steps=3, **SOME))
    close(varp.model, played(resting(unlike, "fedavg", 600, local_steps=3)).model, 1e-8)
    close(varp.server.memory, optimum(unlike)[0] @ varp.kept(""))


def test_rows_of_whole_gradients_are_counted(skewed: Path, tmp_path: Path) -> None:
    counted = {}
    for name in ("fedavg", "mime-lite"):
        hyper = {"name": name, "batch_size": 4, "local_steps": 3, "client_optimizer": {"learning_rate": 0.2}}
        run(local_job(skewed, hyper, record={"evaluate_every": 1}), Solo(), tmp_path / name)
        counted[name] = read_history(tmp_path / name)["gradients"]
    rows = open_federation(skewed).counts.sum() * np.arange(5)
    assert (counted["mime-lite"] - counted["fedavg"] == rows).all()


# --- regularizers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def equal(shared_path: Path) -> Path:
    """5 clients with 24 rows each of a regression."""
    asked = ("--samples", 120, "--features", 8, "--clients", 5)
    return make_data(shared_path / "equal-24", "synthetic", "--split", "rows", *asked)


@pytest.mark.parametrize(("name", "settings"), [
    ("fedpdm", {"rho": 3.0, "local_steps": 6, "client_optimizer": {"learning_rate": 0.3}}),
    ("feddyn", {"alpha": 0.5, "local_steps": 5}), ("fedcm", {}), ("mime-lite", {}), ("fedvarp", {}),
])  # fmt: skip
def test_lasso(equal: Path, name: str, settings: dict[str, Any]) -> None:
    """By scikit-learn; with another prox step than the gradient's the residual stays at 1."""
    from sklearn.linear_model import Lasso

    X, y = (np.concatenate(part) for part in zip(*rows_of(equal), strict=True))
    best = Lasso(0.05, fit_intercept=False, tol=1e-15, max_iter=100_000).fit(X, y).coef_
    job = resting(equal, name, 600, l2=0.0, regularizer={"name": "l1", "weight": 0.05}, **settings)
    found = played(job, measured=True)
    assert found.columns["kkt_residual"] < 1e-8
    close(found.model, best, 1e-8)
    assert ((found.model == 0) == (best == 0)).all() and (best == 0).any()


L1 = {"name": "l1", "weight": 0.02}


@pytest.mark.parametrize("tables", [{}, {"regularizer": L1}], ids=["smooth", "l1"])
def test_the_optimality_measure_of_fedpdm(skewed: Path, tables: dict[str, Any]) -> None:
    """(21) of the Lagrangian sum over i of N_i/N L_i + h, with the prox-gradient map where h is not smooth."""
    rho, rate = 2.0, {"learning_rate": {"initial": 0.8, "exponent": 0.5}}
    hyper = {"name": "fedpdm", "batch_size": 4, "client_optimizer": rate, "rho": rho, "local_steps": 3}
    model = {"name": "softmax", "bias": False, "l2": 0.05, "nonconvex_penalty": 0.1}
    task = local_job(skewed, hyper, model=model, **tables)
    found, data, gradient = played(task, measured=True), rows_of(skewed), Objective(task).gradient
    x_0, N, P, pull = found.model, sum(len(y) for _, y in data), 0.0, np.zeros(640)
    for (X, y), own, dual in zip(data, found.kept("model"), found.kept("dual"), strict=True):
        share = len(y) / N
        P += share**2 * np.sum((gradient(own, X, y) - dual + rho * (own - x_0)) ** 2)  # by x_i
        P += share**2 * np.sum((x_0 - own) ** 2)  # by lambda_i
        pull += share * (dual + rho * (x_0 - own))  # by x_0
    u, threshold = x_0 - pull / rho, (L1["weight"] if tables else 0.0) / rho
    P += np.sum((rho * (x_0 - np.sign(u) * np.maximum(np.abs(u) - threshold, 0))) ** 2)
    assert found.columns["optimality"] == pytest.approx(P, rel=1e-9)
    assert P > 1e-3


ROWS, FEATURES = (5, 9, 16), 8  # of clients who hold different numbers of rows
CLIENTS = {"plain": (0.0, False), "momentum": (0.9, False), "nesterov": (0.9, True)}
SERVERS = {
    "plain": mf.ServerSGD(),
    "slow": mf.ServerSGD(0.5),
    "momentum": mf.ServerSGD(0.8, momentum=0.5),
    "nesterov": mf.ServerSGD(momentum=0.5, nesterov=True),
    "cosine": mf.ServerSGD(mf.CosineDecay(1.0, rounds=40, final=0.4), momentum=0.5, nesterov=True),
}
RATES = {"constant": 0.05, "power": mf.PowerDecay(0.05, exponent=0.5), "step": mf.StepDecay(0.03, factor=0.5, every=40)}
# numbers that single precision, in which folders hold them, has exactly
FEW = np.random.default_rng(4).integers(-32, 33, (sum(ROWS), FEATURES)) / 16


def trained(folder: Path, labels: Any, rounds: int, mu: float, model: Any, regularizer: Any, **how: Any) -> Any:
    """[p] the model after these rounds; every client takes all of its rows in every step."""
    owner = np.repeat(np.arange(len(ROWS)), ROWS)
    data = mf.FederatedDataset.from_arrays(FEW, labels, clients=owner, out=folder / "data")
    settings = {"batch_size": max(ROWS), **how}
    run = mf.run(
        mf.FedProx(mu=mu, **settings) if mu else mf.FedAvg(**settings), data, model, rounds=rounds,
        regularizer=regularizer, evaluate_every=0, progress="none", out=folder / "run",
        compute=mf.Compute(dtype="float64"),
    )  # fmt: skip
    return run.model["first"][:, 0]


@dataclass(frozen=True)
class Curved(mf.L1):
    """With square_weight * ||w||^2 in the prox too."""

    square_weight: float = 0.0

    def value(self, model: Any) -> float:
        return super().value(model) + self.square_weight * float((model.first**2).sum())

    def prox(self, model: Any, step: float) -> Any:
        return map_leaves(lambda leaf: leaf / (1 + 2 * self.square_weight * step), super().prox(model, step))


@covering(
    {
        "mu, steps, rate": [(0.0, 1, "constant"), (0.0, 6, "power"), (3.0, 1, "constant"), (3.0, 6, "step")],
        "client": CLIENTS,
        "server": SERVERS,
    },
    1,
)
def test_gradients_that_are_constant(
    tmp_path: Path, mu: float, steps: int, rate: str, client: str, server: str
) -> None:
    """The hinge loss while no margin is met: the optimum is soft(mean of y x, weight) / (2 square_weight)."""
    y = np.random.default_rng(5).integers(0, 2, sum(ROWS))
    signs, weight, square = 2 * y - 1, 0.15, 8.0
    mean = signs @ FEW / len(y)  # less the gradient
    optimum = np.sign(mean) * np.maximum(np.abs(mean) - weight, 0) / (2 * square)
    assert (signs * (FEW @ optimum)).max() < 0.9 and 2 <= np.count_nonzero(optimum) < FEATURES
    momentum, nesterov = CLIENTS[client]
    found = trained(
        tmp_path, y, 120, mu, mf.Hinge(bias=False, l2=0.0), Curved(weight, square_weight=square), local_steps=steps,
        server_optimizer=SERVERS[server], client_optimizer=mf.SGD(RATES[rate], momentum=momentum, nesterov=nesterov),
    )  # fmt: skip
    close(found, optimum, 1e-9)


def test_a_rate_that_ends_at_zero(tmp_path: Path) -> None:
    """The model stays where it is, whatever velocity its server has."""
    server = mf.ServerSGD(mf.CosineDecay(1.0, rounds=3), momentum=0.5)
    found = [
        trained(
            tmp_path / str(rounds), FEW[:, 0] > 0, rounds, 0.0, mf.Logistic(bias=False), mf.L1(0.01),
            client_optimizer=mf.SGD(0.05), server_optimizer=server,
        )
        for rounds in (3, 6)
    ]  # fmt: skip
    assert found[0].any() and (found[0] == found[1]).all()
