"""What is said of noise that clients share, by the channel that their uploads travel in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import checked

from mpifed import Privacy
from mpifed.maths.privacy import accounting
from mpifed.maths.privacy.release import Release
from mpifed.privacy.ledger_file import others_of
from mpifed.privacy.protection import shares, warnings_of
from mpifed.privacy.spending import Spending
from mpifed.testing import Job

UNCOVERED = "sees each client's upload, with its part of the noise, and is not covered"


def privacy(**settings: Any) -> Privacy:
    return Privacy(delta=1e-5, clip=1.0, noise_multiplier=1.0, **settings)


@pytest.mark.parametrize("channel", ["plain", "masked", "encrypted"])
@pytest.mark.parametrize("model", ["local", "distributed", "central"])
def test_who_is_warned(model: str, channel: str, write_job: Callable[..., Path], digits: Path, tmp_path: Path) -> None:
    table = {
        "name": "t",
        "rounds": 1,
        "data": {"path": str(digits)},
        "model": {"name": "softmax", "bias": False},
        "algorithm": {"name": "fedavg", "batch_size": 20, "client_optimizer": {"learning_rate": 0.1}},
        "aggregation": {"security": channel},
        "privacy": {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0, "level": "client", "trust": model},
    }
    job = Job.read(write_job(tmp_path / "job.toml", table))
    warned = any(UNCOVERED in one for one in warnings_of(job, job.privacy))
    assert warned == (model == "distributed" and channel == "plain")


@pytest.mark.parametrize(("channel", "leave"), [("masked", 0), ("masked", 2), ("encrypted", 0)])
def test_clients_who_tell_the_server_their_noise(channel: str, leave: int) -> None:
    """Of 9 clients, or the 7 who stay, a third: what is left of the variance is the others'."""
    job = distributed(channel, {"clients_per_round": 9, "max_dropouts": leave})
    privacy, ones = Privacy(delta=1e-5, clip=1.0, noise_multiplier=2.0, trust="distributed"), np.ones(30)
    spending = Spending(privacy, Release(1, 2.0 * ones, ones), np.full(30, 5))
    found = others_of(spending, shares(job, 30))
    stay = 9 - leave
    tell = stay // 3
    assert found["colluding"] == [tell, stay]
    for name, who in (("epsilon_colluding", tell), ("epsilon_other_client", 1)):
        expected = accounting.epsilon(2.0 * math.sqrt((stay - who) / stay), 1.0, 5, 1e-5 * (1 - 1e-9))
        assert found[name] == pytest.approx(expected, rel=1e-12)
    assert found["epsilon_colluding"] > found["epsilon_other_client"] > spending.worst()
    assert others_of(spending, 2)["colluding"] == [1, 2]
    unprotected = replace(spending, privacy=replace(privacy, noise="test"))
    assert others_of(unprotected, shares(job, 30)) == {}
    assert shares(distributed("plain", {}), 30) == 0


def distributed(channel: str, participation: dict[str, Any]) -> Job:
    return checked(
        {
            "name": "t", "rounds": 1, "data": {"path": "somewhere"}, "model": {"name": "softmax", "bias": False},
            "algorithm": {"name": "fedavg", "batch_size": 20, "client_optimizer": {"learning_rate": 0.1}},
            "aggregation": {"security": channel},
            "privacy": {"delta": 1e-5, "clip": 1.0, "epsilon": 1.0, "level": "client", "trust": "distributed"},
            "participation": participation,
        }
    )  # fmt: skip
