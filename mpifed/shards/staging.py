"""Copies of shards on a disk of the node, for `[data] stage`.

A node's copy is in `<stage>/mpifed-<SHA-256 of federation.h5>/`, so that jobs with the same data share it and jobs with
different data do not. A file is copied to a temporary name, compared with its checksum during the copy, and renamed:
files under their final names are complete. Locks keep two jobs on a node from copying the same file twice; on file
systems without locks they both copy, with the same result. Nothing is removed at the end of a run, since other jobs
may be reading: Slurm clears its $TMPDIR with the job, any other folder is for the user to clear.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from mpifed.core.errors import DataError, UsageError
from mpifed.shards import layout
from mpifed.shards.store import ShardFolder

_DIGITS = 32  # of the checksum in a folder's name
_PIECE = 1 << 22
_LOCKS = 64  # lock files, each shared by several shard files
_SPARE_BYTES = 1 << 24  # left free
_LEFT_BEHIND_S = 600.0
_ROOM = "use another folder, more nodes so that each hosts fewer clients, or leave [data] stage out"


def checksum_of(data: ShardFolder) -> str:
    """The SHA-256 of `federation.h5`, which contains those of all shard files."""
    return layout.sha256(data.path / layout.FEDERATION)


def files_of(data: ShardFolder, clients: Iterable[int]) -> dict[str, str]:
    """Names and checksums of the shard files of these clients."""
    numbers = sorted({client // data.pack for client in clients})
    return {layout.shard_name(number): data.checksums[number] for number in numbers}


def folder_of(stage: str, checksum: str) -> Path:
    """The folder of the copy on this node.

    Parameters
    ----------
    stage : `[data] stage`, a folder; environment variables are expanded on this node
    checksum : SHA-256 of `federation.h5`

    Raises
    ------
    UsageError : when a variable is not set on this node, or the folder does not exist.
    """
    expanded = os.path.expanduser(os.path.expandvars(stage))
    where, here = f'[data] stage = "{stage}"', platform.node()
    if "$" in expanded or not expanded:
        raise UsageError(f"{where}: a variable in it is not set on {here}; set it in the job script, or name a folder")
    root = Path(expanded)
    if not root.is_absolute():
        raise UsageError(f"{where}: {expanded} is not an absolute path; name a folder on a disk of the node")
    if not root.is_dir():
        raise UsageError(f"{where}: there is no folder {expanded} on {here}; make it, or name another")
    return root / f"mpifed-{checksum[:_DIGITS]}"


def make_ready(data: ShardFolder, folder: Path, names: Iterable[str]) -> None:
    """Make a node's folder, and check that there is space for the missing files; called by one rank of the node.

    Raises UsageError when the folder cannot be made or belongs to another user; DataError when there is not enough
    space.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)  # in a folder like /tmp another user could have made it first
        owner = folder.stat(follow_symlinks=False).st_uid
    except OSError as error:
        raise UsageError(f"[data] stage: {folder} cannot be made ({error.strerror}); name another folder") from error
    if owner != os.getuid() or folder.is_symlink():
        raise UsageError(f"[data] stage: {folder} belongs to another user; name a folder of your own")
    _drop_left_behind(folder)
    sizes = {name: (data.path / name).stat().st_size for name in names}
    missing = sum(size for name, size in sizes.items() if _size(folder / name) != size)
    free = shutil.disk_usage(folder).free
    if missing and missing + _SPARE_BYTES > free:
        raise DataError(
            f"[data] stage: {folder.parent} on {platform.node()} has {free / 2**20:.0f} MiB free, the shards of this "
            f"node's clients need {missing / 2**20:.0f} MiB; {_ROOM}"
        )


def copy(source: Path, target: Path, expected: str, verify: bool = True) -> bool:
    """Copy a file unless there is a copy; returns whether it was copied. One process of the node at a time.

    Parameters
    ----------
    source, target : the file, and its copy
    expected : its SHA-256
    verify : also compare an existing copy with it

    Raises
    ------
    DataError : when the file cannot be copied, or its checksum differs.
    """
    try:
        with _locked(target):
            if _size(target) == source.stat().st_size and (not verify or layout.sha256(target) == expected):
                return False
            _copy(source, target, expected)
            return True
    except OSError as error:
        raise DataError(f"[data] stage: {source} cannot be copied to {target} ({error.strerror}); {_ROOM}") from error


def opened(data: ShardFolder, folder: Path, clients: Iterable[int]) -> ShardFolder:
    """The federation, read from a node's copy; DataError when a file of these clients is missing in it."""
    for name in (*files_of(data, clients), layout.FEDERATION):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder / name}: no such file, though a rank of this node has copied it; [data] stage must name the "
                "same folder for all ranks of a node, which must not be cleared during the run"
            )
    return replace(data, path=folder)


def _drop_left_behind(folder: Path) -> None:
    """Remove incomplete files of processes that were killed, which have not been written to for a while."""
    for path in folder.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):  # another job may do the same
            if time.time() - path.stat().st_mtime > _LEFT_BEHIND_S:
                path.unlink()


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process of the node at a time, if the file system has locks; a lock ends with its process."""
    number = zlib.crc32(target.name.encode()) % _LOCKS
    with open(target.with_name(f".lock-{number:02d}"), "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copy(source: Path, target: Path, expected: str) -> None:
    """Copy a file, compare it with its checksum during the copy, and rename it."""
    aside = target.with_name(f"{target.name}.{platform.node()}-{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with open(source, "rb") as read, open(aside, "wb") as written:
            while piece := read.read(_PIECE):
                digest.update(piece)
                written.write(piece)
        copied = digest.hexdigest()
        if copied != expected:
            raise DataError(f"{source}: SHA-256 is {copied}, expected {expected}; {layout.REMEDY}")
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
