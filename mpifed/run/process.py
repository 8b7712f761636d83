"""The identity of a run's process, by which others on its machine can check whether it is alive."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from mpifed.core.tables import ReadOnlyTable, Table


def this_process() -> Table:
    """Host, PID and start time of this process; the start time distinguishes it from a later one with its PID."""
    return {"host": platform.node(), "pid": os.getpid(), "started": _started(os.getpid())}


def is_alive(process: ReadOnlyTable) -> bool | None:
    """Whether a process of this machine is still running; None where it ran elsewhere, or that is unknown."""
    if process.get("host") != platform.node() or process.get("started") is None:
        return None
    started: int = process["started"]
    return _started(int(process["pid"])) == started


def _started(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])  # a zombie has ended
