"""Processes of this machine, by which others there can see whether they are alive, and their temporary folders."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from pathlib import Path

from mpifed.core.errors import UsageError
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


def scratch() -> Path:
    """The temporary folder of this process; those of processes of the user's that have been killed here are removed.

    UsageError where somebody else has taken its name.
    """
    above = Path(tempfile.gettempdir(), f"mpifed-{os.getuid()}")
    above.mkdir(mode=0o700, exist_ok=True)
    if above.is_symlink() or above.stat().st_uid != os.getuid():
        raise UsageError(f"{above}: is a link, or another user's; set TMPDIR to a folder of your own")
    for folder in above.iterdir():
        host, _, numbers = folder.name.partition("@")
        pid, _, started = numbers.partition("-")
        if started.isdecimal() and is_alive({"host": host, "pid": pid, "started": int(started)}) is False:
            shutil.rmtree(folder, ignore_errors=True)
    own = above / "{host}@{pid}-{started}".format(**this_process())
    own.mkdir(mode=0o700, exist_ok=True)
    return own
