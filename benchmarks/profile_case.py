"""Where a round's time goes, by kind and rank: a case of the benchmark under cProfile.

    python benchmarks/profile_case.py 2 [--variant exact] [--ranks 2] [--rounds 60]

Every second round of one run is profiled on each rank (`profiled.py`); the kinds stand in `kinds.py`. Times are those
with the profiler, which is dearer for calls of Python than for products: the last lines say how much.
"""

from __future__ import annotations

import argparse
import json
import pstats
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench import BY_HAND, data_of, job_of, launched
from cases import CASES, NUMBERS
from kinds import GLUE, KINDS, Own, by_kind, largest, merged
from prepared import HERE
from profiled import WARM_UP
from rich import box
from rich.console import Console
from rich.table import Table


class RankProfile(NamedTuple):
    """What one rank has written."""

    clients: Own  # seconds of each function in all profiled rounds
    server: Own
    profiled_s: list[float]  # of each round
    plain_s: list[float]

    @property
    def milliseconds(self) -> dict[str, float]:
        """By kind, of a profiled round on average; what no function has of a round's time is glue."""
        seconds = by_kind(self.clients, self.server)
        seconds[GLUE] += max(sum(self.profiled_s) - sum(seconds.values()), 0.0)
        return {kind: 1e3 * each / len(self.profiled_s) for kind, each in seconds.items()}


def own_times(path: Path) -> Own:
    """Seconds of each function, without what it calls; empty where the profiler never ran."""
    if path.stat().st_size <= 2:  # an empty table, which pstats refuses
        return {}
    entries = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    return {function: entry[2] for function, entry in entries.items()}


def read_rank(folder: Path, rank: int) -> RankProfile:
    rounds = json.loads((folder / f"rounds-{rank}.json").read_text(encoding="utf-8"))
    clients, server = (own_times(folder / f"{part}-{rank}.pstats") for part in ("clients", "server"))
    return RankProfile(clients, server, rounds["profiled_s"], rounds["plain_s"])


def table(ranks: list[RankProfile]) -> Table:
    """Milliseconds of a profiled round by kind, a column for each rank."""
    shown = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    shown.add_column("ms a round", no_wrap=True)
    for rank in range(len(ranks)):
        shown.add_column(f"rank {rank}", justify="right", no_wrap=True)
    shown.add_column("most of it")
    columns = [rank.milliseconds for rank in ranks]
    clients, server = merged(rank.clients for rank in ranks), merged(rank.server for rank in ranks)
    for kind in KINDS:
        times = (f"{column[kind]:.2f}" for column in columns)
        shown.add_row(kind, *times, ", ".join(largest(kind, clients, server)))
    shown.add_row("all", *(f"{sum(column.values()):.2f}" for column in columns), "")
    return shown


def overhead(ranks: list[RankProfile]) -> str:
    """The profiler's cost, from rounds in turn of one run, at the median over rounds; of the slowest rank."""
    profiled, plain = (max(median(times) for times in several) for several in (
        [rank.profiled_s for rank in ranks], [rank.plain_s for rank in ranks],
    ))  # fmt: skip
    return (
        f"the median round with the profiler {1e3 * profiled:.2f} ms, without {1e3 * plain:.2f} ms: "
        f"{profiled / plain:.2f} times as long ({len(ranks[0].profiled_s)} rounds each, in turn)"
    )


def profiled_variant(case: str, variant: str | None) -> str:
    """The variant to profile, `exact` or the first that is a run of mpifed; ValueError where there is none such."""
    runs = [each for each in CASES[case].variants if each in NUMBERS]
    if variant is None:
        return "exact" if "exact" in runs else runs[0]
    if variant not in runs:
        why = "is no run of mpifed" if variant in {*BY_HAND, "rows", "streams"} else "is not known"
        raise ValueError(f"--variant {variant}: {why}; case {case} has {', '.join(runs)}")
    return variant


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--variant")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, help="half of them profiled; default: those of the benchmark")
    given = parser.parse_args()
    rounds = CASES[given.case].rounds + WARM_UP if given.rounds is None else given.rounds
    if rounds < WARM_UP + 2 or given.ranks < 1:
        parser.error(f"at least 1 rank and {WARM_UP + 2} rounds, {WARM_UP} to warm up, came {given.ranks} and {rounds}")
    try:
        variant = profiled_variant(given.case, given.variant)
    except ValueError as error:
        parser.error(str(error))
    job = job_of(given.case, rounds, data_of(given.case, variant), variant)
    with tempfile.TemporaryDirectory() as temporary:
        program = str(HERE / "profiled.py"), temporary
        launched(given.ranks, *program, "run", *job, "--out", str(Path(temporary, "run")), "--progress", "none")
        ranks = [read_rank(Path(temporary), rank) for rank in range(given.ranks)]
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 110)
    console.print(f"case {given.case}, {variant}", table(ranks), overhead(ranks), sep="\n")


if __name__ == "__main__":
    main()
