"""The points of a scaling study, and their runs: several of each, interleaved; finished ones are not repeated."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import tomli_w

from mpifed.core.errors import MpifedError, NumericalError, UsageError
from mpifed.core.tables import Table
from mpifed.files.json_file import read_json, write_json
from mpifed.job.job import Job, put_key, read_table
from mpifed.scaling.launch import start
from mpifed.shards import store

STRONG, WEAK = "strong", "weak"
PLAN = "study.json"
ROUNDS = 100  # rounds of a run, unless its job has fewer
_DONE = (0, 5, 6)


@dataclass(frozen=True)
class ScalingPoint:
    """One point of a series: a number of ranks and a problem."""

    kind: str  # strong or weak
    ranks: int
    clients: int | None = None  # of synthetic data; None: the job's own data
    size: int | None = None  # of the model; None: the job's own

    @property
    def series(self) -> ScalingPoint:
        """The settings that this point shares with the others of its series."""
        clients = self.clients
        if self.kind == WEAK and clients is not None:
            clients //= self.ranks
        return replace(self, ranks=0, clients=clients)

    @property
    def name(self) -> str:
        """The name of its folder."""
        parts = [self.kind, f"r{self.ranks:04d}"]
        parts += [f"c{self.clients}"] if self.clients is not None else []
        parts += [f"m{self.size}"] if self.size is not None else []
        return "-".join(parts)

    @property
    def label(self) -> str:
        """The label of its series."""
        series = self.series
        parts = [] if series.clients is None else [f"{series.clients} clients" + " a rank" * (series.kind == WEAK)]
        parts += [] if series.size is None else [f"model size {series.size}"]
        return ", ".join(parts) or "the job"

    def table(self) -> Table:
        return asdict(self)


def plan(
    kinds: Sequence[str], ranks: Sequence[int], clients: Sequence[int], sizes: Sequence[int], own_clients: int
) -> list[ScalingPoint]:
    """All points of a study.

    Parameters
    ----------
    clients
        Numbers of clients, in all (strong) or per rank (weak); empty: the job's own.
    sizes
        Sizes of the model; empty: the job's own.
    own_clients
        Number of clients in the job's own data.
    """
    points = []
    for size in sizes or [None]:  # type: ignore[list-item]
        if STRONG in kinds:
            points += [ScalingPoint(STRONG, p, n, size) for n in clients or [None] for p in ranks]  # type: ignore[list-item]
        if WEAK in kinds:
            each = clients or [max(1, own_clients // max(ranks))]
            points += [ScalingPoint(WEAK, p, n * p, size) for n in each for p in ranks]
    return points


@dataclass(frozen=True)
class Study:
    """The runs of a scaling study and their folder."""

    table: Table  # the job's tables
    points: tuple[ScalingPoint, ...]
    rounds: int
    repeat: int
    launcher: str
    out: Path
    check: bool = True  # user-defined classes, before each run

    def run_all(self, say: Callable[[str], None]) -> None:
        """Run all runs that have not finished; UsageError if the folder has another study, MpifedError if one fails."""
        self.out.mkdir(parents=True, exist_ok=True)
        self._same_as_before()
        for point in self.points:
            self._prepare(point, say)
        left = [(turn, point) for turn in range(self.repeat) for point in self.points if not self.done(point, turn)]
        for number, (turn, point) in enumerate(left, 1):
            say(f"{number} of {len(left)}: {point.name}, repeat {turn + 1} of {self.repeat}")
            self._run(point, turn)

    def folder(self, point: ScalingPoint, turn: int) -> Path:
        return self.out / "runs" / point.name / f"{turn:02d}"

    def done(self, point: ScalingPoint, turn: int) -> bool:
        try:
            run = read_json(self.folder(point, turn) / "run.json")
        except MpifedError:
            return False
        return run.get("exit") in _DONE and run.get("rounds") == self.rounds

    def job_of(self, point: ScalingPoint) -> Table:
        table: Table = json.loads(json.dumps(self.table, default=str))
        table.pop("sweep", None)
        put_key(table, "rounds", self.rounds)
        put_key(table, "record.evaluate_every", 0)
        put_key(table, "record.checkpoint_every", 0)
        put_key(table, "stop", {})
        if point.clients is not None:
            put_key(table, "data.path", str(self._data_of(point)))
        if point.size is not None:
            put_key(table, "model.hidden", point.size)
        participating = table.get("participation", {}).get("clients_per_round")
        if point.clients is not None and participating is not None:
            own_clients = store.open_federation(self.table["data"]["path"]).clients
            put_key(
                table, "participation.clients_per_round", max(1, round(participating * point.clients / own_clients))
            )
        return table

    def _same_as_before(self) -> None:
        identity = {
            "job": hashlib.sha256(json.dumps(self.table, sort_keys=True, default=str).encode()).hexdigest(),
            "rounds": self.rounds,
        }
        path = self.out / PLAN
        if path.exists():
            before = read_json(path)
            if {key: before.get(key) for key in identity} != identity:
                raise UsageError(
                    f"{self.out}: holds a study of another job, or with other rounds ({before.get('rounds')}, now "
                    f"{self.rounds}); choose another --out, or remove the folder"
                )
        elif any(self.out.iterdir()):
            raise UsageError(f"{self.out}: is not empty, but holds no study; choose another --out")
        write_json(path, identity | {"points": [point.table() for point in self.points], "launcher": self.launcher})

    def _data_of(self, point: ScalingPoint) -> Path:
        return self.out / "data" / f"clients-{point.clients}"

    def _prepare(self, point: ScalingPoint, say: Callable[[str], None]) -> None:
        """Write the synthetic data of a point whose clients are not the job's own."""
        if point.clients is None or (self._data_of(point) / "federation.h5").exists():
            return
        say(f"writing synthetic data of {point.clients} clients")
        made = self._data_of(point).with_name(f"{self._data_of(point).name}.new")
        shutil.rmtree(made, ignore_errors=True)
        made.parent.mkdir(exist_ok=True)
        command = ["data", *synthetic_like(store.open_federation(self.table["data"]["path"]), point.clients)]
        completed = subprocess.run(
            [sys.executable, "-m", "mpifed", *command, "--out", str(made)], capture_output=True, text=True, check=False
        )
        if completed.returncode:
            raise MpifedError(
                f"mpifed {' '.join(command)} ended with {completed.returncode}: {completed.stderr.strip()}"
            )
        made.rename(self._data_of(point))

    def _run(self, point: ScalingPoint, turn: int) -> None:
        folder = self.folder(point, turn)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        path, log = folder.parent / "job.toml", folder.parent / f"{turn:02d}.log"
        path.write_text(tomli_w.dumps(self.job_of(point)), encoding="utf-8")
        command = ["run", str(path), "--out", str(folder), "--progress", "none"]
        code = start(self.launcher, point.ranks, [*command, *([] if self.check else ["--no-check"])], log)
        if code not in _DONE or not self.done(point, turn):
            said = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
            hint = ""
            if code == NumericalError.exit_code and point.clients is not None:
                hint = (
                    f"\nThe data of {point.name} are synthetic, and the job's learning rates may be too large for "
                    "them: change these for the study by --set, or leave such points out by --strong"
                )
            raise MpifedError(f"{point.name} ended with {code}; the end of {log}:\n{said}{hint}")


