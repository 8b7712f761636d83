"""`mpifed compare` of runs and of sweeps over methods; what `check`, `show` and `compare` say to what is not theirs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from test_show import best_of, mpifed, write_run, write_sweep
from written_files import write_json

from mpifed.files.model_file import model_sha256, write_arrays

FEDAVG = {"name": "fedavg", "batch_size": 20}
SCAFFOLD = {"name": "scaffold", "batch_size": 20, "local_steps": 3}

KEYS = ["client_optimizer.learning_rate", "algorithm.local_steps"]


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


def test_runs_that_differ_in_their_seed_alone_are_one_line(runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs[0].parent)
    header, first, second, *below = mpifed("compare", "a", "b", "c").output.splitlines()
    assert header.split()[:4] == ["points", "algorithm.name", *KEYS]  # and not the name or the seed
    assert first.startswith('a, b    "fedavg"') and "null" not in first and " 2 " in first and "0.4 +- 0.14" in first
    assert second.startswith('c       "scaffold"') and " 0.2 " in second
    assert max(map(len, (header, first, second))) <= 120
    assert "{initial = 1.0, exponent = 0.5}  " in first and below == [
        "In all rows: rounds 9",
        "+-: standard deviation over seeds",
    ]


def test_runs_of_one_job_and_seed_say_what_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no seeds; the digits of their models are beside them."""
    monkeypatch.chdir(tmp_path)
    for name, ranks in (("a", 1), ("b", 2)):
        write_run(tmp_path / name, job=job(FEDAVG, 1), objective=0.5)
        about = {"exit": 0, "rounds": 9, "elapsed_s": ranks / 2, "ranks": ranks, "device": "cpu"}
        write_json(tmp_path / name / "run.json", about)
        write_arrays(tmp_path / name / "model.safetensors", {"w": np.zeros(3)})
    header, line, *below = mpifed("compare", "a", "b").output.splitlines()
    assert header.split()[:2] == ["points", "runs"] and header.split()[-1] == "model"
    assert line.split()[:3] == ["a,", "b", "2"]
    assert line.split()[-1] == model_sha256({"w": np.zeros(3)})[:12]
    assert below == [
        "+-: standard deviation over runs",
        "Of the same job and seed; they differ in:",
        "  a, ranks 1",
        "  b, ranks 2",
    ]


@pytest.mark.parametrize("digests", [("1" * 64, "1" * 64), ("1" * 64, "2" * 64), ("1" * 64, None)])
def test_one_folder_of_data_by_two_paths(tmp_path: Path, digests: tuple[str, str | None]) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for run, path, digest in zip(runs, ("data/digits", "/home/data/digits"), digests, strict=True):
        write_run(run, job=job(FEDAVG, 1, data={"path": path}), objective=0.5)
        if digest:
            write_json(run / "run.json", json.loads((run / "run.json").read_text()) | {"data_sha256": digest})
    assert ("data.path" in mpifed("compare", *runs).output) == (digests[0] != digests[1])


def test_the_best_of_runs(runs: list[Path]) -> None:
    found = best_of(*runs)
    assert found["settings"]["algorithm.name"] == "scaffold" and found["points"] == [str(runs[2])]
    assert found["mean"]["objective"] == 0.2
    assert best_of(*runs, "--by", "objective", "--max")["points"] == [str(run) for run in runs[:2]]
    text = mpifed("compare", *runs, "--select", "best", "--max", "--by", "objective").output
    (line,) = (line for line in text.splitlines() if line.startswith("--set"))
    assert shlex.split(line)[1::2] == [
        'algorithm.name="fedavg"', "client_optimizer.learning_rate={initial = 1.0, exponent = 0.5}"
    ]  # fmt: skip


def test_methods_are_told_apart_and_can_be_pasted(tmp_path: Path) -> None:
    methods = [
        {"algorithm": FEDAVG, "client_optimizer": {"learning_rate": 0.5}, "server_optimizer": {"momentum": 0.9}},
        {"algorithm": {"name": "ssca", "rho": [0.9, 0.3]}, "client_optimizer": {}, "server_optimizer": {}},
    ]
    points: list[Any] = [
        (method | {"seed": seed}, {"objective": 1.0 - k}) for k, method in enumerate(methods) for seed in (1, 2)
    ]
    folder = write_sweep(tmp_path / "sweep", points)
    compared = json.loads(mpifed("compare", folder, "--json").output)
    assert [setting["settings"] for setting in compared["settings"]] == methods
    assert best_of(folder)["settings"] == methods[1]
    text = mpifed("compare", folder, "--select", "best").output
    (line,) = (line for line in text.splitlines() if line.startswith("--set"))
    assert shlex.split(line)[1::2] == [
        'algorithm={name = "ssca", rho = [0.9, 0.3]}', "client_optimizer={}", "server_optimizer={}"
    ]  # fmt: skip


def test_each_command_names_the_one_that_is_meant(tmp_path: Path, runs: list[Path]) -> None:
    path = tmp_path / "job.toml"
    path.write_text(tomli_w.dumps(job(FEDAVG, 1)))
    sweep = write_sweep(tmp_path / "sweep", [({"seed": 1}, {"objective": 1.0})])
    for arguments, said in (
        (("show", path), f"{path} is a file: mpifed check is for a job"),
        (("check", runs[0]), f"{runs[0]} is a folder: mpifed show is for a run, mpifed compare for a sweep"),
        (("show", sweep), f"{sweep}: is a sweep; `mpifed compare {sweep}` shows its points"),
        (("compare", sweep, "--by", "objective~1%"), "tolerances go with --select best or --select pareto"),
        (("compare", sweep, "--select", "best", "--against", "a"), "--against goes without --select"),
        (("compare", sweep, "--select", "pareto", "--to", "objective<=1"), "--to goes without --select"),
        (("compare", sweep, "--max", "--select", "pareto"), "--max goes with --select best"),
        (("compare",), "Missing argument 'RUN|SWEEP...'"),
    ):
        ended = mpifed(*arguments)
        assert (ended.exit_code, said in ended.output) == (2, True), ended.output
