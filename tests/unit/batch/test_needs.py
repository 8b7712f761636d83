"""Time and memory from the forecast."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from forecasts import forecast

from mpifed.batch.needs import check_time, mib_of, needs, notes
from mpifed.core.errors import UsageError


def test_the_forecast_of_a_job(digits: Path, job: Callable[..., Path]) -> None:
    path = job(data={"path": str(digits), "block": 2}, record={"evaluate_every": 10})
    found, expected = needs(path, (), 6, 0.5), forecast(path, (), 6)
    assert found.hosts == 4  # 8 clients in blocks of 2
    assert found.rank_bytes == pytest.approx(expected["memory_bytes"]["largest_rank"], rel=0.3)
    assert found.seconds > 0 and found.round_s > 0
    assert found.memory_mib() % 32 == 0 and found.memory_mib() > found.rank_bytes / 2**20 + 100
    assert found.time_s() >= 600 and found.lead_s() == 120
    dedicated = needs(path, ("server.dedicated=true",), 6, 1.0)
    assert dedicated.hosts == 5  # rank 0 serves
    text = "\n".join(notes(found, 3600, 120, 6, "job.toml"))
    assert "6 ranks, of which 2 would have nothing to do" in text
    assert not any("warning" in line for line in notes(found, 3600, 120, 4, "job.toml"))


def test_times() -> None:
    check_time(240, 120)
    with pytest.raises(UsageError, match="--time 0:04:00 or more"):
        check_time(239, 120)


@pytest.mark.parametrize(("text", "mib"), [("4000", 4000), ("4000M", 4000), ("4g", 4096), ("1T", 2**20), ("1025K", 2)])
def test_memory_as_sbatch_reads_it(text: str, mib: int) -> None:
    assert mib_of(text, "mem") == mib
