"""Files that are replaced as a whole: whoever reads one sees the old contents or the new ones."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpifed.core.io_errors import named_in_errors


@contextmanager
def aside(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to; without an error, that file is synced and replaces `path`."""
    temporary = path.with_name(path.name + ".new")
    with named_in_errors(path):
        temporary.unlink(missing_ok=True)  # of a killed process, or a link, which would be followed
        temporary.touch(exist_ok=False)  # O_CREAT and O_EXCL: through no link
        own = os.stat(temporary)  # another process may remove it, and begin its own
    try:
        with named_in_errors(path):
            yield temporary
            with open(temporary, "r+b") as file:
                if not os.path.samestat(own, os.fstat(file.fileno())):
                    raise OSError(errno.EBUSY, "another process writes it")
                os.fsync(file.fileno())
            os.replace(temporary, path)
    finally:
        with suppress(OSError):  # where the folder was removed, say
            if os.path.samestat(own, os.stat(temporary)):
                temporary.unlink()


def replace_text(path: Path, text: str) -> None:
    """Write a text in place of what `path` holds."""
    with aside(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
