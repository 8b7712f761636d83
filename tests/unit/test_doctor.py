"""`mpifed doctor` in environments that are not as they should be."""

from __future__ import annotations

import fcntl
import importlib
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import threadpoolctl

from mpifed import doctor
from mpifed.core import loops
from mpifed.doctor import CheckResult, RankLocation

MPICH, OPEN_MPI = "MPICH Version:      4.2.3", "Open MPI v5.0.6, package: Open MPI"


def levels(found: Iterable[CheckResult]) -> list[str]:
    return [finding.level for finding in found]


def command(folder: Path, name: str, says: str = "") -> dict[str, str]:
    """An environment whose PATH is a folder with that command."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
    (folder / name).chmod(0o755)
    return {"PATH": str(folder)}


def refuse(*_: object) -> None:
    raise OSError(37, "No locks available")


@pytest.mark.parametrize(
    ("says", "library", "level"),
    [
        ("HYDRA build details:", MPICH, "ok"),
        ("mpiexec (Open MPI) 5.0.6", OPEN_MPI, "ok"),
        ("mpiexec (OpenRTE) 4.1.4", OPEN_MPI, "ok"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.12", MPICH, "ok"),
        ("mpiexec (Open MPI) 5.0.6", MPICH, "error"),
        ("HYDRA build details:", OPEN_MPI, "error"),
        ("something else", MPICH, "warning"),
        ("HYDRA build details:", None, "warning"),
    ],
)
def test_a_launcher_and_its_library(tmp_path: Path, says: str, library: str | None, level: str) -> None:
    assert levels(doctor.launcher(library, command(tmp_path, "mpiexec", says))) == [level]


def test_no_launcher(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path)}
    assert levels(doctor.launcher(MPICH, nothing)) == ["warning"]
    assert levels(doctor.launcher(None, nothing)) == []
    (found,) = doctor.launcher(MPICH, command(tmp_path, "srun"))
    assert found.level == "ok" and str(tmp_path / "srun") in found.what
    broken = command(tmp_path, "mpiexec")
    (tmp_path / "mpiexec").write_text("#!/no/such/interpreter\n")
    assert levels(doctor.launcher(MPICH, broken)) == ["warning"]


def test_a_library() -> None:
    assert levels(doctor.mpi_library(MPICH)) == ["ok"]
    assert levels(doctor.mpi_library(None)) == ["warning"]


def test_ranks_that_joined() -> None:
    place = RankLocation("a", frozenset({0}))
    assert levels(doctor.joined([place], {}, None)) == ["ok"]
    (found,) = doctor.joined([place, place._replace(host="b")], {"PMI_SIZE": "2"}, None)
    assert found == CheckResult("ok", "2 ranks joined, on a, b")
    (found,) = doctor.joined([place, place], {"SLURM_STEP_NUM_TASKS": "4"}, None)
    assert found.level == "error" and found.what == "4 ranks launched, 2 joined"


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([RankLocation("a", frozenset({0, 1}))] * 2, ["ok"]),
        ([RankLocation("a", frozenset({0, 1}))] * 3, ["warning"]),
        ([RankLocation("a", frozenset({0}))] * 2, ["warning"]),  # both bound to one core
        (
            [RankLocation("a", frozenset({0})), RankLocation("a", frozenset({1})), RankLocation("b", frozenset({0}))],
            ["ok", "ok"],
        ),
    ],
)
def test_cores(places: list[RankLocation], expected: list[str]) -> None:
    assert levels(doctor.cores(places)) == expected


def test_a_blas_without_threads_to_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(doctor.blas()) == ["ok"]
    monkeypatch.setattr(threadpoolctl, "threadpool_info", list)
    assert levels(doctor.blas()) == ["warning"]


def test_hdf5_and_its_setting() -> None:
    (found,) = doctor.hdf5({"HDF5_USE_FILE_LOCKING": "FALSE"})
    assert found.what.endswith("HDF5_USE_FILE_LOCKING=FALSE")


def test_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert levels(doctor.folder(tmp_path, {})) == ["ok", "ok"]
    assert levels(doctor.folder(tmp_path / "nothing", {})) == ["error"]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    assert levels(doctor.folder(tmp_path, {})) == ["ok", "warning"]
    monkeypatch.setattr(fcntl, "flock", refuse)
    (locks, _) = doctor.folder(tmp_path, {})
    assert locks == CheckResult("ok", f"{tmp_path}: no file locks (No locks available); none are needed")
    for setting, level in (("false", "ok"), ("TRUE", "error"), ("BEST_EFFORT", "error")):
        (locks, _) = doctor.folder(tmp_path, {"HDF5_USE_FILE_LOCKING": setting})
        assert locks.level == level and (level == "ok" or locks.remedy == "unset it, or set it to FALSE")


def test_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "compiled", object())
    assert levels(doctor.compiled_loops()) == ["ok"]
    monkeypatch.setattr(loops, "compiled", None)
    assert levels(doctor.compiled_loops()) == ["warning"]


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def cupy(count: Callable[[], int]) -> None:
        runtime = SimpleNamespace(getDeviceCount=count, getDeviceProperties=lambda i: {"name": b"A device"})
        fake = SimpleNamespace(__version__="13.0", cuda=SimpleNamespace(runtime=runtime))
        monkeypatch.setattr(importlib, "import_module", lambda name: fake)

    def broken() -> int:
        raise RuntimeError("cudaErrorInsufficientDriver")

    monkeypatch.setitem(sys.modules, "cupy", None)
    assert list(doctor.devices()) == [CheckResult("ok", "no CuPy: everything runs on the CPU")]
    cupy(lambda: 2)
    assert list(doctor.devices()) == [CheckResult("ok", "CuPy 13.0: A device, A device")]
    cupy(broken)
    assert levels(doctor.devices()) == ["warning"]


def test_key_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = doctor.key_streams()
    ms = float(found.what.removeprefix("masked channel: ").split()[0])
    assert ms > 0
    for seconds, level in ((1e-3, "ok"), (0.03, "warning")):
        monkeypatch.setattr(doctor, "_seconds_of_masks", lambda seconds=seconds: seconds)
        (found,) = doctor.key_streams()
        assert found.level == level and f" {1e3 * seconds:.2g} ms for 10^6 values" in found.what


def test_libraries_of_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(*names: str) -> str:
        def load(name: str) -> object:
            if name.partition(".")[0] not in names:
                raise ImportError(name)
            return object()

        monkeypatch.setattr(importlib, "import_module", load)
        (found,) = doctor.encryption()
        assert found.level == "ok"  # a job that needs one says so
        return found.what

    assert here("seal") == "encrypted channel: BFV (seal)"
    assert "pip install 'mpifed[encrypted]'" in here()


def test_slurm(tmp_path: Path) -> None:
    said = [
        next(doctor.slurm(None, environment)).what
        for environment in (
            {"PATH": str(tmp_path / "empty")},
            command(tmp_path, "sbatch"),
            {"SLURM_JOB_ID": "7"},
            {"SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4"},
        )
    ]
    assert said[0] == "no Slurm" and said[1].startswith(f"Slurm: {tmp_path / 'sbatch'}")
    assert said[2].startswith("Slurm job 7, outside its steps") and said[3] == "Slurm job 7, a step of 4 tasks"


def test_slurm_and_the_library(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    environment = command(folder, "sbatch") | command(folder, "srun", "MPI plugin types are...\n\tnone\n\tpmi2")
    found = list(doctor.slurm(MPICH, environment))
    assert [one.what for one in found] == [
        "this library needs `srun --mpi=pmi2`, which `srun --mpi=list` lists; no rank was started",
        f"Slurm: {folder / 'sbatch'}; `sinfo` lists partitions",
    ]
    found = list(doctor.slurm(OPEN_MPI, environment))
    assert levels(found) == ["warning", "ok"] and "needs srun --mpi=pmix" in found[0].what
    (folder / "srun").unlink()
    said = next(doctor.slurm(MPICH, environment)).what
    assert said == "this library needs `srun --mpi=pmi2`, which `srun --mpi=list` did not list"
    command(folder, "srun", "MPI plugin types are...\n\tnone\n\tpmi2")
    assert levels(doctor.slurm(MPICH, environment)) == ["ok", "ok"]
    inside = list(doctor.slurm(MPICH, environment | {"SLURM_JOB_ID": "7"}))
    assert "`srun --mpi=pmi2 mpifed doctor`" in inside[1].what
    command(folder, "mpiexec", "HYDRA build details:\n    Version: 5.0.2")
    assert f"batch jobs use {folder / 'mpiexec'}" in list(doctor.slurm(MPICH, environment))[1].what


def test_any_error_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "library", lambda: MPICH)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bin"
    assert doctor.examine(command(path, "mpiexec", "HYDRA build details:")) == 0
    fine = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in fine} <= {"ok", "warning"}
    assert doctor.examine(command(path, "mpiexec", "mpiexec (Open MPI) 5.0.6")) == 1
    assert len(capsys.readouterr().out.splitlines()) == len(fine)


@pytest.mark.launch
def test_three_ranks_and_one_report(launch: Callable[..., Any], tmp_path: Path) -> None:
    ended = launch(3, "doctor", cwd=tmp_path)
    assert ended.out.count("3 ranks joined") == ended.out.count("files can be written and locked") == 1, ended.text


@pytest.mark.launch
def test_worlds_of_one(launch: Callable[..., Any], tmp_path: Path) -> None:
    step = {"SLURM_STEP_NUM_TASKS": "3"}
    first = launch(0, "doctor", cwd=tmp_path, env=step | {"SLURM_PROCID": "0"})
    assert first.code == 1 and first.out.startswith("error    launched as 3 ranks"), first.text
    other = launch(0, "doctor", cwd=tmp_path, env=step | {"SLURM_PROCID": "1"})
    assert (other.code, other.out) == (1, "")


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    environment = command(tmp_path, "sbatch") | {"SLURM_CONF": str(tmp_path / "a b.conf")}
    (found,) = doctor.slurm(None, environment)
    assert found.level == "warning"
    assert found.what.startswith(f"SLURM_CONF={tmp_path / 'a b.conf'}: no such file, so Slurm's commands find no")
