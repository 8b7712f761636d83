"""A run's folder and its files: job.toml, run.json, history, model, and the table of privacy."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mpifed.comm.mpi import library
from mpifed.comm.transport import Transport
from mpifed.core import loops
from mpifed.core.algorithm import Algorithm
from mpifed.core.device import Device, Host
from mpifed.core.errors import FINISHED, DataError, UsageError
from mpifed.core.record import Record, leaves
from mpifed.core.text import command_line
from mpifed.run import environment
from mpifed.run.best import job_of
from mpifed.run.checkpoint import Progress
from mpifed.run.config import Job
from mpifed.run.disclosure import RAW_FOLDERS, mark
from mpifed.run.history import HISTORY, History, aside, dotted, read_run, write_json, write_model
from mpifed.run.identity import Identity
from mpifed.run.json_file import RUN, content
from mpifed.run.ledger import Ledger
from mpifed.run.ledger_file import LEDGER, REMEDY, Header, read_compared
from mpifed.run.network import Simulation, described, played_once, simulate
from mpifed.run.process import this_process
from mpifed.run.protection import collusion, not_private, warnings_of, what_is_protected
from mpifed.run.report import Reporter
from mpifed.run.spending import without_epsilon
from mpifed.run.sweep import ended
from mpifed.run.transcript import FOLDER as TRANSCRIPT

FAILURE = "failure.txt"  # the message of the first rank to fail
_FILES = ("job.toml", RUN, HISTORY, "history.h5", "model.h5", "privacy.csv", FAILURE)
# keys that may differ between a run and its resumption, since no bit depends on them
_FREE = (
    "rounds", "name", "stop", "record", "server", "audit", "simulated_network", "data.path", "data.memory_gib",
    "data.verify", "data.stage", "data.state_gib",
)  # fmt: skip


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
    saved = any((out / "checkpoint").glob("round-*[0-9]"))
    begun = saved or any((out / name).exists() for name in ("job.toml", "run.json", LEDGER))
    for name in (*_FILES, *RAW_FOLDERS):
        check_kind(out / name, name in RAW_FOLDERS)
    # whether the run failed before it wrote results
    nothing_left = not saved and not (out / LEDGER).exists() and (out / FAILURE).exists()
    if begun and not resume and not nothing_left:
        raise UsageError(f"{out}: holds a run already; choose another --out, or continue it with --resume")
    damaged = _damaged(out) if resume and begun else ""
    header = _header(job, out, bool(damaged)) if resume and begun else None
    if begun and (code := ended_before(job, out)) is not None:
        if not saved:
            raise _without_its_end(out)
        return Opened(saved, header, code)
    out.mkdir(parents=True, exist_ok=True)
    (out / FAILURE).unlink(missing_ok=True)
    if not saved:  # also a run that was killed before its first checkpoint
        (out / HISTORY).unlink(missing_ok=True)
    return Opened(saved, header, None, damaged)


def check_kind(path: Path, is_folder: bool = False) -> None:
    """DataError where the path of a file or folder to be written is something else."""
    there = path.is_dir() if is_folder else path.is_file()
    if not there and (path.exists() or path.is_symlink()):
        raise DataError(f"{path}: is no {'folder' if is_folder else 'regular file'}; remove it, or put it back")


def _damaged(out: Path) -> str:
    """What is wrong with run.json, of which a resumed run uses only the exit code."""
    try:
        if (out / RUN).exists():
            read_run(out)
    except DataError as error:
        return f"{error}; it is written anew, from the checkpoint"
    return ""


def same_end(out: Path, done: int) -> None:
    """UsageError unless `done`, the round of the newest whole checkpoint, is the last of a run that has ended."""
    if read_run(out).get("rounds") != done:
        raise _without_its_end(out)


def _without_its_end(out: Path) -> UsageError:
    return UsageError(
        f"{out}: finished already, and the checkpoint of its last round is gone or damaged; its results stand, see "
        f"`{command_line('mpifed', 'show', out)}`; to run rounds again, choose another --out"
    )


def ended_before(job: Job, out: Path) -> int | None:
    """The exit code of a run that has ended with exactly this job, and whose result is valid; else None."""
    written = out / "job.toml"
    try:
        if not written.exists() or content(written) != job.text().encode():
            return None
        code = ended(out)
    except (DataError, OSError):  # run.json cannot be read
        return None
    return code if code in FINISHED else None


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
    if written and (shown := _changed(ledger.header.job, written)):
        raise DataError(f"{out / 'job.toml'}: is not the job in line 1 of {ledger.path} ({shown}); {REMEDY}")
    same_job(out, ledger.header.job, job.table())
    return ledger.header


def same_job(run_dir: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    """UsageError when a run would be resumed with a job that gives other results."""
    if shown := _changed(before, after):
        raise UsageError(f"{run_dir}: --resume with another job ({shown}); resume with {run_dir / 'job.toml'}")


def _changed(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The changes of a job that affect its results, as text."""
    old, new = dict(dotted(before)), dict(dotted(after))
    changed = [
        key
        for key in sorted({*old, *new})
        if old.get(key) != new.get(key) and not any(key == free or key.startswith(free + ".") for free in _FREE)
    ]
    return "; ".join(f"{key}: {old.get(key)!r} before, {new.get(key)!r} now" for key in changed)


