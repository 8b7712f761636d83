"""`mpifed compare` of runs and of sweeps over methods; what `check`, `show` and `compare` say to what is not theirs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from test_show import mpifed, write_run, write_sweep

from mpifed.run.best import read_settings, select

FEDAVG = {"name": "fedavg", "batch_size": 20}
SCAFFOLD = {"name": "scaffold", "batch_size": 20, "local_steps": 3}


def job(algorithm: dict[str, Any], seed: int, name: str = "j", **tables: Any) -> dict[str, Any]:
    return {"name": name, "seed": seed, "algorithm": algorithm, **tables}


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """FedAvg with two seeds, SCAFFOLD with one."""
    rate = {"learning_rate": {"initial": 1.0, "exponent": 0.5}}
    return [
        write_run(tmp_path / "a", job=job(FEDAVG, 1, "a", client_optimizer=rate), objective=0.5),
        write_run(tmp_path / "b", job=job(FEDAVG, 2, "b", client_optimizer=rate), objective=0.3),
        write_run(tmp_path / "c", job=job(SCAFFOLD, 1, client_optimizer={"learning_rate": 0.1}), objective=0.2),
    ]


def test_runs_that_differ_in_their_seed_alone_are_one_line(runs: list[Path]) -> None:
    header, first, second = mpifed("compare", *runs).output.splitlines()
    keys = ["algorithm.name", "client_optimizer.learning_rate", "algorithm.local_steps"]
    assert header.split()[:4] == [*keys, "seeds"]  # and not the name or the seed
    assert first.startswith('"fedavg"') and "{initial = 1.0, exponent = 0.5}  " in first
    assert "null" not in first and " 2 " in first and "0.4 +- 0.14" in first
    assert first.endswith(f"{runs[0]}, {runs[1]}")
    assert second.startswith('"scaffold"') and " 0.2 " in second and second.endswith(str(runs[2]))


def test_what_of_two_runs_differs_in_the_seed_has_no_columns(runs: list[Path]) -> None:
    header, line = mpifed("compare", *runs[:2]).output.splitlines()
    assert header.split()[0] == "seeds" and line.split()[0] == "2"


def test_the_best_of_runs(runs: list[Path]) -> None:
    found = select(runs)
    assert found["settings"]["algorithm.name"] == "scaffold" and found["points"] == [str(runs[2])]
    assert found["mean"]["objective"] == 0.2
    assert select(runs, by="objective", maximize=True)["points"] == [str(run) for run in runs[:2]]
    text = mpifed("compare", *runs, "--select", "best", "--max", "--by", "objective").output
    (line,) = (line for line in text.splitlines() if line.startswith("--set"))
    assert shlex.split(line)[1::2] == [
        'algorithm.name="fedavg"', "client_optimizer.learning_rate={initial = 1.0, exponent = 0.5}"
    ]  # fmt: skip


def test_a_sweep_beside_a_run(runs: list[Path], tmp_path: Path) -> None:
    """The points of the sweep are runs like the other: what their jobs differ in sets them apart."""
    points: list[Any] = [
        ({"algorithm.batch_size": size}, {"job": job(FEDAVG | {"batch_size": size}, 1), "objective": 1.0})
        for size in (1, 2)
    ]
    sweep = write_sweep(tmp_path / "sweep", points)
    listed = json.loads(mpifed("compare", sweep, runs[2], "--json").output)
    assert [row["point"] for row in listed] == [str(sweep / "point-0000"), str(sweep / "point-0001"), str(runs[2])]
    assert [row["settings"]["algorithm.batch_size"] for row in listed] == [1, 2, 20]


def test_methods_are_told_apart_and_can_be_pasted(tmp_path: Path) -> None:
    methods = [
        {"algorithm": FEDAVG, "client_optimizer": {"learning_rate": 0.5}, "server_optimizer": {"momentum": 0.9}},
        {"algorithm": {"name": "ssca", "rho": [0.9, 0.3]}, "client_optimizer": {}, "server_optimizer": {}},
    ]
    points: list[Any] = [
        (method | {"seed": seed}, {"objective": 1.0 - k}) for k, method in enumerate(methods) for seed in (1, 2)
    ]
    folder = write_sweep(tmp_path / "sweep", points)
    assert [setting.settings for setting in read_settings(folder)] == methods
    assert select(folder)["settings"] == methods[1]
    text = mpifed("compare", folder, "--select", "best").output
    (line,) = (line for line in text.splitlines() if line.startswith("--set"))
    assert shlex.split(line)[1::2] == [
        'algorithm={name = "ssca", rho = [0.9, 0.3]}', "client_optimizer={}", "server_optimizer={}"
    ]  # fmt: skip


def test_no_folder_of_a_run(tmp_path: Path, runs: list[Path]) -> None:
    for more in ((), ("--select", "best"), ("--select", "pareto"), ("--json",)):
        ended = mpifed("compare", runs[0], tmp_path, *more)
        assert ended.exit_code == 2
        assert f"{tmp_path}: no folder of a run or a sweep (it has no job.toml, and no sweep.csv)" in ended.output


def test_each_command_names_the_one_that_is_meant(tmp_path: Path, runs: list[Path]) -> None:
    path = tmp_path / "job.toml"
    path.write_text(tomli_w.dumps(job(FEDAVG, 1)))
    sweep = write_sweep(tmp_path / "sweep", [({"seed": 1}, {"objective": 1.0})])
    for arguments, said in (
        (("show", path), f"{path} is a file: mpifed check is for a job"),
        (("check", runs[0]), f"{runs[0]} is a folder: mpifed show is for a run, mpifed compare for a sweep"),
        (("show", sweep), f"{sweep}: is a sweep; mpifed compare {sweep} shows its points"),
        (("compare", sweep, "--by", "objective"), "--by goes with --select best or --select pareto"),
        (("compare", sweep, "--max", "--select", "pareto"), "--max goes with --select best"),
        (("compare",), "Missing argument 'RUN... | SWEEP'"),
    ):
        ended = mpifed(*arguments)
        assert (ended.exit_code, said in ended.output) == (2, True), ended.output
