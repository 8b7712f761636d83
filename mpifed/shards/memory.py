"""Checks of memory requirements before memory is allocated."""

from __future__ import annotations

import os
import resource

from mpifed.core.errors import MpifedError, UsageError


def check_memory(size: int, what: str, remedy: str, error: type[MpifedError] = UsageError) -> None:
    """Raise `error` if `size` bytes exceed the memory of the machine, or the limit of this process."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = physical if limit == resource.RLIM_INFINITY else min(physical, limit)
    if size > most:
        raise error(f"{what}: needs {size / 2**30:.4g} GiB of memory, and there are {most / 2**30:.4g} GiB; {remedy}")
