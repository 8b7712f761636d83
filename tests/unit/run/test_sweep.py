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
    settings = [(b, p, s) for b in (1, 2) for p in (0.0, 0.5) for s in (5, 6, 7)]
    assert [tuple(p.settings.values()) for p in found] == settings
    assert [(p.job.algorithm["batch_size"], p.job.model["l2"], p.job.seed) for p in found] == settings
    assert list(found[0].settings) == ["algorithm.batch_size", "model.l2", "seed"]


SSCA = {"name": "ssca", "batch_size": 4, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}
SCAFFOLD = {"name": "scaffold", "batch_size": 4}
AVERAGED = {
    "algorithm": {"name": "fedavg", "batch_size": 3}, "client_optimizer": {"learning_rate": 0.2},
    "server_optimizer": {"momentum": 0.9},
}  # fmt: skip


def labelled(first: Any, second: Any) -> list[dict[str, Any]]:
    return [{"label": first, **AVERAGED["algorithm"]}, {"label": second, **SCAFFOLD}]


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
    named = points(table(algorithm=labelled("A", "B")), "job")
    both = [AVERAGED["algorithm"], SCAFFOLD]
    assert [point.settings for point in named] == [
        {"label": x, "algorithm": one} for x, one in zip("AB", both, strict=True)
    ]
    assert [point.job.algorithm for point in named] == both


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


def test_sweeps_that_are_none() -> None:
    for sweep, said in WRONG:
        with pytest.raises(UsageError, match=said):
            points(table() | {"sweep": sweep}, "job")


Sweep = Callable[..., Any]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def sweep(digits: Path, write_job: Any, out: Path) -> Sweep:
    """sweep(*options): how two batch sizes with two seeds end."""
    job = write_job(out.with_name("job.toml"), table(digits, **{"algorithm.batch_size": [2, 3], "seeds": 2}))
    return lambda *options: CliRunner().invoke(main, ["run", str(job), "--out", str(out), *map(str, options)])


def rows(out: Path) -> list[dict[str, str]]:
    with open(out / "sweep.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_points_alone_and_interrupted(sweep: Sweep, out: Path) -> None:
    """One point is that of the whole sweep; an interrupted sweep says so and goes on, a line for each run."""
    assert sweep("--point", 2).exit_code == 0 and sweep("--point", 4).exit_code == 2
    (alone,) = (row["model_sha256"] for row in rows(out) if row["model_sha256"])
    ended = sweep("--overwrite", "--max-hours", 0)
    assert ended.exit_code == 75 and [row["exit"] for row in rows(out)] == ["75", "", "", ""], ended.output
    assert "go on with the same command and --resume\n" in ended.output and "--out" not in ended.output  # the sweep's
    ended = sweep("--resume")
    found = rows(out)
    assert ended.exit_code == 0 and {row["exit"] for row in found} == {"0"}, ended.output
    told = f"{found[1]['point']} (2 of 4): algorithm.batch_size = 2, seed = 6\n{out / found[1]['point']}: 2 rounds\n"
    assert told in ended.output
    assert "algorithm.batch_size = 2, seed = 6" in CliRunner().invoke(main, ["show", str(out)]).output
    assert list(found[0]) == ["point", "algorithm.batch_size", "seed", *SUMMARY]
    settings = [(row["algorithm.batch_size"], row["seed"]) for row in found]
    assert settings == [("2", "5"), ("2", "6"), ("3", "5"), ("3", "6")]
    assert len({row["model_sha256"] for row in found}) == 4 and found[2]["model_sha256"] == alone
    assert all(read_json(out / row["point"] / "run.json")["rounds"] == 2 for row in found)


def test_the_exit_code_is_the_worst_of_the_points(sweep: Sweep, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure; then 70 and 69, then 0; a second Ctrl-C ends all."""
    ended = sweep("--set", 'sweep={"participation.clients_per_round"=[900, 2]}')
    assert ended.exit_code == 2 and rows(out)[1]["exit"] == "0", ended.output
    orders = ([], 0), ([0, 0], 0), ([0, 69, 0], 69), ([69, 70], 70), ([69, 68, 70, 0], 68), ([1, 68, 2], 68)
    for codes, expected in orders:
        assert worst(codes) == worst(codes[::-1]) == expected

    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", stopped)
    ended = sweep("--overwrite")
    assert ended.exit_code == 130 and ended.output.endswith("\nmpifed: stopped\n")


def test_points_that_have_ended_are_not_run_again(sweep: Sweep, out: Path, monkeypatch: Any) -> None:
    """Nor without their certificate; those whose numbers were not finite are, from their last checkpoint."""
    run, ran = command.run, Counter[int]()
    errors = {2: NotCertified("not reached", agreed=True), 3: NumericalError("not finite")}

    def run_and_fail(job: Any, *arguments: Any, **more: Any) -> Any:
        batch = job.algorithm["batch_size"]
        ran[batch] += 1
        run(job, *arguments, **more)
        raise errors[batch]

    monkeypatch.setattr(command, "run", run_and_fail)
    for count in (2, 4):
        ended = sweep(*(["--resume"] if count > 2 else []))
        assert ended.exit_code == 68 and ran == {2: 2, 3: count}
        assert [row["exit"] for row in rows(out)] == ["69", "69", "68", "68"]


def test_a_sweep_grows_and_is_no_other(sweep: Sweep, out: Path) -> None:
    """Points that have finished stay as they are, new ones are run; what the sweep has no more is kept, and said."""
    assert sweep().exit_code == 0
    before = {row["point"]: contents(out / row["point"]) for row in rows(out)}
    first = next(iter(before))
    for options in ((), ("--resume",), ("--point", 0)):
        ended = sweep("--set", "model.l2=0.5", *options)
        assert ended.exit_code == 2
        assert f"{out}: holds another sweep ({first}: model.l2: 0.0 before, 0.5 now)" in ended.output
    for seed in (5, 9):  # that of the points there, and of none
        ended = sweep("--set", f"seed={seed}")
        assert ended.exit_code == 2 and "holds 4 runs of a sweep already; keep these" in ended.output
    assert sweep("--set", 'sweep={"algorithm.batch_size"=[4,3,2],seeds=3}', "--resume").exit_code == 0
    assert len(rows(out)) == 9 and {row["exit"] for row in rows(out)} == {"0"}
    ended = sweep("--set", 'sweep={"algorithm.batch_size"=[4,5]}', "--resume")
    assert ended.exit_code == 0 and "8 points of an earlier sweep stay" in ended.output and len(rows(out)) == 2
    assert {name: contents(out / name) for name in before} == before
    words = ["compare", str(out), *(str(out / name) for name in before), "--json"]
    assert len(json.loads(CliRunner().invoke(main, words).stdout)["runs"]) == 6
    ended = sweep("--resume", "--set", "rounds=3")
    assert ended.exit_code == 0 and {row["rounds"] for row in rows(out)} == {"3"}, ended.output
