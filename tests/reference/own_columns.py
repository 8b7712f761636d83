"""What the plain loops of HyFDCA's rivals share: cells of a federation, and SGD in a client's own columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jobs_in_python import checked
from loops import present
from paper import make_data, step_size

from mpifed.core.round import Round
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation
from mpifed.testing import Job

PENALTY = 1e-2
SGD = {
    "batch_size": 6,
    "client_optimizer": {"learning_rate": {"initial": 1.5, "exponent": 0.5, "offset": 2.0}},
    "local_steps": 4,
}
OVERLAPPING = """client,rows,columns
0,0-29 60-79,0-19
1,0-29 60-79,20-63
2,30-59,0-40
3,30-59,41-63
4,80-119,10-50
5,80-119,0-9 51-63
6,120-178,all
"""


class Cell(NamedTuple):
    """What one client holds."""

    X: Any  # [s, p]
    t: Any  # [s] signs of the classes
    rows: Any  # [s]
    columns: Any  # [p]


def grid(folder: Path, size: str) -> Path:
    """Even digits against odd ones, rows of norm 1, R x C clients."""
    return make_data(
        folder / f"grid-{size}", "digits", "--split", "grid", "--grid", size, "--labels", "even-odd", "--scale",
        "unit-rows", "--test-fraction", "0.9", "--seed", 4,
    )  # fmt: skip


def overlapping(folder: Path) -> Path:
    """7 clients with rectangles of all shapes in the columns of each other."""
    (folder / "map.csv").write_text(OVERLAPPING, encoding="utf-8")
    return make_data(
        folder / "overlapping", "digits", "--split", "grid", "--map", folder / "map.csv", "--labels", "even-odd",
        "--scale", "unit-rows", "--test-fraction", "0.9", "--seed", 4,
    )  # fmt: skip


def cells(folder: Path) -> list[Cell]:
    """Of every client."""
    federation, found = open_federation(folder), []
    for client in range(federation.clients):
        shard = shard_of(federation, client)
        X = np.empty((shard.samples, shard.features))
        shard.take(np.arange(shard.samples), X)
        found.append(Cell(X, 2 * shard.y - 1, shard.rows, shard.columns))
    return found


def task(folder: Path, algorithm: dict[str, Any], /, **changes: Any) -> Job:
    """A job in float64 without any measuring."""
    table: dict[str, Any] = {
        "name": "rival", "rounds": 4, "seed": 11, "data": {"path": str(folder), "block": 2}, "algorithm": algorithm,
        "model": {"name": "hinge", "bias": False, "l2": PENALTY},
        "record": {"evaluate_every": 0, "checkpoint_every": 0}, "compute": {"dtype": "float64"},
    }  # fmt: skip
    return checked(table | changes)


def minibatches(job: Job, t: int, client: int, size: int) -> list[Any]:
    """The rows of each local step of one client in round t = 1, 2, ..."""
    now, batch = Round(t - 1, job.seed, np.ones(1, dtype=bool)), job.algorithm["batch_size"]
    steps, epochs = job.algorithm.get("local_steps"), job.algorithm.get("local_epochs")
    count = epochs * size if epochs else steps * batch
    drawn = now.draw("minibatch", np.array([client]), np.array([size]), count)[0]
    passes = drawn.reshape(epochs, size) if epochs else [drawn]
    return [one[i : i + batch] for one in passes for i in range(0, len(one), batch)]


def descended(job: Job, cell: Cell, client: int, t: int, w: Any, pulled: Any = None, mu: float = 0.0) -> Any:
    """[p] w after one client's local steps on hinge (or logistic) loss + PENALTY ||w||^2 + mu/2 ||w - pulled||^2."""
    step = step_size(job.client_optimizer["learning_rate"], t)
    for rows in minibatches(job, t, client, len(cell.t)):
        slope = 2 * PENALTY * w + (mu * (w - pulled) if mu else 0.0)
        for i in rows:
            margin = cell.t[i] * (cell.X[i] @ w)
            if job.model["name"] == "hinge":
                slope = slope - (margin < 1) * cell.t[i] * cell.X[i] / len(rows)
            else:
                slope = slope - cell.t[i] * cell.X[i] / (1 + np.exp(margin)) / len(rows)
        w = w - step * slope
    return w


def who(job: Job, clients: int, t: int) -> list[int]:
    """Who takes part in round t = 1, 2, ..."""
    return present(job, clients, t)


def close(found: Any, expected: Any) -> None:
    """To rounding."""
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)
