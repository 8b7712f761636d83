"""One run at a time writes to a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import checked
from whole_runs import run
from written_files import read_json, write_json

from mpifed.core.errors import UsageError
from mpifed.run import lock
from mpifed.run.folder import HEARTBEAT, LOCK
from mpifed.run.launch import guarded
from mpifed.run.lock import locked
from mpifed.testing import Job, Solo

HOLD = """
import errno, fcntl, sys
from pathlib import Path
from mpifed.run.lock import locked

def missing(*arguments):
    raise OSError(errno.ENOLCK, "No locks available")

if sys.argv[2] == "heartbeat":
    fcntl.flock = missing
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a run of another process to end."""
    monkeypatch.setattr(lock, "ENDING_S", 0.1)


@contextmanager
def holding(folder: Path, way: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture(params=["flock", "heartbeat"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the file system's locks, and without."""

    def missing(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    if request.param == "heartbeat":
        monkeypatch.setattr(fcntl, "flock", missing)
    return str(request.param)


def hold(folder: Path) -> None:
    with locked(folder):
        assert len(list(folder.iterdir())) == 1


def test_another_process_is_named_and_its_folder_is_free_when_it_is_killed(way: str, tmp_path: Path) -> None:
    with holding(tmp_path / "run", way) as other:
        with pytest.raises(UsageError, match=rf"run: in use by process {other.pid} on {os.uname().nodename} since 20"):
            hold(tmp_path / "run")
        other.send_signal(signal.SIGKILL)
        other.wait()
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK if way == "flock" else HEARTBEAT]
        hold(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_the_same_process_does_not_hold_it_twice(way: str, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UsageError):
        hold(tmp_path)
    hold(tmp_path)


@pytest.mark.parametrize(("silent_s", "free"), [(1, False), (lock.STALE_S + 1, True)])
def test_a_heartbeat_of_another_machine_counts_for_a_while(
    silent_s: float, free: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / HEARTBEAT
    write_json(path, {"host": "elsewhere", "pid": 7, "started": 1, "since": "2026-01-01"})
    monkeypatch.setattr(lock, "_flocked", lambda path: None)
    then = path.stat().st_mtime - silent_s
    os.utime(path, (then, then))
    if free:
        hold(tmp_path)
        return
    with pytest.raises(UsageError, match=r"process 7 on elsewhere since 2026-01-01; .*killed, .* in 1[0-9]{2} s"):
        hold(tmp_path)
    assert read_json(path)["pid"] == 7


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_is_refused_and_touches_nothing(digits: Path, tmp_path: Path, resume: bool) -> None:
    job, out = tiny(digits), tmp_path / "run"
    with holding(out, "flock"):
        write_json(out / "run.json", {"exit": None})
        (out / "history.csv").write_text("of the other")
        with pytest.raises(SystemExit) as caught:
            guarded(Solo(), out, lambda: run(job, Solo(), out, resume=resume))
        assert caught.value.code == 2
        assert read_json(out / "run.json") == {"exit": None}
        assert (out / "history.csv").read_text() == "of the other"


def tiny(data: Path) -> Job:
    return checked({
        "name": "locked", "rounds": 1, "data": {"path": str(data)}, "model": {"name": "softmax", "bias": False},
        "algorithm": {"name": "fedavg", "batch_size": 4, "client_optimizer": {"learning_rate": 0.2}},
    })  # fmt: skip


@pytest.mark.launch
def test_all_ranks_end_alike(digits: Path, tmp_path: Path, launch: Callable[..., Any]) -> None:
    (tmp_path / "job.toml").write_text(tiny(digits).text())
    with holding(tmp_path / "run", "flock") as other:
        ended = launch(2, "run", tmp_path / "job.toml", "--out", tmp_path / "run", "--resume")
    assert ended.code == 2 and ended.text.count(f"in use by process {other.pid} ") == 1, ended.text
    ended = launch(None, "run", tmp_path / "job.toml", "--out", tmp_path / "run", "--resume")
    assert ended.code == 0 and not (tmp_path / "run" / LOCK).exists(), ended.text
