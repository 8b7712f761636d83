"""The end of every rank, on transports that only write down what they are asked."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from written_files import read_json, write_json

from mpifed.comm.transport import _Failure
from mpifed.core.errors import DataError, Interrupted, MpifedError, NumericalError, UsageError
from mpifed.run import launch
from mpifed.run.agreement import agreed
from mpifed.run.launch import guarded, message
from mpifed.run.outcome import code_of
from mpifed.testing import Alone


class Ended(BaseException):
    """What stands for MPI_Abort."""


class Rank:
    def __init__(self, rank: int, size: int = 3) -> None:
        self.rank, self.size, self.code = rank, size, None

    def abort(self, code: int) -> None:
        self.code = code
        raise Ended


def fail(error: BaseException, agreed: bool = False) -> Any:
    if agreed:
        error.agreed = True

    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MpifedError("x"), 1), (UsageError("x"), 2), (DataError("x"), 3), (NumericalError("x"), 4),
        (Interrupted("x"), 75), (ValueError("x"), 1), (MemoryError("x"), 1), (KeyboardInterrupt(), 130),
    ],
)  # fmt: skip
def test_exit_codes(error: BaseException, code: int) -> None:
    assert code_of(error) == code


def test_a_result_passes() -> None:
    assert guarded(Rank(1), None, lambda: 5) == 5


@pytest.mark.parametrize("rank", [0, 1])
def test_what_all_agreed_on_ends_in_order_and_is_told_by_rank_0(
    rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "run.json", {"exit": None, "name": "x"})
    transport = Rank(rank)
    with pytest.raises(SystemExit) as caught:
        guarded(transport, tmp_path, fail(DataError("broken shard"), agreed=True))
    assert caught.value.code == 3
    assert transport.code is None
    assert capsys.readouterr().err == ("mpifed: error: broken shard\n" if rank == 0 else "")
    assert read_json(tmp_path / "run.json") == {"exit": 3 if rank == 0 else None, "name": "x"}


@pytest.mark.parametrize("rank", [0, 2])
def test_what_happened_on_one_rank_ends_all(rank: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(tmp_path / "run.json", {"exit": None})
    transport = Rank(rank)
    with pytest.raises(Ended):
        guarded(transport, tmp_path, fail(NumericalError("up.v: client 7 ...")))
    assert transport.code == 4
    assert capsys.readouterr().err == "mpifed: error: up.v: client 7 ...\n"
    assert read_json(tmp_path / "run.json")["exit"] == 4


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_run_json_that_cannot_be_read_stays_as_it_is(text: str, tmp_path: Path) -> None:
    """The error that is told is the first one."""
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(SystemExit) as caught:
        guarded(Rank(0), tmp_path, fail(DataError("damaged"), agreed=True))
    assert caught.value.code == 3
    assert (tmp_path / "run.json").read_text() == text


def test_the_second_rank_to_fail_is_silent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_GRACE_S", 0.1)
    for rank in (1, 2):
        with pytest.raises(Ended):
            guarded(Rank(rank), tmp_path, fail(RuntimeError("both")))
    said = capsys.readouterr().err
    assert said.count("RuntimeError: both") == 1
    assert "on rank 1 of 3" in said


def test_alone_there_is_nobody_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transport = Rank(0, size=1)
    with pytest.raises(SystemExit) as caught:
        guarded(transport, tmp_path, fail(ZeroDivisionError("by zero")))
    assert caught.value.code == 1
    assert transport.code is None
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "rank" not in said


def test_messages() -> None:
    assert message(Interrupted("after round 3"), Rank(0)) == "mpifed: after round 3"
    assert message(UsageError("no"), Rank(0)) == "mpifed: error: no"
    assert message(KeyboardInterrupt(), Rank(0)) == "mpifed: stopped"
    assert message(DataError("a\x1b[2Jb"), Rank(0)) == "mpifed: error: a\\x1b[2Jb"


def test_afterwards_a_process_ends_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    before = os._exit, threading.excepthook
    guarded(Rank(1), None, lambda: 5)
    with pytest.raises(SystemExit):
        guarded(Rank(0, size=1), None, fail(DataError("x")))
    with pytest.raises(Ended):
        guarded(Rank(0), None, fail(DataError("x")))
    assert (os._exit, threading.excepthook) == before


def test_a_thread_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # pytest's own warns
    transport = Rank(0)

    def work() -> int:
        thread = threading.Thread(target=sys.exit)
        thread.start()
        thread.join()
        return 5

    assert guarded(transport, None, work) == 5
    assert transport.code is None


def test_a_thread_of_a_process_of_its_own_ends_no_rank() -> None:
    transport = Rank(0)

    def work() -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        thread = threading.Thread(target=fail(ValueError("in a thread")))
        thread.start()
        thread.join()
        os._exit(7 if transport.code is None else 8)

    assert guarded(transport, None, work) == 7


@pytest.mark.parametrize("call", ["write_json", "ended"])
def test_a_folder_that_cannot_be_looked_at_hides_no_error(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "run.json", {"exit": None})

    def fails(*given: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(launch, call, fails)
    transport = Rank(0)
    with pytest.raises(SystemExit) as caught:
        guarded(transport, tmp_path, fail(NumericalError("up.v"), agreed=True))
    assert (caught.value.code, transport.code) == (4, None)
    assert capsys.readouterr().err == "mpifed: error: up.v\n"


def test_an_end_that_fails_itself_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_print", lambda text: fail(KeyboardInterrupt())())
    transport = Rank(0)
    with pytest.raises(Ended):
        guarded(transport, None, fail(NumericalError("up.v")))
    assert transport.code == 4


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device here that is always full")
def test_where_no_message_can_be_written_the_exit_code_says_it(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"exit": None})
    program = """if True:
        import sys
        from pathlib import Path
        from mpifed.comm.transport import Alone
        from mpifed.core.errors import NumericalError
        from mpifed.run.launch import guarded

        def work():
            print("a line that waits")
            raise NumericalError("up.v")

        guarded(Alone(), Path(sys.argv[1]), work)
    """
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], stdout=full, stderr=full,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert ended.returncode == 4
    assert read_json(tmp_path / "run.json")["exit"] == 4


def test_errors_of_the_system_are_explained_wherever_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those on which ranks agree, one process among them; and those of a script in one process."""
    assert _Failure.of(MemoryError("29 GiB"), 1, 3).kind is MpifedError
    with pytest.raises(MpifedError, match="not enough memory: 29 GiB"):
        Alone().agree(MemoryError("29 GiB"))

    def fails(*given: object, **named: object) -> None:
        raise MemoryError("29 GiB")

    monkeypatch.setattr(launch, "run", fails)
    monkeypatch.setattr(launch, "_job", lambda job: job)
    with pytest.raises(MpifedError, match="not enough memory: 29 GiB"):
        launch.launch(Named(), tmp_path)  # type: ignore[arg-type]


def test_all_ranks_hear_that_one_would_leave() -> None:
    class Told(Rank):
        def agree(self, error: BaseException | None = None) -> None:
            assert isinstance(error, SystemExit)
            raise Ended

    with pytest.raises(Ended), agreed(Told(1)):  # type: ignore[arg-type]
        sys.exit(0)


class Named:
    """As much of a job as counts here."""

    name, released_only = "x", False


def test_one_process_speaks_though_it_failed_there_before(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / launch.FAILURE).write_text("of an earlier part of the run\n")
    with pytest.raises(SystemExit):
        guarded(Alone(), tmp_path, fail(NumericalError("up.v")))
    assert capfd.readouterr().err == "mpifed: error: up.v\n"
