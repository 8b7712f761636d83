"""Limits of this process for a while."""

from __future__ import annotations

import resource
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def soft_limit(kind: int, value: int) -> Iterator[None]:
    """The system refuses what is beyond it, by one of `resource.RLIMIT_...`."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (value, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@contextmanager
def little_memory() -> Iterator[None]:
    """What is done takes little; the packer of xz takes 100e6 bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()
