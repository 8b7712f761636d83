"""The figures of a paper: `make reproduce PAPER=ssca`, or `python -m jobs.reproduce PAPER`.

A paper's curves are points of the sweeps beside its `figures.py`, each run for several seeds into a folder of its own.
What has finished is not run again, and what was interrupted goes on. Without --full there are fewer rounds or seeds.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from mpifed.cli import main
from mpifed.core.errors import Interrupted, NotCertified, NumericalError
from mpifed.files.write import replaced
from mpifed.job.job import read_table
from mpifed.plots.style import save
from mpifed.results.frames import read
from mpifed.results.points import is_sweep
from mpifed.results.text import toml_text

PAPERS = ("ssca", "fedpdm", "hyfdca", "mcmahan")
# limits need not be met, large steps may diverge, and another time goes on
ENDS = (0, NotCertified.exit_code, NumericalError.exit_code, Interrupted.exit_code)
SHARDS = re.compile("Make the shards: +mpifed data (.*?) --out ([^ ]+)")


class Curve(NamedTuple):
    """A point of a sweep, or a whole sweep over settings."""

    panel: str  # where it is drawn
    label: str
    job: Path
    changes: Sequence[str]  # as `--set` takes them
    grid: str = "4x4"  # of clients, where the job's are

    @property
    def name(self) -> str:
        return f"{self.panel}: {self.label}" if self.label else self.panel

    def shards(self) -> tuple[list[str], Path]:
        """What `mpifed data` is given by the head of the job, real files in their folder; and where the shards go."""
        lines = self.job.read_text(encoding="utf-8").splitlines()
        head = " ".join(line.lstrip("# ") for line in lines if line.startswith("#"))
        found = SHARDS.search(head.replace("4x4", self.grid))
        if found is None:
            raise SystemExit(f"{self.job}: no line '# Make the shards:  mpifed data ... --out FOLDER' at its head")
        files, words = Path(os.environ.get("MPIFED_DATA", "data"), "libsvm"), shlex.split(found[1])
        return [str(files / word) if word.endswith(".bz2") else word for word in words], Path(found[2])


def curves_of(
    job: Path, panel: str, changes: Sequence[str] = (), tuned: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> Iterator[Curve]:
    """A curve for each of the methods of a job's sweep; of one without, the whole sweep.

    `tuned` has by label what replaces settings of a method's tables.
    """
    for method in read_table(job)["sweep"].get("methods", [{}]):
        own = tuned.get(method.get("label", ""), {})
        changed = method | {name: method[name] | own[name] for name in own}
        chosen = [f"sweep.methods={toml_text([changed])}"] if method else []
        yield Curve(panel, method.get("label", ""), job, [*changes, *chosen])


class Plan(NamedTuple):
    """What is run, and how."""

    out: Path
    rounds: int | None  # None: those of the jobs
    seeds: int
    only: Sequence[str] = ("",)  # how the names of curves begin; $ is the end of a name
    changes: Sequence[str] = ()  # of every job
    until: float = inf  # of time.monotonic(): no run begins after it

    def folder(self, curve: Curve) -> Path:
        """Where a curve's runs are."""
        return self.out / re.sub("[^a-z0-9.]+", "-", curve.name.lower())

    def play(self, curve: Curve) -> None:
        """Make the data if they are not there, and run the curve to its end."""
        folder, left = self.folder(curve), (self.until - time.monotonic()) / 3600
        if left <= 0:
            return
        data, place = curve.shards()
        if not (place / "federation.json").exists() and not any(one.startswith("data.path=") for one in self.changes):
            subprocess.run([sys.executable, "-m", "mpifed", "data", *data, "--out", str(place)], check=True)
        changes = [f"sweep.seeds={self.seeds if curve.label else 1}", *curve.changes, *self.changes]
        changes += [f"rounds={self.rounds}"] if self.rounds else []
        words = ["run", str(curve.job), *(word for change in changes for word in ("--set", change))]
        words += ["--out", str(folder), "--progress", "none", *(["--resume"] if is_sweep(folder) else [])]
        words += ["--max-hours", f"{left:g}"] if left < inf else []
        print(f"{curve.name}  ({folder})", flush=True)
        log = folder.with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as file:
            code = called(words, file)
        if code not in ENDS:
            raise SystemExit(f"{curve.name}: ended with {code}; see {log}")


def called(words: Sequence[str], log: Any) -> int:  # a file
    """The exit code of a command of mpifed in this process."""
    try:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            main(list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def of_panel(plan: Plan, curves: Sequence[Curve], panel: str) -> dict[str, Path]:
    """The folders of a panel's curves that have begun, by label."""
    some = {curve.label: plan.folder(curve) for curve in curves if curve.panel == panel}
    return {label: folder for label, folder in some.items() if any(folder.rglob("history.csv"))}


def table(plan: Plan, curves: Sequence[Curve], columns: Sequence[str]) -> pd.DataFrame:
    """A row for each curve, seed and measured round."""
    rows = [pd.DataFrame(columns=["figure", "curve", "seed", "round", *columns])]
    for curve in curves:
        if any(plan.folder(curve).rglob("history.csv")):
            found = read(plan.folder(curve)).histories
            named = found.assign(figure=curve.panel, curve=curve.label or found["setting"])
            rows.append(named.reindex(columns=rows[0].columns))
    return pd.concat(rows[1:] or rows, ignore_index=True)


def reproduce(paper: Any, plan: Plan) -> Iterator[Path]:  # a module, as `jobs.ssca.figures`
    """Run what is left to run; figures as PNG and PDF, and tables as CSV, of what is there: the files."""
    curves = [curve for curve in paper.curves() if f"{curve.name}$".startswith(tuple(plan.only))]
    for curve in curves:
        plan.play(curve)
    plan.out.mkdir(parents=True, exist_ok=True)
    for name, what in paper.results(plan, curves):
        path = plan.out / f"{name}.csv"
        if isinstance(what, pd.DataFrame):
            with replaced(path) as file:
                what.to_csv(file, index=False, float_format="%.6g")
            yield path
            continue
        for suffix in (".png", ".pdf"):
            save(what, path.with_suffix(suffix))
            yield path.with_suffix(suffix)


def plan_of(arguments: Sequence[str] | None = None) -> tuple[Any, Plan]:
    """The paper's module, and what the command line says of it."""
    parser = argparse.ArgumentParser(prog="jobs.reproduce", description=__doc__)
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--full", action="store_true", help="all rounds, and more seeds")
    parser.add_argument("--rounds", type=int, help="of every run")
    parser.add_argument("--seeds", type=int, help="of every curve")
    parser.add_argument("--only", nargs="+", default=[""], metavar="NAME", help="curves whose names begin so")
    parser.add_argument("--minutes", type=float, help="end after so many, and draw what is there")
    parser.add_argument("--set", action="append", default=[], dest="changes", help="a change of every job")
    parser.add_argument("--out", type=Path, help="[default: runs/reproduce-PAPER, or runs/reproduce-PAPER-ROUNDS]")
    given = parser.parse_args(arguments)
    paper = importlib.import_module(f"jobs.{given.paper}.figures")
    rounds, seeds = given.rounds or paper.ROUNDS[given.full], given.seeds or paper.SEEDS[given.full]
    out = given.out or Path(f"runs/reproduce-{given.paper}" + (f"-{rounds}" if rounds else ""))
    until = inf if given.minutes is None else time.monotonic() + 60 * given.minutes
    return paper, Plan(out, rounds, seeds, given.only, given.changes, until)


if __name__ == "__main__":
    print(*reproduce(*plan_of()), sep="\n")
