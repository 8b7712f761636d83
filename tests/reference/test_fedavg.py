"""Federated averaging against a plain loop over clients and steps, and against optima known otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked
from loops import averaged, rows_of, softmax_slope
from paper import make_data
from whole_runs import run

from mpifed.comm.rounds import play
from mpifed.core.round import Round
from mpifed.data.shards import common_rows
from mpifed.data.store import open_federation
from mpifed.run.setup import prepare
from mpifed.testing import Job, Solo

ROUNDS, SEED = 4, 5
STEP = {"initial": 0.4, "exponent": 0.25}


def job(folder: Path, algorithm: dict[str, Any], **changes: Any) -> Job:
    table: dict[str, Any] = {
        "name": "reference",
        "rounds": ROUNDS,
        "seed": SEED,
        "data": {"path": str(folder)},
        "model": {"name": "mlp", "bias": False, "hidden": 5, "l2": 1e-2},
        "algorithm": {"name": "fedavg", "client_optimizer": {"learning_rate": STEP}, **algorithm},
        "record": {"evaluate_every": 0, "checkpoint_every": 0},
        "compute": {"dtype": "float64"},
    }
    return checked(table | changes)


def network_loop(task: Job) -> Any:
    """[d] of the mean cross-entropy plus penalty times all squares, sample by sample."""
    penalty, hidden = task.model["l2"], task.model["hidden"]

    def gradient(w: Any, X: Any, y: Any) -> Any:
        first, second = w[: -hidden * 10].reshape(-1, hidden), w[-hidden * 10 :].reshape(hidden, 10)
        total = 2 * penalty * w
        for x, label in zip(X, y, strict=True):
            z = x @ first
            g = 1 / (1 + np.exp(-z))
            slope = g + z * g * (1 - g)  # of z g(z)
            q = softmax_slope((z * g) @ second, label)
            own = [np.outer(x, (second @ q) * slope).ravel(), np.outer(z * g, q).ravel()]
            total = total + np.concatenate(own) / len(y)
        return total

    return averaged(task, gradient)


def close(model: Any, expected: Any) -> None:
    """Changes are rounded to multiples of 2^-40 = 1e-12, once a client and round."""
    found = np.concatenate([leaf.ravel() for leaf in (model.first, *model.head)])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("per_round", [None, 3])
@pytest.mark.parametrize(("block", "arithmetic"), [(1, "exact"), (3, "exact"), (3, "exact-blocks")])
def test_local_steps(
    skewed: Path, tmp_path: Path, steps: int, per_round: int | None, block: int, arithmetic: str
) -> None:
    participation = {} if per_round is None else {"clients_per_round": per_round}
    task = job(
        skewed, {"batch_size": 4, "local_steps": steps}, participation=participation,
        data={"path": str(skewed), "block": block}, aggregation={"arithmetic": arithmetic},
    )  # fmt: skip
    close(run(task, Solo(), tmp_path / "run").model, network_loop(task))


@pytest.mark.parametrize(
    "work",
    [
        {"batch_size": 4},
        {"batch_size": 20},  # some clients have fewer rows
        {"batch_size": 4, "client_optimizer": {"learning_rate": 0.3, "weight_decay": 0.1}},
    ],
    ids=str,
)
@pytest.mark.parametrize("data", ["skewed", "alike"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_answers_a_few_at_a_time_sum_to_the_same_bits(
    skewed: Path, shared_path: Path, data: str, work: dict[str, Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As all answers of a block at once: with weights of clients that differ, and with those that do not."""
    alike = make_data(shared_path / "few-alike", "digits", "--split", "rows", "--clients", 7, "--labels", "below:7")
    folder = skewed if data == "skewed" else alike
    ready = prepare(job(folder, work, data={"path": str(folder), "block": 6}, compute={"dtype": dtype}), Solo())
    models = []
    for numbers in (1, 2**40):  # four clients, or all
        monkeypatch.setattr("mpifed.algorithms.local._NUMBERS", numbers)
        server, clients = ready.server, ready.clients
        for t in range(2):
            now = Round(t, SEED, np.ones(ready.data.clients, dtype=bool))
            server, clients = play(ready.algorithm.exchanges, server, clients, now, ready.ranks)
        models.append(server.model.tobytes())
    assert models[0] == models[1]


