"""A disk that fails: from some write on, each ends in the same error of the operating system."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from typing import Any

_GROWING = ("fsync", "link", "mkdir", "pwrite", "posix_fallocate")  # of `os`: what takes room on a disk
_OTHER = ("rename", "replace", "unlink", "rmdir")
KINDS = {  # by the error, what ends in it
    errno.ENOSPC: _GROWING, errno.EDQUOT: _GROWING, errno.EFBIG: ("pwrite", "posix_fallocate"),
    errno.EIO: (*_GROWING, *_OTHER), errno.EROFS: (*_GROWING, *_OTHER), errno.ESTALE: (*_GROWING, *_OTHER),
}  # fmt: skip


def fail_from(number: int, kind: int, below: str) -> None:
    """Let the `number`-th step that writes below a folder fail in this process, and all later ones; for ever."""
    steps = 0

    def step(path: object) -> None:
        nonlocal steps
        if below in str(path):
            steps += 1
            if steps >= number:
                raise OSError(kind, os.strerror(kind))

    class Failing:
        """An open file; HDF5's are written through Python as well."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

        def __enter__(self) -> Failing:
            self._file.__enter__()
            return self

        def __exit__(self, *given: Any) -> Any:
            return self._file.__exit__(*given)

        def write(self, content: Any) -> Any:
            step(self._file.name)
            return self._file.write(content)

    def opened(path: Any, mode: str = "r", *given: Any, **named: Any) -> Any:
        file = open_before(path, mode, *given, **named)
        return Failing(file) if set(mode) & set("wax+") else file

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def act(first: Any, *given: Any, **named: Any) -> Any:
            step(os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first)
            return call(first, *given, **named)

        return act

    open_before = builtins.open
    builtins.open = io.open = opened  # type: ignore[assignment]
    for name in KINDS[kind]:
        setattr(os, name, failing(getattr(os, name)))
