"""Functions that every rank calls by itself, and whose failure must be known on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mpifed.comm.transport import Transport

Result = TypeVar("Result")


def together(transport: Transport, function: Callable[[], Result]) -> Result:
    """The result of `function` on this rank; if it fails on any rank, the same error on all. Collective."""
    error: Exception | SystemExit | None = None
    try:
        result = function()
    except (Exception, SystemExit) as failed:  # whatever it is, all ranks must raise it
        error = failed
    transport.agree(error)
    return result
