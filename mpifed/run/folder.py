"""A run's folder before the run: whether it may be used, resumed, or has ended with the same job."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from mpifed.core.errors import FINISHED, DataError, UsageError
from mpifed.core.tables import Table
from mpifed.core.text import command_line
from mpifed.files.clients import CLIENTS
from mpifed.files.history_csv import HISTORY
from mpifed.files.json_file import content
from mpifed.files.model_file import MODEL
from mpifed.files.run_folder import RUN, changed_since, ended, job_of, read_run
from mpifed.job.job import Job
from mpifed.job.reading import dotted
from mpifed.job.schema import FREE, is_free
from mpifed.observers.mlflow_store import NOTED
from mpifed.observers.tensorboard import EVENTS
from mpifed.privacy.disclosure import RAW_FOLDERS
from mpifed.privacy.ledger_file import LEDGER, REMEDY, Header, read_compared
from mpifed.results.points import is_sweep

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOCK, HEARTBEAT = "lock", "lock-heartbeat"  # of `mpifed.run.lock`
FAILURE = "failure.txt"  # the message of the first rank to fail
_FILES = ("job.toml", RUN, HISTORY, MODEL, CLIENTS, FAILURE)
RUN_FILES = (*_FILES, LEDGER, LOCK, HEARTBEAT, NOTED)
RUN_FOLDERS = (*RAW_FOLDERS, EVENTS)
# of a run that goes on: what ends it or is said of it, and a file that was read before round 0
RESUMABLE = (*FREE, "rounds", "stop", "simulated_network", "model.start")


class Opened(NamedTuple):
    """The state of a run's folder when the run starts."""

    saved: bool  # whether there is a checkpoint to go on from
    header: Header | None  # of its ledger
    ended: int | None  # the exit code, if the run has ended with exactly this job and its result is valid
    damaged: str = ""  # what is wrong with its run.json, which is written anew


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
    saved = any((out / "checkpoint").glob("round-*[0-9]"))
    begun = saved or any((out / name).exists() for name in ("job.toml", "run.json", LEDGER))
    if begun and not resume and not nothing_left(out):
        raise UsageError(
            f"{out}: holds a run already; choose another --out, continue it with --resume, or replace it with "
            "--overwrite"
        )
    damaged, code = _damaged(out) if resume and begun else ("", None)
    header = _header(job, out, bool(damaged)) if resume and begun else None
    if code in FINISHED and not saved:
        raise _without_its_end(out)
    if (code := ended_before(job, out)) is not None:
        return Opened(saved, header, code)
    out.mkdir(parents=True, exist_ok=True)
    (out / FAILURE).unlink(missing_ok=True)
    if not saved:  # also a run that was killed before its first checkpoint
        (out / HISTORY).unlink(missing_ok=True)
    return Opened(saved, header, None, damaged)


def nothing_left(out: Path) -> bool:
    """Whether the run failed before it wrote results."""
    saved = any((out / "checkpoint").glob("round-*[0-9]"))
    return not saved and not (out / LEDGER).exists() and (out / FAILURE).exists()


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


def same_end(out: Path, done: int) -> None:
    """UsageError unless `done`, the round of the newest whole checkpoint, is the last of a run that has ended."""
    if read_run(out).get("rounds") != done:
        raise _without_its_end(out)


def _without_its_end(out: Path) -> UsageError:
    return UsageError(
        f"{out}: finished already, and the checkpoint of its last round is gone or damaged; its results stand, see "
        f"`{command_line('mpifed', 'show', out)}`; to run rounds again, choose another --out"
    )


def ended_before(job: Job, out: Path, codes: Collection[int] = FINISHED) -> int | None:
    """The exit code of a run that has ended with exactly this job and one of `codes`; else None."""
    written = out / "job.toml"
    try:
        if not written.exists() or not _is_job(content(written), job) or changed_since(out):
            return None
        code = ended(out)
    except (DataError, OSError, ValueError, RecursionError):  # a file cannot be read
        return None
    return code if code in codes else None


def _is_job(written: bytes, job: Job) -> bool:
    """Whether job.toml holds exactly this job, whoever observes it; ValueError where it is no TOML."""
    text = job.text()
    return written == text.encode() or _unobserved(written.decode("utf-8")) == _unobserved(text)


def _unobserved(text: str) -> Table:
    return {key: value for key, value in tomllib.loads(text).items() if key != "observe"}


def _header(job: Job, out: Path, damaged: bool) -> Header | None:
    """The header of the ledger of a resumed run, if it is private; its releases so far stay counted.

    For a run without privacy, a `damaged` run.json does not matter.
    """
    if damaged and job.privacy is None and not (out / LEDGER).exists():
        return None
    ledger = read_compared(out)
    if ledger is None:
        return None
    written = job_of(out)
    if written and (shown := changes_of(ledger.header.job, written)):
        raise DataError(f"{out / 'job.toml'}: is not the job in line 1 of {ledger.path} ({shown}); {REMEDY}")
    same_job(out, ledger.header.job, job.table())
    return ledger.header


def same_job(run_dir: Path, before: Table, after: Table) -> None:
    """UsageError when a run would be resumed with a job that gives other results."""
    if shown := changes_of(before, after):
        raise UsageError(
            f"{run_dir}: --resume with another job ({shown}); resume with {command_line(run_dir / 'job.toml')}"
        )


def changes_of(before: Table, after: Table, free: Collection[str] = RESUMABLE) -> str:
    """The changes of a job, but for those of `free` keys, which affect no results; as text."""
    old, new = dict(dotted(before)), dict(dotted(after))
    keys = [key for key in sorted({*old, *new}) if old.get(key) != new.get(key) and not is_free(key, free)]
    return "; ".join(f"{key}: {old.get(key)!r} before, {new.get(key)!r} now" for key in keys)
