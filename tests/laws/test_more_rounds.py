"""Ten rounds, and then twenty by `--resume`, are twenty at once: `rounds` grows where nothing has read it.

What depends on a horizon has one of its own, as a schedule, or refuses another number of rounds, as calibrated noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ended import of_certificate, run
from jobs_in_python import checked
from registry import table
from test_neighbours import JOBS, private

from mpifed.files.history import read_history
from mpifed.files.model_file import read_model
from mpifed.maths.schedules import SCHEDULES
from mpifed.testing import Solo

AVG = {"name": "fedavg", "batch_size": 7, "local_steps": 2}
SSCA = {"name": "ssca", "batch_size": 7, "rho": [0.9, 0.6], "gamma": [0.5, 0.7]}
RATES: dict[str, Any] = {
    "constant": 0.3,
    "power": {"initial": 0.3, "exponent": 0.4},
    "step": {"name": "step", "initial": 0.3, "factor": 0.5, "every": 4},
    "cosine": {"name": "cosine", "initial": 0.3, "rounds": 15, "final": 0.01},
}
GUARDED = {name: job for name, job in JOBS.items() if "coins" not in name}  # coins are of the system's own entropy


def test_every_schedule_is_here() -> None:
    assert {*RATES} == {"constant", *SCHEDULES}


@pytest.mark.parametrize("rate", RATES)
def test_clients_schedules(rate: str, digits: Path, tmp_path: Path) -> None:
    method = AVG | {"client_optimizer": {"learning_rate": RATES[rate], "momentum": 0.5}}
    grows(table(digits, method, participation={"clients_per_round": 5}), tmp_path)


@pytest.mark.parametrize("rate", RATES)
def test_servers_schedules(rate: str, digits: Path, tmp_path: Path) -> None:
    method = AVG | {"client_optimizer": {"learning_rate": 0.3}, "server_optimizer": {"learning_rate": RATES[rate]}}
    grows(table(digits, method), tmp_path)


def test_step_sizes_of_ssca(digits: Path, tmp_path: Path) -> None:
    grows(table(digits, SSCA, constraint=[{"name": "norm", "limit": 4.0}]), tmp_path)


@pytest.mark.parametrize("name", GUARDED)
def test_guards(name: str, digits: Path, tmp_path: Path) -> None:
    changes = {**GUARDED[name]}
    changes["privacy"] = {"noise": "test", **changes.get("privacy", {})}
    grows(private(digits, **changes), tmp_path)


def grows(job: dict[str, Any], folder: Path) -> None:
    """Assert that twenty rounds are the same at once, and after ten with a stop in between that reads the history."""
    job = job | {"record": {"evaluate_every": 5, "checkpoint_every": 0} | job.get("record", {})}
    run(checked(job | {"rounds": 20}), Solo(), folder / "whole")
    for rounds in (10, 20):
        run(checked(job | {"rounds": rounds}), Solo(), folder / "grown", resume=rounds > 10)
    grown, whole = (read_model(folder / name / "model.safetensors") for name in ("grown", "whole"))
    np.testing.assert_equal(grown, whole)
    grown, whole = (read_history(folder / name) for name in ("grown", "whole"))
    assert grown["round"].tolist() == whole["round"].tolist()
    of_keys = ("up_bytes", "down_bytes") if "aggregation" in job else ()  # which a process that begins agrees on
    for name in whole.keys() - {"elapsed_s", "simulated_s", "rss_bytes", *of_keys}:
        if not of_certificate(name):  # which is measured at each end
            np.testing.assert_array_equal(grown[name], whole[name], err_msg=name)
