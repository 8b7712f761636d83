"""`make reproduce-ssca`: claims are judged from the runs, and a small whole of it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mpifed.files.history import read_history
from mpifed.job.job import read_table
from mpifed.job.sweep import points

ROOT = Path(__file__).resolve().parents[2]
AT = (10, 30, 100)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`jobs` is imported from there."""
    monkeypatch.syspath_prepend(ROOT)
    yield


def curve(name, costs: Sequence[float], limit=None, norm: float = 1.0, penalty: float = 0.0, spread: float = 0.001):
    """Three seeds, `spread` apart, measured at `AT`."""
    from jobs.ssca.results import Curve

    cost = np.array(costs)[None] + spread * np.array([-1.0, 0.0, 1.0])[:, None]
    residual = np.full(3, 0.01)
    return Curve(name, np.array(AT), cost, 1 - cost / 10, np.full_like(cost, norm), limit, penalty, residual)


def verdicts(curves, tradeoffs=None) -> list[str]:
    from jobs.ssca.report import claims

    return [one.verdict for one in claims({one.name: one for one in curves}, tradeoffs or {}, AT[-1])]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ((0.5, 0.3, 0.1), (0.6, 0.4, 0.2), "yes"),
        ((0.5, 0.3, 0.2), (0.6, 0.4, 0.2), "yes"),  # level at the end
        ((0.5, 0.3, 0.2), (0.6, 0.4, 0.1), "in part"),
        ((0.6, 0.4, 0.2), (0.5, 0.3, 0.1), "no"),
        ((0.2, 0.2, 0.2), (0.2, 0.2, 0.2), "no"),
    ],
)
def test_who_converges_faster(first: Sequence[float], second: Sequence[float], verdict: str) -> None:
    assert verdicts([curve("alg1-b10", first), curve("fedsgd-b10", second)]) == [verdict]


def test_a_difference_within_the_noise_is_none() -> None:
    from jobs.reproduction.results import compare

    first, second = (curve("alg1-b10", (cost,) * 3, spread=0.1) for cost in (0.20, 0.21))
    assert [compare(first, second, t) for t in (*AT, 40)] == [0, 0, 0, None]


def test_a_statement_about_several_batches_holds_in_part() -> None:
    slow, fast = (0.9, 0.8, 0.7), (0.8, 0.7, 0.6)
    assert verdicts([curve("alg1-b1", slow), curve("alg1-b10", fast), curve("alg1-b100", slow)]) == ["in part"]


@pytest.mark.parametrize(("last", "verdict"), [(0.12, "yes"), (0.13, "in part"), (0.14, "no")])
def test_whether_a_limit_is_met(last: float, verdict: str) -> None:
    assert verdicts([curve("alg2-b100", (0.5, 0.3, last), limit=0.13)]) == [verdict]


def test_similar_speed() -> None:
    one = curve("alg1-b10", (0.5, 0.3, 0.1))
    assert verdicts([one, curve("alg3-b100", (0.55, 0.3, 0.1))]) == ["yes"]
    assert verdicts([one, curve("alg3-b100", (0.5, 0.3, 0.2))]) == ["no"]


def test_tradeoffs() -> None:
    lambdas = [curve("alg1-lambda", (cost,) * 3, None, 1 / cost, cost / 100) for cost in (0.1, 0.2, 0.3)]
    assert verdicts([], {"alg1-lambda": lambdas}) == ["yes"]
    for factor, verdict in ((1.03, "yes"), (1.1, "in part")):
        limits = [curve("alg2-limit", (limit * factor,) * 3, limit, 1 / limit) for limit in (0.1, 0.2)]
        assert verdicts([], {"alg2-limit": limits}) == ["yes", verdict]
    far = [curve("alg2-limit", (cost,) * 3, limit, 1.0) for limit, cost in ((0.1, 0.3), (0.2, 0.3))]
    assert verdicts([], {"alg2-limit": far}) == ["no", "no"]


def test_the_rounds_of_the_table() -> None:
    from jobs.reproduction.tables import rounds_upto
    from jobs.ssca.report import AT

    assert rounds_upto(AT, 1000) == [10, 30, 100, 300, 1000]
    assert rounds_upto(AT, 200) == [10, 30, 100, 200]


def test_every_curve_of_the_figures_is_a_job() -> None:
    from jobs.ssca.reproduce import JOBS, SSCA, TRADEOFFS, TUNED

    names = (*SSCA, *TUNED, *TRADEOFFS)
    jobs = {name: points(read_table(JOBS / f"{name}.toml"), name)[0].job for name in names}
    assert all(job.name == f"ssca-{name}" and job.seed == 1 for name, job in jobs.items())
    assert {job.algorithm["batch_size"] for name, job in jobs.items() if name.startswith("alg1-b")} == {1, 10, 100}


@pytest.mark.long
def test_a_small_whole(digits: Path, sides: Path, tmp_path: Path) -> None:
    """Runs, grid, table and figures; and what has run is not run again."""
    from jobs.ssca.reproduce import JOBS, Plan, finish

    for name in ("alg2-b1", "fedsgd-b1", "alg4-limit"):
        text = (JOBS / f"{name}.toml").read_text(encoding="utf-8")
        text = text.replace("data/mnist-rows-10", str(digits)).replace("data/mnist-columns-10", str(sides))
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    only = ("alg2-b1$", "fedsgd-b1$", "alg4-limit")
    grid = ((0.1, 0.0), (0.1, 0.5))
    plan = Plan(tmp_path / "out", 40, 2, tmp_path, ("model.hidden=8",), only=only, grid=grid)
    table, pictures = finish(plan)
    assert (tmp_path / "out" / "table.md").read_text(encoding="utf-8") == table
    assert "**Reduced**" in table and "| alg2-b1 | 2 | 40 |" in table and "| fedsgd-b1-held | 2 | 10 |" in table
    assert "exponent: 0.0 is the smallest" in table or "exponent: 0.5 is the largest" in table
    assert sorted(path.name for path in pictures) == [f"fig{n}.{kind}" for n in (2, 3, 4) for kind in ("pdf", "png")]
    history = tmp_path / "out" / "alg2-b1" / "point-0001" / "history.csv"
    assert read_history(history.parent)["round"].tolist() == [0, 10, 20, 30, 40]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("history.csv")}
    assert len(before) == 2 + 2 + 2 * 2 + 5
    assert finish(plan)[0] == table
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("history.csv")}
    more = finish(replace(plan, seeds=3, only=("alg2-b1$",)))[0]  # goes on from there
    assert "| alg2-b1 | 3 | 10 |" in more and "| alg2-b1 | 3 | 40 |" in more
