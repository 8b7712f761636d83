"""Work that every rank does by itself, and whose failure must be known on all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpifed.comm.transport import Transport


@contextmanager
def agreed(transport: Transport) -> Iterator[None]:
    """A block of work without collective calls: if it fails on any rank, all raise the same error. Collective."""
    error: Exception | SystemExit | None = None
    try:
        yield
    except (Exception, SystemExit) as failed:  # whatever it is, all ranks must raise it
        error = failed
    transport.agree(error)
