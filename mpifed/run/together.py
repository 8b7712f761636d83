"""What every rank does by itself, and all must hear of when it fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mpifed.comm.transport import Transport

Result = TypeVar("Result")


def together(transport: Transport, work: Callable[[], Result]) -> Result:
    """The result of `work` on this rank, unless it failed on any: then the same error on all. Collective."""
    error: Exception | SystemExit | None = None
    try:
        result = work()
    except (Exception, SystemExit) as failed:  # whatever it is, all ranks must hear of it
        error = failed
    transport.agree(error)
    return result
