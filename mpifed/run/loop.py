"""A run: rounds, the clock, measuring, checkpoints, the end."""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from mpifed.comm.federation import Request
from mpifed.comm.transport import Transport, library
from mpifed.core.errors import Interrupted, NotCertified, UsageError
from mpifed.core.exchange import Measure, play
from mpifed.core.record import leaves
from mpifed.core.round import SETUP, Round
from mpifed.run import checkpoint, environment
from mpifed.run.checkpoint import Progress
from mpifed.run.config import Job
from mpifed.run.history import HISTORY, History, dotted, write_json, write_model
from mpifed.run.measure import measure
from mpifed.run.memory import keep_freed_memory
from mpifed.run.report import Reporter, Silent
from mpifed.run.setup import Ready, prepare, round_of, together
from mpifed.run.shelf import Shelf
from mpifed.run.signals import stop_on_signals

LIMIT_REACHED = 1  # an order: the run ends here, and well
INTERRUPTED = Interrupted.exit_code  # an order: checkpoint, and end here
FAILURE = "failure.txt"  # what the first rank to fail has said
# what may differ between a run and its resumption, since no bit depends on it
_FREE = ("rounds", "name", "stop", "record", "server", "data.path", "data.memory_gib", "data.verify")


class Result(NamedTuple):
    """What a run leaves behind; on rank 0, None elsewhere."""

    run_dir: Path
    rounds: int
    columns: dict[str, Any]  # the last measured row
    model: Any


def run(
    job: Job,
    transport: Transport,
    out: Path,
    *,
    resume: bool = False,
    max_hours: float | None = None,
    reporter: Reporter | None = None,
    shelf: Shelf | None = None,
) -> Result | None:
    """Run a job to its end, or on from its checkpoint. Collective.

    Parameters
    ----------
    out : the run's folder; must not hold a run already unless `resume`
    max_hours : checkpoint and raise `Interrupted` at the first round boundary after so many hours
    shelf : where the data of an earlier run in this process may still be, and this run's stay

    Raises
    ------
    MpifedError
        UsageError, DataError and Interrupted on every rank; any other error, once rounds are played, on the rank
        where it happened: `mpifed.run.launch` then ends all of them.
    """
    keep_freed_memory()
    reporter = reporter or Silent()
    with stop_on_signals() as request, threadpool_limits(1):  # the bits depend on it, and ranks share the cores
        resume = transport.share(together(transport, lambda: _open_folder(transport, out, resume)))
        try:
            return _Run(job, transport, out, reporter, request, shelf).play(resume, max_hours)
        finally:
            reporter.end()


def _open_folder(transport: Transport, out: Path, resume: bool) -> bool:
    """Make the run's folder ready, on rank 0; whether there is a checkpoint to go on from."""
    if transport.rank:
        return False
    begun, saved = (out / "job.toml").exists(), any((out / "checkpoint").glob("round-*[0-9]"))
    if begun and not resume:
        raise UsageError(f"{out}: holds a run already; choose another --out, or continue it with --resume")
    if resume and not begun:
        raise UsageError(f"{out}: no run to resume; start it without --resume")
    out.mkdir(parents=True, exist_ok=True)
    (out / FAILURE).unlink(missing_ok=True)
    if not saved:  # also a run that was killed before its first checkpoint
        (out / HISTORY).unlink(missing_ok=True)
    return saved


