"""Whether an option or a file asks for more memory than there is, said before it is taken."""

from __future__ import annotations

import os
import resource

from mpifed.core.errors import MpifedError, UsageError


def check_memory(size: int, what: str, remedy: str, error: type[MpifedError] = UsageError) -> None:
    """Raise `error` if `size` bytes are more than this machine has, or this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    most = there if limit == resource.RLIM_INFINITY else min(there, limit)
    if size > most:
        raise error(f"{what}: needs {size / 2**30:.4g} GiB of memory, and there are {most / 2**30:.4g} GiB; {remedy}")
