"""One rank of profile_case.py: `mpifed` with every second round under cProfile.

    mpiexec -n 2 python benchmarks/profiled.py FOLDER run JOB ...

Writes FOLDER/clients-RANK.pstats, the server's part of rank 0 as FOLDER/server-RANK.pstats, and the seconds of the
rounds with and without the profiler as FOLDER/rounds-RANK.json: in turn, so that its cost is a ratio within one run.
"""

from __future__ import annotations

import cProfile
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpifed.run.loop as loop
from mpifed.cli import main
from mpifed.comm.aggregator import Aggregator
from mpifed.core.round import Round

WARM_UP = 4  # rounds that count neither way


class RoundProfiler:
    """The profiles and times of the rounds on this rank."""

    def __init__(self) -> None:
        self.clients, self.server = cProfile.Profile(), cProfile.Profile()
        self.profiles = False  # whether this round is profiled
        self.rank = 0
        self.seconds: dict[bool, list[float]] = {True: [], False: []}

    def play(self, play: Callable[..., Any], *arguments: Any) -> Any:
        """A round; `arguments` are those of `mpifed.core.exchange.play`."""
        now, aggregator = arguments[-2:]
        self.rank = aggregator.transport.rank
        if not isinstance(now, Round) or now.index < WARM_UP:
            return play(*arguments)
        self.profiles = now.index % 2 == 0
        start = time.perf_counter()
        if self.profiles:
            self.clients.enable()
        try:
            return play(*arguments)
        finally:
            self.clients.disable()
            self.seconds[self.profiles].append(time.perf_counter() - start)
            self.profiles = False

    def serve(self, serve: Callable[..., Any], *arguments: Any) -> Any:
        """The server's part of an exchange, in a profile of its own."""
        if not self.profiles or not arguments[0].serves:
            return serve(*arguments)
        self.clients.disable()
        self.server.enable()
        try:
            return serve(*arguments)
        finally:
            self.server.disable()
            self.clients.enable()

    def write(self, folder: Path) -> None:
        self.clients.dump_stats(folder / f"clients-{self.rank}.pstats")
        self.server.dump_stats(folder / f"server-{self.rank}.pstats")
        seconds = {"profiled_s": self.seconds[True], "plain_s": self.seconds[False]}
        (folder / f"rounds-{self.rank}.json").write_text(json.dumps(seconds), encoding="utf-8")


def wrap(profiler: RoundProfiler) -> None:
    """Let the rounds of runs in this process pass through the profiler."""
    play, serve = loop.play, Aggregator.serve
    loop.play = lambda *arguments: profiler.play(play, *arguments)
    Aggregator.serve = lambda *arguments: profiler.serve(serve, *arguments)  # type: ignore[method-assign]


if __name__ == "__main__":
    profiler = RoundProfiler()
    wrap(profiler)
    try:
        main(sys.argv[2:], prog_name="mpifed")
    finally:
        profiler.write(Path(sys.argv[1]))
