"""`make reproduce-fedpdm`: what is proved is computed, and a small whole runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from mpifed.testing import Job

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`jobs` is imported from there."""
    monkeypatch.syspath_prepend(ROOT)


def gaussian(multiplier: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        a, b = 1 / (2 * multiplier), epsilon * multiplier
        return norm.cdf(a - b) - math.exp(epsilon + norm.logcdf(-a - b)) - delta

    return brentq(excess, 0, 2e4, xtol=1e-9)


def test_what_is_proved_of_the_paper_s_noise() -> None:
    from jobs.fedpdm.truth import truth

    delta, q, claimed, rounds = 1e-5, 30 / 600, 7.0, np.arange(10, 300, 20)
    found = truth(claimed, rounds)
    c0 = math.sqrt(2 * math.log(1 / delta) / math.log(1.25 / delta))
    one = claimed / (c0 * q * math.sqrt(0.05 * 300 / (1 - q)))  # (20), with q
    multiplier = math.sqrt(2 * math.log(1.25 / delta)) / one  # (18)
    assert found.one_round == pytest.approx(one) and found.multiplier == pytest.approx(multiplier)

    apart, squares = 0.0, 0.0  # two clients' lambda whose gradients are G and -G in every round so far, G = 1
    for t in range(300):
        step = 1 / (10 + math.sqrt(1 + t))
        if t in rounds:
            squares += ((4 * step + abs(20 * step - 1) * apart / 10) / (4 * step * multiplier)) ** 2
        apart = max(apart, (1 - 10 * step) * apart + 20 * step)  # of any rounds, not of these alone
    assert found.hidden == pytest.approx(gaussian(1 / math.sqrt(squares), delta), rel=1e-6)
    unamplified = gaussian(multiplier / math.sqrt(len(rounds)), delta)
    assert claimed < found.public < unamplified < found.hidden
    assert found.public_printed > 100 * found.public and found.hidden_printed > 100 * found.hidden


def test_every_curve_of_the_figures_is_a_job() -> None:
    from jobs.fedpdm.names import JOBS, jobs, label

    found = {label(*one): Job.read(JOBS / f"{label(*one)}.toml") for one in jobs()}
    assert {path.stem for path in JOBS.glob("*.toml")} == set(found)
    clips = {name: job.privacy.clip for name, job in found.items() if job.privacy is not None}
    for name, job in found.items():
        kind, method, level = name.split("-")
        assert (job.name, job.seed, job.rounds) == (f"fedpdm-{name}", 1, 300)
        assert job.participation.clients_per_round == 5 and job.regularizer["weight"] == 1e-4
        assert job.algorithm["name"] == method and job.algorithm["batch_size"] == 30
        assert job.client_optimizer["learning_rate"].items() >= {"initial": 1.0, "exponent": 0.5}.items()
        assert (job.model["name"] == "softmax") == (kind == "rigorous")
        assert (job.privacy is None) == (level == "none")
        if job.privacy is not None:
            assert (job.privacy.epsilon, job.privacy.by_paper) == (float(level), kind == "paper")
            assert clips[name] == clips[f"{kind}-fedpdm-7"]


@pytest.mark.long
def test_a_small_whole(digits: Path, tmp_path: Path) -> None:
    """Runs, grids, curves and figures; and what has run is not run again."""
    from jobs.fedpdm.names import JOBS
    from jobs.fedpdm.reproduce import Plan, finish, grids, play

    names = ("paper-fedpdm-7", "paper-fedavg-7", "rigorous-fedavg-none")
    for name in names:
        text = (JOBS / f"{name}.toml").read_text(encoding="utf-8").replace("data/mnist-rows-100", str(digits))
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    changes, only, grid = ("participation.clients_per_round=2",), tuple(f"{one}$" for one in names), (0.1, 0.3)
    steps = grids(grid, (0.5,), (3.0, 10.0))
    plan = Plan(tmp_path / "out", 20, 2, tmp_path, changes, only=only, grids=steps, clips=grid)
    written, proved, *pictures = finish(plan)
    table = written.read_text(encoding="utf-8")
    curves = [f"paper-fedpdm-7{change}" for change in ("", "-no-l1", "-q5", "-tuned")]
    curves += [f"{one}{change}" for one in names[1:] for change in ("", "-by-rho", "-q5", "-tuned")]
    assert [one for one in curves if f"\n{one},1,20," not in table] == []
    assert (plan.out / "clips" / "paper-fedpdm-7" / "sweep.csv").exists()
    lines = proved.read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("claimed,one_round,") and [line.split(",")[0] for line in lines[1:]] == [
        "7.0", "10.0", "20.0", "30.0",
    ]  # fmt: skip
    figures = [f"fig{n}-{kind}" for n in (1, 2) for kind in ("paper", "rigorous")]
    assert sorted(path.name for path in pictures) == [f"{one}.{suffix}" for one in figures for suffix in ("pdf", "png")]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("history.csv")}
    assert len(before) == 2 * len(curves) + 3 * 2 + 2 * 2
    play(plan)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("history.csv")}
