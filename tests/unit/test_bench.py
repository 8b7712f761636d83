"""The parts of the benchmark that call the package's insides, and so may fall behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_the_servers_step_is_timed_with_and_without_constraints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import server_step

    seconds = server_step.server_steps(1)
    assert list(seconds) == list(server_step.CONSTRAINTS)
    assert all(taken > 0 for taken in seconds.values())
