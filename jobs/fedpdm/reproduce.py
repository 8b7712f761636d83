"""Figures 1 and 2 of the FedPDM-DP paper on MNIST: `make reproduce-fedpdm`.

Every curve is a job beside this file, run for several seeds as a sweep; what has finished is not run again. Steps are
also tuned, on a grid and with a seed that is not reported. Without `--full` there are fewer seeds and smaller grids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jobs.fedpdm import figures
from jobs.fedpdm.names import COMPARED, JOBS, TUNED, changes, jobs, label
from jobs.fedpdm.results import Curve, read_curve
from jobs.fedpdm.truth import CLIENTS, ROUNDS, Truth, truth
from jobs.reproduction import runs
from jobs.reproduction.results import write_curves, write_table
from mpifed.job.job import Job
from mpifed.job.participation import round_of
from mpifed.results.choose import choose
from mpifed.results.frames import read

EVERY = 30  # rounds between measurements
CLIPS = (0.1, 0.3, 1.0, 3.0, 10.0)
RATE = "client_optimizer.learning_rate"
CLAIMED = (7.0, 10.0, 20.0, 30.0)

Grid = Mapping[str, Sequence[Any]]  # values by "table.key"


def grids(scales: Sequence[float], decays: Sequence[float], rhos: Sequence[float]) -> dict[str, Grid]:
    """By method: the same number of settings for all, about the same steps."""
    rates = [{"initial": a, "exponent": alpha} for a in scales for alpha in decays]
    own: Grid = {"algorithm.rho": list(rhos), RATE: [{"initial": 1.0, "exponent": alpha} for alpha in decays]}
    return {"fedpdm": own, "fedavg": {RATE: rates}, "scaffold": {RATE: rates}}


SMALL = grids((0.3, 1.0, 3.0, 10.0), (0.25, 0.5, 0.75), (1.0, 3.0, 10.0, 30.0))
LARGE = grids((0.03, 0.1, 0.3, 1.0, 3.0, 10.0), (0.0, 0.25, 0.5, 0.75), (0.3, 1.0, 3.0, 10.0, 30.0, 100.0))


@dataclass(frozen=True)
class Plan(runs.Plan):
    """With the grids."""

    jobs: Path = JOBS
    grids: Mapping[str, Grid] = field(default_factory=lambda: SMALL)
    clips: tuple[float, ...] = CLIPS

    def curve(self, name: str, change: str = "", changed: Iterable[str] = ()) -> Path:
        """The folder of a job's runs."""
        folder = self.out / (f"{name}-{change}" if change else name)
        self.run(name, folder, self.rounds, EVERY, list(changed), self.seeds)
        return folder


def play(plan: Plan) -> dict[str, Curve | None]:
    """Everything is run; the curves by label, None where all runs failed."""
    folders: dict[str, Path] = {}
    for kind, method, level in jobs():
        name = label(kind, method, level)
        if not plan.some([name]):
            continue
        folders[name] = plan.curve(name)
        for change, changed in changes(kind, method, level).items():
            folders[f"{name}-{change}"] = plan.curve(name, change, changed)
        if method not in TUNED or level not in COMPARED:
            continue
        if level == "7":
            plan.search(name, {"privacy.clip": plan.clips}, "clips")
        grid = plan.search(name, plan.grids[method])
        if (grid / "sweep.csv").exists():
            best = choose(read(grid), by=["train_loss"])
            folders[f"{name}-tuned"] = plan.curve(name, "tuned", runs.assigned(best.settings))
    some = {name: points for name, folder in folders.items() if (points := runs.points_of(folder))}
    return {name: read_curve(name, points, plan.rounds) for name, points in some.items()}


def truths(plan: Plan) -> list[Truth]:
    """For the client who takes part most often in the paper's 300 rounds, by the first seed."""
    job = Job.read(plan.jobs / f"{label('paper', 'fedpdm', '7')}.toml")
    present = np.stack([round_of(job, CLIENTS, t).present for t in range(ROUNDS)])
    worst = np.flatnonzero(present[:, present.sum(axis=0).argmax()])
    return [truth(claimed, worst) for claimed in CLAIMED]


def write_truths(path: Path, found: Sequence[Truth]) -> Path:
    """What is proved of the noise that the paper asks for, a line for each claimed epsilon."""
    return write_table(path, Truth._fields, found)


def finish(plan: Plan) -> list[Path]:
    """Runs what is left to run, and writes the curves, what is proved, and the figures; the files."""
    found = play(plan)
    curves = {name: curve for name, curve in found.items() if curve is not None}
    failed = [name for name in found if name not in curves]
    if failed:
        print(f"failed numerically: {', '.join(failed)}")
    shown = {name: (one.rounds, one.columns()) for name, one in curves.items()}
    written = [write_curves(plan.out / "curves.csv", shown), write_truths(plan.out / "epsilon.csv", truths(plan))]
    return [*written, *figures.draw(plan.out, curves)]


def plan_of(arguments: Sequence[str] | None = None) -> Plan:
    default = "runs/reproduce-fedpdm"
    parser = runs.options(__doc__, "10 seeds, the large grids", "300", f"{default}, or {default}-ROUNDS")
    given = parser.parse_args(arguments)
    rounds = given.rounds or 300
    out = given.out or Path(default if rounds == 300 else f"{default}-{rounds}")
    return Plan(out, rounds, **runs.common(given), grids=LARGE if runs.wants_large(given) else SMALL)


def main(arguments: Sequence[str] | None = None) -> None:
    plan = plan_of(arguments)
    if not plan.dry:
        runs.prepare_mnist(Path("data/mnist-rows-100"), "rows", 100)
    runs.show(finish(plan))


if __name__ == "__main__":
    main()
