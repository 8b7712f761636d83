"""What every run of a process would do again, done once: looking for libraries, and forcing files onto the disk."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import threadpoolctl

REAL = {name: getattr(os, name) for name in ("fsync", "fdatasync")}


@functools.lru_cache(1)
def _pools(modules: int, kind: Any = threadpoolctl.ThreadpoolController) -> Any:
    """The libraries with threads that are loaded; those of other modules are found once there are more modules."""
    return kind()


@contextmanager
def quick_disk_and_pools() -> Iterator[None]:
    """Until it is left, nothing is forced onto the disk, since no test cuts the power; of public libraries alone."""
    quick: list[tuple[Any, str, Any]] = [(threadpoolctl, "ThreadpoolController", lambda: _pools(len(sys.modules)))]
    quick += [(os, name, lambda file: None) for name in REAL]
    with ExitStack() as before:  # not pytest's MonkeyPatch: this is for ranks too, which need no pytest
        for owner, name, value in quick:
            before.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
