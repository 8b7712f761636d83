"""What plain loops of algorithms with local steps share: rows, gradients, who takes part, and the product's outcome.

Of the product only the data, the rows drawn and the starting model are used. Models are vectors [d]: the features'
weights [p, L] row by row, then the biases [L], if there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from federations import held
from jobs_in_python import checked
from paper import step_size
from records import record_of, together

from mpifed.core.record import leaves
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation, open_federation
from mpifed.testing import Job, participants, rounds
from mpifed.testing import minibatches as drawn

Gradient = Callable[[Any, Any, Any], Any]  # (w [d], X [s, p], y [s]) -> [d], with all penalties
SEED = 11

# [privacy] without noise, by what it makes of the local steps; a gradient of the digits is longer than that
CLIP, HAIR = 1.5, 1 - 2.0**-20  # what is clipped becomes a millionth shorter
PRIVATE: dict[str, dict[str, Any]] = {
    name: {
        "privacy": {
            "delta": 1e-5,
            "clip": CLIP,
            "noise_multiplier": 0.0,
            "noise": "test",
            "public_preparation": True,
            **settings,
        }
    }
    for name, settings in {"gradients": {}, "upload": {"noise": "paper"}}.items()
}


def local_job(folder: Path, algorithm: dict[str, Any], /, **changes: Any) -> Job:
    """A job in float64 without any measuring."""
    table: dict[str, Any] = {
        "name": "reference", "rounds": 4, "seed": SEED, "data": {"path": str(folder)}, "algorithm": algorithm,
        "model": {"name": "softmax", "bias": True, "l2": 1e-2},
        "record": {"evaluate_every": 0, "checkpoint_every": 0}, "compute": {"dtype": "float64"},
    }  # fmt: skip
    return checked(table | changes)


# --- the product ---------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """What the product has after all rounds."""

    server: Any
    clients: Any  # a record, [N, ...]
    model: Any  # [d]

    def kept(self, field: str) -> Any:
        """[N, d] what the clients keep under this name, or as their whole state."""
        record = getattr(self.clients, field) if field else self.clients
        return np.concatenate([leaf.reshape(len(leaf), -1) for _, leaf in leaves(record)], axis=1)


def played(task: Job) -> Played:
    """All rounds of a job, by the product."""
    (*_, last) = rounds(task)
    model = np.concatenate([leaf.ravel() for leaf in last.model.values()])
    return Played(record_of(last.server), together(last.clients), model)


def start_of(task: Job) -> Any:
    """[d] the product's model before round 0."""
    return np.concatenate([leaf.ravel() for leaf in next(rounds(task)).model.values()])


# --- data and draws ------------------------------------------------------------------------------------------------

_opened = functools.cache(open_federation)


def rows_of(data: str | Path | Federation) -> list[tuple[Any, Any]]:
    """X [s, p] and y [s] of each client."""
    federation = data if isinstance(data, Federation) else open_federation(data)
    return [(held(federation, i), shard_of(federation, i).y) for i in range(federation.clients)]


def present(task: Job, clients: int, t: int) -> list[int]:
    """Who takes part in round t = 1, 2, ..."""
    found: list[int] = participants(task, t).tolist()
    assert clients == _opened(task.data.path).clients
    return found


def minibatches(task: Job, client: int, size: int, t: int) -> list[Any]:
    """A client's rows for each of Q local steps of round t.

    They are drawn at once, and so are disjoint; but where every gradient is made noisy, step by step.
    """
    assert size == _opened(task.data.path).counts[client]
    return list(drawn(task, t, client))


# --- gradients of mean losses --------------------------------------------------------------------


def gradient_of(task: Job, outputs: int) -> Gradient:
    """That of the job's objective; under [privacy] every sample's is clipped, and a batch counts as `batch` of them."""
    objective = task.model
    slope = {
        "softmax": softmax_slope, "true-class-logistic": printed_slope, "least-squares": residual,
    }[objective["name"]]  # fmt: skip
    mu, beta, private = objective.get("l2", 0.0), objective.get("nonconvex_penalty", 0.0), task.privacy is not None
    clip = np.inf if task.privacy is None else task.privacy.bound * HAIR

    def gradient(w: Any, X: Any, y: Any) -> Any:
        p = X.shape[1]
        W, bias = w[: p * outputs].reshape(p, outputs), w[p * outputs :]
        total = 2 * mu * w + beta * 2 * w / (1 + w**2) ** 2
        total[W.size :] *= objective.get("penalize_bias", False)  # no penalty counts intercepts
        scores = X @ W + (bias if len(bias) else 0)
        down = np.array([slope(z, label) for z, label in zip(scores, y, strict=True)])  # [s, L]
        own = np.hstack([(X[:, :, None] * down[:, None]).reshape(len(y), -1), *([down] if len(bias) else [])])
        if private:
            own *= np.minimum(1.0, clip / np.linalg.norm(own, axis=1, keepdims=True))
        return total + own.sum(axis=0) / (task.algorithm["batch_size"] if private else len(y))

    return gradient


