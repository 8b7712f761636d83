"""Tests on a real Slurm: the testbed of four nodes, or a cluster that they may do with as they like."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import ROOT, SCRIPT, Job, command, no_job, submit, until

from mpifed.files.run_folder import summary

HERE = Path(__file__).parent
NODES = ("n1", "n2", "n3", "n4")
JOB: dict[str, Any] = {
    "name": "unhurried",
    "seed": 1,
    "rounds": 60,
    "model": {"name": "softmax", "bias": False, "l2": 1e-4},
    "algorithm": {"name": "unhurried:Unhurried", "batch_size": 10, "local_steps": 1, "pause_s": 0.0},
    "client_optimizer": {"learning_rate": 0.1},
    "record": {"evaluate_every": 5, "checkpoint_every": 5},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are marked."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(scope="session")
def testbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The testbed is up, and jobs find this `mpifed`."""
    found = os.environ.get("SLURM_CONF", "")
    if not (Path(found).is_file() and "ClusterName=mpifed" in Path(found).read_text(encoding="utf-8")):
        pytest.fail('no testbed: `make test-slurm`, or first eval "$(slurm/testbed/start)"')
    idle = ("sinfo", "--noheader", "--Node", "--partition=debug", "--states=idle", "--format=%N")
    until(lambda: tuple(command(*idle).split()) == NODES, lambda: f"four idle nodes\n{command('sinfo')}")
    bin_dir = tmp_path_factory.mktemp("bin")
    (bin_dir / "mpifed").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m mpifed "$@"\n', encoding="utf-8")
    (bin_dir / "mpifed").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(bin_dir), str(Path(sys.executable).parent), os.environ["PATH"]]))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(HERE)]))
        patch.delenv("MPIFED_MPI", raising=False)
        yield


@pytest.fixture(autouse=True)
def _nothing_left(testbed: None) -> Iterator[None]:
    """Every test finds four idle nodes, and leaves no job."""
    yield
    for number in set(command("squeue", "--noheader", "--format=%A").split()):
        subprocess.run(["scancel", "--full", "--signal=KILL", number], capture_output=True, timeout=300)
        subprocess.run(["scancel", number], capture_output=True, timeout=300)
    no_job()


@pytest.fixture
def job(tmp_path: Path, digits: Path, write_job: Callable[..., Path]) -> Callable[..., Path]:
    """job(name, **settings of the algorithm): a job file; one setting `table` changes whole tables."""

    def job(name: str = "job", table: dict[str, Any] | None = None, **settings: Any) -> Path:
        whole = JOB | {"data": {"path": str(digits)}, "algorithm": JOB["algorithm"] | settings} | (table or {})
        return write_job(tmp_path / f"{name}.toml", whole)

    return job


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., Job]:
    """start(job, *arguments, options=..., run=..., **env): a submitted job."""

    def start(job: Path, *arguments: object, options: tuple[str, ...] = (), run: str = "run", **env: str) -> Job:
        number = len(list(tmp_path.glob("slurm-*")))
        given = (job, tmp_path / run, "--progress", "none", *arguments)
        log = tmp_path / f"slurm-{number}.out"
        log.touch()
        return submit(SCRIPT, log, tmp_path / run, *given, options=options, **env)

    return start


@pytest.fixture(scope="session")
def expected(
    tmp_path_factory: pytest.TempPathFactory, digits: Path, launch: Callable[..., Any], write_job: Callable[..., Path]
) -> str:
    """The SHA-256 of the model that one process alone comes to."""
    folder = tmp_path_factory.mktemp("expected")
    path = write_job(folder / "job.toml", JOB | {"data": {"path": str(digits)}})
    ended = launch(0, "run", path, "--out", folder / "run", env={"PYTHONPATH": f"{ROOT}:{HERE}"})
    assert ended.code == 0, ended.text
    return model(folder / "run")


def model(run: Path) -> str:
    """The SHA-256 of the model that a run ended with."""
    found = summary(run)
    assert found["exit"] == 0 and found["rounds"] == JOB["rounds"], found
    return str(found["model_sha256"])


@pytest.fixture
def ends_as_expected(expected: str) -> Callable[[Job], None]:
    """Assert that a job has ended well, and with the bits of one process alone."""

    def check(job: Job, limit_s: float = 60.0) -> None:
        shown = job.wait_end(limit_s)
        assert (shown["JobState"], shown["ExitCode"]) == ("COMPLETED", "0:0"), str(job)
        assert model(job.run) == expected, str(job)

    return check


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """stand_in(name, text): a program of this name that jobs find first."""

    def stand_in(name: str, text: str) -> None:
        folder = tmp_path / "stand-ins"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        (folder / name).chmod(0o755)
        if shutil.which(name) != str(folder / name):
            monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    return stand_in
