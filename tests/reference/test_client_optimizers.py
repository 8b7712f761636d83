"""AdamW, clipping, and rates by local step and with warm-up, against plain loops; their refusals.

AdamW is that of `torch.optim.AdamW`: I. Loshchilov, F. Hutter (ICLR 2019, arXiv:1711.05101), Algorithm 2.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import gradient_of, local_job, minibatches, played, present, rows_of, start_of

from mpifed.core.errors import UsageError
from mpifed.testing import Job

ADAMW = {"name": "adamw", "learning_rate": 0.02}
CLIP = {"learning_rate": 0.4, "clip_norm": 0.7}
SLOWER = {"initial": 0.8, "exponent": 0.5}
SOME = {"participation": {"clients_per_round": 4}}


def walked(task: Job, x: Any, rate: float, slopes: list[Any]) -> Any:
    """Where a client's steps from x end."""
    settings, mu = task.client_optimizer, task.algorithm.get("mu", 0.0)
    decay = settings.get("weight_decay", 0.0)
    y, m, v = x.copy(), np.zeros_like(x), np.zeros_like(x)
    for k, slope in enumerate(slopes, start=1):
        g = slope(y)
        norm, most = np.sqrt(np.sum(g * g)), settings.get("clip_norm") or np.inf
        if norm > most:
            g = g / norm * most
        g = g + mu * (y - x)
        by_step = settings.get("local_schedule")
        step = rate * (by_step["initial"] / k ** by_step["exponent"] if by_step else 1.0)
        if settings["name"] == "sgd":
            g = g + decay * y
            m = settings["momentum"] * m + g
            y = y - step * (g + settings["momentum"] * m if settings["nesterov"] else m)
            continue
        b1, b2 = settings["beta1"], settings["beta2"]
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        y = (1 - step * decay) * y
        y = y - step * (m / (1 - b1**k)) / (np.sqrt(v / (1 - b2**k)) + settings["eps"])
    return y


def averaged(task: Job) -> Any:
    """[d] FedAvg and FedProx, by rows."""
    data, gradient, x = rows_of(task.data.path), gradient_of(task, 10), start_of(task)
    rate = task.client_optimizer["learning_rate"]
    for t in range(1, task.rounds + 1):
        at, total, rows = rate, np.zeros_like(x), 0
        if isinstance(rate, dict):
            at = rate["initial"] / t ** rate["exponent"] * min(1, t / rate["warmup"])
        for i in present(task, len(data), t):
            X, y = data[i]
            slopes = [lambda w, X=X[b], y=y[b]: gradient(w, X, y) for b in minibatches(task, i, len(y), t)]
            total, rows = total + len(y) * walked(task, x, at, slopes), rows + len(y)
        x = total / rows
    return x


@pytest.mark.parametrize(
    ("algorithm", "optimizer"),
    [
        ({"local_steps": 1}, ADAMW),
        ({"local_steps": 4}, ADAMW | {"weight_decay": 0.5, "beta1": 0.5, "beta2": 0.9, "eps": 0.01}),
        ({"local_epochs": 2}, ADAMW | {"clip_norm": 0.5, "local_schedule": SLOWER}),
        ({"name": "fedprox", "mu": 0.7, "local_steps": 3}, ADAMW),
        ({"local_steps": 1}, CLIP),
        ({"local_steps": 4}, CLIP | {"momentum": 0.8, "weight_decay": 0.1}),
        ({"local_epochs": 1}, CLIP | {"momentum": 0.8, "nesterov": True, "local_schedule": SLOWER}),
        ({"name": "fedprox", "mu": 0.7, "local_steps": 3}, CLIP | {"local_schedule": SLOWER}),
        ({"local_steps": 2}, {"learning_rate": {"initial": 0.5, "exponent": 0.0, "warmup": 3}}),
    ],
    ids=str,
)
def test_the_loop(skewed: Path, algorithm: dict[str, Any], optimizer: dict[str, Any]) -> None:
    algorithm = {"name": "fedavg", "batch_size": 4, "client_optimizer": optimizer, **algorithm}
    task = local_job(skewed, algorithm, data={"path": str(skewed), "block": 3}, **SOME)
    np.testing.assert_allclose(played(task).model, averaged(task), rtol=0, atol=1e-10)


def test_what_clips_nothing_is_momentum_sgd(digits: Path) -> None:
    """By another loop, so to rounding."""
    models = []
    for more in ({}, {"clip_norm": 1e9}):
        optimizer = {"learning_rate": 0.4, "momentum": 0.5, "weight_decay": 0.01, **more}
        given = {"name": "fedavg", "batch_size": 4, "local_steps": 3}
        models.append(played(local_job(digits, given | {"client_optimizer": optimizer})).model)
    np.testing.assert_allclose(models[0], models[1], rtol=0, atol=1e-10)


L1 = {"regularizer": {"name": "l1", "weight": 0.01}}
UPLOAD = {"privacy": {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 0.7, "noise": "paper"}}


@pytest.mark.parametrize(
    ("algorithm", "optimizer", "tables", "said"),
    [
        ({"name": "scaffold"}, ADAMW, {}, '[client_optimizer] name = "adamw": control variates are of plain steps'),
        ({"name": "fedpdm", "rho": 1.0}, ADAMW, {}, '[client_optimizer] name = "adamw": the dual variables are those'),
        ({"name": "fedavg"}, ADAMW, L1, "[client_optimizer] name: with a [regularizer]"),
        ({"name": "fedavg"}, ADAMW, UPLOAD, '[client_optimizer] name = "adamw": the paper'),
        ({"name": "fedavg"}, CLIP, UPLOAD, "[client_optimizer] clip_norm = 0.7: the paper's"),
        (
            {"name": "scaffold"},
            {"learning_rate": 0.1, "local_schedule": {"name": "cosine", "initial": 1.0, "rounds": 1}},
            {},
            "[client_optimizer] learning_rate: ends at 0",
        ),
        ({"name": "fedavg"}, {"name": "adam"}, {}, '[client_optimizer] name = "adam": is not known'),
        ({"name": "fedavg"}, ADAMW | {"local_schedule": {"initial": 1.0, "every": 2}}, {}, "every: unknown key"),
        ({"name": "fedavg"}, ADAMW | {"momentum": 0.9}, {}, "[client_optimizer] momentum: unknown key"),
    ],
    ids=str,
)  # fmt: skip
def test_refusals(
    digits: Path, algorithm: dict[str, Any], optimizer: dict[str, Any], tables: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as error:
        played(local_job(digits, {"batch_size": 4, **algorithm, "client_optimizer": optimizer}, **tables))
    assert said in str(error.value)
