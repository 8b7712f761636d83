"""One run in this process's communicator: its folder locked and opened, then trained or, if finished, read."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from mpifed.comm.mpi import Comm, agreed
from mpifed.job.job import Job
from mpifed.observers.base import Observer
from mpifed.run import outcome
from mpifed.run.agreement import in_one_thread
from mpifed.run.environment import keep_freed_memory
from mpifed.run.loop import RunLoop
from mpifed.run.outcome import STANDING, Opened, Result
from mpifed.run.progress import Reporter
from mpifed.run.signals import stop_on_signals

if TYPE_CHECKING:
    from mpifed.run.observation import Observation

_SMALL = 1 << 20  # bytes; of what preparing takes, arrays over all clients are larger


def run(
    job: Job,
    comm: Comm,
    out: Path,
    *,
    resume: bool = False,
    max_hours: float | None = None,
    reporter: Reporter | None = None,
    accept_changed: bool = False,
    observers: Sequence[Observer] | None = None,
    overwrite: bool = False,
    replace: Callable[[], None] | None = None,
) -> Result | None:
    """Run a job to its end, or on from its checkpoint. Collective.

    Parameters
    ----------
    out : the run's folder; must not hold a run already unless `resume`
    max_hours : checkpoint and raise `Interrupted` at the first round boundary after so many hours
    overwrite : remove the run or sweep that is in `out`, once data and job are known to be right
    replace : on rank 0, what removes it; by default `mpifed.run.folder.remove`
    accept_changed : go on even if the user's sources or the libraries have changed since the checkpoint
    observers : on rank 0, all that the run has; None: those that the job names

    Raises
    ------
    MpifedError
        UsageError, DataError and Interrupted on every rank; any other error, once rounds are run, on the rank
        where it occurred: `mpifed.run.launch` then ends all of them.
    """
    keep_freed_memory(_SMALL)
    reporter = reporter or Reporter()
    with (
        in_one_thread(),
        stop_on_signals() as request,
        threadpool_limits(1),
        _quiet(),
        ExitStack() as held,
    ):  # bits depend on threads
        opened: Opened | None = None
        watched: Observation | None = None

        def prepared() -> Opened:
            from mpifed.privacy.ledger_file import LEDGER
            from mpifed.run.folder import locked, open_folder, remove

            if overwrite:
                if (out / LEDGER).exists():
                    reporter.warn(f"{out}: a private run is replaced; what it has released stays known")
                (replace or partial(remove, out))()
            held.enter_context(locked(out))
            return open_folder(job, out, resume)

        (STANDING.add if overwrite else STANDING.discard)(out)
        with agreed(comm):
            if comm.rank == 0:
                from mpifed.run.folder import to_remove  # what rank 0 alone needs, others do not import
                from mpifed.run.observation import Observation, checked_observers

                chosen = checked_observers(job.make_observers() if observers is None else observers)
                watched = Observation(chosen, out, reporter)
                if overwrite:
                    to_remove(out)
                else:
                    opened = prepared()
        opened = comm.bcast(opened)
        if opened is not None and comm.rank == 0:
            if opened.damaged:
                reporter.warn(opened.damaged)
            if resume and not opened.saved:
                reporter.warn(f"{out}: new run; no checkpoint to resume", "note")
        if opened is not None and opened.ended is not None:
            reporter.warn(f"{out}: finished already; nothing was changed", "note")
            with agreed(comm):
                return outcome.as_it_ended(opened.ended, opened.job, out) if comm.rank == 0 else None
        header = None if opened is None else opened.header
        try:
            with watched.watching() if watched else nullcontext():
                begun = job if opened is None else opened.job
                this = RunLoop(begun, comm, out, reporter, request, header, accept_changed, watched)
                keep_freed_memory()  # by rounds; what preparing has taken has gone back
                if opened is None:
                    with agreed(comm):
                        opened = prepared() if comm.rank == 0 else None
                    opened = comm.bcast(opened)
                    STANDING.discard(out)
                return this.play(opened.saved, max_hours)
        finally:
            reporter.end()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence NumPy's warnings on mpifed's own arithmetic: a run whose numbers diverge ends with a message."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=RuntimeWarning, module=r"(mpifed|numpy|scipy)\.")
        yield
