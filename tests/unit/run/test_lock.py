"""One run at a time writes to a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import checked
from whole_runs import run
from written_files import contents, read_json, write_json

from mpifed.core.errors import UsageError
from mpifed.files.scratch import this_process
from mpifed.run import folder as run_folder
from mpifed.run.folder import HELD, LOCK, locked
from mpifed.run.launch import guarded
from mpifed.testing import Job, Solo

HOLD = """
import errno, fcntl, sys
from pathlib import Path
from mpifed.run.folder import locked

def missing(*arguments):
    raise OSError(int(sys.argv[2]), "no flock")

if int(sys.argv[2]):
    fcntl.flock = missing
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
WAYS = {"flock": 0, "none": errno.ENOLCK, "Lustre": errno.EOPNOTSUPP, "no call": errno.ENOSYS}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a run of another process to end."""
    monkeypatch.setattr(run_folder, "ENDING_S", 0.2)


@contextmanager
def holding(folder: Path, number: int = 0) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds a folder; `number`: what flock fails by there, if it does."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(number)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture(params=WAYS)
def number(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """With the file system's locks, and without."""

    def missing(*arguments: Any) -> None:
        raise OSError(WAYS[request.param], "no flock")

    if number := WAYS[request.param]:
        monkeypatch.setattr(fcntl, "flock", missing)
    return number


def hold(folder: Path) -> None:
    with locked(folder):
        assert set(contents(folder)) <= {LOCK, HELD}


def test_a_folder_is_free_when_its_process_is_killed(number: int, tmp_path: Path) -> None:
    with holding(tmp_path / "run", number) as other:
        with pytest.raises(UsageError, match=r"run: in use by .*; let it end.*, or choose another --out"):
            hold(tmp_path / "run")
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
        hold(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_the_same_process_does_not_hold_it_twice(number: int, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(UsageError):
        hold(tmp_path)
    hold(tmp_path)


def test_a_folder_that_was_moved_frees_no_other(number: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with ExitStack() as others:
        with locked(out):
            out.rename(tmp_path / "moved")
            others.enter_context(holding(out, number))
        with pytest.raises(UsageError, match="in use by"):
            hold(out)


def test_a_living_process_of_this_machine_is_named(tmp_path: Path) -> None:
    own = this_process()
    with holding(tmp_path):
        for process, who in (
            (own, "process {pid} on {host} since noon".format(**own)),
            ({**own, "started": 1}, "another process"),
            ({**own, "host": "elsewhere"}, "another process"),
        ):
            write_json(tmp_path / "run.json", {"exit": None, "started": "noon", "process": process})
            with pytest.raises(UsageError, match=re.escape(f"in use by {who}; ")):
                hold(tmp_path)


def test_without_flock_the_lock_of_another_machine_is_removed_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody here can see whether that process is alive: whose it is is said, and which file."""

    def missing(*arguments: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no flock")

    monkeypatch.setattr(fcntl, "flock", missing)
    (tmp_path / HELD).write_text("7\nelsewhere\n")
    said = f"in use by process 7 on elsewhere; let it end or, where it was killed, remove {tmp_path / HELD}, or choose"
    for _ in range(2):
        with pytest.raises(UsageError, match=re.escape(said)):
            hold(tmp_path)
    (tmp_path / HELD).unlink()
    hold(tmp_path)


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_is_refused_and_touches_nothing(digits: Path, tmp_path: Path, resume: bool) -> None:
    job, out = tiny(digits), tmp_path / "run"
    with holding(out):
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
    with holding(tmp_path / "run"):
        ended = launch(2, "run", tmp_path / "job.toml", "--out", tmp_path / "run", "--resume")
    assert ended.code == 2 and ended.text.count("in use by another process; ") == 1, ended.text
    ended = launch(None, "run", tmp_path / "job.toml", "--out", tmp_path / "run", "--resume")
    assert ended.code == 0 and not (tmp_path / "run" / LOCK).exists(), ended.text
