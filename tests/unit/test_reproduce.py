"""`make reproduce-ssca`: the file of the curves, and a small whole of it runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from written_files import points_of

from mpifed.files.history import read_history
from mpifed.job.job import read_table
from mpifed.job.sweep import points

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`jobs` is imported from there."""
    monkeypatch.syspath_prepend(ROOT)
    yield


def test_every_curve_of_the_figures_is_a_job() -> None:
    from jobs.ssca.reproduce import JOBS, SSCA, TRADEOFFS, TUNED

    names = (*SSCA, *TUNED, *TRADEOFFS)
    jobs = {name: points(read_table(JOBS / f"{name}.toml"), name)[0].job for name in names}
    assert all(job.name == f"ssca-{name}" and job.seed == 1 for name, job in jobs.items())
    assert {job.algorithm["batch_size"] for name, job in jobs.items() if name.startswith("alg1-b")} == {1, 10, 100}


@pytest.mark.long
def test_a_small_whole(digits: Path, sides: Path, tmp_path: Path) -> None:
    """Runs, grid, curves and figures; and what has run is not run again."""
    from jobs.ssca.reproduce import JOBS, Plan, finish, play

    for name in ("alg2-b1", "fedsgd-b1", "alg4-limit"):
        text = (JOBS / f"{name}.toml").read_text(encoding="utf-8")
        text = text.replace("data/mnist-rows-10", str(digits)).replace("data/mnist-columns-10", str(sides))
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
    only = ("alg2-b1$", "fedsgd-b1$", "alg4-limit")
    grid = ((0.1, 0.0), (0.1, 0.5))
    plan = Plan(tmp_path / "out", 40, 2, tmp_path, ("model.hidden=8",), only=only, grid=grid)
    curves, *pictures = finish(plan)
    assert curves == tmp_path / "out" / "curves.csv"
    table = curves.read_text(encoding="utf-8")
    assert "\nalg2-b1,1,40," in table and "\nfedsgd-b1-held,1,10," in table and "\nalg4-limit-4,0,40," in table
    assert sorted(path.name for path in pictures) == [f"fig{n}.{kind}" for n in (2, 3, 4) for kind in ("pdf", "png")]
    history = points_of(tmp_path / "out" / "alg2-b1")[1] / "history.csv"
    assert read_history(history.parent)["round"].tolist() == [0, 10, 20, 30, 40]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("history.csv")}
    assert len(before) == 2 + 2 + 2 * 2 + 5
    play(plan)
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("history.csv")}
    more, _ = play(replace(plan, seeds=3, only=("alg2-b1$",)))  # goes on from there
    assert more["alg2-b1"].cost.shape == (3, len(more["alg2-b1"].rounds)) and more["alg2-b1"].rounds[-1] == 40
