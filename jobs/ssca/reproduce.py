"""Figures 2, 3 and 4 of the long SSCA paper on MNIST, and what of its Section VI reproduces: `make reproduce-ssca`.

Every curve is a job beside this file, run for several seeds as a sweep; what has finished is not run again. The step
of the SGD baselines is searched on a grid, with a seed that is not reported. Without `--full` everything is reduced.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from jobs.ssca import figures, report
from jobs.ssca.results import Curve, read_curve, tuned
from mpifed.run.best import FAILED, select
from mpifed.run.command import How, run_command
from mpifed.run.config import read_table
from mpifed.run.history import read_json

JOBS = Path(__file__).parent
EARLY = 30  # rounds measured every 10; the later ones every 50
GRID_SEED = 1001
HELD = 0.5  # the decay of SGD's step that is also tried held fixed

SSCA = tuple(f"alg{k}-b{B}" for k in (1, 2) for B in (1, 10, 100)) + tuple(
    f"alg{k}-b{B}" for k in (3, 4) for B in (10, 100, 1000)
)
TUNED = (
    *(f"fedsgd-b{B}" for B in (1, 10, 100)),
    "fedavg-e2-b5",
    "fedavg-e2-b50",
    *(f"vertical-sgd-b{B}" for B in (10, 100, 1000)),
    "momentum-b100",
)
ALSO_HELD = tuple(name for name in TUNED if name.startswith(("fedsgd", "vertical")))
TRADEOFFS = ("alg1-lambda", "alg2-limit", "alg3-lambda", "alg4-limit")

Step = tuple[float, float]  # [a, alpha]: a / t^alpha


@dataclass(frozen=True)
class Plan:
    """What is run, and how."""

    out: Path
    rounds: int
    seeds: int
    grid: tuple[Step, ...]
    changes: tuple[str, ...]  # of every job, as `--set` takes them
    jobs: Path = JOBS
    launcher: tuple[str, ...] = ()  # before `python -m mpifed`
    dry: bool = False  # run nothing
    only: tuple[str, ...] = ("",)  # how the names of the jobs begin that are run; $ is the end of a name

    def some(self, names: Iterable[str]) -> list[str]:
        """Those of the jobs that are asked for."""
        return [name for name in names if f"{name}$".startswith(self.only)]

    def run(self, name: str, folder: Path, rounds: int, every: int, changes: Sequence[str], seeds: int) -> None:
        """A job's sweep over seeds, to `rounds`; what has finished is left as it is."""
        if self.dry or done(folder, self.points(name, changes, seeds), rounds):
            return
        settings = [f"rounds={rounds}", f"record.every={every}", "record.checkpoint_every=0", f"sweep.seeds={seeds}"]
        log, job = folder.with_name(f"{folder.name}.log"), self.jobs / f"{name}.toml"
        log.parent.mkdir(parents=True, exist_ok=True)
        print(f"{folder}  ({rounds} rounds)", flush=True)
        with open(log, "w", encoding="utf-8") as file:
            code = self.launch(job, (*settings, *self.changes, *changes), folder, file)
        if code not in (0, FAILED):  # large steps of a grid fail numerically
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

    def curve(self, name: str, step: Step | None = None) -> Path:
        """The folder of a job's runs to the end, densely measured at their beginning."""
        folder = self.out / (name if step is None else f"{name}-{step[0]:g}-{step[1]:g}")
        changes = [] if step is None else [f"algorithm.step={list(step)}"]
        self.run(name, folder, min(EARLY, self.rounds), 10, changes, self.seeds)
        self.run(name, folder, self.rounds, 50, changes, self.seeds)
        return folder

    def search(self, name: str) -> Path:
        """The folder of the grid over a baseline's step."""
        folder = self.out / "grid" / name
        axis = f'sweep."algorithm.step"={[list(step) for step in self.grid]}'
        self.run(name, folder, self.rounds, self.rounds, [f"seed={GRID_SEED}", axis], 1)
        return folder

    def tradeoff(self, name: str) -> Path:
        """The folder of a sweep of Figure 4, a single seed."""
        folder = self.out / name
        self.run(name, folder, self.rounds, self.rounds, [], 1)
        return folder


def done(folder: Path, points: int, rounds: int) -> bool:
    """Whether so many runs of a sweep have come so far, or have failed numerically."""
    runs = [read_json(one) for one in folder.glob("point-*/run.json")]
    ended = [run for run in runs if run["exit"] == FAILED or (run["exit"] == 0 and run["rounds"] >= rounds)]
    return len(ended) >= points


