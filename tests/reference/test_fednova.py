"""FedNova where steps differ in number; FedAvg to the bit where they do not; where both rest on quadratics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pages_normalized  # noqa: F401  # into PAGES
import pytest
from loops import local_job, played
from pages import PAGES

import mpifed as mf

FOUR = {"participation": {"clients_per_round": 4}}


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [({"local_epochs": 2}, {}), ({"local_epochs": 1}, {"momentum": 0.7}), ({"local_epochs": 2, "mu": 0.6}, {})],
    ids=str,
)
def test_the_page(skewed: Path, algorithm: dict[str, Any], optimizer: dict[str, Any]) -> None:
    given = {"name": "fednova", "batch_size": 4, "client_optimizer": {"learning_rate": 0.3, **optimizer}, **algorithm}
    task = local_job(skewed, given, data={"path": str(skewed), "block": 3}, **FOUR)
    np.testing.assert_allclose(played(task).model, PAGES["fednova"](task).play().x, rtol=0, atol=1e-10)


@pytest.mark.parametrize("mu", [0.0, 0.6])
def test_of_equal_steps_it_is_fedavg_to_the_bit(skewed: Path, mu: float) -> None:
    given = {"batch_size": 4, "local_steps": 3, "client_optimizer": {"learning_rate": 0.3}}
    nova, other = (
        played(local_job(skewed, {**given, **own}, **FOUR)).model
        for own in ({"name": "fednova", "mu": mu}, {"name": "fedprox", "mu": mu} if mu else {"name": "fedavg"})
    )
    assert np.array_equal(nova, other)


# --- where they rest: clients of alike rows each, so that a minibatch's gradient is that of the client ----------------

L2 = 0.2
ROWS = np.array([2, 4, 10])  # and so 1, 2 and 5 steps with minibatches of 2
X = np.array([[1.0, 0.0], [0.5, 1.0], [-0.5, 1.5]])
Y = np.array([1.0, -1.0, 2.0])


def rest(nova: bool, step: float) -> Any:
    """[d] where sum p_i (I - (I - step H_i)^K_i) / a_i (x - x_i) = 0, a_i = K_i of FedNova and 1 of FedAvg."""
    total, right = np.zeros((2, 2)), np.zeros(2)
    for rows, x, y in zip(ROWS, X, Y, strict=True):
        K, H = rows // 2, np.outer(x, x) + 2 * L2 * np.eye(2)
        moved = (np.eye(2) - np.linalg.matrix_power(np.eye(2) - step * H, K)) * rows / (K if nova else 1)
        total, right = total + moved, right + moved @ np.linalg.solve(H, x * y)
    return np.linalg.solve(total, right)


@pytest.mark.parametrize(("step", "rounds"), [(0.3, 150), (0.02, 2000)])
def test_where_they_rest(step: float, rounds: int) -> None:
    """Neither is the optimum at such steps, to which FedNova's tends as they become small."""
    data = mf.FederatedDataset.from_arrays(X.repeat(ROWS, axis=0), Y.repeat(ROWS), clients=np.arange(3).repeat(ROWS))
    H = (X * ROWS[:, None]).T @ X / ROWS.sum() + 2 * L2 * np.eye(2)
    optimum, away = np.linalg.solve(H, (X * ROWS[:, None]).T @ Y / ROWS.sum()), []
    for kind in (mf.FedNova, mf.FedAvg):
        method = kind(batch_size=2, local_epochs=1, client_optimizer=mf.SGD(step))
        run = mf.run(
            method, data, mf.LeastSquares(bias=False, l2=L2), rounds=rounds, compute=mf.Compute(dtype="float64"),
            record=mf.Record(evaluate_every=0), progress="none",
        )  # fmt: skip
        (end,) = (np.ravel(leaf) for leaf in run.model.values())
        np.testing.assert_allclose(end, rest(kind is mf.FedNova, step), rtol=0, atol=1e-9)
        away.append(np.linalg.norm(end - optimum))
    assert (away[0] < away[1] / 2) == (step < 0.1)
