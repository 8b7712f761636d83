"""One run in this process's communicator: its folder locked and opened, then trained or, if finished, read."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from threadpoolctl import threadpool_limits

from mpifed.comm.aggregator import Request
from mpifed.comm.transport import Transport
from mpifed.core.errors import Interrupted
from mpifed.job.job import Job
from mpifed.observers.base import Observer
from mpifed.privacy.ledger_file import LEDGER
from mpifed.run.agreement import agreed
from mpifed.run.data_cache import DataCache
from mpifed.run.environment import keep_freed_memory
from mpifed.run.folder import open_folder
from mpifed.run.lock import locked
from mpifed.run.loop import RunLoop
from mpifed.run.observation import Observation, checked_observers
from mpifed.run.outcome import Result
from mpifed.run.overwrite import remove
from mpifed.run.progress import Reporter

# from the user, a scheduler before a time limit, or a preemption
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


def run(
    job: Job,
    transport: Transport,
    out: Path,
    *,
    resume: bool = False,
    max_hours: float | None = None,
    reporter: Reporter | None = None,
    cache: DataCache | None = None,
    check: bool = True,
    accept_changed: bool = False,
    observers: Sequence[Observer] | None = None,
    overwrite: bool = False,
) -> Result | None:
    """Run a job to its end, or on from its checkpoint. Collective.

    Parameters
    ----------
    out : the run's folder; must not hold a run already unless `resume`
    max_hours : checkpoint and raise `Interrupted` at the first round boundary after so many hours
    cache : data that an earlier run in this process has opened, and that this run shares with the next
    check : test the user's own model, terms and regularizer first; without, run.json has a warning
    overwrite : remove the run or sweep that is in `out`
    accept_changed : go on even if the user's sources or the libraries have changed since the checkpoint
    observers : on rank 0, all that the run has; None: those that the job names

    Raises
    ------
    MpifedError
        UsageError, DataError and Interrupted on every rank; any other error, once rounds are run, on the rank
        where it occurred: `mpifed.run.launch` then ends all of them.
    """
    keep_freed_memory()
    reporter = reporter or Reporter()
    with stop_on_signals() as request, threadpool_limits(1), _quiet(), ExitStack() as held:  # bits depend on threads
        opened, watched = None, Observation([], out, reporter)
        with agreed(transport):
            if transport.rank == 0:
                chosen = checked_observers(job.make_observers() if observers is None else observers)
                watched = Observation(chosen, out, reporter)
                if overwrite:
                    if (out / LEDGER).exists():
                        reporter.warn(f"{out}: a private run is replaced; what it has released stays known")
                    remove(out)
                held.enter_context(locked(out))
                opened = open_folder(job, out, resume)
        opened = transport.share(opened)
        if opened.damaged and transport.rank == 0:
            reporter.warn(opened.damaged)
        if resume and not opened.saved and transport.rank == 0:
            reporter.note(f"{out}: new run; no checkpoint to resume")
        try:
            with watched.watching():
                this = RunLoop(
                    job, transport, out, reporter, request, cache, opened.header, check, accept_changed, watched
                )
                return this.play(opened.saved, max_hours) if opened.ended is None else this.stands(opened.ended)
        finally:
            reporter.end()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence NumPy's warnings on mpifed's own arithmetic: a run whose numbers diverge ends with a message."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"(mpifed|numpy|scipy)\.")
        yield


@contextmanager
def stop_on_signals() -> Iterator[Request]:
    """Within the context, the first of the signals requests the end at the next round.

    When that end comes, SIGTERM and SIGUSR1 stay ignored: a scheduler signals its nodes a moment apart, and a rank that
    is already ending must not be killed by its own copy.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    process = os.getpid()

    def ask(number: int, frame: object) -> None:
        if os.getpid() != process:  # forked by a class of the user's, such as a process of a pool
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        request.asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C ends it at once

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield request
    except Interrupted:
        before |= {signal.SIGTERM: signal.SIG_IGN, signal.SIGUSR1: signal.SIG_IGN}
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