def softmax_slope(z: Any, label: int) -> Any:
    """-log q_y has the slope q - e_y."""
    q = np.exp(z) / np.exp(z).sum()
    q[label] -= 1
    return q


def printed_slope(z: Any, label: int) -> Any:
    """(25) of FedPDM-DP: log(1 + exp(-z_y))."""
    down = np.zeros_like(z)
    down[label] = -1 / (1 + np.exp(z[label]))
    return down


def residual(z: Any, target: float) -> Any:
    """(z - y)^2 / 2"""
    return z - target


# --- local steps -----------------------------------------------------------------------------------------------------


class End(NamedTuple):
    """Where the local steps of a client end."""

    client: int
    model: Any  # [d]
    rows: int
    steps: int


def ends(
    task: Job, data: list[tuple[Any, Any]], t: int, x: Any, pulled: Callable[[int, Any], Any] = lambda i, at: 0.0
) -> Iterator[End]:
    """Of round t's clients, who begin at x and to whose gradients `pulled` is added; `data` as `rows_of` gives them."""
    gradient = gradient_of(task, 10)
    step = step_size(task.client_optimizer["learning_rate"], t)
    for i in present(task, len(data), t):
        (X, y), at = data[i], x
        batches = minibatches(task, i, len(y), t)
        for batch in batches:
            at = at - step * (gradient(at, X[batch], y[batch]) + pulled(i, at))
        yield End(i, at, len(y), len(batches))


def walked(task: Job, start: Any, step: float, slopes: list[Callable[[Any], Any]]) -> Any:
    """Where steps from `start` end."""
    client, mu = task.client_optimizer, task.algorithm.get("mu", 0.0)
    v, velocity, momentum = start, np.zeros_like(start), client.get("momentum", 0.0)
    for slope in slopes:
        down = slope(v) + mu * (v - start)
        velocity = momentum * velocity + down
        v = v - step * (down + momentum * velocity if client.get("nesterov") else velocity)
    return v


def averaged(task: Job, gradient: Gradient | None = None, outputs: int = 10) -> Any:
    """[d] of FedAvg and FedProx: min F_k(v) + mu/2 ||v - w||^2 by SGD, averaged by rows. With l1: proximal."""
    data, client, server = rows_of(task.data.path), task.client_optimizer, task.server_optimizer or {}
    decay = client.get("weight_decay", 0.0)
    gradient, w = gradient or gradient_of(task, outputs), start_of(task)
    penalized = len(w) - outputs * task.model["bias"]
    at_server, rate, momentum = np.zeros_like(w), server.get("learning_rate", 1.0), server.get("momentum", 0.0)
    for t in range(1, task.rounds + 1):
        step, total, rows = step_size(client["learning_rate"], t), np.zeros_like(w), 0
        for k in present(task, len(data), t):
            X, y = data[k]
            slopes = [
                lambda v, X=X[batch], y=y[batch]: gradient(v, X, y) + decay * v
                for batch in minibatches(task, k, len(y), t)
            ]
            total, rows = total + len(y) * walked(task, w, step, slopes), rows + len(y)
        D = total / rows - w
        at_server = momentum * at_server + D
        before, w = w, w + rate * (D + momentum * at_server if server.get("nesterov") else at_server)
        if task.regularizer is not None:  # its prox goes as far as a constant gradient, and the velocity knows of it
            (away,) = -walked(task, np.zeros(1), step, [lambda v: 1.0] * task.algorithm.get("local_steps", 1))
            threshold = task.regularizer["weight"] * rate * (1 + momentum * bool(server.get("nesterov"))) * away
            w[:penalized] = np.sign(w[:penalized]) * np.maximum(np.abs(w[:penalized]) - threshold, 0)
            at_server = (w - before) / rate
    return w
