"""Figures 3 and 4 of the HyFDCA paper: `make reproduce-hyfdca`.

Every curve is a job beside this file, changed to the data, the clients and the hyper-parameters of its setting; what
has finished is not run again. With `--tune` hyper-parameters are searched first, by Grey Relational Analysis as in the
paper, and written into `tuned.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.hyfdca import data, figures
from jobs.hyfdca.names import JOBS, METHODS, QUICK, ROUNDS, Setting, change_of, job_of, label, settings
from jobs.hyfdca.results import Curve, best_of, read_curve
from jobs.hyfdca.selection import selected
from jobs.reproduction import runs
from jobs.reproduction.results import write_curves, write_table
from mpifed.files.json_file import read_json
from mpifed.files.write import replace_text
from mpifed.job.job import read_table
from mpifed.job.schema import SimulatedNetwork
from mpifed.job.time_model import KINDS
from mpifed.results.frames import read

SEEDS = (1, 3)  # of a curve, without --full and with
MEASURED = 30  # times in a run
SEARCHED_AT = 0.5  # the fraction of clients for whom the rivals' hyper-parameters are searched
TUNE_ROUNDS = 100
CRITERIA = {"objective": 2.0, "test_accuracy": 1.0, "simulated_s": 1.0}  # and their weights

# what a sweep tries, by method
RATES = [
    {"initial": a, "exponent": 0.5, "offset": b} for a, b in ((1.0, 1.0), (10.0, 1.0), (100.0, 10.0), (1000.0, 100.0))
]
AVERAGED: Mapping[str, Sequence[Any]] = {"client_optimizer.learning_rate": RATES, "algorithm.local_steps": [3, 10, 50]}
SEARCHED: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "hyfdca": {"algorithm.inner": [1, 3, 10, 30, 100, 300, 1000]},
    "fedavg": AVERAGED,
    "fedavg-blocks": AVERAGED,
    "hyfem": {**AVERAGED, "algorithm.mu": [0.01, 0.1]},
}


@dataclass(frozen=True)
class Plan(runs.Plan):
    """With the settings, and what is known of their hyper-parameters."""

    jobs: Path = JOBS
    settings: tuple[Setting, ...] = field(default_factory=lambda: tuple(settings()))
    tuned: Path = JOBS / "tuned.json"
    searched: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=lambda: SEARCHED)

    def setting_changes(self, setting: Setting, method: str) -> list[str]:
        """What a setting makes of a method's job, but for what was tuned."""
        place = [f'data.path="{data.folder_of(setting.data, setting.grid)}"']
        return [*place, f"participation.clients_per_round={setting.present}", *change_of(method)]

    def known(self) -> dict[str, dict[str, Any]]:
        """What was tuned: changes by the name of a curve."""
        return read_json(self.tuned) if self.tuned.exists() else {}

    def curve(self, setting: Setting, method: str) -> Path:
        """The folder of a method's runs in a setting."""
        folder, job = self.out / label(setting, method), job_of(setting.data, method)
        tuned = self.known().get(label(tuned_in(setting, method), method), {})
        changes = [*self.setting_changes(setting, method), *runs.assigned(tuned)]
        self.run(job, folder, self.rounds, max(1, self.rounds // MEASURED), changes, self.seeds)
        return folder

    def tune(self, setting: Setting, method: str) -> Path:
        """The folder of a sweep over a method's hyper-parameters in a setting, one seed that is not reported."""
        folder = self.out / "tune" / label(setting, method)
        rounds = min(self.rounds, TUNE_ROUNDS)
        changes = [*self.setting_changes(setting, method), *runs.searched(self.searched[method])]
        self.run(job_of(setting.data, method), folder, rounds, rounds, changes, 1)
        return folder

    def asked(self) -> list[tuple[Setting, str]]:
        """The curves that are to be run, those of 4 x 4 clients first."""
        first = sorted(self.settings, key=lambda one: one.grid != "4x4")
        both = [(setting, method) for setting in first for method in setting.methods]
        return [one for one in both if self.some([label(*one)])]


def tuned_in(setting: Setting, method: str) -> Setting:
    """Where a method's hyper-parameters are searched: what is stable depends on who is there for HyFDCA most of all."""
    return setting if method == "hyfdca" else setting._replace(fraction=SEARCHED_AT)


def search(plan: Plan) -> dict[str, dict[str, Any]]:
    """Plays the sweeps, and writes what they recommend into the file of what is tuned; the former by name."""
    for setting, method in _sweeps(plan.asked()):
        plan.tune(setting, method)
    found = searches(plan)
    known = plan.known() | found
    replace_text(plan.tuned, json.dumps(known, indent=1, sort_keys=True) + "\n")
    return found


def _sweeps(asked: Iterable[tuple[Setting, str]]) -> list[tuple[Setting, str]]:
    """Those that the curves need, each once."""
    return list(dict.fromkeys((tuned_in(*one), one[1]) for one in asked if one[1] in METHODS))


def searches(plan: Plan) -> dict[str, dict[str, Any]]:
    """What the sweeps that are there recommend: settings by name."""
    found = {}
    for setting, method in _sweeps((one, method) for one in plan.settings for method in one.methods):
        name = label(setting, method)
        folder = plan.out / "tune" / name
        if (folder / "sweep.csv").exists():
            found[name] = selected(read(folder), CRITERIA)
    return found


def play(plan: Plan) -> tuple[dict[str, Curve], list[str]]:
    """Everything is run; the curves by label, and which are missing."""
    for setting, method in plan.asked():
        if not plan.dry:
            data.prepare(setting.data, setting.grid)
        plan.curve(setting, method)
    curves, missing, optima = dict[str, Curve](), list[str](), dict[str, float]()
    for setting, method in plan.asked():
        name = label(setting, method)
        points, curve = runs.points_of(plan.out / name), None
        if points:
            job = read_table(plan.jobs / f"{job_of(setting.data, method)}.toml")
            if setting.data not in optima:
                folder, kept = data.folder_of(setting.data, setting.grid), plan.out / f"optimum-{setting.data}.json"
                optima[setting.data] = best_of(folder, job["model"]["l2"], kept)
            network = SimulatedNetwork(**job["simulated_network"])
            curve = read_curve(setting, method, points, plan.rounds, optima[setting.data], network)
        if curve is None:
            missing.append(name)
        else:
            curves[name] = curve
    return curves, missing


def write_costs(path: Path, curves: Mapping[str, Curve]) -> Path:
    """Seconds of a round over the network by kind, a line for each curve and for either times of encryption."""
    lines = (
        (name, times, *map(kinds.__getitem__, KINDS))
        for name, curve in curves.items()
        for times, kinds in (("here", curve.kinds), ("published", curve.kinds_published))
    )
    return write_table(path, ("curve", "times", *KINDS), lines)


def finish(plan: Plan) -> list[Path]:
    """Runs what is left to run, and writes the curves, the costs and the figures; the files."""
    curves, missing = play(plan)
    if missing:
        print(f"not run yet, or failed: {', '.join(missing)}")
    shown = {name: (one.rounds, one.columns()) for name, one in curves.items()}
    written = [write_curves(plan.out / "curves.csv", shown), write_costs(plan.out / "costs.csv", curves)]
    return [*written, *figures.draw(plan.out, curves)]


def plan_of(arguments: Sequence[str] | None = None) -> tuple[Plan, bool]:
    """From the command line; and whether to search hyper-parameters first."""
    default = "runs/reproduce-hyfdca"
    where = f"{default}, or {default}-ROUNDS"
    parser = runs.options(__doc__, f"{SEEDS[1]} seeds", str(ROUNDS), where, SEEDS, hours=True)
    parser.add_argument("--quick", action="store_true", help="20 rounds on the digits: seconds")
    parser.add_argument("--tune", action="store_true", help="search hyper-parameters first")
    given = parser.parse_args(arguments)
    rounds = given.rounds or (20 if given.quick else ROUNDS)
    kind = "-quick" if given.quick else "" if rounds == ROUNDS else f"-{rounds}"
    out = given.out or Path(default + kind)
    chosen = QUICK if given.quick else tuple(settings())
    return Plan(out, rounds, **runs.common(given, SEEDS), settings=chosen), given.tune


def main(arguments: Sequence[str] | None = None) -> None:
    plan, tune = plan_of(arguments)
    if tune and not plan.dry:
        for setting, _ in plan.asked():
            data.prepare(setting.data, setting.grid)
        search(plan)
    runs.show(finish(plan))


if __name__ == "__main__":
    main()
