"""What is said of noise that clients share, by the channel that their answers travel in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mpifed.comm.channel import Protection
from mpifed.maths.privacy.settings import Privacy
from mpifed.run.config import Job
from mpifed.run.protection import from_whom, warnings_of

UNCOVERED = "sees each client's answer, with its part of the noise, and is not covered"


def privacy(**settings: Any) -> Privacy:
    return Privacy(delta=1e-5, clip=1.0, noise_multiplier=1.0, **settings)


def test_shared_noise() -> None:
    shared = privacy(model="distributed")
    assert "the server is NOT covered" in from_whom(shared, Protection())
    masked = from_whom(shared, Protection("masked"))
    assert "in the masked channel the server as well" in masked and "NOT" not in masked
    assert "no client gives it its part of the noise" in masked and "leave" not in masked
    assert "the key that all clients hold" in from_whom(shared, Protection("encrypted"))
    assert "the key that" not in from_whom(shared, Protection("encrypted", scheme="threshold-bfv"))
    assert "those who may leave" in from_whom(shared, Protection("masked", max_dropouts=2))


def test_a_trusted_server() -> None:
    trusted = privacy(model="central")
    assert "it sees the clients' answers, and adds" in from_whom(trusted, Protection())
    assert "it sees the sum alone, without noise, and adds" in from_whom(trusted, Protection("masked"))


@pytest.mark.parametrize(
    ("model", "channel", "said"),
    [
        ("local", "masked", "a void one is a release: each client has sent its answer"),
        ("distributed", "plain", "a void one is a release: the server has seen"),
        ("distributed", "masked", "though nothing of a void one was opened"),
        ("central", "plain", "though nothing of a void one was opened"),
    ],
)
def test_void_rounds(model: str, channel: str, said: str) -> None:
    """Each attempt counts in epsilon, which then is more than the noise was computed for."""
    table: dict[str, Any] = {
        "name": "t", "rounds": 1, "data": {"path": "somewhere"}, "objective": {"name": "softmax"},
        "algorithm": {"name": "fedavg", "batch": 20, "step": [0.1]}, "sum": {"channel": channel},
        "privacy": {"delta": 1e-5, "clip": 1.0, "epsilon": 1.0, "model": model},
    }  # fmt: skip
    warned = []
    for rate in (0.0, 0.1):
        job = Job.check(table | {"participation": {"dropout_rate": rate, "max_dropouts": 2}})
        warned.append([one for one in warnings_of(job, job.privacy) if one.startswith("[participation] dropout_rate")])
    (line,) = warned[1]
    assert not warned[0] and said in line and "[privacy] epsilon, for which the noise is computed, may be" in line


@pytest.mark.parametrize("channel", ["plain", "masked", "encrypted"])
@pytest.mark.parametrize("model", ["local", "distributed", "central"])
def test_who_is_warned(model: str, channel: str, write_job: Callable[..., Path], digits: Path, tmp_path: Path) -> None:
    table = {
        "name": "t",
        "rounds": 1,
        "data": {"path": str(digits)},
        "objective": {"name": "softmax"},
        "algorithm": {"name": "fedavg", "batch": 20, "step": [0.1]},
        "sum": {"channel": channel},
        "privacy": {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0, "model": model},
    }
    job = Job.read(write_job(tmp_path / "job.toml", table))
    warned = any(UNCOVERED in one for one in warnings_of(job, job.privacy))
    assert warned == (model == "distributed" and channel == "plain")
