"""Sweeps: a grid of jobs, each a run of its own."""

from __future__ import annotations

import copy
import csv
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs_in_python import as_in_a_file, job_table
from written_files import SUMMARY, contents, read_json

from mpifed.cli import main
from mpifed.core.errors import NotCertified, NumericalError, UsageError
from mpifed.job.sweep import points
from mpifed.run import command
from mpifed.run.command import worst


def table(folder: Any = "somewhere", **sweep: Any) -> dict[str, Any]:
    return as_in_a_file(job_table(folder, name="sweeping", rounds=2, seed=5, sweep=sweep))


def test_the_grid_with_seeds_fastest() -> None:
    given = table(**{"algorithm.batch_size": [1, 2], "model.l2": [0.0, 0.5], "seeds": 3})
    before = copy.deepcopy(given)
    found = points(given, "job")
    assert given == before and len({p.name for p in found}) == 12
    fewer = {"seeds": 1, "model.l2": [0.5], "algorithm.batch_size": [2]}  # the names are the same in any sweep
    assert [p.name for p in points(table(**fewer), "job")] == [found[9].name]
    settings = [tuple(p.settings.values()) for p in found]
    assert settings == [(b, p, s) for b in (1, 2) for p in (0.0, 0.5) for s in (5, 6, 7)]
    assert list(found[0].settings) == ["algorithm.batch_size", "model.l2", "seed"]
    assert [(p.job.algorithm["batch_size"], p.job.model["l2"], p.job.seed) for p in found] == settings


