"""Settings of the process's heap for arrays that are allocated and freed every round."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_LARGEST_ON_HEAP = 32 * 2**20  # glibc takes no more
_MOST_FREE = 256 * 2**20


def keep_freed_memory() -> None:
    """Let glibc reuse freed arrays of up to 32 MiB instead of returning their pages to the system.

    By default every array above 128 KiB may be a fresh mapping whose pages fault in one by one: a model of 100,000
    numbers then costs more to allocate than to compute with, and MPICH's own reduction buffers five times as much as
    the reduction. At most 256 MiB of freed memory are kept. Does nothing where the C library is another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)
    mallopt(_M_TRIM_THRESHOLD, _MOST_FREE)
