"""Copies of shards on a disk of the node, for `[data] stage`.

A node's copy lies in `<stage>/mpifed-<SHA-256 of federation.h5>/`, so that jobs with the same data share it and none
can mistake another's for its own. A file is copied under a name of its own, compared with its checksum on the way, and
renamed: what has its name is whole. Locks keep two jobs on a node from copying the same file twice; where the file
system has none they do, and the result is the same. Nothing is removed at the end of a run, since others may be
reading: Slurm clears a $TMPDIR of its own with the job, any other folder is the user's to clear.
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
from mpifed.shards.store import Federation

_DIGITS = 32  # of the checksum in a folder's name
_PIECE = 1 << 22
_LOCKS = 64  # files whose locks several shard files share
_SPARE_BYTES = 1 << 24  # that stay free
_LEFT_BEHIND_S = 600.0
_ROOM = "take another folder, more nodes so that each hosts fewer clients, or leave [data] stage out"


def checksum_of(data: Federation) -> str:
    """The SHA-256 of `federation.h5`, which holds those of all shard files."""
    return layout.sha256(data.path / layout.FEDERATION)


def files_of(data: Federation, clients: Iterable[int]) -> dict[str, str]:
    """The shard files of these clients, by name, with their checksums."""
    numbers = sorted({client // data.pack for client in clients})
    return {layout.shard_name(number): data.checksums[number] for number in numbers}


def folder_of(stage: str, checksum: str) -> Path:
    """Where the copy lies on this node.

    Parameters
    ----------
    stage : `[data] stage`, a folder, in which environment variables are replaced here
    checksum : SHA-256 of `federation.h5`

    Raises
    ------
    UsageError
        when a variable is not set on this node, or the folder is not there.
    """
    found = os.path.expanduser(os.path.expandvars(stage))
    where, here = f'[data] stage = "{stage}"', platform.node()
    if "$" in found or not found:
        raise UsageError(f"{where}: a variable in it is not set on {here}; set it in the job script, or name a folder")
    root = Path(found)
    if not root.is_absolute():
        raise UsageError(f"{where}: {found} is no absolute path; name a folder on a disk of the node")
    if not root.is_dir():
        raise UsageError(f"{where}: there is no folder {found} on {here}; make it, or name another")
    return root / f"mpifed-{checksum[:_DIGITS]}"


def make_ready(data: Federation, folder: Path, names: Iterable[str]) -> None:
    """Make a node's folder, and see whether the files that are missing in it would fit; one rank of the node does it.

    Raises
    ------
    UsageError
        when the folder cannot be made or belongs to somebody else.
    DataError
        when there is no room.
    """
    try:
        folder.mkdir(mode=0o700, exist_ok=True)  # in a folder like /tmp somebody else could have been there first
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
    """Copy a file if it is not there already; whether it was copied. One process of the node at a time.

    Parameters
    ----------
    source, target : the file, and its copy
    expected : its SHA-256
    verify : compare a copy that is there with it as well

    Raises
    ------
    DataError
        when the file cannot be copied, or is not as its checksum says.
    """
    try:
        with _locked(target):
            if _size(target) == source.stat().st_size and (not verify or layout.sha256(target) == expected):
                return False
            _copy(source, target, expected)
            return True
    except OSError as error:
        raise DataError(f"[data] stage: {source} cannot be copied to {target} ({error.strerror}); {_ROOM}") from error


def opened(data: Federation, folder: Path, clients: Iterable[int]) -> Federation:
    """The same federation, read from a node's copy.

    Raises
    ------
    DataError
        when a file that these clients need is not in it.
    """
    for name in (*files_of(data, clients), layout.FEDERATION):
        if not (folder / name).is_file():
            raise DataError(
                f"{folder / name}: no such file, though a rank of this node has copied it; [data] stage must name the "
                "same folder for all ranks of a node, which nobody clears while they run"
            )
    return replace(data, path=folder)


def _drop_left_behind(folder: Path) -> None:
    """Remove what processes that were killed have not finished: nobody has written to it for a while."""
    for path in folder.glob("*.part"):
        with contextlib.suppress(FileNotFoundError):  # another job may do the same
            if time.time() - path.stat().st_mtime > _LEFT_BEHIND_S:
                path.unlink()


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


@contextlib.contextmanager
def _locked(target: Path) -> Iterator[None]:
    """One process of the node at a time, where the file system has locks; a lock ends with its process."""
    number = zlib.crc32(target.name.encode()) % _LOCKS
    with open(target.with_name(f".lock-{number:02d}"), "w") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _copy(source: Path, target: Path, expected: str) -> None:
    """Copy one file, compare it with its checksum on the way, and rename it."""
    aside = target.with_name(f"{target.name}.{platform.node()}-{os.getpid()}.part")
    digest = hashlib.sha256()
    try:
        with open(source, "rb") as read, open(aside, "wb") as written:
            while piece := read.read(_PIECE):
                digest.update(piece)
                written.write(piece)
        found = digest.hexdigest()
        if found != expected:
            raise DataError(f"{source}: SHA-256 is {found}, expected {expected}; {layout.REMEDY}")
        os.replace(aside, target)
    finally:
        aside.unlink(missing_ok=True)
