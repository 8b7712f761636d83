"""SSCA's settings that do nothing in a job are told, and those that do are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpifed.forecast.job import algorithm_of
from mpifed.shards import store
from mpifed.testing import Job

LIMIT = [{"name": "loss", "limit": 9.0}]
TWO = {"slack_cost": [1.0, 10.0], "stage_rounds": 5}


@pytest.mark.parametrize(
    ("algorithm", "constraint", "told"),
    [
        ({"margins": "auto"}, [], ["margins"]),
        ({"slack_cost": 10.0}, [], ["slack_cost"]),
        ({"stage_rounds": 5}, LIMIT, ["stage_rounds"]),
        ({"stage_rounds": 5, "margins": "auto", "slack_cost": 1.0}, [], ["margins", "slack_cost", "stage_rounds"]),
        ({"margins": "auto"} | TWO, LIMIT, []),
        ({}, [], []),
    ],
)
def test_what_has_no_effect_is_told(
    algorithm: dict[str, Any], constraint: list[Any], told: list[str], digits: Path, write_job: Callable[..., Path],
    tmp_path: Path,
) -> None:  # fmt: skip
    ssca = {"name": "ssca", "batch_size": 10, "rho": [0.9, 0.55], "gamma": [0.9, 0.6]}
    table = {
        "name": "t", "rounds": 2, "data": {"path": str(digits)}, "model": {"name": "softmax"},
        "algorithm": ssca | algorithm, "constraint": constraint,
    }  # fmt: skip
    job = Job.read(write_job(tmp_path / "job.toml", table), ())
    found = [one for one in algorithm_of(job, store.open_federation(digits)).warnings() if "has no effect" in one]
    assert [one.split(":")[0] for one in found] == [f"[algorithm] {name}" for name in told]
