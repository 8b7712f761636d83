"""The folder of a run or sweep: its names, and whether a run may begin, go on or be replaced there.

One run at a time writes to a folder, rank 0 of it alone; reading needs no lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path

from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table
from mpifed.data.applied import APPLIED
from mpifed.files.clients import CLIENTS
from mpifed.files.ends import FINISHED
from mpifed.files.generations import generations
from mpifed.files.history_csv import HISTORY
from mpifed.files.model_file import MODEL
from mpifed.files.run_folder import JOB, RUN, changed_since, ended, job_of, read_run
from mpifed.files.write import PART
from mpifed.job.job import Job
from mpifed.job.schema import RESUMABLE, changes_of
from mpifed.job.sweep import POINT, SweepPoint
from mpifed.observers.mlflow_store import NOTED
from mpifed.observers.tensorboard import EVENTS
from mpifed.observers.weights_and_biases import FILES
from mpifed.privacy.disclosure import RAW_FOLDERS
from mpifed.privacy.ledger_file import LEDGER, Header, read_ledger, spent
from mpifed.results.points import BEST, SWEEP, TRIALS, is_sweep, point_settings, write_sweep
from mpifed.run.outcome import FAILURE, Opened
from mpifed.text import command_line, counted

LOCK = "lock"  # locked by flock, or where the file system has none the file `HELD`, which says who holds it
HELD = "lock-held"
RUN_FILES = (JOB, RUN, HISTORY, MODEL, "model.h5", APPLIED, CLIENTS, FAILURE, LEDGER, LOCK, HELD, NOTED)
RUN_FOLDERS = (*RAW_FOLDERS, EVENTS, FILES)
# what a run or sweep writes, what a killed process leaves of its lock, and what NFS leaves of removed files
_OWN = re.compile(rf"{'|'.join(map(re.escape, (*RUN_FILES, SWEEP, BEST, TRIALS)))}|{HELD}\..+|\.nfs[0-9a-f]+")
ENDING_S = 2.0  # a run whose launcher has returned may still be ending
_NO_FLOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
_REQUIRED = {"name", "rounds", "data", "model", "algorithm"}  # tables and keys of every job
_REMEDY = "--overwrite removes runs alone"


def open_folder(job: Job, out: Path, resume: bool) -> Opened:
    """Prepare a run's folder; that of a run that has ended is not changed.

    Raises
    ------
    UsageError, DataError
        when the folder holds a run and `resume` is False, or one of another job; when its ledger is gone or damaged.
    """
    if is_sweep(out):
        raise UsageError(
            f"{out}: holds a sweep; choose another --out, or remove its sweep.csv and folders point-* where they came "
            "into a run by mistake"
        )
    saved, header, damaged = bool(generations(out)), None, ""
    begun = saved or any((out / name).exists() for name in (JOB, RUN, LEDGER))
    if begun and not resume and not nothing_left(out):
        raise UsageError(
            f"{out}: holds a run already; choose another --out, continue it with --resume, or replace it with "
            "--overwrite"
        )
    if begun and resume:
        with suppress(DataError):  # damaged: it is written anew
            job = job.resumed(job_of(out))
        damaged, code = _damaged(out)
        header = _header(job, out, bool(damaged))
        job = job.resumed(header.job) if header else job  # where job.toml is gone
        finished, code = code in FINISHED, ended_before(job, out)
        if code is not None:
            return Opened(job, saved, header, code)
        if finished and not saved:
            raise UsageError(
                f"{out}: finished already, and its checkpoint is gone; its results stand, see "
                f"`{command_line('mpifed', 'show', out)}`; to run rounds again, choose another --out"
            )
    (out / FAILURE).unlink(missing_ok=True)
    for path in out.glob(".*.new"):  # of a process that was killed
        if (part := PART.fullmatch(path.name)) and part[1] in RUN_FILES:
            path.unlink()
    if not saved:  # also a run that was killed before its first checkpoint
        (out / HISTORY).unlink(missing_ok=True)
    return Opened(job, saved, header, None, damaged)


def nothing_left(out: Path) -> bool:
    """Whether the run failed before it wrote results."""
    return not generations(out) and not (out / LEDGER).exists() and (out / FAILURE).exists()


def check_names(folder: Path) -> None:
    """Check what has a name that a run writes in its folder, before anything is written; raises as `check_kind`."""
    for name in RUN_FILES:
        check_kind(folder / name)
    for path in (*(folder / name for name in RUN_FOLDERS), *folder.glob("checkpoint/round-*")):
        check_kind(path, is_folder=True)


def check_kind(path: Path, is_folder: bool = False) -> None:
    """Check the path of a file or folder to be written.

    Raises
    ------
    UsageError
        when it is a link: what it leads to is no part of the run, and would be written or removed.
    DataError
        when it is something else than such a file or folder.
    """
    if path.is_symlink():
        raise UsageError(f"{path}: is a link, and runs write through none; remove it, or put back what it leads to")
    there = path.is_dir() if is_folder else path.is_file()
    if not there and path.exists():
        raise DataError(f"{path}: is no {'folder' if is_folder else 'regular file'}; remove it, or put it back")


def _damaged(out: Path) -> tuple[str, int | None]:
    """(what is wrong with run.json or with files that it has digests of; the exit code, if it can be read)."""
    try:
        if not (out / RUN).exists():
            return "", None
        wrong, code = changed_since(out), ended(out)
    except DataError as error:
        return f"{error}; it is written anew, from the checkpoint", None
    return f"{out}: {wrong}; all but {HISTORY} is written again, from the checkpoint" if wrong else "", code


def ended_before(job: Job, out: Path) -> int | None:
    """The exit code of a run that has ended with exactly this job, and whose result is valid; else None."""
    with suppress(DataError, OSError):  # a file cannot be read
        damaged, code = _damaged(out)
        written = job_of(out)
        if not damaged and code in FINISHED:
            return None if changes_of(written, job.resumed(written).table(), {"observe"}) else code
    return None


def _header(job: Job, out: Path, damaged: bool) -> Header | None:
    """The header of the ledger of a resumed run, if it is private; its releases so far stay counted.

    For a run without privacy, a `damaged` run.json does not matter.
    """
    uncounted = damaged and job.privacy is None and not (out / LEDGER).exists()
    if uncounted or spent(out) is None:
        return None
    header = read_ledger(out).header
    same_job(out, header.job, job.resumed(header.job).table())
    return header


def same_job(run_dir: Path, before: Table, after: Table) -> None:
    """UsageError when a run would be resumed with a job that gives other results."""
    if shown := changes_of(before, after):
        raise UsageError(
            f"{run_dir}: --resume with another job ({shown}); resume with {command_line(run_dir / 'job.toml')}"
        )


# --- one run at a time ---


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a run's folder, and lock it; called on rank 0 alone.

    Raises
    ------
    UsageError
        when another process has locked it, or a name that a run writes there is a link.
    DataError
        when the folder cannot be written.
    """
    from filelock import FileLock, SoftFileLock, Timeout  # slow to import

    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_names(folder)
        lock = FileLock(folder / LOCK) if _has_flock(folder) else SoftFileLock(folder / HELD)
        lock.acquire(timeout=ENDING_S)
        own = os.stat(lock.lock_file)
    except Timeout as error:
        raise _in_use(folder) from error
    except OSError as error:
        raise DataError(f"{folder}: cannot be written ({error}); choose another --out") from error
    try:
        yield
    finally:
        try:
            with suppress(FileNotFoundError):
                if os.path.samestat(own, os.stat(folder / LOCK)):  # and not another's, where the folder was moved
                    (folder / LOCK).unlink()  # while it is locked: whoever waits for it makes another
        finally:
            lock.release()


