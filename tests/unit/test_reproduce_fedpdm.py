"""`make reproduce-fedpdm`: claims are judged from the runs, what is proved is computed, and a small whole runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from mpifed.testing import Job

ROOT = Path(__file__).resolve().parents[2]
AT = (30, 90, 300)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`jobs` is imported from there."""
    monkeypatch.syspath_prepend(ROOT)


def curve(name: str, losses: Sequence[float], accuracies: Sequence[float] | None = None, zeros: float = 0.0):
    """Three seeds, 0.001 apart, measured at `AT`; by default the accuracy goes with the loss."""
    from jobs.fedpdm.results import Curve

    around = 0.001 * np.array([-1.0, 0.0, 1.0])[:, None]
    loss = np.array(losses)[None] + around
    accuracy = 1 - loss / 10 if accuracies is None else np.array(accuracies)[None] - around
    none = np.full_like(loss, np.nan)
    return Curve(name, np.array(AT), loss, loss, accuracy, none, none, np.full(3, zeros))


def verdicts(*curves) -> dict[str, str]:
    """By what the paper says, without the kind."""
    from jobs.fedpdm.claims import claims

    found = claims({one.name: one for one in curves}, [], AT[-1])
    return {one.says.partition(": ")[2]: one.verdict for one in found}


LOW, MIDDLE, HIGH = (0.5, 0.3, 0.1), (0.6, 0.4, 0.2), (0.7, 0.5, 0.3)


@pytest.mark.parametrize(
    ("rivals", "verdict"), [((MIDDLE, HIGH), "yes"), ((MIDDLE, (*LOW[:2], 0.05)), "in part"), ((LOW, LOW), "no")]
)
def test_who_outperforms_whom(rivals: Sequence[Sequence[float]], verdict: str) -> None:
    some = [curve(f"rigorous-{one}-none", losses) for one, losses in zip(("fedavg", "scaffold"), rivals, strict=True)]
    says = "FedPDM without DP outperforms the others, all with the paper's steps"
    assert verdicts(curve("rigorous-fedpdm-none", LOW), *some)[says] == verdict


def test_loss_and_accuracy_are_both_compared() -> None:
    own = curve("paper-fedpdm-7", LOW, (0.5, 0.4, 0.3))
    found = verdicts(own, curve("paper-fedavg-7", MIDDLE, (0.6, 0.5, 0.4)))
    assert found["FedPDM at epsilon = 7 outperforms the others, all with the paper's steps"] == "in part"
    assert found["the training loss decreases with the rounds"] == "yes"
    assert found["the testing accuracy increases with the rounds"] == "no"


def test_tuned_steps_are_compared_with_each_other_too() -> None:
    curves = [curve("paper-fedpdm-none", MIDDLE), curve("paper-fedpdm-none-tuned", LOW)]
    found = verdicts(*curves, curve("paper-fedavg-none-tuned", (0.55, 0.35, 0.15)))
    assert found["FedPDM without DP outperforms the others with tuned steps"] == "no"
    assert found["FedPDM without DP with rho and decay tuned outperforms the others with tuned steps"] == "yes"


@pytest.mark.parametrize(("losses", "verdict"), [((LOW, MIDDLE, HIGH), "yes"), ((HIGH, MIDDLE, LOW), "no")])
def test_less_privacy_is_better(losses: Sequence[Sequence[float]], verdict: str) -> None:
    levels = zip(("none", "30", "20"), losses, strict=True)
    found = verdicts(*(curve(f"paper-fedpdm-{level}", one) for level, one in levels))
    assert found["better learning and faster convergence for a larger epsilon"] == verdict


@pytest.mark.parametrize(("rival", "verdict"), [((0.5, 0.4, 0.4), "yes"), ((0.5, 0.3, 0.15), "no")])
def test_the_gap_that_noise_makes(rival: Sequence[float], verdict: str) -> None:
    curves = [curve("paper-fedpdm-none", LOW), curve("paper-fedpdm-7", MIDDLE)]
    curves += [curve("paper-fedavg-none", LOW), curve("paper-fedavg-7", rival)]
    says = "the gap between no DP and epsilon = 7 is much smaller for FedPDM than for the others"
    assert verdicts(*curves)[says] == verdict


@pytest.mark.parametrize(("private", "verdict"), [(HIGH, "yes"), (MIDDLE, "no")])
def test_whether_l1_makes_the_gap_small(private: Sequence[float], verdict: str) -> None:
    curves = [curve("paper-fedpdm-none", LOW, zeros=0.3), curve("paper-fedpdm-7", MIDDLE)]
    curves += [curve("paper-fedpdm-none-no-l1", LOW), curve("paper-fedpdm-7-no-l1", private)]
    found = verdicts(*curves)
    assert found["that is thanks to l1"] == verdict
    assert found["l1 gives a sparse model"] == "in part"


def test_curves_that_failed_are_named() -> None:
    from jobs.fedpdm.report import text

    table = text({"paper-fedavg-7": curve("paper-fedavg-7", LOW)}, ["paper-fedpdm-7"], [], [], [], AT[-1])
    assert "| paper-fedavg-7 | 3 |" in table and "Failed numerically: paper-fedpdm-7." in table


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
        assert job.client_optimizer == {"learning_rate": {"initial": 1.0, "exponent": 0.5}}
        assert (job.model["name"] == "softmax") == (kind == "rigorous")
        assert (job.privacy is None) == (level == "none")
        if job.privacy is not None:
            assert (job.privacy.epsilon, job.privacy.accounting, job.privacy.noise) == (float(level), kind, "test")
            assert clips[name] == clips[f"{kind}-fedpdm-7"]


@pytest.mark.long
def test_a_small_whole(digits: Path, tmp_path: Path) -> None:
    """Runs, grids, tables and figures; and what has run is not run again."""
    from jobs.fedpdm.names import JOBS
    from jobs.fedpdm.reproduce import Plan, finish, grids

    names = ("paper-fedpdm-7", "paper-fedavg-7", "rigorous-fedavg-none")
    for name in names:
        text = (JOBS / f"{name}.toml").read_text(encoding="utf-8").replace("data/mnist-rows-100", str(digits))
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    changes, only, grid = ("participation.clients_per_round=2",), tuple(f"{one}$" for one in names), (0.1, 0.3)
    steps = grids(grid, (0.5,), (3.0, 10.0))
    plan = Plan(tmp_path / "out", 60, 2, tmp_path, changes, only=only, grids=steps, clips=grid)
    table, pictures = finish(plan)
    assert (tmp_path / "out" / "table.md").read_text(encoding="utf-8") == table
    curves = [f"paper-fedpdm-7{change}" for change in ("", "-no-l1", "-q5", "-tuned")]
    curves += [f"{one}{change}" for one in names[1:] for change in ("", "-by-rho", "-q5", "-tuned")]
    assert "**Reduced**" in table
    assert [one for one in curves if f"| {one} | 2 |" not in table] == []
    assert "| paper: mean | 0.3 |" in table and "| rigorous-fedavg-none | 2 | learning_rate = " in table
    figures = [f"fig{n}-{kind}" for n in (1, 2) for kind in ("paper", "rigorous")]
    assert sorted(path.name for path in pictures) == [f"{one}.{suffix}" for one in figures for suffix in ("pdf", "png")]
    assert "Failed numerically" not in table
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("history.csv")}
    assert len(before) == 2 * len(curves) + 3 * 2 + 2 * 2
    assert finish(plan)[0] == table
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("history.csv")}
