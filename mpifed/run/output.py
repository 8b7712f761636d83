"""A run's folder and its files: job.toml, run.json, history, model, and the table of privacy."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from mpifed.comm.mpi import Comm, library
from mpifed.core import loops
from mpifed.core.algorithm import Algorithm
from mpifed.core.device import Device
from mpifed.core.errors import DataError
from mpifed.core.io_errors import sha256
from mpifed.core.record import Record
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.data.applied import APPLIED, applied
from mpifed.data.store import Federation
from mpifed.files.clients import CLIENTS, ClientScores, write_clients
from mpifed.files.history import History, read_history
from mpifed.files.history_csv import HISTORY
from mpifed.files.json_file import write_json
from mpifed.files.model_file import MODEL, model_arrays, write_arrays
from mpifed.files.run_folder import job_of
from mpifed.files.scratch import this_process
from mpifed.files.write import replace_text
from mpifed.job.job import Job
from mpifed.job.time_model import Simulation, described, played_once, simulate
from mpifed.privacy.disclosure import mark
from mpifed.privacy.ledger import Ledger
from mpifed.privacy.protection import collusion, not_private, warnings_of, what_is_protected
from mpifed.privacy.spending import without_epsilon
from mpifed.results.run_warnings import worse_than_measured
from mpifed.run import environment
from mpifed.run.checkpoint import Progress
from mpifed.run.identity import Identity
from mpifed.run.observation import Observation
from mpifed.run.progress import Reporter


class Results:
    """The files of a run other than checkpoints; on rank 0, no call is collective."""

    def __init__(
        self,
        job: Job,
        algorithm: Algorithm,
        out: Path,
        reporter: Reporter,
        observation: Observation,
        ledger: Ledger | None,
        identity: Identity | None,
        data: Federation | None = None,
        device: Device | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.job, self.algorithm, self.out, self.reporter, self.ledger = job, algorithm, out, reporter, ledger
        self.observation, self.identity = observation, identity
        self.history: History | None = None  # None until it is opened
        self.about: Table = {}  # the keys of run.json that do not change in each round
        self.data, self.device = data, device or Device()  # of rank 0
        self.notes = notes  # on the data
        self._infinite = without_epsilon(algorithm)

    def resume(self, done: Progress) -> list[Table]:
        """Go on with the history up to the progress `done`; returns its rows.

        If the simulated network has changed, the simulated times of earlier rows are of the old one, and are left out;
        those of later rows, and of run.json, are of the whole run over the new one.
        """
        self.observation.resume()
        try:
            changed = job_of(self.out).get("simulated_network") != self.job.table().get("simulated_network")
        except DataError:  # it is written anew
            changed = False
        stale = ["simulated_s"] if changed else []
        self.history = History.resume(self.out, done.round, stale, done.rows)
        return list(self.history.rows())

    def open(self, comm: Comm, progress: Progress, resumed: bool) -> None:
        """Write the job and the first run.json, and start the reporter."""
        self.history = self.history or History(self.out)
        job, text = self.job, self.job.text()
        if job.privacy is not None:
            mark(self.out / "checkpoint")
        replace_text(self.out / "job.toml", text)
        self.about = {
            "name": job.name,
            "seed": job.seed,
            "started": _utc(),
            "host": environment.host(),
            "ranks": comm.size,
            "commit": environment.commit(),
            "device": self.device.name,
            "versions": environment.versions() | dict(self.device.versions),
            "blas": environment.blas(),
            "loops": "compiled" if loops.compiled else "numpy",
            "mpi": library() if comm.size > 1 else None,
            "slurm_job": job_id if (job_id := os.environ.get("SLURM_JOB_ID", "")).isdecimal() else None,
            "process": this_process(),
            "warnings": self._warnings(),
            "job_sha256": hashlib.sha256(text.encode()).hexdigest(),
            **(self.identity.for_run_json(job.privacy is not None) if self.identity else {}),
            **self._privacy(),
            **self.observation.about(),
        }
        self.write(progress, None, [], 0.0, [])  # without digests: from here on the files change
        self.history.cut()
        resumption = f", resumed after round {progress.round}" if resumed else ""
        clients, ranks = self.algorithm.problem.clients, comm.size
        self.reporter.start(
            progress.round, job.rounds, f"{job.name}: {clients} clients on {ranks} rank{'s'[: ranks > 1]}{resumption}"
        )
        for warning in self.about["warnings"]:
            self.reporter.warn(warning)
        self.observation.begin(job, progress.round if resumed else None)

    def _privacy(self) -> Table:
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

    def row(self, columns: Table, clients: ClientScores | None) -> None:
        """Add a measured round; clients.csv is that of the last one."""
        if self.history is not None:
            self.history.append(columns)
            self.reporter.row(columns)
            self.observation.measured(columns)
        self.write_clients(clients)

    def returned(self, round: int, clients: ClientScores | None) -> None:
        """Say that the model is that of an earlier round, with these scores."""
        self.about["returned_round"] = round
        self.write_clients(clients)

    def write_clients(self, clients: ClientScores | None) -> None:
        """Write clients.csv, where the job has clients' scores."""
        if clients is not None:
            problem, tested = self.algorithm.problem, len(clients.client)
            self.about |= {"clients_tested": tested, "clients_without_tests": problem.clients - tested}
            names = () if self.job.privacy else problem.names  # whose folders are published
            write_clients(self.out, clients, problem.objective.task, names)

    def simulation(self, progress: Progress) -> Simulation | None:
        """The simulated times of the rounds so far, if the job has a simulated network."""
        if self.job.simulated_network is None:
            return None
        once, clients = played_once(self.algorithm), self.algorithm.problem.clients
        return simulate(self.job.simulated_network, progress.exchanges, once, clients)

    def _simulated(self, progress: Progress) -> Table:
        """The keys of run.json on simulated times."""
        simulation = self.simulation(progress)
        if self.job.simulated_network is None or simulation is None:
            return {}
        return {"simulated_s": simulation.total_s, "simulated": described(self.job.simulated_network, simulation)}

    def close(self, server: Record, last: ReadOnlyTable, late: dict[str, float | None], rounded: Iterable[str]) -> None:
        """Write the model, and report the algorithm's remarks.

        Parameters
        ----------
        last : columns of the last model
        late : those of them that are not in the history
        rounded : of `mpifed.run.outcome.rounded_away`
        """
        write_arrays(self.out / MODEL, model_arrays(self.algorithm.model(server)), self._attributes())
        # it says what data are, as no release does
        kept = None if self.data is None or self.job.privacy is not None else applied(self.data)
        if kept is not None:
            replace_text(self.out / APPLIED, json.dumps(asdict(kept)))
        rows = read_history(self.out) if (self.out / HISTORY).exists() else {}
        worse = worse_than_measured(self.job.table(), rows, self.about.get("returned_round"))
        remarks = [*self.algorithm.remarks(server, last), *map(str, worse), *rounded]
        for remark in remarks:
            self.reporter.warn(remark)
        if not self.job.released_only:  # they may depend on the server's state beside its model
            self.about["warnings"] += remarks
        self.about["warnings"] += self.observation.failures
        self.about |= {name: value if value is None or math.isfinite(value) else None for name, value in late.items()}
        if self.ledger is not None:
            self.about |= collusion(self.job, self.ledger.spending)

    def _attributes(self) -> dict[str, int | str]:
        """The attributes of model.safetensors that identify its run."""
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
            "exchanges": {
                name: {key: value for key, value in cost.items() if key != "gradients"}  # which the history has
                for name, cost in progress.exchanges.items()
            }
            or None,
            **self._simulated(progress),
        }
        if code is not None:
            written = [path for name in (HISTORY, CLIENTS, MODEL, APPLIED) if (path := self.out / name).exists()]
            state["digests"] = {path.name: sha256(path) for path in written}
        # before the end, these are in the history
        spent = {} if self.ledger is None or code is None else self.ledger.columns()
        ledger = {} if self.ledger is None else {"ledger": self.ledger.sync()._asdict()}
        write_json(self.out / "run.json", self.about | state | spent | ledger)


def _utc() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
