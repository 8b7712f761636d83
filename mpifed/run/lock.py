"""Locks that let a single run at a time write to a folder; reading needs no lock.

The file `lock` names the process that holds it, and is locked by flock where the file system supports that, so that
a killed run's folder is free at once. Where there is no flock (Lustre mounted without it, some NFS) a file
`lock-heartbeat` is touched every 20 seconds, and is valid until its process has ended, or it has not been touched for
3 minutes. Lustre's `localflock` locks only among the processes of a node.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import open_regular
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.run.folder import HEARTBEAT, LOCK, check_names

BEAT_S, STALE_S = 20.0, 180.0  # NFS may show a touch a minute late
ENDING_S = 2.0  # a run whose launcher has returned may still be ending
_NO_FLOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a run's folder, and lock it; called on rank 0 alone.

    Raises
    ------
    UsageError
        when another process has locked it, or a name that a run writes there is a link.
    DataError
        when the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_names(folder)
        file = _flocked(folder / LOCK)
        beat = _begun(folder / HEARTBEAT) if file is None else None
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error}); choose another --out") from error
    try:
        yield
    finally:
        path = folder / (HEARTBEAT if file is None else LOCK)
        if beat is not None:
            beat.set()
        # otherwise it was taken over while this process was suspended
        if _read(path).items() >= this_process().items():
            path.unlink(missing_ok=True)
        if file is not None:
            file.close()


def _flocked(path: Path) -> IO[str] | None:
    """The file, with a lock that ends with this process; None where the file system has no flock."""
    patience = time.monotonic() + ENDING_S
    while True:
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(open(path, "a+", encoding="utf-8"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > patience:
                    raise _in_use(path, "") from error
                time.sleep(0.05)
                continue
            except OSError as error:
                if error.errno not in _NO_FLOCK:
                    raise
                path.unlink(missing_ok=True)
                return None
            with contextlib.suppress(FileNotFoundError):
                if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    continue  # its holder has removed it in the meantime
                file.truncate(0)
                file.write(_holder())
                file.flush()
                opened.pop_all()  # it stays open until the run ends
                return file


def _begun(path: Path) -> threading.Event:
    """Start the heartbeat; setting the event ends it."""
    try:
        _make(path)
    except FileExistsError:
        _take_away(path)
        try:
            _make(path)
        except FileExistsError as error:  # another process was faster
            raise _in_use(path, "") from error
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            with contextlib.suppress(OSError):
                os.utime(path)

    threading.Thread(target=beat, daemon=True).start()
    return ended


def _make(path: Path) -> None:
    with open(path, "x", encoding="utf-8") as file:
        file.write(_holder())


def _take_away(path: Path) -> None:
    """Remove a heartbeat that has stopped; UsageError where it goes on."""
    aside = path.with_name(f"{path.name}.{os.uname().nodename}-{os.getpid()}")
    aside.unlink(missing_ok=True)
    aside.touch(exist_ok=False)  # its time is that of the file system's clock, like the heartbeat's
    try:
        before = path.stat()
        silent_s = aside.stat().st_mtime - before.st_mtime
        if silent_s < STALE_S and is_alive(_read(path)) is not False:
            raise _in_use(path, f"; where that was killed, it is free in {STALE_S - silent_s:.0f} s")
        os.replace(path, aside)
        if not os.path.samestat(before, aside.stat()):  # of another process, which removed the old one before
            os.replace(aside, path)
            raise _in_use(path, "")
    except FileNotFoundError:
        pass  # it has just ended
    finally:
        aside.unlink(missing_ok=True)


def _holder() -> str:
    since = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return json.dumps({**this_process(), "since": since}) + "\n"


def _read(path: Path) -> Table:
    try:
        with open_regular(path) as file:
            holder = json.load(file)
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _in_use(path: Path, more: str) -> UsageError:
    holder = _read(path)
    who = "another process"
    if "since" in holder:
        who = f"process {holder['pid']} on {holder['host']} since {holder['since']}"
    return UsageError(f"{path.parent}: in use by {who}{more}; let it end, or choose another --out")


# --- the identity of a process, by which others on its machine can check whether it is alive ---


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
