"""Sweeps: a grid of jobs, each a run of its own."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mpifed.cli import main
from mpifed.core.errors import UsageError
from mpifed.run.history import SUMMARY, read_json
from mpifed.run.sweep import points


def table(folder: Any = "somewhere", **sweep: Any) -> dict[str, Any]:
    return {
        "name": "sweeping",
        "rounds": 2,
        "seed": 5,
        "data": {"path": str(folder)},
        "objective": {"name": "softmax"},
        "algorithm": {"name": "fedavg", "batch": 4, "step": [0.1]},
        "sweep": sweep,
    }


def test_the_grid_with_seeds_fastest() -> None:
    found = points(table(**{"algorithm.batch": [1, 2], "objective.penalty": [0.0, 0.5], "seeds": 3}), "job")
    assert [p.name for p in found] == [f"point-{k:04d}" for k in range(12)]
    settings = [tuple(p.settings.values()) for p in found]
    assert settings == [(b, p, s) for b in (1, 2) for p in (0.0, 0.5) for s in (5, 6, 7)]
    assert list(found[0].settings) == ["algorithm.batch", "objective.penalty", "seed"]
    for point in found:
        batch, penalty, seed = point.settings.values()
        assert point.job.algorithm["batch"] == batch
        assert point.job.objective["penalty"] == penalty
        assert point.job.seed == seed
        assert point.job.algorithm["step"] == [0.1]


def test_a_job_without_a_sweep_is_one_point() -> None:
    alone = table()
    del alone["sweep"]
    (point,) = points(alone, "job")
    assert point.settings == {}
    (point,) = points(table(), "job")
    assert point.job.seed == 5


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ({"algorithm.batch": 3}, "algorithm.batch = 3: .* a list"),
        ({"algorithm.batch": []}, "algorithm.batch = .*: .* a list"),
        ({"seeds": 0}, "seeds = 0: "),
        ({"seeds": "two"}, "seeds = 'two': "),
        ({"algorithm.batch": [1, "x"]}, r'\[algorithm\] batch = "x"'),
        ({"algorithm.bath": [1, 2]}, r"\[algorithm\] bath: unknown key"),
        ({"seed.more": [1]}, "seed is a value and no table"),
    ],
)
def test_a_sweep_that_is_none(sweep: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        points(table(**sweep), "job")


def test_a_sweep_that_is_no_table() -> None:
    with pytest.raises(UsageError, match=r"\[sweep\] must be a table"):
        points(table() | {"sweep": [1]}, "job")


def mpifed(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def job(digits: Path, write_job: Any, tmp_path: Path) -> Path:
    return write_job(tmp_path / "job.toml", table(digits, **{"algorithm.batch": [2, 3], "seeds": 2}))


def rows(out: Path) -> list[dict[str, str]]:
    with open(out / "sweep.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_is_run(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ended = mpifed("run", job, "--out", out)
    assert ended.exit_code == 0, ended.output
    found = rows(out)
    assert list(found[0]) == ["point", "algorithm.batch", "seed", *SUMMARY]
    assert [(r["algorithm.batch"], r["seed"]) for r in found] == [("2", "5"), ("2", "6"), ("3", "5"), ("3", "6")]
    assert {r["exit"] for r in found} == {"0"}
    assert len({r["model_sha256"] for r in found}) == 4
    for row in found:
        assert read_json(out / row["point"] / "run.json")["rounds"] == 2
        assert (out / row["point"] / "model.h5").exists()


def test_one_point_is_that_of_the_whole_sweep(job: Path, tmp_path: Path) -> None:
    assert mpifed("run", job, "--out", tmp_path / "all").exit_code == 0
    assert mpifed("run", job, "--out", tmp_path / "one", "--point", 2).exit_code == 0
    whole, one = rows(tmp_path / "all"), rows(tmp_path / "one")
    assert one[2]["model_sha256"] == whole[2]["model_sha256"]
    assert [r["model_sha256"] for k, r in enumerate(one) if k != 2] == ["", "", ""]
    assert mpifed("run", job, "--out", tmp_path / "one", "--point", 4).exit_code == 2


def test_resume_runs_what_is_left(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert mpifed("run", job, "--out", out, "--point", 1).exit_code == 0
    started = read_json(out / "point-0001" / "run.json")
    ended = mpifed("run", job, "--out", out, "--resume")
    assert ended.exit_code == 0, ended.output
    assert {r["exit"] for r in rows(out)} == {"0"}
    assert read_json(out / "point-0001" / "run.json") == started  # left as it was


def test_interrupted_sweeps_say_so_and_go_on(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert mpifed("run", job, "--out", out, "--max-hours", 0).exit_code == 75
    assert [r["exit"] for r in rows(out)] == ["75", "", "", ""]
    ended = mpifed("run", job, "--out", out, "--resume")
    assert ended.exit_code == 0, ended.output
    assert {r["exit"] for r in rows(out)} == {"0"}


def test_the_exit_code_is_the_worst_of_the_points(digits: Path, write_job: Any, tmp_path: Path) -> None:
    job = write_job(tmp_path / "job.toml", table(digits, **{"algorithm.batch": [10000, 2]}))
    ended = mpifed("run", job, "--out", tmp_path / "out")
    assert ended.exit_code == 2
    assert rows(tmp_path / "out")[1]["exit"] == "0"


def test_show_lists_the_points(job: Path, tmp_path: Path) -> None:
    import json

    out = tmp_path / "out"
    assert mpifed("run", job, "--out", out).exit_code == 0
    listed = json.loads(mpifed("show", out, "--json").output)
    assert [one["point"] for one in listed] == [f"point-{k:04d}" for k in range(4)]
    assert all(one["exit"] == 0 and one["rounds"] == 2 for one in listed)
    assert "point-0003" in mpifed("show", out).output
