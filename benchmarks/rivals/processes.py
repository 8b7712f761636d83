"""Processor time and memory of all processes that one launch started, found by a mark in their environment; Linux."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

MARK = "RIVALS_RUN"  # environment variable, inherited by every process of a run
TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


def family(mark: str | None = None) -> list[int]:
    """The processes whose environment has the mark: that of this process where none is given."""
    sought = f"{MARK}={mark or os.environ.get(MARK, '')}".encode()
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                if sought in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
    return found


def cpu_s(processes: list[int]) -> float:
    """Seconds of processor time of the processes so far, and of their children who have ended."""
    ticks = 0
    for process in processes:
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # user, system, and both of ended children
    return ticks / TICKS


class Memory:
    """The most memory that the processes of a run have had resident, as far as `look` saw them."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.total = 0  # bytes, of all processes at one moment; pages that they share count in each
        self.largest = 0  # bytes, of one process
        self.processes = 0  # at one moment

    def look(self) -> None:
        """Look at the processes as they are now."""
        total, running = 0, family(self.mark)
        for process in running:
            with suppress(OSError, IndexError):
                status = Path(f"/proc/{process}/status").read_text()
                total += int(status.split("VmRSS:")[1].split()[0]) * 1024
                self.largest = max(self.largest, int(status.split("VmHWM:")[1].split()[0]) * 1024)
        self.total = max(self.total, total)
        self.processes = max(self.processes, len(running))
