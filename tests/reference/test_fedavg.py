"""What is measured of a run of FedAvg, as scikit-learn counts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import common
from loops import local_job, rows_of
from sklearn.metrics import accuracy_score, log_loss

from mpifed.data.store import open_federation
from mpifed.testing import Job, rounds

ROUNDS = 4
STEP = {"initial": 0.4, "exponent": 0.25}
NETWORK = {"name": "mlp", "bias": False, "hidden": 5, "l2": 1e-2}


def job(folder: Path, algorithm: dict[str, Any], block: int = 1, **changes: Any) -> Job:
    algorithm = {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": STEP}} | algorithm
    return local_job(folder, algorithm, **{"model": NETWORK, "data": {"path": str(folder), "block": block}} | changes)


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
