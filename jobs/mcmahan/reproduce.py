"""Rounds to a target accuracy on MNIST, Tables 1 and 2 of McMahan et al. (AISTATS 2017): `make reproduce-mcmahan`.

Every row is a job beside this file, run for one seed or several as a sweep; what has finished is not run again. Without
`--full` it is the rows of the 2NN alone. With `--tune` the learning rate of each row is searched first, with a seed
that is not reported; the rates of the jobs stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jobs.mcmahan import figures
from jobs.mcmahan.names import JOBS, RATE, ROWS, SPLITS, Row
from jobs.mcmahan.results import Curve, read_curve
from jobs.reproduction import runs
from jobs.reproduction.results import write_table

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

    def search_rate(self, row: Row) -> None:
        """Play a row with each rate, one seed."""
        job, (share, least) = row.job, SEARCH_ROUNDS
        rounds = self.rounds or min(job["rounds"], max(least, int(share * job["rounds"])))
        grid = runs.searched({RATE: self.rates[row.batch]})
        self.run(row.name, self.out / "rates" / row.name, rounds, job["record"]["evaluate_every"], grid, 1)


def play(plan: Plan) -> dict[str, Curve]:
    """Everything is run; the curves by job."""
    curves = dict[str, Curve]()
    for row in plan.asked():
        if plan.tune:
            plan.search_rate(row)
        curve = read_curve(row, plan.curve(row))
        if curve is not None:
            curves[row.name] = curve
    return curves


def write_curves(path: Path, curves: Mapping[str, Curve]) -> Path:
    """The accuracy at every measured round, one line each, beside the rounds that the paper needs."""
    lines = (
        (name, curve.row.says, seed, at, f"{accuracy:.4f}")
        for name, curve in curves.items()
        for seed, run in enumerate(curve.runs)
        for at, accuracy in zip(run.rounds.tolist(), run.accuracy.tolist(), strict=True)
    )
    return write_table(path, ("job", "paper", "seed", "round", "accuracy"), lines)


def write_rounds(path: Path, curves: Mapping[str, Curve]) -> Path:
    """The rounds to the target, a line for each row and seed; empty where a run does not come to it."""
    lines = (
        (name, curve.row.target, curve.row.says, seed, "" if reached is None else f"{reached:.1f}")
        for name, curve in curves.items()
        for seed, reached in enumerate(run.reached(curve.row.target) for run in curve.runs)
    )
    return write_table(path, ("job", "target", "paper", "seed", "rounds"), lines)


def finish(plan: Plan) -> list[Path]:
    """Runs what is left to run, and writes the curves, the rounds to the targets and the figure; the files."""
    curves = play(plan)
    written = [write_curves(plan.out / "accuracy.csv", curves), write_rounds(plan.out / "rounds.csv", curves)]
    return [*written, *figures.draw(plan.out, curves)]


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
    runs.show(finish(plan))


if __name__ == "__main__":
    main()
