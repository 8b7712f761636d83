"""What plain loops of algorithms with local steps share: rows, gradients, who takes part, and the product's outcome.

Of the product only the data, the rows drawn and the starting model are used. Models are vectors [d]: the features'
weights [p, L] row by row, then the biases [L], if there are any.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from federations import held
from jobs_in_python import checked
from records import record_of, together

from mpifed.core.record import leaves
from mpifed.core.round import Round, uniform
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
    if objective["name"] == "mlp":
        return network_gradient(objective["l2"], objective["hidden"])
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


def network_gradient(l2: float, hidden: int) -> Gradient:
    """That of the mean cross-entropy of a network without intercepts, plus l2 times all squares, sample by sample."""

    def gradient(w: Any, X: Any, y: Any) -> Any:
        first, second = w[: -hidden * 10].reshape(-1, hidden), w[-hidden * 10 :].reshape(hidden, 10)
        total = 2 * l2 * w
        for x, label in zip(X, y, strict=True):
            z = x @ first
            g = 1 / (1 + np.exp(-z))
            slope = g + z * g * (1 - g)  # of z g(z)
            q = softmax_slope((z * g) @ second, label)
            own = [np.outer(x, (second @ q) * slope).ravel(), np.outer(z * g, q).ravel()]
            total = total + np.concatenate(own) / len(y)
        return total

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


def away(task: Job, clients: int) -> Callable[[int], set[int]]:
    """(period) -> who is there by `availability` and `mean_absence`: two states, one period after the other."""
    network, periods = task.simulated_network, list[Any]()
    assert network is not None
    a, absence = network.availability, network.mean_absence or 1 / network.availability

    def there(period: int) -> set[int]:
        while len(periods) <= period:
            turn = Round(len(periods), task.seed, np.zeros(0, bool))
            u = uniform(turn.words_of_clients("availability", np.arange(clients)).view(np.uint64))
            goes = (1 - a) / a / absence
            periods.append(np.where(periods[-1], u < 1 - goes, u < 1 / absence) if periods else u < a)
        return set(np.flatnonzero(periods[period]).tolist())

    return there
