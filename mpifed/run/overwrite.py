"""The folder of a sweep, and removing a run or sweep whose folder is to be used again: nothing else, none that is
running, and as a whole.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path

from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table
from mpifed.core.text import command_line
from mpifed.files.run_folder import JOB, RUN, job_of, read_run
from mpifed.files.write import PART
from mpifed.job.sweep import SweepPoint
from mpifed.privacy.ledger_file import LEDGER
from mpifed.results.points import SWEEP, is_sweep, point_settings, write_sweep
from mpifed.run.folder import HEARTBEAT, RESUMABLE, RUN_FILES, RUN_FOLDERS, changes_of, check_kind, nothing_left
from mpifed.run.lock import locked

_FILES = "|".join(map(re.escape, (*RUN_FILES, SWEEP)))
# what a run or sweep writes, and what NFS leaves of it
_OWN = re.compile(rf"{_FILES}|{HEARTBEAT}\..+|\.nfs[0-9a-f]+")
_POINT = re.compile(r"point-\d{4,9}")
_REQUIRED = {"name", "rounds", "data", "model", "algorithm"}  # tables and keys of every job
_REMEDY = "--overwrite removes runs alone"
STANDING: set[Path] = set()  # folders whose old run stands: what is to take its place has written nothing yet


def begin_sweep(folder: Path, points: Sequence[SweepPoint], resume: bool = False, overwrite: bool = False) -> None:
    """Make the folder of a sweep and write sweep.csv, which marks it; on rank 0 alone.

    With `overwrite` nothing is written yet: what is in it stands until the first point is ready to write.

    Raises
    ------
    UsageError, DataError
        when it is the folder of a run or of a sweep's point, has a link at a name that the sweep writes, or runs of
        other jobs, which sweep.csv would then take for those of `points`; as of `to_remove` with `overwrite`.
    """
    above = folder.absolute().parent
    if _POINT.fullmatch(folder.absolute().name) and is_sweep(above):
        raise UsageError(f"{folder}: is a point of a sweep; go on with {command_line('--resume', '--out', above)}")
    if overwrite:
        to_remove(folder)
        return
    if (folder / JOB).exists():
        raise UsageError(f"{folder}: holds a run, and a sweep needs a folder of its own; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    check_kind(folder / SWEEP)
    for point in points:
        check_kind(run_dir := folder / point.name, is_folder=True)
        written = Table()
        with suppress(DataError):  # the run says what is wrong
            written = {} if nothing_left(run_dir) else job_of(run_dir)
        free = RESUMABLE if resume else ("observe",)
        if written and (first := changes_of(written, point.job.table(), free).partition("; ")[0]):
            raise UsageError(
                f"{folder}: holds another sweep ({point.name}: {first}); choose another --out, or replace it with "
                "--overwrite"
            )
    if not is_sweep(folder):  # that of a resumed sweep stays until its runs have ended
        write_sweep(folder, points)


def remove(folder: Path) -> None:
    """Remove the run or sweep in a folder, if there is one; on rank 0 alone.

    The folder is renamed before anything in it is deleted, so whoever ends this process finds the old run or none.

    Raises
    ------
    UsageError, DataError
        as of `to_remove`; DataError also when it cannot be renamed.
    """
    for left in _left_by_killed(folder):
        shutil.rmtree(left, ignore_errors=True)
    if not (runs := to_remove(folder)):
        return
    aside = folder.with_name(f".{folder.name}.overwritten-{os.uname().nodename}-{os.getpid()}")
    try:
        os.rename(folder, aside)
    except OSError as error:
        raise DataError(f"{folder}: cannot be replaced ({error.strerror}); choose another --out") from error
    try:
        _check_idle(aside, runs)  # one may have begun in between
    except UsageError:
        os.rename(aside, folder)
        raise
    shutil.rmtree(aside)


def to_remove(folder: Path) -> list[Path]:
    """The runs, by paths in the folder, that `remove` would remove; on rank 0 alone.

    Raises
    ------
    UsageError
        when the folder has anything else in it, is a link, or holds a run that is going on.
    """
    if not folder.exists() and not folder.is_symlink():
        return []
    if not folder.is_dir() or folder.is_symlink():
        raise UsageError(f"{folder}: is no folder of a run; {_REMEDY}; choose another --out")
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{folder}: is the folder in which you are, or one above it; leave it, or choose another --out"
        )
    if not any(folder.iterdir()):
        return []
    others = list(_others(folder))
    if others or not _is_ours(folder):
        named = f" ({', '.join(others[:3])})" if others else ""
        raise UsageError(
            f"{folder}: holds something else than a run{named}; {_REMEDY}: move it away, or choose another --out"
        )
    runs = [Path(path.name) for path in _points(folder)] or [Path()]
    _check_idle(folder, runs)
    return runs


def _left_by_killed(folder: Path) -> Iterator[Path]:
    """What a process that was killed while it removed a run of this folder has left of it."""
    for path in folder.parent.glob(f".{escape(folder.name)}.overwritten-*"):
        if path.is_dir() and not path.is_symlink() and not list(_others(path)):
            yield path


def _points(folder: Path) -> list[Path]:
    """The folders of a sweep's points."""
    return [path for path in sorted(folder.iterdir()) if _POINT.fullmatch(path.name) and path.is_dir()]


def _others(folder: Path) -> Iterator[str]:
    """What is in the folder of a run or sweep, and was not written by it."""
    for path in sorted(folder.iterdir()):
        if _POINT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
            yield from (f"{path.name}/{other}" for other in _others(path))
        elif path.name not in RUN_FOLDERS and not _OWN.fullmatch(PART.sub(r"\1", path.name)):
            yield path.name


def _is_ours(folder: Path) -> bool:
    """Whether a folder without other files is that of a run or sweep of mpifed."""
    try:
        if is_sweep(folder):
            return bool(point_settings(folder))
        if job_of(folder).keys() >= _REQUIRED or (folder / LEDGER).exists():
            return True
    except DataError:  # job.toml is damaged, or another program's
        pass
    try:
        return (folder / RUN).exists() and bool(read_run(folder))
    except DataError:
        return False


def _check_idle(folder: Path, runs: list[Path]) -> None:
    """UsageError where a run in the folder is going on."""
    for run in runs:
        with locked(folder / run):
            pass
