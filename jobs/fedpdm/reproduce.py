"""Figures 1 and 2 of the FedPDM-DP paper on MNIST, and what of its Section V reproduces: `make reproduce-fedpdm`.

Every curve is a job beside this file, run for several seeds as a sweep; what has finished is not run again. Steps are
also tuned, on a grid and with a seed that is not reported. Without `--full` there are fewer seeds and smaller grids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jobs.fedpdm import figures, report
from jobs.fedpdm.names import COMPARED, JOBS, KINDS, TUNED, changes, jobs, label
from jobs.fedpdm.results import Curve, read_curve
from jobs.fedpdm.truth import CLIENTS, ROUNDS, Truth, truth
from jobs.reproduction import runs
from mpifed.job.job import Job
from mpifed.job.participation import round_of
from mpifed.results.best import select
from mpifed.results.points import read_points

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


def play(plan: Plan) -> tuple[dict[str, Curve | None], list[report.Search], list[report.Clip]]:
    """Everything is run; the curves by label, None where all runs failed, and what the grids gave."""
    folders: dict[str, Path] = {}
    searches, clips = [], []
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
            clips += _clips(plan, name)
        grid = plan.search(name, plan.grids[method])
        if (grid / "sweep.csv").exists():
            best = select(grid, by="train_loss", maximize=False)
            settings = {key: value for key, value in best["settings"].items() if key != "seed"}
            folders[f"{name}-tuned"] = plan.curve(name, "tuned", runs.assigned(settings))
            tried = len(runs.points_of(grid))
            searches.append(report.Search(name, settings, tried, best["mean"]["train_loss"], best["edges"]))
    some = {name: points for name, folder in folders.items() if (points := runs.points_of(folder))}
    curves = {name: read_curve(name, points, plan.rounds) for name, points in some.items()}
    return curves, searches, clips + _means(clips)


def _clips(plan: Plan, name: str) -> list[report.Clip]:
    """What a job gives with each clip."""
    folder = plan.search(name, {"privacy.clip": plan.clips}, "clips")
    if not (folder / "sweep.csv").exists():
        return []
    found = []
    for point in read_points(folder):
        numbers = point.numbers()
        values = (numbers.get(key, np.nan) for key in ("train_loss", "objective", "test_accuracy"))
        found.append(report.Clip(name, float(point.settings["privacy.clip"]), *values))
    return found


def _means(clips: Sequence[report.Clip]) -> list[report.Clip]:
    """Over the methods: what the clip of the jobs is chosen by."""
    means = []
    for kind in KINDS:
        some = [one for one in clips if one.name.startswith(kind)]
        for clip in sorted({one.clip for one in some}):
            values = np.mean([one[2:] for one in some if one.clip == clip], axis=0).tolist()
            means.append(report.Clip(f"{kind}: mean", clip, *values))
    return means


def truths(plan: Plan) -> list[Truth]:
    """For the client who takes part most often in the paper's 300 rounds, by the first seed."""
    job = Job.read(plan.jobs / f"{label('paper', 'fedpdm', '7')}.toml")
    present = np.stack([round_of(job, CLIENTS, t).present for t in range(ROUNDS)])
    worst = np.flatnonzero(present[:, present.sum(axis=0).argmax()])
    return [truth(claimed, worst) for claimed in CLAIMED]


def finish(plan: Plan) -> tuple[str, list[Path]]:
    """Runs what is left to run, and writes the table and the figures; both."""
    found, searches, clips = play(plan)
    curves = {name: curve for name, curve in found.items() if curve is not None}
    failed = [name for name in found if name not in curves]
    text = report.text(curves, failed, searches, clips, truths(plan), plan.rounds)
    return plan.written(text, figures.draw(plan.out, curves))


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
    runs.show(*finish(plan))


if __name__ == "__main__":
    main()
