"""All ranks are in the same call with the same settings, or all end; so they do where one leaves the program early.

Every collective function that users call begins with `enter`, before data are made and before any message that depends
on a setting. A rank that leaves the program, by an exception, `sys.exit` or its last line, takes part in the same
exchange as its last deed, so the others learn of it in their next call. `os._exit` and signals pass that by.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable

from mpifed.comm.mpi import PROCESS, Communicator, finalize, is_launched, load, world
from mpifed.core.errors import MpifedError, UsageError

_LEFT = "left"
_LONGEST_PAUSE_S = 0.01  # between two looks: ranks that wait leave their cores to the others
_last: list[tuple[int, Callable[[], object]]] = []  # by the process: a forked one has them, too


def watch() -> None:
    """Let the end of this process be seen by the other ranks, where it is one of several.

    Of the commands, run and doctor alone have other ranks; the others start no MPI.
    """
    if is_launched() and (os.path.basename(sys.argv[0]) != "mpifed" or sys.argv[1:2] in (["run"], ["doctor"])):
        os.environ[PROCESS] = str(os.getpid())
    atexit.register(_leave)


def at_last(action: Callable[[], object]) -> None:
    """Call `action` at the end of this process, once all ranks have left."""
    _last.append((os.getpid(), action))


def enter(call: str, facts: str) -> list[str]:
    """The facts of all ranks, where they differ: else an empty list. Collective; ranks that wait for others sleep.

    Parameters
    ----------
    call : the name of the function, for a message
    facts : what this rank calls, with its settings and data

    Raises
    ------
    SystemExit
        on the ranks that have not left, where another has; the first of them says so.
    """
    if (comm := world()) is None:
        return []
    texts = _exchanged(comm, facts)
    if _LEFT not in texts:
        return texts
    left = [rank for rank, text in enumerate(texts) if text == _LEFT]
    first = min(set(range(len(texts))) - set(left))
    if comm.Get_rank() == first:
        who = f"rank {left[0]} has left the program, while rank {first} is in {call}"
        with contextlib.suppress(Exception):  # a full disk, or closed: the exit code says it
            print(f"mpifed: error: {who}; all ranks must make the same calls", file=sys.stderr, flush=True)
    load().Finalize()  # as the one that has left does: no other call comes, whatever becomes of the exception
    raise SystemExit(MpifedError.exit_code)


def _exchanged(comm: Communicator, text: str) -> list[str]:
    """The texts of all ranks, in order, where they differ. Collective."""
    import hashlib  # here: `import mpifed` is quick

    digest = hashlib.sha256(text.encode()).digest()
    digests = bytearray(len(digest) * comm.Get_size())
    request, pause_s = comm.Iallgather(digest, digests), 1e-4
    while not request.Test():
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return [] if digests == digest * comm.Get_size() else comm.allgather(text)


def _leave() -> None:
    """Tell the other ranks that this one has left; wait until all have, or have heard of it."""
    with contextlib.suppress(UsageError):  # launcher and library do not belong together: said where it matters
        if os.environ.get(PROCESS) == str(os.getpid()) and (comm := world()) is not None:
            _exchanged(comm, _LEFT)
            finalize()
    for process, action in _last:
        if process == os.getpid():
            action()