def read_job(path: Path, changes: Sequence[str], rounds: int | None) -> tuple[Table, int]:
    """The tables of a job, with an absolute data path, and the rounds of a run; UsageError if the job is wrong."""
    table = read_table(path, changes)
    job = Job.check({key: value for key, value in table.items() if key != "sweep"}, str(path))
    put_key(table, "data.path", str(Path(job.data.path).resolve()))
    return table, rounds or min(job.rounds, ROUNDS)


def synthetic_like(data: store.ShardFolder, clients: int) -> list[str]:
    """Arguments of `mpifed data` for as many rows and columns per client; UsageError unless the data split by rows."""
    if data.split != "rows":
        raise UsageError(
            f"{data.path}: is split by {data.split}; synthetic data for more clients are always split by rows: leave "
            f"out --clients and the {WEAK} study with --{STRONG}"
        )
    stored = float(data.nbytes.sum() / (data.counts @ data.widths))
    task = ["classification", "--classes", str(data.classes)] if data.classes else ["regression"]
    narrow = ["--dtype", "uint8", "--scale", "unit"] if stored < 4 and not data.sparse else []
    rows = max(1, round(data.samples / data.clients)) * clients
    return [
        "synthetic", "--split", "rows", "--samples", str(rows), "--features", str(data.features), "--task", *task,
        *narrow, "--clients", str(clients), "--pack", str(min(clients, max(1, data.pack))),
    ]  # fmt: skip