def prepare(data: Path) -> None:
    """MNIST over 10 clients, by rows and by columns."""
    source = Path(os.environ.get("MPIFED_DATA", "data")) / "mnist"
    for split in ("rows", "columns"):
        folder = data / f"mnist-{split}-10"
        if not (folder / "federation.h5").exists():
            given = [str(source)] if source.is_dir() else []  # else it is downloaded
            options = ["--split", split, "--clients", "10", "--out", str(folder)]
            subprocess.run([sys.executable, "-m", "mpifed", "data", "mnist", *given, *options], check=True)


def play(plan: Plan) -> tuple[dict[str, Curve], dict[str, list[Curve]], list[report.Search]]:
    """Everything is run; the curves by label, the points of Figure 4 by job, and what the grids gave."""
    folders, searches = {name: plan.curve(name) for name in plan.some(SSCA)}, []
    for name in plan.some(TUNED):
        grid = plan.search(name)
        if not (grid / "sweep.csv").exists():
            continue
        best = select(grid, by="train_loss", maximize=False)
        step = _step(best["settings"]["algorithm.step"])
        folders[name] = plan.curve(name, step)
        held = tuned(grid, HELD) if name in ALSO_HELD else None
        if held is not None:
            folders[report.held_name(name)] = plan.curve(name, held)
        tried = len(list(grid.glob("point-*")))
        searches.append(report.Search(name, step, tried, best["mean"]["train_loss"], best["edges"], held))
    found = {name: read_curve(name, sorted(folder.glob("point-*")), plan.rounds) for name, folder in folders.items()}
    points = {
        name: [read_curve(name, [point], plan.rounds) for point in sorted(plan.tradeoff(name).glob("point-*"))]
        for name in plan.some(TRADEOFFS)
    }
    curves = {name: curve for name, curve in found.items() if curve is not None}
    return curves, {name: [one for one in many if one is not None] for name, many in points.items()}, searches


def finish(plan: Plan) -> tuple[str, list[Path]]:
    """Runs what is left to run, and writes the table and the figures; both."""
    curves, points, searches = play(plan)
    text = report.text(curves, points, searches, plan.rounds)
    plan.out.mkdir(parents=True, exist_ok=True)
    (plan.out / "table.md").write_text(text, encoding="utf-8")
    return text, list(figures.draw(plan.out, curves, points))


def _step(values: Sequence[float]) -> Step:
    a, alpha = values
    return float(a), float(alpha)


def grid_of(scales: Iterable[float], decays: Sequence[float]) -> tuple[Step, ...]:
    """All pairs."""
    return tuple((a, alpha) for a in scales for alpha in decays)


SMALL = grid_of((0.3, 1.0, 3.0), (0.0, 0.2, HELD))
LARGE = grid_of((0.1, 0.2, 0.5, 1.0, 1.5, 3.0), (0.0, 0.1, 0.2, 0.3, HELD))


def plan_of(arguments: Sequence[str] | None = None) -> Plan:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="1,000 rounds, 10 seeds, the large grid")
    parser.add_argument("--rounds", type=int, help="of every run  [default: 200, with --full 1000]")
    parser.add_argument("--seeds", type=int, help="of every curve  [default: 3, with --full 10]")
    parser.add_argument("--grid", choices=["small", "large"], help="of SGD's step  [default: small, with --full large]")
    parser.add_argument("--out", type=Path, help="[default: runs/reproduce-ssca, or runs/reproduce-ssca-ROUNDS]")
    parser.add_argument("--set", action="append", default=[], dest="changes", help="a change of every job")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="only jobs whose names begin so")
    parser.add_argument("--dry", action="store_true", help="run nothing: tables and figures of what is there")
    given = parser.parse_args(arguments)
    rounds, seeds = given.rounds or (1000 if given.full else 200), given.seeds or (10 if given.full else 3)
    default = Path("runs/reproduce-ssca" if rounds == 200 else f"runs/reproduce-ssca-{rounds}")
    grid = LARGE if (given.grid or ("large" if given.full else "small")) == "large" else SMALL
    mpiexec, ranks = os.environ.get("MPIEXEC", ""), os.environ.get("RANKS", "2")
    launcher = (*shlex.split(mpiexec), "-n", ranks) if mpiexec else ()
    changes, only = tuple(given.changes), tuple(given.only)
    return Plan(given.out or default, rounds, seeds, grid, changes, launcher=launcher, dry=given.dry, only=only)


def main(arguments: Sequence[str] | None = None) -> None:
    plan = plan_of(arguments)
    if not plan.dry:
        prepare(Path("data"))
    text, pictures = finish(plan)
    print("\n".join([text, *(f"figure: {path}" for path in pictures)]))


if __name__ == "__main__":
    main()
