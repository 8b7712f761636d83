"""Runs that gate.py measures: plays jobs by the mpifed of the folder that it stands in, and observes their rounds.

    valgrind --tool=callgrind ... python benchmarks/played.py JOBS

JOBS is a file of the arguments of `mpifed run`, a list for each job, in JSON. The first is played here, so that all is
imported, and the others each in a copy of this process. What is used of mpifed is public: earlier and later states play
it too.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpifed

# nothing could be slower than itself
assert Path(mpifed.__file__).is_relative_to(Path.cwd()), f"{mpifed.__file__} is not in {Path.cwd()}"


@dataclass
class Counted(mpifed.Observer):
    """Has Callgrind count the instructions from the first round on, and ends the process after the last one."""

    library: str
    """With its client requests."""

    def begin(self, run: Any) -> None:
        self.run, self.requests = run, ctypes.CDLL(self.library)

    def measured(self, row: Mapping[str, float]) -> None:
        if row["round"] == 0:
            self.requests.start()
        elif row["round"] == self.run.rounds:
            self.requests.stop(self.run.name.encode())
            os.kill(os.getpid(), signal.SIGKILL)  # what a run writes at its end takes longer than its rounds


@dataclass
class Turns(mpifed.Observer):
    """Tells the processor time at each evaluation, and goes on when it gets a line: another state has its turn."""

    def measured(self, row: Mapping[str, float]) -> None:
        print("turn", time.process_time(), flush=True)
        sys.stdin.readline()


def play(arguments: list[str]) -> None:
    """`python -m mpifed run` in this process."""
    sys.argv = ["mpifed", "run", *arguments]
    try:
        runpy.run_module("mpifed", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise


if __name__ == "__main__":
    first, *others = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    play(first)
    for arguments in others:
        if (child := os.fork()) == 0:
            play(arguments)
            raise SystemExit("the run ended before its last round was counted")
        if (end := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) != -signal.SIGKILL:
            raise SystemExit(f"mpifed run {' '.join(arguments)}: ended with {end}")