def test_local_steps_with_l1(skewed: Path, tmp_path: Path) -> None:
    task = job(skewed, {"batch_size": 4, "local_steps": 3}, regularizer={"name": "l1", "weight": 0.01})
    model = run(task, Solo(), tmp_path / "run").model
    close(model, network_loop(task))
    assert (model.first == 0).any()


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("batch", [16, 1000])
def test_local_epochs(skewed: Path, tmp_path: Path, epochs: int, batch: int) -> None:
    """Shards of different sizes, so that the last minibatch of a pass is smaller; or a whole shard at once."""
    task = job(skewed, {"batch_size": batch, "local_epochs": epochs}, rounds=2, data={"path": str(skewed), "block": 3})
    close(run(task, Solo(), tmp_path / "run").model, network_loop(task))


@pytest.mark.parametrize(("steps", "arithmetic"), [(1, "exact"), (1, "exact-blocks"), (3, "exact")])
def test_clients_with_fewer_rows_than_a_minibatch_take_all(
    skewed: Path, tmp_path: Path, steps: int, arithmetic: str
) -> None:
    batch = int(np.median(open_federation(skewed).counts))
    task = job(
        skewed, {"batch_size": batch, "local_steps": steps}, rounds=2, data={"path": str(skewed), "block": 4},
        aggregation={"arithmetic": arithmetic},
    )  # fmt: skip
    close(run(task, Solo(), tmp_path / "run").model, network_loop(task))


@pytest.mark.parametrize("per_round", [None, 3])
@pytest.mark.parametrize("work", [{"local_steps": 1}, {"local_steps": 3}, {"local_epochs": 1}], ids=str)
def test_momentum(skewed: Path, tmp_path: Path, work: dict[str, int], per_round: int | None) -> None:
    participation = {} if per_round is None else {"clients_per_round": per_round}
    task = job(skewed, {"batch_size": 4, "server_optimizer": {"momentum": 0.8}, **work}, participation=participation)
    close(run(task, Solo(), tmp_path / "run").model, network_loop(task))


def test_local_steps_on_different_data_have_a_fixed_point_of_their_own(regression: Path, tmp_path: Path) -> None:
    """E gradient steps on quadratics A_i, optima w_i: sum p_i (I - M_i) (w - w_i) = 0, where M_i = (I - h A_i)^E."""
    federation, step, epochs = open_federation(regression), 0.3, 3
    left, right = np.zeros((7, 7)), np.zeros(7)
    for X, y in rows_of(federation):
        moved = np.eye(7) - np.linalg.matrix_power(np.eye(7) - step * X.T @ X / len(y), epochs)
        left += len(y) * moved
        right += len(y) * moved @ np.linalg.pinv(X) @ y
    task = job(
        regression, {"batch_size": 1000, "local_epochs": epochs, "client_optimizer": {"learning_rate": step}},
        rounds=120,
        model={"name": "least-squares", "bias": False},
    )  # fmt: skip
    result = run(task, Solo(), tmp_path / "run")
    np.testing.assert_allclose(result.model.first[:, 0], np.linalg.solve(left, right), rtol=0, atol=1e-8)


def test_measured_columns(digits: Path, tmp_path: Path) -> None:
    """Loss and accuracy as scikit-learn counts them, on all training and test rows."""
    from sklearn.metrics import accuracy_score, log_loss

    task = job(digits, {"batch_size": 8, "local_steps": 2}, record={"evaluate_every": 4, "checkpoint_every": 0})
    result = run(task, Solo(), tmp_path / "run")
    first, second = result.model.first, result.model.head.second

    def probabilities(X: Any) -> Any:
        z = X @ first
        logits = (z / (1 + np.exp(-z))) @ second
        return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)

    federation = open_federation(digits)
    data = rows_of(federation)
    X, y = np.concatenate([X for X, _ in data]), np.concatenate([y for _, y in data])
    test_X, test_y = common_rows(federation, "float64")
    found, labels = result.columns, np.arange(10)
    squares = (first**2).sum() + (second**2).sum()
    assert found["train_loss"] == pytest.approx(log_loss(y, probabilities(X), labels=labels), rel=1e-8)
    assert found["objective"] == pytest.approx(found["train_loss"] + 1e-2 * squares, rel=1e-12)
    assert found["test_loss"] == pytest.approx(log_loss(test_y, probabilities(test_X), labels=labels), rel=1e-8)
    assert found["test_accuracy"] == accuracy_score(test_y, probabilities(test_X).argmax(axis=1))
    assert found["round"] == ROUNDS
