"""The time and memory that a job needs, from the forecast of `mpifed check JOB --ranks P`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from mpifed.batch.durations import is_number, limit_of
from mpifed.core.errors import UsageError
from mpifed.results.text import human_bytes, human_seconds

_MEMORY_FACTOR, _MEMORY_MORE_MIB = 1.25, 128  # messages, files and MPI's own memory, which the forecast leaves out
_MEMORY_STEP_MIB = 32
_TIME_FACTOR, _TIME_MORE_S = 2.0, 600.0  # safety margin if no --time is given
_START_S = 60.0  # that each start takes
_LEAD_S = 120  # least time between the signal and the time limit
_UNITS_MIB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2}


class Needs(NamedTuple):
    """The needs of one Slurm job; a sweep without an array is one job."""

    seconds: float  # all remaining rounds and evaluations
    round_s: float  # the longest round: with an evaluation and certificates
    rank_bytes: float  # memory of the largest rank
    hosts: int  # ranks that host clients or are the server

    def memory_mib(self) -> int:
        """Memory per rank to request."""
        needed = self.rank_bytes * _MEMORY_FACTOR / 2**20 + _MEMORY_MORE_MIB
        return _MEMORY_STEP_MIB * math.ceil(needed / _MEMORY_STEP_MIB)

    def time_s(self) -> float:
        """Time limit to request."""
        return 60 * math.ceil((self.seconds * _TIME_FACTOR + _TIME_MORE_S) / 60)

    def lead_s(self) -> int:
        """How long before the time limit the signal must come: two rounds and the checkpoint."""
        return max(_LEAD_S, 60 * math.ceil((2 * self.round_s + 60) / 60))


def needs(job: Path, changes: tuple[str, ...], ranks: int, whole: float) -> Needs:
    """The needs of a job on `ranks` ranks, from a rehearsal that takes seconds.

    `whole`: number of runs in one Slurm job; a half-finished run counts as a half. The first point of a sweep stands
    for all. Raises UsageError or DataError as `mpifed run` would before its first round.
    """
    from mpifed.forecast.job import forecast

    expected = forecast(job, changes, ranks)
    seconds = expected["seconds"]
    hosts = sum(place["clients"] > 0 for place in expected["placement"])
    serves = expected["placement"][0]["clients"] == 0
    return Needs(
        seconds["run"] * whole,
        seconds["round"] + seconds["evaluation"] + seconds["certificate"],
        expected["memory_bytes"]["largest_rank"],
        hosts + serves,
    )


def notes(need: Needs, time_s: float, lead_s: int, ranks: int, job: str, whose: str = "") -> list[str]:
    """The forecast and its warnings, as lines of text; `whose` is put before the time where it is not the job's."""
    lines = [
        f"forecast  {whose}{human_seconds(need.seconds)} of training and evaluation, {human_bytes(need.rank_bytes)} "
        "on the largest rank; rehearsed on this machine"
    ]
    usable = time_s - lead_s - _START_S
    times = math.ceil(need.seconds / max(usable, _START_S)) - 1
    if times > 0:
        lines.append(
            f"warning   --time {limit_of(time_s)} is less than the forecast: the job will checkpoint, be requeued and "
            f"resume about {times} time{'s' * (times > 1)}"
        )
    if ranks > need.hosts:
        lines.append(
            f"warning   {ranks} ranks, of which {ranks - need.hosts} would have nothing to do: {job} has work for "
            f"{need.hosts}, one for each block of clients; use fewer --nodes or --ntasks-per-node, or a smaller "
            "[data] block"
        )
    return lines


def check_time(time_s: float, lead_s: int, given: str | None = None) -> None:
    """Raise UsageError if the signal would come before the run has made progress; `given` is the time as typed."""
    least_s = lead_s + 2 * _START_S
    if time_s < least_s:
        raise UsageError(
            f"--time {given or limit_of(time_s)}{_read_as(given, time_s)}: the signal to checkpoint comes {lead_s} s "
            f"before the time limit, which leaves too little; give --time {limit_of(least_s)} or more"
        )


def _read_as(given: str | None, time_s: float) -> str:
    """How a time without hours or days is read, which may not be what was meant."""
    parts = (given or "").count(":")
    if given is None or parts > 1 or "-" in given:
        return ""
    return f" is {time_s:.0f} seconds (minutes:seconds)" if parts else f" is {given} minute(s)"


def mib_of(text: str, option: str) -> int:
    """'4000', '4000M', '4G' -> MiB, as sbatch reads it."""
    number, unit = text.rstrip("KMGTkmgt"), text[len(text.rstrip("KMGTkmgt")) :].upper()
    if not is_number(number) or unit not in _UNITS_MIB:
        raise UsageError(f"--{option}={text}: expected a number with K, M, G or T, such as --{option}=4G")
    return math.ceil(int(number) * _UNITS_MIB[unit])
