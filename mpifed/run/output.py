"""A run's folder and its files: job.toml, run.json, history, model, and the table of privacy."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from mpifed.comm.mpi import Comm, library
from mpifed.core import loops
from mpifed.core.record import Record
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.applied import APPLIED, applied
from mpifed.files.clients import CLIENTS, ClientScores, write_clients
from mpifed.files.history import History, history_so_far
from mpifed.files.history_csv import HISTORY
from mpifed.files.json_file import JOB, write_json
from mpifed.files.model_file import MODEL, model_arrays, write_arrays
from mpifed.files.scratch import this_process
from mpifed.files.write import replace_text, sha256
from mpifed.job.participation import virtual_seconds
from mpifed.job.time_model import described, figures, played_once, simulate
from mpifed.privacy.disclosure import mark
from mpifed.privacy.ledger import Ledger
from mpifed.privacy.protection import not_private, warnings_of, what_is_protected
from mpifed.privacy.spending import without_epsilon
from mpifed.results.run_warnings import worse_than_measured
from mpifed.run import environment
from mpifed.run.checkpoint import Progress
from mpifed.run.identity import Identity
from mpifed.run.observation import Observation
from mpifed.run.progress import Reporter
from mpifed.run.setup import Ready
from mpifed.text import counted


@dataclass
class Results:
    """The files of a run other than checkpoints; on rank 0, no call is collective."""

    ready: Ready
    out: Path
    reporter: Reporter
    observation: Observation
    ledger: Ledger | None
    identity: Identity
    history: History | None = None  # until it is opened
    about: Table = field(default_factory=dict)  # the keys of run.json that do not change in each round

    def resume(self, done: Progress) -> list[Table]:
        """Go on with the history up to the progress `done`; returns its rows."""
        self.observation.resume()
        self.history = History.resume(self.out, done.round, done.rows)
        return self.history.rows()

    def open(self, comm: Comm, progress: Progress, resumed: bool) -> None:
        """Write the job and the first run.json, and start the reporter."""
        self.history = self.history or History(self.out)
        job, device, problem = self.ready.job, self.ready.ranks.device, self.ready.algorithm.problem
        text = job.text()
        privacy, infinite = problem.privacy, without_epsilon(self.ready.algorithm)
        if privacy is not None:
            mark(self.out / "checkpoint")
        private: Table = {"private": False}
        if privacy is not None:
            private = {
                "private": not_private(privacy) is None and not infinite,
                "protects": what_is_protected(privacy),
                "delta": privacy.delta,
                "noise_multiplier": privacy.noise_multiplier,
            }
        self.about = {
            "name": job.name,
            "seed": job.seed,
            "started": _utc(),
            "host": environment.host(),
            "ranks": comm.size,
            "commit": environment.commit(),
            "device": device.name,
            "versions": environment.versions() | dict(device.versions),
            "blas": environment.blas(),
            "loops": "compiled" if loops.compiled else "numpy",
            "mpi": library() if comm.size > 1 else None,
            "slurm_job": job_id if (job_id := os.environ.get("SLURM_JOB_ID", "")).isdecimal() else None,
            "process": this_process(),
            "warnings": [*self.ready.algorithm.warnings(), *warnings_of(job, privacy, infinite)],
            "job_sha256": hashlib.sha256(text.encode()).hexdigest(),
            **self.identity.for_run_json(privacy is not None),
            **private,
            **self.observation.about(),
        }
        if anew := not (self.out / JOB).exists():
            replace_text(self.out / JOB, text)
        self.write(progress, None, [], 0.0, [])  # without digests: from here on the files change
        if not anew:
            replace_text(self.out / JOB, text)
        self.history.cut()
        resumption = f", resumed after round {progress.round}" if resumed else ""
        title = f"{job.name}: {problem.clients} clients on {counted(comm.size, 'rank')}{resumption}"
        self.reporter.start(progress.round, job.rounds, title)
        for warning in self.about["warnings"]:
            self.reporter.warn(warning)
        self.observation.begin(job, progress.round if resumed else None)

    def row(self, columns: Table, clients: ClientScores | None) -> None:
        """Add a measured round; clients.csv is that of the last one."""
        if self.history is not None:
            self.history.append(columns)
            self.reporter.row(columns)
            self.observation.measured(columns)
        self.write_clients(clients)

    def write_clients(self, clients: ClientScores | None) -> None:
        """Write clients.csv, where the job has clients' scores."""
        if clients is not None:
            problem, tested = self.ready.algorithm.problem, len(clients.client)
            self.about |= {"clients_tested": tested, "clients_without_tests": problem.clients - tested}
            names = () if self.ready.job.privacy else problem.names  # whose folders are published
            write_clients(self.out, clients, problem.objective.task, names)

    def simulated(self, progress: Progress) -> Table:
        """What a job's simulated network says of the rounds so far, as run.json has it; empty where it says nothing."""
        job, clients = self.ready.job, self.ready.algorithm.problem.clients
        network = job.simulated_network
        if network is not None and figures(network):
            found = simulate(network, progress.exchanges, played_once(self.ready.algorithm), clients)
            return {"simulated_s": found.total_s, "simulated": described(network, found)}
        if network is None or network.delay_s is None:
            return {}
        return {"simulated_s": virtual_seconds(job, clients, progress.round)}

    def close(self, server: Record, last: ReadOnlyTable, late: dict[str, float | None], remarks: Iterable[str]) -> None:
        """Write the model, and report the algorithm's remarks.

        Parameters
        ----------
        last : columns of the last model
        late : those of them that are not in the history
        remarks : beside those of the algorithm
        """
        job = self.ready.job
        names = {"name": job.name, "objective": job.model["name"], "algorithm": job.algorithm["name"]}
        digests = {key: self.about[key] for key in ("job_sha256", "data_sha256") if key in self.about}
        write_arrays(self.out / MODEL, model_arrays(self.ready.algorithm.model(server)), names | digests)
        # it says what data are, as no release does
        if job.privacy is None:
            replace_text(self.out / APPLIED, json.dumps(asdict(applied(self.ready.data))))
        rows = history_so_far(self.out)
        worse = worse_than_measured(job.table(), rows, self.about.get("returned_round"))
        said = [*self.ready.algorithm.remarks(server, last), *map(str, worse), *remarks]
        for remark in said:
            self.reporter.warn(remark)
        if not job.released_only:  # they may depend on the server's state beside its model
            self.about["warnings"] += said
        self.about["warnings"] += self.observation.failures
        self.about |= {name: value if value is None or math.isfinite(value) else None for name, value in late.items()}

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
            "peak_rss_bytes": None if self.ready.job.released_only else max(peak_rss, default=None),
            "up_bytes": progress.up_bytes,
            "down_bytes": progress.down_bytes,
            "exchanges": {
                name: {key: value for key, value in cost.items() if key != "gradients"}  # which the history has
                for name, cost in progress.exchanges.items()
            }
            or None,
            **self.simulated(progress),
        }
        if code is not None:
            written = [path for name in (HISTORY, CLIENTS, MODEL, APPLIED) if (path := self.out / name).exists()]
            state["digests"] = {path.name: sha256(path) for path in written}
        # before the end, these are in the history
        spent = {} if self.ledger is None or code is None else self.ledger.spending.epsilons(self.ledger.shares)
        ledger = {} if self.ledger is None else {"ledger": self.ledger.sync()}
        write_json(self.out / "run.json", self.about | state | spent | ledger)


def _utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
