"""The parts of the benchmark that decide what it runs, and what it calls slower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run_of(variant: str, repetition: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "case": "2", "ranks": 1, "rounds": 90, "variant": variant, "repetition": repetition,
        "seconds_per_round": seconds, "data": "mnist-100", **more,
    }  # fmt: skip


def runs(variant: str, *seconds: float, **more: Any) -> list[dict[str, Any]]:
    return [run_of(variant, number, each, **more) for number, each in enumerate(seconds)]


def beside(variant: str, *speeds: float) -> list[dict[str, Any]]:
    """Runs of 2 s a round, of which those of base have these speeds' share."""
    return [run_of(variant, number, 2.0, base_seconds_per_round=2.0 * each) for number, each in enumerate(speeds)]


def test_slower_is_what_two_of_three_repetitions_call_slower_than_base() -> None:
    from report import grouped, slower

    groups = grouped(runs("hand", 1.0, 9.0, 9.0) + beside("blocks", 1.2, 0.89, 0.91) + beside("exact", 0.89, 1.1, 0.8))
    assert slower(groups) == [
        "slower: case 2, 1 ranks, exact: 0.89, 1.10, 0.80 of base's speed; at least 0.9 in two of three",
        "to measure them again: make bench CASES='2'",
    ]
    assert slower(grouped(runs("hand", 1.0) + beside("exact", 0.5))) == []


def test_the_gate_repeats_what_seems_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    import gate

    def medians(*speeds: float) -> list[float]:
        left = iter(speeds)
        monkeypatch.setattr(gate, "speeds", lambda name, states: [9.0, next(left), 0.1])
        monkeypatch.setattr(gate, "PAIRS", 1)
        return gate.repeated("rows", ())

    assert medians(1.0, 0.5, 0.5) == [1.0]
    assert medians(0.85, 0.8, 1.0) == [0.85, 0.8]
    assert medians(0.85, 1.0, 0.7) == [0.85, 1.0, 0.7]


def test_a_base_that_the_clone_lacks_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import prepared

    (tmp_path / "base").write_text("0" * 40 + "\n")
    monkeypatch.setattr(prepared, "HERE", tmp_path)
    with pytest.raises(SystemExit, match=r"benchmarks/base: commit 0{40}, .* git fetch --unshallow"):
        prepared.base()