SSCA = {"name": "ssca", "batch_size": 4, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
AVERAGED = {
    "algorithm": {"name": "fedavg", "batch_size": 3}, "client_optimizer": {"learning_rate": 0.2},
    "server_optimizer": {"momentum": 0.9},
}  # fmt: skip


def test_methods_and_tables_change_together_and_have_labels() -> None:
    """Those of the job that a method names are replaced; those that only another method has are left out."""
    found = points(table(methods=[AVERAGED, {"algorithm": SSCA}], seeds=2, **{"model.l2": [0.0, 0.5]}), "job")
    assert [point.settings for point in found[:2]] == [AVERAGED | {"model.l2": 0.0, "seed": seed} for seed in (5, 6)]
    none = {"client_optimizer": {}, "server_optimizer": {}}
    assert len(found) == 8 and found[4].settings == {"algorithm": SSCA, **none, "model.l2": 0.0, "seed": 5}
    for point in found[:4]:
        assert point.job.algorithm == AVERAGED["algorithm"]
        assert point.job.client_optimizer["learning_rate"] == 0.2 and point.job.server_optimizer["momentum"] == 0.9
    for point in found[4:]:
        assert point.job.algorithm.items() >= SSCA.items()
        assert point.job.client_optimizer is None and point.job.server_optimizer is None
    both = {"A": AVERAGED["algorithm"], "B": {"name": "scaffold", "batch_size": 4}}
    named = points(table(algorithm=[{"label": label, **method} for label, method in both.items()]), "job")
    assert [list(point.settings.items()) for point in named] == [[("label", x), ("algorithm", both[x])] for x in both]
    assert [point.job.algorithm for point in named] == [*both.values()]


def labelled(first: Any, second: Any) -> list[dict[str, Any]]:
    both = ({"name": "fedavg", "batch_size": 4}, {"name": "scaffold", "batch_size": 4})
    return [{"label": label, **method} for label, method in zip((first, second), both, strict=True)]


WRONG: list[tuple[Any, str]] = [
    *(({"methods": methods}, "methods: must be a list of tables") for methods in (3, [], [AVERAGED, 3])),
    ({"methods": [{"algorithm": "fedavg"}]}, "algorithm = 'fedavg': must be a whole table"),
    ({"methods": [{"algorithm.batch_size": 4}]}, "batch_size = 4: must be a whole table"),
    ({"methods": [{"algorithm": SSCA, "client_optimizer": {"learning_rate": 0.1}}]}, ".algorithm. takes none"),
    *(({"algorithm": labelled("A", other)}, "give every table a label of its own") for other in ("A", 3, " ", "b\nc")),
    ({"algorithm.batch_size": [{"label": "A"}, 3]}, "give every table a label of its own, a line of text, or none"),
    ({"seeds": 10**9}, "seeds = 1000000000: expected how many, from 1 to 10000"), ({"seeds": True}, "seeds = True"),
    ({f"algorithm.k{i}": [*range(10)] for i in range(12)}, "has 1000000000000 points, and may have 10000"),
    ({"seeds": 3, "seed": [1, 2]}, "each sets the seeds; give one of them"), ({"rounds": 5}, "must be a list"),
    ({"name": ["a", "../b"]}, "must be the name of one folder"), ({"rounds.more": [1]}, "rounds.more: is not there"),
    ({"algorithm.batch_size": [1, "x"]}, '.algorithm. batch_size = "x"'), ([1], ".sweep. must be a table"),
    ({"algorithm.bath": [1, 2]}, ".algorithm. bath: unknown key"),
    *(({key: [1]}, "no key of TOML|has the control") for key in ("a={b=1,c=2}#", "a=1#", "a\nb", "a..b", "", "\u2028")),
]  # fmt: skip


@pytest.mark.parametrize(("sweep", "said"), WRONG)
def test_sweeps_that_are_none(sweep: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        points(table() | {"sweep": sweep}, "job")


def mpifed(*arguments: Any) -> Any:
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture
def job(digits: Path, write_job: Any, tmp_path: Path) -> Path:
    return write_job(tmp_path / "job.toml", table(digits, **{"algorithm.batch_size": [2, 3], "seeds": 2}))


def rows(out: Path) -> list[dict[str, str]]:
    with open(out / "sweep.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_points_alone_and_interrupted(job: Path, tmp_path: Path) -> None:
    """One point is that of the whole sweep; an interrupted sweep says so and goes on."""
    whole, one = tmp_path / "all", tmp_path / "one"
    assert mpifed("run", job, "--out", whole, "--max-hours", 0).exit_code == 75
    assert [r["exit"] for r in rows(whole)] == ["75", "", "", ""]
    ended = mpifed("run", job, "--out", whole, "--resume")
    found = rows(whole)
    assert ended.exit_code == 0 and {r["exit"] for r in found} == {"0"}, ended.output
    assert f"{found[1]['point']} (2 of 4): algorithm.batch_size = 2, seed = 6\n" in ended.output
    assert "algorithm.batch_size = 2, seed = 6" in mpifed("show", whole).output
    assert list(found[0]) == ["point", "algorithm.batch_size", "seed", *SUMMARY]
    assert [(r["algorithm.batch_size"], r["seed"]) for r in found] == [("2", "5"), ("2", "6"), ("3", "5"), ("3", "6")]
    assert len({r["model_sha256"] for r in found}) == 4
    assert all(read_json(whole / r["point"] / "run.json")["rounds"] == 2 for r in found)
    assert mpifed("run", job, "--out", one, "--point", 2).exit_code == 0
    expected = [r["model_sha256"] if k == 2 else "" for k, r in enumerate(rows(whole))]
    assert [r["model_sha256"] for r in rows(one)] == expected
    assert mpifed("run", job, "--out", one, "--point", 4).exit_code == 2


def test_a_second_ctrl_c_ends_a_sweep(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", stopped)
    ended = mpifed("run", job, "--out", out := tmp_path / "out")
    assert ended.exit_code == 130 and ended.output.endswith("\nmpifed: stopped\n") and len(rows(out)) == 4


def test_the_exit_code_is_the_worst_of_the_points(digits: Path, write_job: Any, tmp_path: Path) -> None:
    """A failure; then 70 and 69, then 0."""
    job = write_job(tmp_path / "job.toml", table(digits, **{"participation.clients_per_round": [900, 2]}))
    assert mpifed("run", job, "--out", tmp_path / "out").exit_code == 2
    assert rows(tmp_path / "out")[1]["exit"] == "0"
    orders = ([], 0), ([0, 0], 0), ([0, 69, 0], 69), ([69, 70], 70), ([69, 68, 70, 0], 68), ([1, 68, 2], 68)
    for codes, expected in orders:
        assert worst(codes) == worst(codes[::-1]) == expected


def test_points_that_have_ended_are_not_run_again(job: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Nor without their certificate; those whose numbers were not finite are, from their last checkpoint."""
    run, ran = command.run, Counter[int]()
    errors = {2: NotCertified("not reached", agreed=True), 3: NumericalError("not finite")}

    def run_and_fail(job: Any, *arguments: Any, **more: Any) -> Any:
        batch = job.algorithm["batch_size"]
        ran[batch] += 1
        run(job, *arguments, **more)
        raise errors[batch]

    monkeypatch.setattr(command, "run", run_and_fail)
    words = ("run", job, "--out", out := tmp_path / "out")
    for count in (2, 4):
        ended = mpifed(*words, *(["--resume"] if count > 2 else []))
        assert ended.exit_code == 68 and ran == {2: 2, 3: count}
        assert [row["exit"] for row in rows(out)] == ["69", "69", "68", "68"]


def test_a_finished_point_of_another_job_is_not_taken_for_this_one(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert mpifed("run", job, "--out", out).exit_code == 0
    before = rows(out)
    for options in ((), ("--resume",), ("--point", 0)):
        ended = mpifed("run", job, "--out", out, "--set", "model.l2=0.5", *options)
        assert ended.exit_code == 2
        assert f"{out}: holds another sweep ({before[0]['point']}: model.l2: 0.0 before, 0.5 now)" in ended.output
    assert mpifed("run", job, "--out", out).exit_code == 2
    assert rows(out) == before
    ended = mpifed("run", job, "--out", out, "--resume", "--set", "rounds=3")
    assert ended.exit_code == 0, ended.output
    assert {row["rounds"] for row in rows(out)} == {"3"}


def test_a_sweep_grows(job: Path, tmp_path: Path, launch: Callable[..., Any]) -> None:
    """Points that have finished stay as they are, new ones are run; what the sweep has no more is kept, and said."""
    out, words = tmp_path / "out", ("run", job, "--out", tmp_path / "out")
    assert launch(None, *words).code == 0
    before, more = {row["point"]: contents(out / row["point"]) for row in rows(out)}, [*words, "--set"]
    for seed in (5, 9):  # that of the points there, and of none
        ended = launch(None, *more, f"seed={seed}")
        assert ended.code == 2 and "holds 4 runs of a sweep already; keep these" in ended.err and len(rows(out)) == 4
    assert launch(None, *more, 'sweep={"algorithm.batch_size"=[4,3,2],seeds=3}', "--resume").code == 0
    grown = rows(out)
    assert len(grown) == 9 and {row["exit"] for row in grown} == {"0"}
    assert {name: contents(out / name) for name in before} == before
    ended = launch(None, *words, "--set", 'sweep={"algorithm.batch_size"=[4,5]}', "--resume")
    assert ended.code == 0 and "8 points of an earlier sweep stay" in ended.err and len(rows(out)) == 2
    assert {name: contents(out / name) for name in before} == before
    compared = json.loads(launch(None, "compare", out, *(out / name for name in before), "--json").out)
    assert len(compared["runs"]) == 6
