"""Figures 2, 3 and 4 of the long SSCA paper on MNIST: `make reproduce-ssca`.

Every curve is a job beside this file, run for several seeds as a sweep; what has finished is not run again. The step
of the SGD baselines is searched on a grid, with a seed that is not reported. Without `--full` everything is reduced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from jobs.reproduction import runs
from jobs.reproduction.results import write_curves
from jobs.ssca import figures
from jobs.ssca.results import Curve, read_curve, step_of, tuned
from mpifed.results.choose import choose
from mpifed.results.frames import read

JOBS = Path(__file__).parent
EARLY = 30  # rounds measured every 10; the later ones every 50
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


SMALL = tuple(product((0.3, 1.0, 3.0), (0.0, 0.2, HELD)))
LARGE = tuple(product((0.1, 0.2, 0.5, 1.0, 1.5, 3.0), (0.0, 0.1, 0.2, 0.3, HELD)))


def rate_key(name: str) -> str:
    """Who takes a baseline's steps: the clients, and with columns the server."""
    return f"{'server' if name.startswith('vertical') else 'client'}_optimizer.learning_rate"


@dataclass(frozen=True)
class Plan(runs.Plan):
    """With the grid over the step of the SGD baselines."""

    jobs: Path = JOBS
    grid: tuple[Step, ...] = SMALL

    def curve(self, name: str, step: Step | None = None) -> Path:
        """The folder of a job's runs to the end, densely measured at their beginning."""
        folder = self.out / (name if step is None else f"{name}-{step[0]:g}-{step[1]:g}")
        changes = [] if step is None else [f"{rate_key(name)}={{initial = {step[0]}, exponent = {step[1]}}}"]
        self.run(name, folder, min(EARLY, self.rounds), 10, changes, self.seeds)
        self.run(name, folder, self.rounds, 50, changes, self.seeds)
        return folder

    def steps(self, name: str) -> Path:
        """The folder of the grid over a baseline's step."""
        return self.search(name, {rate_key(name): [{"initial": a, "exponent": alpha} for a, alpha in self.grid]})

    def tradeoff(self, name: str) -> Path:
        """The folder of a sweep of Figure 4, a single seed."""
        folder = self.out / name
        self.run(name, folder, self.rounds, self.rounds, [], 1)
        return folder


def play(plan: Plan) -> tuple[dict[str, Curve], dict[str, list[Curve]]]:
    """Everything is run; the curves by label, and the points of Figure 4 by job."""
    folders = {name: plan.curve(name) for name in plan.some(SSCA)}
    for name in plan.some(TUNED):
        grid = plan.steps(name)
        if not (grid / "sweep.csv").exists():
            continue
        best = choose(read(grid), by=["train_loss"])
        folders[name] = plan.curve(name, step_of(best.settings))
        held = tuned(grid, HELD) if name in ALSO_HELD else None
        if held is not None:
            folders[f"{name}-held"] = plan.curve(name, held)
    found = {name: read_curve(name, runs.points_of(folder), plan.rounds) for name, folder in folders.items()}
    points = {
        name: [read_curve(name, [point], plan.rounds) for point in runs.points_of(plan.tradeoff(name))]
        for name in plan.some(TRADEOFFS)
    }
    curves = {name: curve for name, curve in found.items() if curve is not None}
    return curves, {name: [one for one in many if one is not None] for name, many in points.items()}


def finish(plan: Plan) -> list[Path]:
    """Runs what is left to run, and writes the curves and the figures; the files."""
    curves, points = play(plan)
    named = curves | {f"{name}-{n}": one for name, many in points.items() for n, one in enumerate(many)}
    shown = {name: (one.rounds, one.columns()) for name, one in named.items()}
    return [write_curves(plan.out / "curves.csv", shown), *figures.draw(plan.out, curves, points)]


def plan_of(arguments: Sequence[str] | None = None) -> Plan:
    full, default = "1,000 rounds, 10 seeds, the large grid", "runs/reproduce-ssca"
    parser = runs.options(__doc__, full, "200, with --full 1000", f"{default}, or {default}-ROUNDS")
    given = parser.parse_args(arguments)
    rounds = given.rounds or (1000 if given.full else 200)
    out = given.out or Path(default if rounds == 200 else f"{default}-{rounds}")
    return Plan(out, rounds, **runs.common(given), grid=LARGE if runs.wants_large(given) else SMALL)


def main(arguments: Sequence[str] | None = None) -> None:
    plan = plan_of(arguments)
    if not plan.dry:
        for split in ("rows", "columns"):
            runs.prepare_mnist(Path(f"data/mnist-{split}-10"), split, 10)
    runs.show(finish(plan))


if __name__ == "__main__":
    main()
