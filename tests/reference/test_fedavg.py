"""Federated averaging against a plain loop over clients and steps, and against optima known otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import common
from loops import averaged, local_job, played, rows_of, softmax_slope
from sklearn.metrics import accuracy_score, log_loss

from mpifed.data.store import open_federation
from mpifed.testing import Job, rounds

ROUNDS = 4
STEP = {"initial": 0.4, "exponent": 0.25}
NETWORK = {"name": "mlp", "bias": False, "hidden": 5, "l2": 1e-2}


def job(folder: Path, algorithm: dict[str, Any], block: int = 1, **changes: Any) -> Job:
    algorithm = {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": STEP}} | algorithm
    return local_job(folder, algorithm, **{"model": NETWORK, "data": {"path": str(folder), "block": block}} | changes)


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


THREE = {"participation": {"clients_per_round": 3}}
BLOCKS = {"aggregation": {"arithmetic": "exact-blocks"}}
WHOLE, FEWER = 1000, "the median of rows"  # minibatches: all rows of a client; more rows than some have
SERVER = {"server_optimizer": {"momentum": 0.8}}


@pytest.mark.parametrize(
    ("algorithm", "block", "tables"),
    [
        *(
            ({"local_steps": steps}, block, part | arithmetic)
            for steps in (1, 3)
            for part in ({}, THREE)
            for block, arithmetic in ((1, {}), (3, {}), (3, BLOCKS))
        ),
        *(({"batch_size": batch, "local_epochs": epochs}, 3, {}) for batch in (16, WHOLE) for epochs in (1, 2)),
        *(({"batch_size": FEWER, "local_steps": steps}, 4, more) for steps, more in ((1, {}), (1, BLOCKS), (3, {}))),
        *((SERVER | steps, 1, part) for steps in ({"local_steps": 1}, {"local_epochs": 1}) for part in ({}, THREE)),
        ({"local_steps": 3}, 1, {"regularizer": {"name": "l1", "weight": 0.01}}),
    ],
    ids=str,
)
def test_the_loop(skewed: Path, algorithm: dict[str, Any], block: int, tables: dict[str, Any]) -> None:
    """Shards of different sizes; changes are rounded to multiples of 2^-40 = 1e-12, once a client and round."""
    if algorithm.get("batch_size") == FEWER:
        algorithm = algorithm | {"batch_size": int(np.median(open_federation(skewed).counts))}
    task = job(skewed, algorithm, block, **tables)
    found = played(task).model
    np.testing.assert_allclose(found, network_loop(task), rtol=0, atol=1e-10)
    assert (found == 0).any() == ("regularizer" in tables)


def test_measured_columns(digits: Path) -> None:
    """Loss and accuracy as scikit-learn counts them, on all training and test rows."""
    record = {"evaluate_every": ROUNDS, "checkpoint_every": 0}
    *_, last = rounds(job(digits, {"local_steps": 2}, record=record), measured=ROUNDS)
    first, second = last.model["first"], last.model["head.second"]

    def measured(X: Any, y: Any) -> tuple[float, float]:
        z = X @ first
        logits = (z / (1 + np.exp(-z))) @ second
        share = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        return log_loss(y, share, labels=np.arange(10)), accuracy_score(y, share.argmax(axis=1))

    loss, _ = measured(*map(np.concatenate, zip(*rows_of(digits), strict=True)))
    test_loss, accuracy = measured(*common(open_federation(digits), "float64"))
    found, squares = last.columns, (first**2).sum() + (second**2).sum()
    assert found["train_loss"] == pytest.approx(loss, rel=1e-8)
    assert found["objective"] == pytest.approx(found["train_loss"] + 1e-2 * squares, rel=1e-12)
    assert found["test_loss"] == pytest.approx(test_loss, rel=1e-8)
    assert found["test_accuracy"] == accuracy
