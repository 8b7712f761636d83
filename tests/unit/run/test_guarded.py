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

from mpifed.core.errors import DataError
from mpifed.run.launch import guarded


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


def test_afterwards_a_process_ends_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    before = os._exit, threading.excepthook
    guarded(Rank(1), None, lambda: 5)
    with pytest.raises(SystemExit):
        guarded(Rank(0, size=1), None, fail(DataError("x")))
    with pytest.raises(Ended):
        guarded(Rank(0), None, fail(DataError("x")))
    assert (os._exit, threading.excepthook) == before


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device here that is always full")
def test_where_no_message_can_be_written_the_exit_code_says_it(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"exit": None})
    program = """if True:
        import sys
        from pathlib import Path
        from mpifed.comm.mpi import Solo
        from mpifed.core.errors import NumericalError
        from mpifed.run.launch import guarded

        def work():
            print("a line that waits")
            raise NumericalError("up.v")

        guarded(Solo(), Path(sys.argv[1]), work)
    """
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)], stdout=full, stderr=full,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
        )  # fmt: skip
    assert ended.returncode == 68
    assert read_json(tmp_path / "run.json")["exit"] == 68
