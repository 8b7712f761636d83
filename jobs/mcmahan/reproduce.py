"""Rounds to a target accuracy on MNIST, Tables 1 and 2 of McMahan et al. (AISTATS 2017): `make reproduce-mcmahan`.

Every row is a job beside this file, run for one seed or several as a sweep; what has finished is not run again. Without
`--full` it is the rows of the 2NN alone. With `--tune` the learning rate of each row is searched first, with a seed
that is not reported, and the report has what was tried; the rates of the jobs stay.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.mcmahan import figures, report
from jobs.mcmahan.names import JOBS, RATE, ROWS, SPLITS, Row
from jobs.mcmahan.results import Curve, read_curve, read_run
from jobs.reproduction import runs
from mpifed.files.atomic import aside
from mpifed.job.job import read_table

SEEDS = (1, 3)  # of a row, without --full and with
RATES = (0.046, 0.1, 0.22, 0.46)  # multiples of the cubic root of ten
SEARCH_ROUNDS = 0.2, 100  # share of a row's rounds that a search plays, and at least so many


@dataclass(frozen=True)
class Plan(runs.Plan):
    """With the rows; `rounds` = 0 is as many as the jobs say."""

    jobs: Path = JOBS
    rows: tuple[Row, ...] = ROWS
    tune: bool = False
    rates: Mapping[int | None, Sequence[float]] = field(
        default_factory=lambda: {10: RATES[:3], 50: RATES[:3], None: RATES[1:]}
    )

    def asked(self) -> list[Row]:
        """The rows that are to be run."""
        names = self.some([row.name for row in self.rows])
        return [row for row in self.rows if row.name in names]

    def curve(self, row: Row) -> Path:
        """The folder of a row's runs."""
        folder, job = self.out / row.name, row.job
        self.run(row.name, folder, self.rounds or job["rounds"], job["record"]["evaluate_every"], [], self.seeds)
        return folder

    def searched(self, row: Row) -> Path:
        """The folder of the search of a row's rate, one seed."""
        folder, job = self.out / "rates" / row.name, row.job
        if self.tune:
            share, least = SEARCH_ROUNDS
            rounds = self.rounds or min(job["rounds"], max(least, int(share * job["rounds"])))
            grid = runs.searched({RATE: self.rates[row.batch]})
            self.run(row.name, folder, rounds, job["record"]["evaluate_every"], grid, 1)
        return folder


def play(plan: Plan) -> tuple[dict[str, Curve], list[report.Tried]]:
    """Everything is run; the curves by job, and the rates tried."""
    curves, tried = dict[str, Curve](), list[report.Tried]()
    for row in plan.asked():
        tried += read_search(row, plan.searched(row))
        curve = read_curve(row, float(row.job["client_optimizer"]["learning_rate"]), plan.curve(row))
        if curve is not None:
            curves[row.name] = curve
    return curves, tried


def read_search(row: Row, folder: Path) -> list[report.Tried]:
    """Each rate, in the order of the rates."""
    found = []
    for point in runs.points_of(folder):
        rate, run = float(read_table(point / "job.toml")["client_optimizer"]["learning_rate"]), read_run(point)
        if run is not None:
            best = float(run.accuracy.max())
            found.append(report.Tried(row.name, rate, int(run.rounds[-1]), run.reached(row.target), best))
    return sorted(found)


def write_curves(path: Path, curves: Mapping[str, Curve]) -> None:
    """The accuracy at every measured round, one line each, beside the rounds that the paper needs."""
    with aside(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(("job", "paper", "seed", "round", "accuracy"))
        for name, curve in curves.items():
            for seed, run in enumerate(curve.runs):
                for at, accuracy in zip(run.rounds.tolist(), run.accuracy.tolist(), strict=True):
                    lines.writerow((name, curve.row.says, seed, at, f"{accuracy:.4f}"))


def finish(plan: Plan) -> tuple[str, list[Path]]:
    """Runs what is left to run, and writes the tables, the curves and the figure; tables and figure."""
    curves, tried = play(plan)
    plan.out.mkdir(parents=True, exist_ok=True)
    write_curves(plan.out / "accuracy.csv", curves)
    return plan.written(report.text(curves, tried), figures.draw(plan.out, curves))


def plan_of(arguments: Sequence[str] | None = None) -> Plan:
    default = "runs/reproduce-mcmahan"
    full, where = f"the CNN too, {SEEDS[1]} seeds: days", f"{default}, or {default}-ROUNDS"
    parser = runs.options(__doc__, full, "what the jobs say", where, SEEDS, hours=True)
    parser.add_argument("--tune", action="store_true", help="search the learning rate of each row first")
    given = parser.parse_args(arguments)
    out = given.out or Path(f"{default}-{given.rounds}" if given.rounds else default)
    rows = ROWS if given.full or given.only != [""] else tuple(row for row in ROWS if row.model == "2nn")
    return Plan(out, given.rounds or 0, **runs.common(given, SEEDS), rows=rows, tune=given.tune)


def main(arguments: Sequence[str] | None = None) -> None:
    plan = plan_of(arguments)
    if not plan.dry:
        for _, partition, folder in SPLITS.values():
            runs.prepare_mnist(folder, "rows", 100, partition)
    runs.show(*finish(plan))


if __name__ == "__main__":
    main()
