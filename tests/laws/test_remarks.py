"""What a constrained run warns of at its end: the limit that is not met, the cap that was reached, and the true cause.

Each cause is that of a small run; where a remark depends on columns of a certificate, they are computed here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ended import run
from jobs_in_python import checked
from registry import table
from scipy.optimize import nnls

from mpifed.core.exchange import play
from mpifed.core.round import SETUP, Round
from mpifed.job.participation import round_of
from mpifed.run.setup import prepare
from mpifed.testing import Alone, Job

SOUND = {"rho": [0.9, 0.55], "gamma": [0.9, 0.6], "tau": 0.1}
TWO = [({"classes": [0]}, 0.7), ({"classes": [1, 2]}, 0.6)]


class End(NamedTuple):
    """Of a run."""

    said: list[str]  # the remarks of the server with the columns below
    server: Any
    columns: dict[str, Any]


def job_of(folder: Path, hyper: dict[str, Any], rounds: int, groups: Any = TWO) -> Job:
    """min ||w||^2 under limits on the losses of groups of classes."""
    return checked(table(
        folder, {"name": "ssca", "batch_size": 60, **SOUND, **hyper}, rounds=rounds,
        model={"name": "softmax", "bias": False}, minimize={"name": "norm"}, compute={"dtype": "float64"},
        record={"evaluate_every": rounds, "checkpoint_every": 0},
        constraint=[{"name": "loss", **group, "limit": limit} for group, limit in groups],
    ))  # fmt: skip


def slopes_of(task: Job, model: Any) -> tuple[Any, Any]:
    """(values [M], gradients [M, d]) of the constraints over all rows."""
    values, slopes, data = [], [], prepare(task, Alone()).aggregator.blocks
    X, y = (np.concatenate([np.asarray(getattr(b, part)).reshape(-1, *tail) for block in data
            for _, b in block.everything(60)]) for part, tail in (("X", (6,)), ("y", ())))  # fmt: skip
    for one in task.constraint:
        some = np.isin(y, one["classes"])
        z = X[some] @ model.first
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        labels = y[some].astype(int)
        values.append(-np.log(p[np.arange(len(p)), labels]).mean())
        p[np.arange(len(p)), labels] -= 1
        slopes.append((X[some].T @ p / len(p)).ravel())
    return np.array(values), np.array(slopes)


def ended(task: Job) -> End:
    """The job's rounds, and its remarks with the multipliers and the feasible direction of the true problem."""
    at = prepare(task, Alone())
    everybody = Round(SETUP, task.seed, np.ones(at.aggregator.clients, dtype=bool))
    server, clients = play(at.algorithm.setup, at.server, at.clients, everybody, at.aggregator)
    for index in range(task.rounds):
        now = round_of(task, at.aggregator.clients, index)
        server, clients = play(at.algorithm.exchanges, server, clients, now, at.aggregator)
    model = at.algorithm.model(server)
    values, slopes = slopes_of(task, model)
    found = {f"constraint_{m}": float(value) for m, value in enumerate(values, 1)}
    nu = nnls(slopes.T, -2 * model.first.ravel())[0]
    found |= {f"multiplier_{m}": float(one) for m, one in enumerate(nu, 1)}
    unmet = values > [one["limit"] for one in task.constraint]
    if unmet.any():  # the shortest mean of the unmet ones' directions
        units = slopes[unmet] / np.linalg.norm(slopes[unmet], axis=1)[:, None]
        weights = nnls(np.vstack((units.T, 1e4 * np.ones(len(units)))), np.append(np.zeros(units.shape[1]), 1e4))[0]
        found["feasible_direction"] = float(np.linalg.norm(weights @ units) / weights.sum())
    return End(at.algorithm.remarks(server, found), server, found)


def test_a_cap_below_the_multiplier(classes: Path) -> None:
    end = ended(job_of(classes, {"slack_cost": 2.0}, 300))
    assert end.columns["multiplier_2"] == pytest.approx(2, rel=1e-3)  # true at the optimum of the capped problem
    for m, said in enumerate(end.said, 1):
        assert said.startswith(f"constraint {m}: its limit")
        assert "its multiplier was at its cap 2 (slack_cost) in 100% of recent rounds; the cap is the" in said
        assert 'raise slack_cost to 20, or set it to "auto"' in said
    assert len(end.said) == 2


def test_noise_without_any_cap(classes: Path) -> None:
    noisy = {
        "batch_size": 2,
        "rho": [0.9, 0.1],
        "gamma": [0.9, 0.1],
        "slack_cost": 1e5,
        "variance_reduction": "recursive",
    }
    for seed in range(1, 9):
        task = job_of(classes, noisy, 60)
        end = ended(task.model_copy(update={"seed": seed}))
        unmet = [m for m, limit in ((1, 0.7), (2, 0.6)) if end.columns[f"constraint_{m}"] > limit]
        rare = [m for m in unmet if end.server.slack_costs.capped[m - 1] < 0.25]
        said = {m: [one for one in end.said if one.startswith(f"constraint {m}: its limit")] for m in rare}
        if rare and all("noise" in one[0] for one in said.values()):
            assert all(len(one) == 1 and "multiplier was at" not in one[0] for one in said.values())
            assert all("recursive" not in one[0] and 'margins = "auto"' in one[0] for one in said.values())
            return
    pytest.fail("no seed misses a limit without its cap")


def test_a_run_says_so_once_and_keeps_it(classes: Path, tmp_path: Path) -> None:
    """However little is measured: the end is."""
    from written_files import read_json

    for every in 10, 0:
        job = job_of(classes, {"slack_cost": 1.0}, 40).model_dump(exclude_none=True)
        task = checked(job | {"record": {"evaluate_every": every, "checkpoint_every": 0}})
        run(task, Alone(), tmp_path / str(every))
        found = read_json(tmp_path / str(every) / "run.json")["warnings"]
        assert [one[:13] for one in found] == ["constraint 1:", "constraint 2:"]
        assert all("not met" in one for one in found)
