"""What every run of a process would do again, done once: opening data, finding libraries, versions and the commit."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from threadpoolctl import ThreadpoolController

from mpifed.core.tables import Table
from mpifed.run import api, environment, setup
from mpifed.run.data_cache import DataCache


class SharedData(DataCache):
    """The data of all earlier runs of this process, as long as their files are the same."""

    opened: ClassVar[dict[str, Table]] = {}

    def use_key(self, key: Any) -> None:
        try:
            files = sorted((path.name, path.stat()) for path in Path(key[0].path).iterdir())
        except OSError:  # whatever is there, the run is to say it
            files = []
        stamps = [(name, stat.st_size, stat.st_mtime_ns, stat.st_mode) for name, stat in files]
        alike = files and "cupy" not in sys.modules  # a test may make its own device
        self._values = self.opened.setdefault(repr((key, stamps)), {}) if alike else {}


@functools.lru_cache(1)
def _pools(modules: int) -> ThreadpoolController:
    """The libraries with threads that are loaded; those of other modules are found once there are more modules."""
    return ThreadpoolController()


@contextmanager
def shared_data() -> Iterator[None]:
    """Among single runs, until it is left; and nothing is forced onto the disk, since no test cuts the power."""
    quick: list[tuple[Any, str, Any]] = [(setup, "DataCache", SharedData)]
    quick.append((api, "threadpool_limits", lambda limits: _pools(len(sys.modules)).limit(limits=limits)))
    for name in ("commit", "versions", "blas"):
        quick.append((environment, name, functools.cache(getattr(environment, name))))
    quick += [(os, name, lambda file: None) for name in ("fsync", "fdatasync")]
    with ExitStack() as before:  # not pytest's MonkeyPatch: this is for ranks too, which need no pytest
        for owner, name, value in quick:
            before.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        yield
