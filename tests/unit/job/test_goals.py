"""What a job asks of its last model."""

from __future__ import annotations

import math
from typing import Any

import pytest
from jobs_in_python import checked

from mpifed.job import goals
from mpifed.testing import Job

SIZES = {"batch_size": 10, "rho": [0.9, 0.3], "gamma": [0.9, 0.35], "tau": 0.2, "slack_cost": 30.0}


def job(**changes: Any) -> Job:
    limits = [{"name": "loss", "limit": 0.5}, {"name": "norm", "limit": 2}]
    base = {"name": "job", "rounds": 1, "data": {"path": "data"}, "model": {"name": "softmax", "bias": False}}
    return checked(base | {"algorithm": {"name": "ssca", **SIZES}, "constraint": limits} | changes)


def test_a_limit_is_met_exactly_or_not() -> None:
    assert list(goals.unreached(job(), {"constraint_1": 0.5, "constraint_2": 2.0})) == []
    above = {"constraint_1": math.nextafter(0.5, 1), "constraint_2": math.nextafter(2.0, 3)}
    assert len(list(goals.unreached(job(), above))) == 2
    # another end that is reached does not make up for it
    assert len(list(goals.unreached(job(stop={"kkt_residual": 1.0}), above | {"kkt_residual": 0.1}))) == 2


@pytest.mark.parametrize("lacking", [{}, {"constraint_1": None}, {"constraint_1": math.nan}])
def test_a_limit_of_which_nothing_is_known_is_not_met(lacking: Any) -> None:
    (said,) = goals.unreached(job(), {"constraint_2": 1.0} | lacking)
    assert said == "constraint 1: its value is not known"


@pytest.mark.parametrize("name", ["kkt_residual", "stationarity", "feasibility", "complementarity"])
def test_a_certificate_that_is_not_known_is_not_reached(name: str) -> None:
    met = {"constraint_1": 0.1, "constraint_2": 1.0}
    asked = job(stop={name: 0.25})
    assert list(goals.unreached(asked, met | {name: 0.25})) == []
    for value in (None, math.nan, math.nextafter(0.25, 1)):
        (said,) = goals.unreached(asked, met | {name: value})
        assert said.startswith(f"[stop] {name} = 0.25 (it is ")
