"""Files that are replaced as a whole: whoever reads one sees the old contents or the new ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpifed.core.io_errors import named_in_errors


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; without an error, that file is synced and replaces `path`."""
    temporary = path.with_name(path.name + ".new")
    try:
        with named_in_errors(path):
            temporary.unlink(missing_ok=True)  # of a killed process, or a link, which would be followed
            temporary.touch(exist_ok=False)  # O_CREAT and O_EXCL: through no link
            yield temporary
            with open(temporary, "r+b") as file:
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # where the folder was removed, say
            temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
