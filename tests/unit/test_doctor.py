"""`mpifed doctor` in environments that are not as they should be."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mpifed import doctor
from mpifed.doctor import CheckResult, RankLocation

MPICH, OPEN_MPI = "MPICH Version:      4.2.3", "Open MPI v5.0.6, package: Open MPI"
A0, A01, B0 = RankLocation("a", frozenset({0})), RankLocation("a", frozenset({0, 1})), RankLocation("b", frozenset({0}))


def levels(found: Iterable[CheckResult]) -> list[str]:
    return [finding.level for finding in found]


def command(folder: Path, name: str, says: str = "") -> dict[str, str]:
    """An environment whose PATH is a folder with that command."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("says", "library", "level"),
    [
        ("HYDRA build details:", MPICH, "ok"), ("mpiexec (Open MPI) 5.0.6", OPEN_MPI, "ok"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.12", MPICH, "ok"), ("something else", MPICH, "warning"),
        ("mpiexec (Open MPI) 5.0.6", MPICH, "error"), ("HYDRA build details:", None, "warning"),
    ],
)  # fmt: skip
def test_a_launcher_and_its_library(tmp_path: Path, says: str, library: str | None, level: str) -> None:
    assert levels(doctor.launcher(library, command(tmp_path, "mpiexec", says)))[1] == level


JOINED: list[tuple[list[RankLocation], dict[str, str], str, str]] = [
    ([A0], {}, "ok", "one rank"), ([A0, B0], {"PMI_SIZE": "2"}, "ok", "2 ranks joined, on a, b"),
    ([A0, A0], {"SLURM_STEP_NUM_TASKS": "4"}, "error", "4 ranks launched, 2 joined"),
]  # fmt: skip
CORES = [  # where ranks are, what is said of their cores
    ([A01] * 2, ["ok"]), ([A01] * 3, ["warning"]), ([A0, A0], ["warning"]),
    ([A0, A01._replace(cores=frozenset({1})), B0], 2 * ["ok"]),
]  # fmt: skip


def test_ranks_their_cores_and_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for places, environment, level, what in JOINED:
        (found,) = doctor.joined(places, environment, None)
        assert found.level == level and found.what.startswith(what)
    for places, expected in CORES:
        assert levels(doctor.cores(places)) == expected
    assert levels(doctor.folder(tmp_path)) == ["ok"] and levels(doctor.folder(tmp_path / "nothing")) == ["error"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    assert levels(doctor.folder(tmp_path)) == ["warning"]


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def cupy(count: Callable[[], int], factor: float = 2.0) -> None:
        runtime = SimpleNamespace(getDeviceCount=count, getDeviceProperties=lambda i: {"name": b"A device"})
        cuda = SimpleNamespace(runtime=runtime, Device=lambda number: nullcontext())
        kernel = {"ElementwiseKernel": lambda *words: lambda x: factor * x}
        fake = SimpleNamespace(__version__="14.0", cuda=cuda, ones=np.ones, **kernel)
        monkeypatch.setattr(importlib, "import_module", lambda name: fake)

    def broken() -> int:
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setitem(sys.modules, "cupy", None)
    assert list(doctor.devices()) == [CheckResult("no CuPy: everything runs on the CPU")]
    cupy(lambda: 2)
    assert list(doctor.devices()) == 2 * [CheckResult("A device, CuPy 14.0: compiles, and says that 2 * 64 is 128")]
    for wrong in ((lambda: 1, 1.9), (broken,)):
        cupy(*wrong)
        assert levels(doctor.devices()) == ["warning"]


def test_slurm_and_the_library(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    environment = command(folder, "sbatch") | command(folder, "srun", "MPI plugin types are...\n\tnone\n\tpmi2")
    said = "this library needs `srun --mpi=pmi2`, which `srun --mpi=list` "
    assert list(doctor.slurm(MPICH, environment)) == [CheckResult(f"{said}lists; no rank was started")]
    (found,) = doctor.slurm(OPEN_MPI, environment)
    assert found.level == "warning" and "needs srun --mpi=pmix" in found.what
    assert levels(doctor.slurm(MPICH, environment | {"SLURM_CONF": "/nothing"})) == ["ok", "warning"]
    (folder / "srun").unlink()
    assert list(doctor.slurm(MPICH, environment)) == [CheckResult(f"{said}did not list")]


def test_any_error_is_the_exit_code(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(doctor, "library", lambda: MPICH)
    for says, code in (("HYDRA build details:", 0), ("mpiexec (Open MPI) 5.0.6", 1)):
        assert doctor.examine(command(here / "bin", "mpiexec", says)) == code
        said = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
        assert said <= {"ok", "warning", "error"} and ("error" in said) == code


@pytest.mark.launch
def test_three_ranks_one_report_and_worlds_of_one(launch: Callable[..., Any], tmp_path: Path) -> None:
    ended = launch(3, "doctor", cwd=tmp_path)
    assert ended.out.count("3 ranks joined") == ended.out.count("files can be written") == 1, ended.text
    first, other = (
        launch(0, "doctor", cwd=tmp_path, env={"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": rank}) for rank in "01"
    )
    assert first.code == 1 and first.out.startswith("error    launched as 3 ranks"), first.text
    assert (other.code, other.out) == (1, "")
