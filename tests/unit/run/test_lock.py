"""One run at a time writes to a folder."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import as_in_a_file, fedavg, job_table
from written_files import contents, read_json, write_json

from mpifed.core.errors import UsageError
from mpifed.run import folder as run_folder
from mpifed.run.folder import HELD, LOCK, locked

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
    words = [sys.executable, "-c", HOLD, str(folder), str(number)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


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
    with locked(tmp_path / "run"), pytest.raises(UsageError):
        hold(tmp_path / "run")


def test_who_holds_it_is_said_without_flock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of another machine, and which file is removed by hand."""

    def missing(*arguments: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no flock")

    monkeypatch.setattr(fcntl, "flock", missing)
    (tmp_path / HELD).write_text("7\nelsewhere\n")
    said = f"in use by process 7 on elsewhere; let it end or, where it was killed, remove {tmp_path / HELD}, or choose"
    with pytest.raises(UsageError, match=re.escape(said)):
        hold(tmp_path)
    (tmp_path / HELD).unlink()
    hold(tmp_path)


@pytest.mark.launch
def test_a_second_run_is_refused_on_all_ranks(digits: Path, tmp_path: Path, launch: Any, write_job: Any) -> None:
    table = job_table(digits, rounds=1, model={"name": "softmax", "bias": False}, algorithm=fedavg(4, 0.2))
    job, out = write_job(tmp_path / "job.toml", as_in_a_file(table)), tmp_path / "run"
    with holding(out):
        write_json(out / "run.json", {"exit": None})
        (out / "history.csv").write_text("of the other")
        for ranks, words in ((2, ("--resume",)), (None, ())):
            ended = launch(ranks, "run", job, "--out", out, *words)
            assert ended.code == 2 and ended.text.count("in use by another process; ") == 1, ended.text
        assert read_json(out / "run.json") == {"exit": None}
        assert (out / "history.csv").read_text() == "of the other"
    (out / "run.json").unlink()
    ended = launch(None, "run", job, "--out", out, "--resume")
    assert ended.code == 0 and not (out / LOCK).exists(), ended.text
