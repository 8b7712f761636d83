"""The parts of the rivals' benchmark that decide what its table says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RIVALS = Path(__file__).resolve().parents[2] / "benchmarks" / "rivals"


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RIVALS))


def run_of(variant: str, repetition: int, seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "case": "1", "variant": variant, "repetition": repetition, "seconds_per_round": seconds,
        "cpu_s_per_round": 0.004, "peak_rss_bytes": 2**20, "total_rss_bytes": 3 * 2**20, "startup_s": 1.5,
        "counted": True, **more,
    }  # fmt: skip


def test_ratios_are_taken_within_each_repetition() -> None:
    from show import rows

    found = rows([
        run_of("mpifed exact", 0, 0.002), run_of("slow", 0, 0.004),
        run_of("mpifed exact", 1, 0.010), run_of("slow", 1, 0.030),
        run_of("mpifed exact", 2, 0.004), run_of("slow", 2, 0.016),
    ])  # fmt: skip
    assert [row[1] for row in found] == ["mpifed exact", "slow"]
    assert found[1][2:] == ["16.00", "62.5", "4.00", "1", "3", "1.5", "3.00", "yes"]


def test_what_failed_is_said_and_does_not_count() -> None:
    from show import failures, markdown, rows

    broken = {"case": "1", "variant": "other", "repetition": 0, "error": "exit code 1: Traceback\nValueError: no\n"}
    results = [run_of("mpifed exact", 0, 0.002), broken]
    assert len(rows(results)) == 1
    assert failures(results) == ["case 1, other did not run: ValueError: no"]
    machine = {"cores": 2, "cpu": "", "architecture": "x86_64"}
    shown = markdown(results, {"started": "2026-01-02T03:04:05", "machine": machine}).splitlines()
    assert shown[0].startswith("2026-01-02, 2 cores of x86_64.")
    table = [line for line in shown if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1


def test_gradient_of_the_reference_is_that_of_the_loss() -> None:
    from reference import gradient_of_swish

    rng = np.random.default_rng(0)
    w, x, y = [rng.normal(size=shape) for shape in ((5, 4), (4, 3))], rng.normal(size=(7, 5)), rng.integers(0, 3, 7)

    def loss(first: Any, second: Any) -> float:
        z = x @ first
        scores = (z / (1 + np.exp(-z))) @ second
        likely = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(7), y]
        return float(likely.mean() + 0.1 * ((first**2).sum() + (second**2).sum()))

    for slope, direction in zip(
        gradient_of_swish(*w, x, y, 0.1), [rng.normal(size=one.shape) for one in w], strict=True
    ):
        ends = []
        for sign in (1, -1):
            moved = [one + sign * 1e-5 * direction if one.shape == direction.shape else one for one in w]
            ends.append(loss(*moved))
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx((slope * direction).sum(), rel=1e-6)


def test_gradient_of_the_reference_s_cnn_is_that_of_its_loss() -> None:
    """Where all scores are alike, those of the last biases are known, and none go further back."""
    from common import start_model
    from reference import federated_averaging, gradient_of_cnn, patches

    rng = np.random.default_rng(0)
    w = [part.astype(float) for part in start_model(784, "cnn")]
    assert sum(part.size for part in w) == 215_370
    x, y = rng.random((3, 784)), np.array([1, 2, 2])
    flat = [*w[:6], np.zeros_like(w[6]), w[7]]
    slopes = gradient_of_cnn(*flat, x, y, 0.0)
    np.testing.assert_allclose(slopes[7], 0.1 - np.eye(10)[1] / 3 - 2 * np.eye(10)[2] / 3, atol=1e-12)
    assert all(not slope.any() for slope in slopes[:6])
    assert patches(x.reshape(3, 1, 28, 28)).shape == (3, 1, 28, 28, 5, 5)
    moved = federated_averaging([(x, y)], tuple(w), batch=3, step=1e-4, rounds=1, penalty=0.0)
    again = np.concatenate(
        [(part - 1e-4 * slope).ravel() for part, slope in zip(w, gradient_of_cnn(*w, x, y, 0.0), strict=True)]
    )
    np.testing.assert_array_equal(moved, again)


def test_one_step_on_all_rows_of_equal_clients_is_that_of_their_rows_together() -> None:
    from reference import federated_averaging, gradient_of_swish

    rng = np.random.default_rng(0)
    start = rng.normal(size=(5, 4)), rng.normal(size=(4, 3))
    clients = [(rng.normal(size=(6, 5)), rng.integers(0, 3, 6)) for _ in range(3)]
    joined = np.concatenate([x for x, _ in clients]), np.concatenate([y for _, y in clients])
    expected = [w - 0.5 * g for w, g in zip(start, gradient_of_swish(*start, *joined, 0.01), strict=True)]
    found = federated_averaging(clients, start, batch=6, step=0.5, rounds=1, penalty=0.01)
    np.testing.assert_allclose(found, np.concatenate([w.ravel() for w in expected]), rtol=1e-12)


def test_rows_and_steps_of_the_cases() -> None:
    from common import CASES

    assert (CASES["1"].rows(6000), CASES["1"].local_steps(6000)) == (1000, 10)
    assert (CASES["2"].rows(600), CASES["2"].local_steps(600)) == (3000, 100)
    assert (CASES["epoch"].rows(70), CASES["epoch"].local_steps(70)) == (420, 18)


def test_a_run_counts_all_its_processes_and_no_others() -> None:
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc")
    from processes import MARK, Memory, cpu_s, family

    code = "import subprocess, sys; subprocess.run(['sleep', '600'])"
    started = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {MARK: "test-of-rivals"})
    try:
        memory = Memory("test-of-rivals")
        memory.look()
        while memory.processes != 2:
            time.sleep(0.05)
            memory.look()
        assert started.pid in family("test-of-rivals")
        assert memory.total > memory.largest > 0
        assert cpu_s(family("test-of-rivals")) >= 0
    finally:
        for process in family("test-of-rivals"):
            os.kill(process, 9)
        started.wait()


def test_every_case_has_each_rival() -> None:
    from common import CASES
    from variants import VARIANTS, measured

    rivals = {"", "pytorch", "pfl", "flower"}
    for case in ("1", "2", "3", "cnn"):
        assert case in CASES
        assert {one.rival for one in measured(case)} == rivals
    for one in VARIANTS:
        assert (RIVALS / one.adapter).exists()
        assert not one.rival or (RIVALS / "requirements" / f"{one.rival}.txt").exists()
