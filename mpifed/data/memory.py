"""How much memory there is."""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path


def room() -> int:
    """Bytes of memory that this process may have: the least of the machine's, its limits and those of its job."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        limits.append(limit)
    with suppress(OSError, IndexError):  # no control groups of version 2
        group = Path("/sys/fs/cgroup", Path("/proc/self/cgroup").read_text().split("0::/")[1].split("\n")[0])
        while group != Path("/sys/fs"):
            if (file := group / "memory.max").exists() and (text := file.read_text().strip()) != "max":
                limits.append(int(text))
            group = group.parent
    megabytes = int(os.environ.get("SLURM_MEM_PER_NODE") or 0)  # 0: all
    return min(limits + [megabytes * 2**20] * (megabytes > 0))
