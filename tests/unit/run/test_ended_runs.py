"""The end of a process, whatever own classes do; pipes where a file is expected; data that are not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from written_files import write_json

from mpifed.core.errors import DataError, MpifedError, UsageError
from mpifed.files.history import read_history
from mpifed.files.json_file import read_json
from mpifed.job.reading import read_table
from mpifed.run.launch import guarded
from mpifed.testing import Solo


class Untold(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


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
            guarded(Solo(), None, work)
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


def test_an_error_that_cannot_be_told_is_none_less() -> None:
    for error, words in (
        (SystemExit(Untold()), "unexpected error SystemExit"), (Zero("nothing"), "mpifed: error: nothing"),
        (ValueError("\udc80"), "ValueError: \\udc80"),
    ):  # fmt: skip
        code, said = ended(fail(error))
        assert code == 1 and said.count("mpifed: ") == 1 and words in said
    for stream in (None, object()):  # of a standard error that was replaced

        def work(stream: Any = stream) -> None:
            sys.stderr = sys.stdout = stream
            raise DataError("broken shard")

        assert ended(work) == (3, "mpifed: error: broken shard\n")


@pytest.mark.parametrize(("error", "code"), [(ValueError("x"), 1), (SystemExit(5), 5), (SystemExit(), 0)])
def test_a_forked_process_ends_for_itself(error: BaseException, code: int, tmp_path: Path) -> None:
    def work() -> int:
        child = os.fork()
        if child == 0:
            raise error
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert guarded(Solo(), tmp_path, work) == code
    assert list(tmp_path.iterdir()) == []


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
    for folder, code in ((tmp_path, 3), (tmp_path.parent, 0)):  # of several, what can be known
        ended = launch(0, "show", folder)
        assert ended.code == code and ended.err.count("mpifed: error") == (code > 0)


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


JOB = """# A job.
# Make the shards:  mpifed data mnist --split rows \\
#   --clients 10 --out data/mnist-rows-10
name = "t"
rounds = 1
[data]
path = "data/mnist-rows-10"
[model]
name = "softmax"
[algorithm]
name = "ssca"
batch_size = 10
rho = [0.9, 0.6]
gamma = [0.9, 0.7]
"""


@pytest.mark.parametrize("command", ["run", "check"])
def test_the_error_has_the_command(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(JOB)
    ended = launch(None, command, "job.toml")
    assert ended.code == 3
    assert "data/mnist-rows-10: no such folder; as job.toml says" in ended.text
    assert "`mpifed data mnist --split rows --clients 10 --out data/mnist-rows-10`" in ended.text
    ended = launch(None, command, "job.toml", "--set", "data.path=elsewhere")
    assert ended.code == 3 and "`mpifed data SOURCE ... --out elsewhere`" in ended.text
    assert not Path("runs").exists()
