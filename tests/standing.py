"""Ranks that call one command after the other: what is to be said of `mpifed`, or run, without starting processes.

`standing.py FOLDER RANKS`: rank r reads a line of JSON for each command from FOLDER/r, until there are none. It writes
what the command says to FOLDER/<number>-<r>.out and .err, and then its exit code to .code. Without ranks (0), each
command has a process of its own, forked from one that has imported everything: it ends as a process does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from launching import environment, mpiexec

import mpifed.run.command  # noqa: F401 - for those that are forked
from mpifed.cli import main
from mpifed.comm.mpi import connect

OURS = (str(Path(__file__).parents[1]), sys.prefix)  # which may be in the folder for temporary files


class World:
    """So many ranks, started at the first command and again after one that has ended them; or 0, see above."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.commands = ranks, 0
        self.process: subprocess.Popen[bytes] | None = None

    def call(
        self, command: Sequence[str], limit_s: float, cwd: Path | None, env: dict[str, str]
    ) -> tuple[int, str, str] | None:
        """(exit code, standard output, standard error) of all ranks together; None if it takes longer.

        Parameters
        ----------
        command : what is said to Python: "-m mpifed ...", or a script of the tests, which leaves all as it was, and its
            arguments; without ranks any script, and "-c ..."
        env : variables of this command alone
        """
        if self.process is None:
            self._start()
        assert self.process is not None
        self.commands += 1
        for pipe in self.pipes:
            os.write(pipe, (json.dumps([self.commands, str(cwd or Path.cwd()), env, *command]) + "\n").encode())
        ends = [self.folder / f"{self.commands}-{rank}.code" for rank in range(len(self.pipes))]
        until = time.monotonic() + limit_s
        while not (there := all(path.exists() for path in ends)) and self.process.poll() is None:
            if time.monotonic() > until:
                self.end()
                return None
            time.sleep(0.005)
        codes = {int(path.read_text()) for path in ends} if there else {self.process.returncode}
        assert len(codes) == 1, codes
        out, err = ("".join(self._said(f"{self.commands}-*.{kind}", f"all.{kind}")) for kind in ("out", "err"))
        if not there:
            self.end()
        return codes.pop(), out, err

    def _said(self, *patterns: str) -> list[str]:
        return [path.read_text() for pattern in patterns for path in sorted(self.folder.glob(pattern))]

    def _start(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mpifed-world-"))
        pipes = [self.folder / str(rank) for rank in range(self.ranks or 1)]
        for pipe in pipes:
            os.mkfifo(pipe)
        self.pipes = [os.open(pipe, os.O_RDWR) for pipe in pipes]
        command = [sys.executable, __file__, str(self.folder), str(self.ranks)]
        if self.ranks:
            command = [mpiexec(), "-n", str(self.ranks), *command]
        with open(self.folder / "all.out", "wb") as out, open(self.folder / "all.err", "wb") as err:
            self.process = subprocess.Popen(
                command, env=environment({}), stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
            )

    def end(self) -> None:
        """End the ranks, which find no further commands."""
        if self.process is None:
            return
        for pipe in self.pipes:
            os.close(pipe)
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.process = None


def called(command: Sequence[str], name: Path) -> int:
    """The exit code of a command of `mpifed`, or of a script."""
    with (
        open(f"{name}.out", "w", buffering=1, encoding="utf-8") as out,
        open(f"{name}.err", "w", buffering=1, encoding="utf-8") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            if command[0] == "-m":
                main(list(command[2:]))
            else:
                sys.argv = list(command)
                runpy.run_path(command[0], run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def forked(command: Sequence[str], name: Path) -> int:
    """The exit code of a command in a process of its own."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for kind, number in (("out", 1), ("err", 2)):
        os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
    tempfile.tempdir = None  # perhaps there is another $TMPDIR
    sys.path += os.environ["PYTHONPATH"].split(os.pathsep)  # and another of these
    way, *arguments = command
    if way == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    elif way == "-c":
        sys.argv = [way, *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), vars(sys.modules["__main__"]) | {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = [way, *arguments], str(Path(way).absolute().parent)
        runpy.run_path(way, run_name="__main__")
    sys.exit()


def answer(folder: Path, rank: int, call: Callable[[Sequence[str], Path], int]) -> None:
    """Call all commands that come."""
    with open(folder / str(rank), encoding="utf-8") as lines:
        for line in lines:
            number, cwd, env, *command = json.loads(line)
            before, name, environ = set(sys.modules), folder / f"{number}-{rank}", dict(os.environ)
            os.chdir(cwd)
            os.environ.update(env)
            sys.path.insert(0, cwd)
            for own in Path(cwd).glob("*.py"):  # not one of the tests' own modules of that name
                sys.modules.pop(own.stem, None)
            code = call(command, name)
            sys.path.remove(cwd)
            os.environ.clear()
            os.environ.update(environ)
            for module in set(sys.modules) - before:  # of a test's own folder: the next has another of this name
                file = str(getattr(sys.modules[module], "__file__", ""))
                if file.startswith(tempfile.gettempdir()) and not file.startswith(OURS):
                    del sys.modules[module]
            Path(f"{name}.part").write_text(str(code), encoding="utf-8")
            os.replace(f"{name}.part", f"{name}.code")


def patient() -> None:
    """Ranks that wait look for messages every 0.3 ms, not every 0.05: a tenth of a core less for each."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(29, ctypes.c_ulong(300_000), 0, 0, 0)  # PR_SET_TIMERSLACK


if __name__ == "__main__":
    if int(sys.argv[2]):
        patient()
        answer(Path(sys.argv[1]), connect().rank, called)
    else:
        answer(Path(sys.argv[1]), 0, forked)