def _has_flock(folder: Path) -> bool:
    """Whether files in a folder can be locked; not on Lustre that was mounted without `flock`, say."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            return False
    return True


def _in_use(folder: Path) -> UsageError:
    who, remedy = "another process", "let it end"
    with suppress(OSError, ValueError):
        pid, host, *_ = (folder / HELD).read_text(encoding="utf-8").split()
        who, remedy = f"process {int(pid)} on {host}", f"let it end or, where it was killed, remove {folder / HELD}"
    return UsageError(f"{folder}: in use by {who}; {remedy}, or choose another --out")


# --- sweeps, and the folder of a run or sweep that is to be used again: nothing else, none that goes on, as a whole ---


def begin_sweep(
    folder: Path, points: Sequence[SweepPoint], resume: bool = False, overwrite: bool = False, anew: bool = False
) -> None:
    """Make the folder of a sweep and write sweep.csv, which marks it; on rank 0 alone.

    With `overwrite` nothing is written yet: what is in it stands until the first point is ready to write. `anew`: a
    sweep or tuning that has begun there is refused.

    Raises
    ------
    UsageError, DataError
        when it is the folder of a run or of a sweep's point, has a link at a name that the sweep writes, or runs of
        other jobs, which sweep.csv would then take for those of `points`; as of `to_remove` with `overwrite`.
    """
    above = folder.absolute().parent
    if POINT.fullmatch(folder.absolute().name) and is_sweep(above):
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
        if written and (first := changes_of(written, point.job.resumed(written).table(), free).partition("; ")[0]):
            raise UsageError(
                f"{folder}: holds another sweep ({point.name}: {first}); choose another --out, or replace it with "
                "--overwrite"
            )
    if anew and (held := [*folder.glob(f"point-*/{JOB}")]):
        raise UsageError(
            f"{folder}: holds {counted(len(held), 'run')} of a sweep already; keep these and run the rest with "
            "--resume, choose another --out, or replace all with --overwrite"
        )
    listed = []
    with suppress(DataError):
        listed = [name for name, _ in point_settings(folder)]
    if listed != [point.name for point in points]:  # else it stays until the runs have ended
        write_sweep(folder, points)


def remove(folder: Path) -> None:
    """Remove the run or sweep in a folder, if there is one; on rank 0 alone.

    The folder is renamed before anything in it is deleted, so whoever ends this process finds the old run or none.

    Raises
    ------
    UsageError, DataError
        as of `to_remove`; DataError also when it cannot be renamed.
    """
    for left in folder.parent.glob(f".{escape(folder.name)}.overwritten-*"):  # by a process that was killed
        if left.is_dir() and not left.is_symlink() and not list(_others(left)):
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
    if not folder.is_symlink() and (not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))):
        return []
    if not folder.is_dir() or folder.is_symlink():
        raise UsageError(f"{folder}: is no folder of a run; {_REMEDY}; choose another --out")
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{folder}: is the folder in which you are, or one above it; leave it, or choose another --out"
        )
    others = list(_others(folder))
    if others or not _is_ours(folder):
        named = f" ({', '.join(others[:3])})" if others else ""
        raise UsageError(
            f"{folder}: holds something else than a run{named}; {_REMEDY}: move it away, or choose another --out"
        )
    runs = [Path(path.name) for path in sorted(folder.iterdir()) if _is_point(path)] or [Path()]
    _check_idle(folder, runs)
    return runs


def _is_point(path: Path) -> bool:
    return bool(POINT.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()


def _others(folder: Path) -> Iterator[str]:
    """What is in the folder of a run or sweep, and was not written by it."""
    for path in sorted(folder.iterdir()):
        if _is_point(path):
            yield from (f"{path.name}/{other}" for other in _others(path))
        elif path.name not in RUN_FOLDERS and not _OWN.fullmatch(PART.sub(r"\1", path.name)):
            yield path.name


def _is_ours(folder: Path) -> bool:
    """Whether a folder without other files is that of a run or sweep, and no other program's."""
    for known in (lambda: point_settings(folder), lambda: job_of(folder).keys() >= _REQUIRED, lambda: read_run(folder)):
        with suppress(DataError):
            if known():
                return True
    return (folder / LEDGER).exists()


def _check_idle(folder: Path, runs: list[Path]) -> None:
    """UsageError where a run in the folder is going on."""
    for run in runs:
        with locked(folder / run):
            pass
