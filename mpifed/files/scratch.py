"""Processes of this machine, by which others there can see whether they are alive, and their temporary folders."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from pathlib import Path

from mpifed.core.tables import ReadOnlyTable, Table


def this_process() -> Table:
    """Host, PID and start time of this process; the start time distinguishes it from a later one with its PID."""
    return {"host": platform.node(), "pid": os.getpid(), "started": _started(os.getpid())}


def is_alive(process: ReadOnlyTable) -> bool | None:
    """Whether a process of this machine is still running; None where it ran elsewhere, or that is unknown."""
    if process.get("host") != platform.node() or process.get("started") is None:
        return None
    return _started(int(process["pid"])) == int(process["started"])


def _started(pid: int) -> int | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])  # a zombie has ended


def scratch() -> Path:
    """A new temporary folder of this process; those of the user's processes that were killed here are removed."""
    user = f"mpifed-{os.getuid()}-"
    for folder in Path(tempfile.gettempdir()).glob(f"{user}*"):
        named = re.fullmatch(rf"{user}(?P<host>.+)@(?P<pid>[0-9]+)-(?P<started>[0-9]+)-\w+", folder.name)
        if named and is_alive(named.groupdict()) is False:
            shutil.rmtree(folder, ignore_errors=True)  # it follows no link
    return Path(tempfile.mkdtemp(prefix=user + "{host}@{pid}-{started}-".format(**this_process())))
