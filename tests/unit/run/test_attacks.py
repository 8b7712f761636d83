"""Own classes that end, fork and replace what they should not; pipes and devices where a file is expected."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mpifed.core.errors import BudgetSpent, DataError, Interrupted, MpifedError, NotCertified, UsageError
from mpifed.core.io_errors import explaining
from mpifed.files.history import read_history
from mpifed.files.json_file import read_json
from mpifed.job.loading import read_table
from mpifed.run.api import stop_on_signals
from mpifed.run.launch import guarded
from mpifed.testing import Alone


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Leaving(Exception):
    def __str__(self) -> str:
        os._exit(0)


class Zero(MpifedError):
    exit_code = 0


def ended(work: Any) -> tuple[int, str]:
    """The exit code of a process that calls `work` as a rank alone does, and what it says on its standard error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        try:
            guarded(Alone(), None, work)
        except SystemExit as end:
            os._exit(int(end.code or 0))
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def fail(error: BaseException) -> Any:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Leaving(), "the program was left, by os._exit(0)"), (SystemExit(Untold()), "unexpected error SystemExit"),
        (Zero("nothing"), "mpifed: error: nothing"), (ValueError("\udc80"), "ValueError: \\udc80"),
    ],
)  # fmt: skip
def test_an_error_that_cannot_be_told_is_none_less(error: BaseException, words: str) -> None:
    code, said = ended(fail(error))
    assert code == 1
    assert said.count("mpifed: ") == 1 and words in said


def test_a_text_that_is_no_utf_8_is_kept_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        guarded(_Rank(), tmp_path, fail(ValueError("\udc80")))
    assert "\\udc80" in (tmp_path / "failure.txt").read_text(encoding="utf-8")


class _Rank(Alone):
    size = 2

    def abort(self, code: int) -> Any:
        raise SystemExit(code)


@pytest.mark.parametrize("stream", [None, object()])
def test_an_error_is_told_though_the_standard_error_was_replaced(stream: Any) -> None:
    def work() -> None:
        sys.stderr = sys.stdout = stream
        raise DataError("broken shard")

    assert ended(work) == (3, "mpifed: error: broken shard\n")


def test_an_error_is_told_though_the_standard_error_was_closed() -> None:
    def work() -> None:
        sys.stderr.close()
        raise DataError("broken shard")

    assert ended(work) == (3, "mpifed: error: broken shard\n")


@pytest.mark.parametrize("kind", [Interrupted, BudgetSpent, NotCertified])
def test_what_a_class_raises_is_not_agreed_on(kind: type[MpifedError]) -> None:
    assert not kind("by one rank alone").agreed


@pytest.mark.parametrize(("error", "code"), [(ValueError("x"), 1), (SystemExit(5), 5), (SystemExit(), 0)])
def test_a_forked_process_ends_for_itself(error: BaseException, code: int, tmp_path: Path) -> None:
    def work() -> int:
        child = os.fork()
        if child == 0:
            raise error
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert guarded(Alone(), tmp_path, work) == code
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_ends_by_the_signal_that_ends_pools() -> None:
    with stop_on_signals() as request:
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        time.sleep(0.1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert not request.asked


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_neither_pipe_nor_device_is_read_for_ever(kind: str, tmp_path: Path, launch: Any) -> None:
    path = tmp_path / "job.toml"
    for name in ("job.toml", "run.json", "history.csv"):
        os.mkfifo(tmp_path / name) if kind == "pipe" else (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="a pipe, a device or a folder"):
        read_table(path)
    with pytest.raises(DataError, match="a pipe, a device or a folder"):
        read_json(tmp_path / "run.json")
    with pytest.raises(DataError, match="a pipe, a device or a folder"):
        read_history(tmp_path)
    for command, code in (("show", 3), ("status", 0)):  # status shows what can be known
        ended = launch(0, command, tmp_path)
        assert ended.code == code and ended.err.count("mpifed: error") == (code > 0)


def test_a_figure_for_which_there_is_no_room(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from mpifed.plots.style import save

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(DataError, match=r"p\.png: File too large"), explaining():
            save(Figure(), tmp_path / "p.png")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not any(tmp_path.iterdir())
