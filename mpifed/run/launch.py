"""The end of every rank: one message, one exit code, no rank left waiting."""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpifed.comm.transport import Transport, connect
from mpifed.core.errors import NO_MEMORY, DataError, Interrupted, MpifedError, UnexpectedError, UsageError
from mpifed.run.config import Job
from mpifed.run.history import read_json, write_json
from mpifed.run.loop import Result, run
from mpifed.run.report import reporter
from mpifed.run.results import FAILURE
from mpifed.run.setup import together
from mpifed.run.sweep import FINISHED, ended

_GRACE_S = 3.0
_HEARD_S = 0.2


def launch(
    job: Job | dict[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    max_hours: float | None = None,
    check: bool = True,
    accept_changed: bool = False,
) -> Result | None:
    """Run a job from a script under mpirun, as `mpifed run` does; the result on rank 0, None on the others.

    Own objectives, terms and regularizers are tried before, unless `check` is False, which run.json tells.
    With `accept_changed` a run is resumed though own sources or libraries have changed, which run.json tells too.
    An error on any rank ends all of them with its exit code. In one process alone errors are raised.
    """
    transport = connect()

    def guard(run_dir: Path | None, work: Callable[[], Any], brief: bool = False) -> Any:
        return work() if transport.size == 1 else guarded(transport, run_dir, work, brief)

    checked: Job = guard(None, lambda: together(transport, lambda: _job(job)))
    folder, shown = Path(out or Path("runs") / checked.name), reporter(transport.rank)
    result: Result | None = guard(
        folder,
        lambda: run(
            checked, transport, folder, resume=resume, max_hours=max_hours, reporter=shown, check=check,
            accept_changed=accept_changed,
        ),
        checked.released_only,
    )
    return result


def _job(job: Job | dict[str, Any] | str | Path) -> Job:
    if isinstance(job, Job):
        return job
    return Job.check(job) if isinstance(job, dict) else Job.read(Path(job))


def guarded(transport: Transport, run_dir: Path | None, work: Callable[[], Any], brief: bool = False) -> Any:
    """The result of `work`; when it fails, the message is printed once and every rank ends with one exit code.

    An error that all ranks agreed on ends them in order. Any other has happened on this rank alone, while the rest
    wait in a collective call: the launcher is told to end them. If `brief`, the run's folder is told the error's class
    alone: its text may name clients and values.
    """
    try:
        return work()
    except SystemExit:
        raise
    except BaseException as error:  # whatever it is, the other ranks must not be left waiting
        agreed = isinstance(error, MpifedError) and error.agreed
        code, text = exit_code(error), message(error, transport)
        if (agreed or transport.size == 1) and _leaves(run_dir, error):
            run_dir = None
        if transport.rank == 0 if agreed else _first(run_dir, _brief(error) if brief else text):
            print(text, file=sys.stderr, flush=True)
            _note_exit(run_dir, code)
            if not agreed and transport.size > 1:
                time.sleep(_HEARD_S)  # a launcher that ends all at once may not have passed the message on
        elif not agreed:
            time.sleep(_GRACE_S)  # the first rank to fail ends this one, once it has spoken
        if agreed or transport.size == 1:
            raise SystemExit(code) from error
        transport.abort(code)


def _leaves(run_dir: Path | None, error: BaseException) -> bool:
    """Whether an error leaves the results of an earlier run as they are, since this one has not begun."""
    with contextlib.suppress(DataError):
        finished = run_dir is not None and ended(run_dir) in FINISHED
        return isinstance(error, UsageError) or (finished and isinstance(error, DataError))
    return True


def exit_code(error: BaseException) -> int:
    """The exit code that says what went wrong."""
    if isinstance(error, MpifedError):
        return error.exit_code
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def message(error: BaseException, transport: Transport) -> str:
    """What a person is told: one line for an error that was foreseen, the traceback for any other."""
    if isinstance(error, Interrupted):
        return f"mpifed: {error}"
    if isinstance(error, UnexpectedError):
        return f"mpifed: unexpected error {error}"
    if isinstance(error, MpifedError):
        return f"mpifed: error: {error}"
    if isinstance(error, KeyboardInterrupt):
        return "mpifed: stopped"
    if isinstance(error, MemoryError):
        return f"mpifed: error: {NO_MEMORY.format(error)}"
    where = f" on rank {transport.rank} of {transport.size}" if transport.size > 1 else ""
    return f"mpifed: unexpected error{where}\n{''.join(traceback.format_exception(error))}"


def _brief(error: BaseException) -> str:
    return (
        f"mpifed: error: {type(error).__name__} (exit {exit_code(error)}); because of [record] released_only its text "
        "is on the standard error alone"
    )


def _first(run_dir: Path | None, text: str) -> bool:
    """Whether no other rank of this run has failed before; the first one's message stays in its folder."""
    if run_dir is None:
        return True
    try:
        with open(run_dir / FAILURE, "x", encoding="utf-8") as file:
            file.write(text + "\n")
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _note_exit(run_dir: Path | None, code: int) -> None:
    """Put the exit code into run.json, where there is one that can be read."""
    if run_dir is not None and (run_dir / "run.json").exists():
        with contextlib.suppress(DataError, TypeError):
            write_json(run_dir / "run.json", {**read_json(run_dir / "run.json"), "exit": code})
