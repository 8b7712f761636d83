"""Ranks that call one command after the other: what is to be said of `mpifed` without starting processes each time.

`standing.py FOLDER`: rank r reads a line of JSON for each command from FOLDER/r, until there are none. It writes what
the command says to FOLDER/<number>-<r>.out and .err, and then its exit code to .code.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from launching import environment, mpiexec

from mpifed.cli import main
from mpifed.comm.transport import connect

OURS = (str(Path(__file__).parents[1]), sys.prefix)  # which may be in the folder for temporary files


class World:
    """So many ranks, started at the first command and again after one that has ended them."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.commands = ranks, 0
        self.process: subprocess.Popen[bytes] | None = None

    def call(self, arguments: Sequence[str], limit_s: float) -> tuple[int, str, str] | None:
        """(exit code, standard output, standard error) of all ranks together; None if it takes longer."""
        if self.process is None:
            self._start()
        assert self.process is not None
        self.commands += 1
        for pipe in self.pipes:
            os.write(pipe, (json.dumps([self.commands, *arguments]) + "\n").encode())
        ends = [self.folder / f"{self.commands}-{rank}.code" for rank in range(self.ranks)]
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
        for rank in range(self.ranks):
            os.mkfifo(self.folder / str(rank))
        self.pipes = [os.open(self.folder / str(rank), os.O_RDWR) for rank in range(self.ranks)]
        command = [mpiexec(), "-n", str(self.ranks), sys.executable, __file__, str(self.folder)]
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


def called(arguments: list[str], name: Path) -> int:
    """The exit code of a command."""
    with (
        open(f"{name}.out", "w", buffering=1, encoding="utf-8") as out,
        open(f"{name}.err", "w", buffering=1, encoding="utf-8") as err,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(arguments)
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def answer(folder: Path, rank: int) -> None:
    """Call all commands that come."""
    with open(folder / str(rank), encoding="utf-8") as lines:
        for line in lines:
            number, *arguments = json.loads(line)
            before, name = set(sys.modules), folder / f"{number}-{rank}"
            code = called(arguments, name)
            for module in set(sys.modules) - before:  # of a test's own folder: the next has another of this name
                file = str(getattr(sys.modules[module], "__file__", ""))
                if file.startswith(tempfile.gettempdir()) and not file.startswith(OURS):
                    del sys.modules[module]
            Path(f"{name}.part").write_text(str(code), encoding="utf-8")
            os.replace(f"{name}.part", f"{name}.code")


if __name__ == "__main__":
    answer(Path(sys.argv[1]), connect().rank)