class _Run:
    """One run on this rank, from preparation to results; the numbers that change are all here."""

    def __init__(
        self,
        job: Job,
        transport: Transport,
        out: Path,
        reporter: Reporter,
        request: Request,
        shelf: Shelf | None,
    ) -> None:
        self.job, self.transport, self.out, self.reporter = job, transport, out, reporter
        self.ready: Ready = prepare(job, transport, shelf)
        self.ready.federation.request = request
        self.server, self.clients = self.ready.server, self.ready.clients
        self.exchanges, self.measures = self.ready.algorithm.exchanges, self.ready.algorithm.measures
        self.everybody = Round(SETUP, job.seed, np.ones(self.ready.federation.clients, dtype=bool))
        self.settings = job.table()
        self.about: dict[str, Any] = {}  # what run.json says from the start
        self.progress = Progress(0)
        self.row: dict[str, Any] = {}
        self.certified: float | None = None  # the KKT residual of the last measured model, on rank 0
        self.late: dict[str, float | None] = {}  # of the last model, when its row in the history was written before
        self.history: History | None = None
        self.round_s: list[float] = []
        self.started = time.monotonic()

    @property
    def serves(self) -> bool:
        return self.ready.federation.serves

    def play(self, resume: bool, max_hours: float | None) -> Result | None:
        """The whole run."""
        federation = self.ready.federation
        if resume:
            self._resume()
        else:
            self.server, self.clients = play(
                self.ready.algorithm.setup, self.server, self.clients, self.everybody, federation
            )
            self.progress = Progress(0, 0.0, federation.up_bytes, federation.down_bytes)
        self._open_results(resume)
        gc.collect()
        gc.freeze()  # what there is now stays to the end: no need to look through it again and again
        began_cpu = time.process_time()
        self._rounds(max_hours)
        cpu_s = time.process_time() - began_cpu
        if federation.order != INTERRUPTED and self.job.record.every:
            self._measure_the_end()
        self._checkpoint()
        code = self.transport.share(self._code())
        self._close_results(cpu_s, code)
        if code == INTERRUPTED:
            raise Interrupted(f"interrupted after round {self.progress.round}; go on with --resume --out {self.out}")
        if code == NotCertified.exit_code:
            raise NotCertified(
                f"[stop] kkt_residual = {self.job.stop.kkt_residual:g}: not reached in {self.progress.round} rounds; "
                f"the residual is {_shown(self.certified)}; the model stands in {self.out}; give it more rounds with "
                "--set rounds=... --resume"
            )
        if not self.serves:
            return None
        return Result(self.out, self.progress.round, self.row | self.late, self.ready.algorithm.model(self.server))

    def _rounds(self, max_hours: float | None) -> None:
        federation, record = self.ready.federation, self.job.record
        if record.every and self.progress.round == 0 and not self.row:
            self._measure(self._certifies())
        while self.progress.round < self.job.rounds:
            if self.serves:
                federation.order = self._order(max_hours)
            now = round_of(self.job, federation.clients, self.progress.round)
            start = time.perf_counter()
            self.server, self.clients = play(self.exchanges, self.server, self.clients, now, federation)
            if federation.halted:
                return
            self._advance(time.perf_counter() - start)
            if record.every and self.progress.round % record.every == 0:
                self._measure(self._certifies())
            if record.checkpoint_every and self.progress.round % record.checkpoint_every == 0:
                self._checkpoint()

    def _order(self, max_hours: float | None) -> int:
        """The server's word before a round."""
        federation, seconds = self.ready.federation, self.job.stop.seconds
        if federation.request.asked or federation.requested:
            return INTERRUPTED
        if max_hours is not None and time.monotonic() - self.started > max_hours * 3600:
            return INTERRUPTED
        if seconds is not None and self.progress.elapsed_s >= seconds:
            return LIMIT_REACHED
        return LIMIT_REACHED if self._certified() else 0

    def _certifies(self) -> bool:
        """Whether this round's measurement is one with certificates."""
        done, every = self.progress.round, self.job.record.certify_every
        if self.job.stop.kkt_residual is not None or done == self.job.rounds:
            return True
        return every > 0 and done % every == 0

    def _certified(self) -> bool:
        """On rank 0: whether the certificate that the job asks for is there."""
        asked = self.job.stop.kkt_residual
        return asked is not None and self.certified is not None and self.certified <= asked

    def _code(self) -> int:
        """On rank 0: the exit code of a run that ends in order."""
        if self.ready.federation.order == INTERRUPTED:
            return INTERRUPTED
        asked = self.job.stop.kkt_residual is not None and self.ready.federation.order == 0
        return NotCertified.exit_code if asked and not self._certified() else 0

    def _advance(self, seconds: float) -> None:
        federation = self.ready.federation
        self.round_s.append(seconds)
        self.progress = Progress(
            self.progress.round + 1, self.progress.elapsed_s + seconds, federation.up_bytes, federation.down_bytes
        )
        self.reporter.advance(self.progress.round)

    def _measure(self, certify: bool) -> None:
        columns, done = self._columns(self.measures, certify), self.progress
        self.row = {
            "round": done.round,
            "elapsed_s": done.elapsed_s,
            **columns,
            "up_bytes": done.up_bytes,
            "down_bytes": done.down_bytes,
        }
        self.certified = self.row.get("kkt_residual")
        if self.history is not None:
            self.history.append(self.row)
            self.reporter.row(self.row)

    def _columns(self, measures: Sequence[Measure], certify: bool) -> dict[str, float | None]:
        ready = self.ready
        return measure(
            measures, ready.algorithm, self.server, ready.federation.blocks, self.everybody, ready.federation,
            ready.test, certify,
        )  # fmt: skip

    def _measure_the_end(self) -> None:
        """The last row, and the certificate of the last model where its row has none."""
        if self.row.get("round") != self.progress.round:
            self._measure(certify=True)
            return
        certificates = [one for one in self.measures if one.certificate]
        if self.transport.share(certificates and self.certified is None):
            self.late = self._columns(certificates, certify=True)
            self.certified = self.late.get("kkt_residual")

    def _checkpoint(self) -> None:
        checkpoint.save(
            self.out,
            self.transport,
            self.progress,
            self.settings,
            self.server,
            self.ready.federation.blocks,
            self.clients,
        )

    def _resume(self) -> None:
        federation = self.ready.federation
        self.progress, before, self.server, self.clients = checkpoint.load(
            self.out, self.transport, self.server, federation.blocks, self.clients
        )
        together(self.transport, lambda: _same_job(self.out, before, self.settings))
        if self.serves:
            federation.up_bytes, federation.down_bytes = self.progress.up_bytes, self.progress.down_bytes
            self.history = History.resume(self.out, self.progress.round)
        last = self.history.last() if self.history else {}
        self.row = self.transport.share(last)  # every rank must know what is measured already
        residual = last.get("kkt_residual", np.nan)
        self.certified = None if np.isnan(residual) or last["round"] != self.progress.round else residual

    def _open_results(self, resume: bool) -> None:
        if not self.serves:
            return
        self.history = self.history or History(self.out)
        text = self.job.text()
        (self.out / "job.toml").write_text(text, encoding="utf-8")
        self.about = {
            "name": self.job.name,
            "seed": self.job.seed,
            "started": _utc(),
            "host": environment.host(),
            "ranks": self.transport.size,
            "commit": environment.commit(),
            "versions": environment.versions(),
            "blas": environment.blas(),
            "mpi": library() if self.transport.size > 1 else None,
            "slurm_job": os.environ.get("SLURM_JOB_ID"),
            "warnings": self._warnings(),
            "job_sha256": hashlib.sha256(text.encode()).hexdigest(),
        }
        self._write_run(None, 0.0, [])
        done = self.progress.round
        how = f", resumed after round {done}" if resume else ""
        clients, ranks = self.ready.federation.clients, self.transport.size
        self.reporter.start(
            done, self.job.rounds, f"{self.job.name}: {clients} clients on {ranks} rank{'s'[: ranks > 1]}{how}"
        )
        for warning in self.about["warnings"]:
            self.reporter.warn(warning)

    def _warnings(self) -> list[str]:
        found: list[str] = getattr(self.ready.algorithm, "warnings", lambda: [])()
        if self.job.stop.kkt_residual is not None and not self.job.record.every:
            found.append("[stop] kkt_residual: nothing is measured with [record] every = 0, so it cannot be reached")
        return found

    def _close_results(self, cpu_s: float, code: int) -> None:
        gathered = self.transport.gather((cpu_s, environment.peak_rss_bytes()))
        if gathered is None or self.history is None:
            return
        model = dict(leaves(self.ready.algorithm.model(self.server)))
        write_model(self.out / "model.h5", model)
        self.history.close()
        self.about["warnings"] += self._remarks()
        self.about |= self.late
        self._write_run(code, sum(cpu for cpu, _ in gathered), [rss for _, rss in gathered])

    def _remarks(self) -> list[str]:
        """What the algorithm has to say about its end, printed too."""
        found: list[str] = getattr(self.ready.algorithm, "remarks", lambda server: [])(self.server)
        for remark in found:
            self.reporter.warn(remark)
        return found

    def _write_run(self, code: int | None, cpu_s: float, peak_rss: list[int]) -> None:
        found = {
            "rounds": self.progress.round,
            "exit": code,
            "ended": None if code is None else _utc(),
            "elapsed_s": self.progress.elapsed_s,
            "seconds_per_round": float(np.median(self.round_s)) if self.round_s else None,
            "cpu_s": cpu_s or None,
            "peak_rss_bytes": max(peak_rss, default=None),
            "up_bytes": self.progress.up_bytes,
            "down_bytes": self.progress.down_bytes,
        }
        write_json(self.out / "run.json", self.about | found)


def _shown(residual: float | None) -> str:
    return "not known" if residual is None else f"{residual:.3g}"


def _utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _same_job(run_dir: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    old, new = dict(dotted(before)), dict(dotted(after))
    changed = [
        key
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not any(key == free or key.startswith(free + ".") for free in _FREE)
    ]
    if changed:
        shown = "; ".join(f"{key}: {old.get(key)!r} before, {new.get(key)!r} now" for key in changed)
        raise UsageError(f"{run_dir}: --resume with another job ({shown}); resume with {run_dir / 'job.toml'}")