class Results:
    """The files of a run other than checkpoints; on rank 0, no call is collective."""

    def __init__(
        self,
        job: Job,
        algorithm: Algorithm,
        out: Path,
        reporter: Reporter,
        ledger: Ledger | None,
        identity: Identity | None,
    ) -> None:
        self.job, self.algorithm, self.out, self.reporter, self.ledger = job, algorithm, out, reporter, ledger
        self.identity = identity
        self.history: History | None = None  # None until it is opened
        self.about: dict[str, Any] = {}  # the keys of run.json that do not change in each round
        self.device: Device = Host()  # of rank 0
        self.notes: list[str] = []  # on classes of the user's that were not tested
        self._infinite = without_epsilon(algorithm)

    def resume(self, done: Progress) -> dict[str, Any]:
        """Go on with the history up to the progress `done`; returns its last row.

        If the simulated network has changed, the simulated times of earlier rows are of the old one, and are left out;
        those of later rows, and of run.json, are of the whole run over the new one.
        """
        network = self.job.simulated_network
        try:
            changed = job_of(self.out).get("simulated_network") != self.job.table().get("simulated_network")
        except DataError:  # it is written anew
            changed = False
        renewed = {"simulated_s": network is not None} if changed else {}
        self.history = History.resume(self.out, done.round, renewed, done.rows)
        return self.history.last()

    def open(self, transport: Transport, progress: Progress, resumed: bool) -> None:
        """Write the job and the first run.json, and start the reporter."""
        self.history = self.history or History(self.out)
        job, text = self.job, self.job.text()
        if job.privacy is not None:
            for name in ("checkpoint", TRANSCRIPT) if job.record.transcript else ("checkpoint",):
                mark(self.out / name)
        with aside(self.out / "job.toml") as temporary:
            temporary.write_text(text, encoding="utf-8")
        self.about = {
            "name": job.name,
            "seed": job.seed,
            "started": _utc(),
            "host": environment.host(),
            "ranks": transport.size,
            "commit": environment.commit(),
            "device": self.device.name,
            "versions": environment.versions() | dict(self.device.versions),
            "blas": environment.blas(),
            "loops": "compiled" if loops.compiled else "numpy",
            "mpi": library() if transport.size > 1 else None,
            "slurm_job": job_id if (job_id := os.environ.get("SLURM_JOB_ID", "")).isdecimal() else None,
            "process": this_process(),
            "warnings": self._warnings(),
            "job_sha256": hashlib.sha256(text.encode()).hexdigest(),
            **(self.identity.for_run_json(job.privacy is not None) if self.identity else {}),
            **self._privacy(),
        }
        self.write(progress, None, [], 0.0, [])
        resumption = f", resumed after round {progress.round}" if resumed else ""
        clients, ranks = self.algorithm.problem.clients, transport.size
        self.reporter.start(
            progress.round, job.rounds, f"{job.name}: {clients} clients on {ranks} rank{'s'[: ranks > 1]}{resumption}"
        )
        for warning in self.about["warnings"]:
            self.reporter.warn(warning)

    def _privacy(self) -> dict[str, Any]:
        """The keys of run.json on privacy."""
        privacy = self.algorithm.problem.privacy
        if privacy is None:
            return {"private": False}
        private = not_private(privacy) is None and not self._infinite
        return {
            "private": private,
            "protects": f"{what_is_protected(privacy)}; {privacy.trust} noise",
            "delta": privacy.delta,
            "noise_multiplier": privacy.noise_multiplier,
        }

    def _warnings(self) -> list[str]:
        warnings: list[str] = [*self.notes, *self.algorithm.warnings()]
        for name in () if self.job.record.evaluate_every else self.job.stop.certificates:
            warnings.append(
                f"[stop] {name}: with [record] evaluate_every = 0 it is measured at the end, and ends no run earlier"
            )
        return warnings + warnings_of(self.job, self.algorithm.problem.privacy, self._infinite)

    def row(self, columns: dict[str, Any]) -> None:
        """Add a measured round."""
        if self.history is not None:
            self.history.append(columns)
            self.reporter.row(columns)

    def simulation(self, progress: Progress) -> Simulation | None:
        """The simulated times of the rounds so far, if the job has a simulated network."""
        if self.job.simulated_network is None:
            return None
        once, clients = played_once(self.algorithm), self.algorithm.problem.clients
        return simulate(self.job.simulated_network, progress.exchanges, once, clients)

    def _simulated(self, progress: Progress) -> dict[str, Any]:
        """The keys of run.json on simulated times."""
        simulation = self.simulation(progress)
        if self.job.simulated_network is None or simulation is None:
            return {}
        return {"simulated_s": simulation.total_s, "simulated": described(self.job.simulated_network, simulation)}

    def close(self, server: Record, last: Mapping[str, Any], late: dict[str, float | None]) -> None:
        """Write the model, history.h5 and the table of privacy, and report the algorithm's remarks.

        Parameters
        ----------
        last : columns of the last model
        late : those of them that are not in the history
        """
        write_model(self.out / "model.h5", dict(leaves(self.algorithm.model(server))), self._attributes())
        if self.history is not None:
            self.history.close()
        remarks = self.algorithm.remarks(server, last)
        for remark in remarks:
            self.reporter.warn(remark)
        if not self.job.released_only:  # they may depend on the server's state beside its model
            self.about["warnings"] += remarks
        self.about |= {name: value if value is None or math.isfinite(value) else None for name, value in late.items()}
        if self.ledger is not None:
            self.about |= collusion(self.job, self.ledger.spending)
            self.ledger.write_table()

    def _attributes(self) -> dict[str, int | str]:
        """The attributes of model.h5 that identify its run."""
        job = self.job
        names = {"name": job.name, "objective": job.model["name"], "algorithm": job.algorithm["name"]}
        digests = {key: self.about[key] for key in ("job_sha256", "data_sha256") if key in self.about}
        return names | digests | (self.ledger.sync().attributes() if self.ledger else {})

    def write(
        self, progress: Progress, code: int | None, round_s: Sequence[float], cpu_s: float, peak_rss: Sequence[int]
    ) -> None:
        """Write run.json with the progress of the run."""
        state = {
            "rounds": progress.round,
            "exit": code,
            "ended": None if code is None else _utc(),
            "elapsed_s": progress.elapsed_s,
            "seconds_per_round": float(np.median(round_s)) if round_s else None,
            "cpu_s": cpu_s or None,
            # it depends on secret numbers of clients and rows
            "peak_rss_bytes": None if self.job.released_only else max(peak_rss, default=None),
            "up_bytes": progress.up_bytes,
            "down_bytes": progress.down_bytes,
            "exchanges": dict(progress.exchanges) or None,
            **self._simulated(progress),
        }
        # before the end, these are in the history
        spent = {} if self.ledger is None or code is None else self.ledger.columns()
        ledger = {} if self.ledger is None else {"ledger": self.ledger.sync()._asdict()}
        write_json(self.out / "run.json", self.about | state | spent | ledger)


def _utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
