"""One run in this process's communicator: its folder locked and opened, then trained or, if finished, read."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from threadpoolctl import threadpool_limits

from mpifed.comm.transport import Transport
from mpifed.job.job import Job
from mpifed.observers.base import Observer
from mpifed.privacy.ledger_file import LEDGER
from mpifed.run.agreement import agreed
from mpifed.run.data_cache import DataCache
from mpifed.run.folder import open_folder
from mpifed.run.lock import locked
from mpifed.run.loop import RunLoop
from mpifed.run.memory import keep_freed_memory
from mpifed.run.observation import Observation, checked_observers
from mpifed.run.outcome import Result
from mpifed.run.overwrite import remove
from mpifed.run.progress import Reporter, Silent
from mpifed.run.signals import stop_on_signals


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
    reporter = reporter or Silent()
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
