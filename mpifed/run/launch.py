"""The end of all ranks: a single message and exit code, and no rank left waiting."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from mpifed.comm.mpi import Comm
from mpifed.core.errors import DataError, Interrupted, MpifedError, UnexpectedError, UsageError
from mpifed.core.io_errors import explained, explaining
from mpifed.files.ends import FINISHED
from mpifed.run.outcome import FAILURE, STANDING, code_of
from mpifed.run.signals import process_ends_with_run
from mpifed.text import say_at_end, shown_lines

_GRACE_S = 3.0
_HEARD_S = 0.2
Value = TypeVar("Value")


def together(comm: Comm, run_dir: Path | None, function: Callable[[], Value], brief: bool = False) -> Value:
    """The result of `function` on every rank; errors are raised in a single process, and end all ranks under MPI."""
    if comm.size > 1:
        return guarded(comm, run_dir, function, brief)
    with explaining():
        try:
            return function()
        except Exception as error:
            known = explained(error) or error
            if run_dir not in STANDING and not _leaves(run_dir, known):
                _is_first(run_dir, known, comm, brief)
                _note_exit(run_dir, code_of(known))
            raise


def guarded(comm: Comm, run_dir: Path | None, function: Callable[[], Value], brief: bool = False) -> Value:
    """The result of `function`; if it fails, the message is printed once and every rank ends with the same exit code.

    An error that all ranks agreed on ends them in order. Any other has occurred on this rank alone, while the rest
    wait in a collective call: MPI_Abort ends them. If `brief`, only the class of the error is written to the run's
    folder: its text may name clients and values.
    """
    process = os.getpid()
    try:
        with process_ends_with_run():
            return function()
    except BaseException as error:  # whatever it is, the other ranks must not be left waiting
        if os.getpid() != process:  # forked by a class of the user's, it ends as Python does, and not as a rank
            if isinstance(error, SystemExit) and isinstance(error.code, int | None):
                os._exit(error.code or 0)
            traceback.print_exception(error)
            os._exit(1)
        try:
            code = _end(comm, run_dir, error, brief)
        except BaseException as secondary:
            if isinstance(secondary, Exception):  # as where an error has no text
                say_at_end(f"mpifed: unexpected error {type(error).__name__}, and another while it was reported")
            comm.abort(code_of(error))
        raise SystemExit(code) from error


def _end(comm: Comm, run_dir: Path | None, error: BaseException, brief: bool) -> int:
    """Print an error, and end all ranks; the exit code where this process can end in order."""
    error = explained(error) or error
    agreed, code, alone = isinstance(error, MpifedError) and error.agreed, code_of(error), comm.size == 1
    if run_dir in STANDING or ((agreed or alone) and _leaves(run_dir, error)):
        run_dir = None
    says = comm.rank == 0
    if not agreed or (says and code not in (*FINISHED, Interrupted.exit_code)):  # a failure, and no end with a result
        says = _is_first(run_dir, error, comm, brief) or agreed
    if says or alone:
        say_at_end(message(error, comm))
        _note_exit(run_dir, code)
    if not (agreed or alone):
        # a launcher that ends at once may not have forwarded the message; the first rank to fail ends the others
        time.sleep(_HEARD_S if says else _GRACE_S)
        comm.abort(code)
    return code


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


def _is_first(run_dir: Path | None, error: BaseException, comm: Comm, brief: bool) -> bool:
    """Whether no other rank of this run has failed before; the first message is written to its folder."""
    text = message(error, comm)
    if brief:
        text = (
            f"mpifed: error: {type(error).__name__} (exit {code_of(error)}); because of [record] released_only its "
            "text is on the standard error alone"
        )
    try:
        if run_dir is not None:
            with open(run_dir / FAILURE, "x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(f"{text}\n")
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True


def _note_exit(run_dir: Path | None, code: int) -> None:
    """Write the exit code into run.json, if there is one that can be read."""
    from mpifed.files.json_file import read_json, write_json

    if run_dir is not None and (run_dir / "run.json").exists():
        with contextlib.suppress(DataError, TypeError, OSError):
            write_json(run_dir / "run.json", {**read_json(run_dir / "run.json"), "exit": code})
