"""Plays the jobs of a paper's curves, each for several seeds as a sweep; what has finished is not run again."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from jobs.reproduction.results import ended
from mpifed.core.errors import NumericalError
from mpifed.files.ends import FINISHED
from mpifed.files.run_folder import summary
from mpifed.job.job import read_table
from mpifed.results.points import is_sweep, point_settings
from mpifed.results.text import toml_text
from mpifed.run.command import How, run_command

GRID_SEED = 1001  # of every search, and of nothing that is reported


@dataclass(frozen=True)
class Plan:
    """What is run, and how."""

    out: Path
    rounds: int
    seeds: int
    jobs: Path
    changes: tuple[str, ...] = ()  # of every job, as `--set` takes them
    launcher: tuple[str, ...] = ()  # before `python -m mpifed`
    dry: bool = False  # run nothing
    only: tuple[str, ...] = ("",)  # how the names of the jobs begin that are run; $ is the end of a name
    deadline: float = math.inf  # of time.monotonic(): no run begins after it

    def some(self, names: Iterable[str]) -> list[str]:
        """Those of the jobs that are asked for."""
        return [name for name in names if f"{name}$".startswith(self.only)]

    def run(self, name: str, folder: Path, rounds: int, every: int, changes: Sequence[str], seeds: int) -> None:
        """A job's sweep over seeds, to `rounds`, or as many as one has done; what has finished is left as it is."""
        if self.dry or time.monotonic() >= self.deadline or done(folder, self.points(name, changes, seeds), rounds):
            return
        further = [int(summary(run)["rounds"]) for run in points_of(folder) if (run / "run.json").exists()]
        rounds = max([rounds, *further])  # no run is resumed with fewer rounds than it has done
        settings = [
            f"rounds={rounds}",
            f"record.evaluate_every={every}",
            "record.checkpoint_every=0",
            f"sweep.seeds={seeds}",
        ]
        log, job = folder.with_name(f"{folder.name}.log"), self.jobs / f"{name}.toml"
        log.parent.mkdir(parents=True, exist_ok=True)
        print(f"{folder}  ({rounds} rounds)", flush=True)
        with open(log, "w", encoding="utf-8") as file:
            code = self.launch(job, (*settings, *self.changes, *changes), folder, file)
        if code not in (
            *FINISHED,
            NumericalError.exit_code,
        ):  # large steps of a grid fail numerically; limits need not be met
            raise SystemExit(f"{job} ended with {code}; see {log}")

    def launch(self, job: Path, changes: tuple[str, ...], folder: Path, log: TextIO) -> int:
        """`mpifed run`, under the launcher or in this process; the exit code."""
        if not self.launcher:
            with redirect_stdout(log), redirect_stderr(log):
                try:
                    return run_command(job, changes, folder, None, How(resume=True, progress="none"))
                except SystemExit as end:
                    return int(end.code or 0)
        command = [*self.launcher, sys.executable, "-m", "mpifed", "run", str(job)]
        command += [part for one in changes for part in ("--set", one)]
        command += ["--resume", "--progress", "none", "--out", str(folder)]
        return subprocess.call(command, stdout=log, stderr=log)

    def points(self, name: str, changes: Sequence[str], seeds: int) -> int:
        """How many runs a job's sweep has."""
        count = seeds
        for key, values in read_table(self.jobs / f"{name}.toml", changes).get("sweep", {}).items():
            count *= len(values) if key != "seeds" else 1
        return count

    def search(self, name: str, axes: Mapping[str, Sequence[Any]], kind: str = "grid") -> Path:
        """The folder of a grid over some settings of a job, one seed."""
        folder = self.out / kind / name
        self.run(name, folder, self.rounds, self.rounds, searched(axes), 1)
        return folder


def searched(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The changes that make a job a grid over some of its settings."""
    return [f"seed={GRID_SEED}", *(f'sweep."{key}"={toml_text(list(values))}' for key, values in axes.items())]


def assigned(settings: Mapping[str, Any]) -> list[str]:
    """The changes that give a job these settings."""
    return [f"{key}={toml_text(value)}" for key, value in settings.items()]


def points_of(folder: Path) -> list[Path]:
    """The runs of a sweep, as far as they have begun."""
    return [run for name, _ in point_settings(folder) if (run := folder / name).exists()] if is_sweep(folder) else []


def done(folder: Path, points: int, rounds: int) -> bool:
    """Whether so many runs of a sweep have come so far, or have failed numerically."""
    return sum(ended(run, rounds, (NumericalError.exit_code,)) for run in points_of(folder)) >= points


def show(files: Iterable[Path]) -> None:
    print("\n".join(map(str, files)))


def prepare_mnist(folder: Path, split: str, clients: int, partition: str = "iid") -> None:
    """MNIST shared out to clients, unless it is there."""
    if (folder / "federation.h5").exists():
        return
    source = Path(os.environ.get("MPIFED_DATA", "data")) / "mnist"
    given = [str(source)] if source.is_dir() else []  # else it is downloaded
    options = ["--split", split, "--clients", str(clients), "--partition", partition, "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "mpifed", "data", "mnist", *given, *options], check=True)


def options(
    about: str | None, full: str, rounds: str, out: str, seeds: tuple[int, int] = (3, 10), hours: bool = False
) -> argparse.ArgumentParser:
    """The command line of a reproduction; the texts tell of its defaults, `seeds` are those without --full and with.

    One that takes `hours` has --minutes, and no --grid.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--rounds", type=int, help=f"of every run  [default: {rounds}]")
    default = "{}, with --full {}".format(*seeds)
    parser.add_argument("--seeds", type=int, help=f"of every curve  [default: {default}]")
    if hours:
        parser.add_argument("--minutes", type=float, help="begin no run after so many, and draw what is there")
    else:
        sizes = ["small", "large"]
        parser.add_argument("--grid", choices=sizes, help="of the steps  [default: small, with --full large]")
    parser.add_argument("--out", type=Path, help=f"[default: {out}]")
    parser.add_argument("--set", action="append", default=[], dest="changes", help="a change of every job")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="only jobs whose names begin so")
    parser.add_argument("--dry", action="store_true", help="run nothing: curves and figures of what is there")
    return parser


def common(given: argparse.Namespace, seeds: tuple[int, int] = (3, 10)) -> dict[str, Any]:
    """What every plan takes from its command line, and from the environment: MPIEXEC and RANKS."""
    mpiexec, ranks = os.environ.get("MPIEXEC", ""), os.environ.get("RANKS", "2")
    minutes = getattr(given, "minutes", None)
    return {
        "deadline": math.inf if minutes is None else time.monotonic() + 60 * minutes,
        "seeds": given.seeds or seeds[given.full],
        "changes": tuple(given.changes),
        "only": tuple(given.only),
        "dry": given.dry,
        "launcher": (*shlex.split(mpiexec), "-n", ranks) if mpiexec else (),
    }


def wants_large(given: argparse.Namespace) -> bool:
    return (given.grid or ("large" if given.full else "small")) == "large"
