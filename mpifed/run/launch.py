"""The end of all ranks: a single message and exit code, and no rank left waiting."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from mpifed.comm.mpi import Comm
from mpifed.core.errors import FINISHED, DataError, Interrupted, MpifedError, UnexpectedError, UsageError
from mpifed.core.io_errors import explained, explaining, say_at_end
from mpifed.core.tables import Table
from mpifed.core.text import shown_lines
from mpifed.job.job import Job
from mpifed.run.agreement import begin_call, settings
from mpifed.run.api import run
from mpifed.run.outcome import FAILURE, STANDING, Result, code_of
from mpifed.run.progress import reporter
from mpifed.run.signals import process_ends_with_run

_GRACE_S = 3.0
_HEARD_S = 0.2
Value = TypeVar("Value")


def launch(
    job: Job | Table | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    max_hours: float | None = None,
    accept_changed: bool = False,
) -> Result | None:
    """Run a job from a script under mpirun, as `mpifed run` does; the result on rank 0, None on the others.

    Own models, terms and regularizers are called once first: wrong shapes are refused.
    With `accept_changed` a run is resumed even if own sources or libraries have changed, which run.json records too.
    An error on any rank ends all of them with its exit code. In a single process, errors are raised.
    """

    def guard(comm: Comm, run_dir: Path | None, function: Callable[[], Value], brief: bool = False) -> Value:
        if comm.size > 1:
            return guarded(comm, run_dir, function, brief)
        with explaining():
            return function()

    def facts(checked: Job) -> Table:
        return {**settings(checked), "out": str(out)}

    comm, checked = begin_call("launch", lambda: _job(job), facts, guard)
    folder, shown = Path(out or Path("runs") / checked.name), reporter(comm.rank)
    result: Result | None = guard(
        comm,
        folder,
        lambda: run(
            checked,
            comm,
            folder,
            resume=resume,
            max_hours=max_hours,
            reporter=shown,
            accept_changed=accept_changed,
        ),
        checked.released_only,
    )
    return result


def _job(job: Job | Table | str | Path) -> Job:
    if isinstance(job, Job):
        return job
    return Job.check(job) if isinstance(job, dict) else Job.read(Path(job))


def guarded(comm: Comm, run_dir: Path | None, function: Callable[[], Value], brief: bool = False) -> Value:
    """The result of `function`; if it fails, the message is printed once and every rank ends with the same exit code.

    An error that all ranks agreed on ends them in order. Any other has occurred on this rank alone, while the rest
    wait in a collective call: MPI_Abort ends them. If `brief`, only the class of the error is written to the run's
    folder: its text may name clients and values.
    """

    def end(error: BaseException) -> int:
        """Print the error, and end all ranks; returns the exit code where this process can end in order."""
        error = explained(error) or error
        agreed = isinstance(error, MpifedError) and error.agreed
        code, text, folder = code_of(error), message(error, comm), run_dir
        if folder in STANDING or ((agreed or comm.size == 1) and _leaves(folder, error)):
            folder = None
        if comm.rank == 0 if agreed else _first(folder, _brief(error) if brief else text) or comm.size == 1:
            say_at_end(text)
            _note_exit(folder, code)
            if not agreed and comm.size > 1:
                time.sleep(_HEARD_S)  # a launcher that ends at once may not have forwarded the message
        elif not agreed:
            time.sleep(_GRACE_S)  # the first rank to fail ends this one, after printing its message
        if not agreed and comm.size > 1:
            comm.abort(code)
        return code

    process = os.getpid()
    with _no_other_ends(lambda error: comm.abort(end(error))):
        try:
            with process_ends_with_run():
                return function()
        except BaseException as error:  # whatever it is, the other ranks must not be left waiting
            if os.getpid() != process:  # forked by a class of the user's: not a rank
                _end_forked(error)
            try:
                code = end(error)
            except BaseException as secondary:
                if isinstance(secondary, Exception):  # as where an error has no text
                    say_at_end(f"mpifed: unexpected error {type(error).__name__}, and another while it was reported")
                comm.abort(code_of(error))
            raise SystemExit(code) from error


def note_failure(run_dir: Path, error: Exception, comm: Comm, brief: bool) -> None:
    """Write the error of a run in a single process into its folder, as `guarded` does."""
    known = explained(error) or error
    if run_dir not in STANDING and not _leaves(run_dir, known):
        _first(run_dir, _brief(known) if brief else message(known, comm))
        _note_exit(run_dir, code_of(known))


def _end_forked(error: BaseException) -> NoReturn:
    """End a forked process as Python does, without what ends a rank, such as MPI_Finalize."""
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        os._exit(error.code or 0)
    traceback.print_exception(error)
    os._exit(1)


@contextmanager
def _no_other_ends(end: Callable[[BaseException], None]) -> Iterator[None]:
    """Let `os._exit`, and an exception that ends a thread, end all ranks as errors do, in this process.

    A launcher would take the 0 of `os._exit(0)` for the exit code of the run, or wait for the other ranks for ever;
    and code that waits for a thread does not learn that it has failed.
    """
    leave, fail, process = os._exit, threading.excepthook, os.getpid()

    def left(status: int) -> NoReturn:
        if os.getpid() == process:
            caller = traceback.extract_stack(limit=2)[0]
            where = f"{caller.filename}, line {caller.lineno}"
            end(MpifedError(f"the program was left, by os._exit({status}) in {where}; raise an exception instead"))
        leave(status)

    def failed(arguments: threading.ExceptHookArgs) -> None:
        if os.getpid() == process and arguments.exc_value is not None and arguments.exc_type is not SystemExit:
            end(arguments.exc_value)
        fail(arguments)

    os._exit, threading.excepthook = left, failed
    try:
        yield
    finally:
        os._exit, threading.excepthook = leave, fail


def _leaves(run_dir: Path | None, error: BaseException) -> bool:
    """Whether an error leaves the results of an earlier run as they are, since this one has not begun."""
    from mpifed.files.run_folder import ended

    with contextlib.suppress(DataError, OSError):
        finished = run_dir is not None and ended(run_dir) in FINISHED
        return isinstance(error, UsageError) or (finished and isinstance(error, DataError))
    return True


def message(error: BaseException, comm: Comm) -> str:
    """The message of an error: a line for an expected one, the traceback for any other."""
    if isinstance(error, Interrupted):
        return f"mpifed: {error}"
    if isinstance(error, UnexpectedError):
        return f"mpifed: unexpected error {error}"
    if isinstance(error, MpifedError):
        return f"mpifed: error: {shown_lines(error)}"
    if isinstance(error, KeyboardInterrupt):
        return "mpifed: stopped"
    where = f" on rank {comm.rank} of {comm.size}" if comm.size > 1 else ""
    return f"mpifed: unexpected error{where}\n{''.join(traceback.format_exception(error))}"


def _brief(error: BaseException) -> str:
    return (
        f"mpifed: error: {type(error).__name__} (exit {code_of(error)}); because of [record] released_only its text "
        "is on the standard error alone"
    )


def _first(run_dir: Path | None, text: str) -> bool:
    """Whether no other rank of this run has failed before; the first message is written to its folder."""
    if run_dir is None:
        return True
    try:
        with open(run_dir / FAILURE, "x", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _note_exit(run_dir: Path | None, code: int) -> None:
    """Write the exit code into run.json, if there is one that can be read."""
    from mpifed.files.json_file import read_json, write_json

    if run_dir is not None and (run_dir / "run.json").exists():
        with contextlib.suppress(DataError, TypeError, OSError):
            write_json(run_dir / "run.json", {**read_json(run_dir / "run.json"), "exit": code})
