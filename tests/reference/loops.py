"""What plain loops share: jobs, rows, losses from their definitions, and what the product has after its rounds.

Of the product only the data, the rows drawn, who takes part and the starting model are used. Models are vectors [d]:
the features' weights [p, L] row by row, then the head's arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from definitions import forward
from federations import held
from jobs_in_python import checked
from records import record_of, together

from mpifed.core.record import leaves
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.testing import Job, participants, rounds

SEED = 11

# [privacy] without noise, by what it makes of the local steps; a gradient of the digits is longer than that
CLIP, HAIR = 1.5, 1 - 2.0**-20  # what is clipped becomes a millionth shorter
NOISELESS = {"delta": 1e-5, "clip": CLIP, "noise_multiplier": 0.0, "noise": "test", "public_preparation": True}
PRIVATE: dict[str, dict[str, Any]] = {
    "gradients": {"privacy": NOISELESS},
    "upload": {"privacy": NOISELESS | {"noise": "paper"}},
}


def make_data(out: Path, *arguments: object) -> Path:
    """A data folder, made by `mpifed data` unless it is there."""
    from click.testing import CliRunner
    from mapped import with_map

    from mpifed.cli import main

    if not out.exists():
        done = CliRunner().invoke(main, ["data", *with_map(arguments), "--out", str(out)])
        assert done.exit_code == 0, done.output
    return out


def local_job(folder: Path, algorithm: dict[str, Any], /, **changes: Any) -> Job:
    """A job in float64 without any measuring."""
    table: dict[str, Any] = {
        "name": "reference", "rounds": 4, "seed": SEED, "data": {"path": str(folder)}, "algorithm": algorithm,
        "model": {"name": "softmax", "bias": True, "l2": 1e-2},
        "record": {"evaluate_every": 0, "checkpoint_every": 0}, "compute": {"dtype": "float64"},
    }  # fmt: skip
    return checked(table | changes)


def step_size(setting: Sequence[float] | Mapping[str, float] | float, t: int) -> float:
    """a / (b + t^alpha)"""
    if isinstance(setting, Mapping):
        return float(setting["initial"] / (setting.get("offset", 0.0) + t ** setting["exponent"]))
    if isinstance(setting, float):
        return setting
    return float(setting[0] / t ** (setting[1] if len(setting) > 1 else 0.0))


# --- the product ---------------------------------------------------------------------------------------------------


class Played(NamedTuple):
    """What the product has after all rounds."""

    server: Any
    clients: Any  # a record, [N, ...]
    model: Any  # [d]
    columns: dict[str, Any]  # of the history, if it was measured

    def kept(self, field: str) -> Any:
        """[N, d] what the clients keep under this name, or as their whole state."""
        record = getattr(self.clients, field) if field else self.clients
        return np.concatenate([leaf.reshape(len(leaf), -1) for _, leaf in leaves(record)], axis=1)


def played(task: Job, measured: bool = False) -> Played:
    """All rounds of a job, by the product."""
    (*_, last) = rounds(task, measured=task.rounds if measured else 0)
    return Played(record_of(last.server), together(last.clients), flat(last.model), last.columns)


def flat(model: Mapping[str, Any]) -> Any:
    """[d]"""
    return np.concatenate([leaf.ravel() for leaf in model.values()])


def close(found: Any, expected: Any, atol: float = 1e-10) -> None:
    """To rounding: sums are on a grid of 2^-40 or so."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


# --- data and objectives -------------------------------------------------------------------------------------------


def rows_of(folder: str | Path) -> list[tuple[Any, Any]]:
    """X [s, p] and y [s] of each client."""
    federation = open_federation(folder)
    return [(held(federation, i), shard_of(federation, i).y) for i in range(federation.clients)]


class Objective:
    """Losses, gradients and penalties of a job, and the product's model before round 0."""

    def __init__(self, task: Job) -> None:
        start = next(rounds(task)).model
        self.task, self.table, self.start = task, task.model, flat(start)
        self.parts = {name: leaf.shape for name, leaf in start.items()}
        every = self.table.get("penalize_bias", False)  # otherwise no penalty counts intercepts
        self.counted = np.concatenate([np.full(leaf.size, every or "bias" not in name) for name, leaf in start.items()])

    def losses(self, w: Any, X: Any, y: Any) -> tuple[Any, Callable[[Any], Any]]:
        """(losses [s], weights [s] -> slope [d] of their weighted sum)."""
        model, at = {}, 0
        for name, shape in self.parts.items():
            model[name] = w[at : at + np.prod(shape)].reshape(shape)
            at += np.prod(shape)
        values, backward = forward(self.table["name"], model, X, y)

        def pull(weights: Any) -> Any:
            slopes = backward(weights)
            return np.concatenate([slopes[name].ravel() for name in self.parts])

        return values, pull

    def penalty(self, w: Any) -> tuple[float, Any]:
        """(value, slope [d])."""
        l2, beta, w = self.table.get("l2", 0.0), self.table.get("nonconvex_penalty", 0.0), w * self.counted
        slope = 2 * l2 * w + beta * 2 * w / (1 + w**2) ** 2
        return float(l2 * w @ w + beta * (w**2 / (1 + w**2)).sum()), slope

    def gradient(self, w: Any, X: Any, y: Any) -> Any:
        """[d] of the mean loss and the penalty; under [privacy] each sample's is clipped, and divided by the batch."""
        _, pull = self.losses(w, X, y)
        if self.task.privacy is None:
            return self.penalty(w)[1] + pull(np.full(len(y), 1 / len(y)))
        own = np.array([pull(one) for one in np.eye(len(y))])
        own *= np.minimum(1.0, self.task.privacy.bound * HAIR / np.linalg.norm(own, axis=1, keepdims=True))
        return self.penalty(w)[1] + own.sum(axis=0) / self.task.algorithm["batch_size"]


# --- who takes part ------------------------------------------------------------------------------------------------


def present(task: Job, t: int) -> list[int]:
    """Who takes part in round t = 1, 2, ..."""
    who: list[int] = participants(task, t).tolist()
    return who
