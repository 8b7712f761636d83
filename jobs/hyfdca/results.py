"""What the runs of one curve have measured: distance from the optimum, accuracy, and time, real and simulated."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jobs.constraints.rows import read_rows
from jobs.hyfdca.names import RIVALS, Setting
from jobs.hyfdca.optimum import optimum
from jobs.reproduction.results import Floats, Rounds, read_runs
from mpifed.files.json_file import read_json
from mpifed.files.write import replace_text
from mpifed.job.schema import SimulatedNetwork
from mpifed.job.time_model import KINDS, PER_VALUE, simulate

COLUMNS = ("objective", "test_accuracy", "elapsed_s", "simulated_s")
AXES = ("rounds", "simulated", "real")  # of the figures
RELATIVE_GAP = 1e-12  # what certifies P*


class Curve(NamedTuple):
    """Runs that differ in their seed alone.

    At each round HyFDCA and the bundle method have the model that they return. The rivals have no way to choose one,
    and are given the best that was measured so far.
    """

    setting: Setting
    method: str
    rounds: Rounds  # [T]
    relative: Floats  # [seeds, T] (P - P*) / P*
    accuracy: Floats  # [seeds, T] on the test data
    elapsed: Floats  # [seeds, T] seconds of training on this machine
    simulated: Floats  # [seeds, T] seconds over the job's network
    published: Floats  # [seeds, T] the same with the times of encryption that the paper took
    kinds: Mapping[str, float]  # seconds of a round over the job's network, by kind
    kinds_published: Mapping[str, float]

    def columns(self) -> dict[str, Floats]:
        """[seeds, T] each, as they are written."""
        return {
            "relative": self.relative,
            "test_accuracy": self.accuracy,
            "elapsed_s": self.elapsed,
            "simulated_s": self.simulated,
            "simulated_published_s": self.published,
        }

    def time(self, axis: str) -> Floats:
        """[T] the mean over seeds of what the axis shows."""
        if axis == "rounds":
            return self.rounds.astype(np.float64)
        found = {"real": self.elapsed, "simulated": self.simulated}[axis]
        return np.asarray(found.mean(axis=0))


def read_curve(
    setting: Setting, method: str, run_dirs: Sequence[Path], rounds: int, best: float, network: SimulatedNetwork
) -> Curve | None:
    """The runs that have come to round `rounds`; None without any.

    Parameters
    ----------
    best : P*
    network : that of the job; times follow from what the exchanges of the runs have cost
    """
    runs = read_runs(run_dirs, rounds, COLUMNS)
    if runs is None:
        return None
    objective, accuracy, elapsed, simulated = runs.columns.values()
    if method in RIVALS:
        objective, accuracy = best_so_far(objective, accuracy)
    told = [read_json(run / "run.json") for run in runs.folders]
    then = _mean([(one["simulated"]["rounds"], one["rounds"]) for one in told])
    kinds = _mean([(_simulated(network, one, setting.clients), one["rounds"]) for one in told])
    published = _mean([(_simulated(_paillier(network), one, setting.clients), one["rounds"]) for one in told])
    here, more = ((sum(one.values()) - sum(then.values())) * runs.rounds for one in (kinds, published))
    return Curve(
        setting, method, runs.rounds, (objective - best) / best, accuracy, elapsed, simulated + here,
        simulated + more, kinds, published,
    )  # fmt: skip


def best_so_far(objective: Floats, accuracy: Floats) -> tuple[Floats, Floats]:
    """[seeds, T] both, of the model of least objective until then."""
    rounds = np.arange(objective.shape[1])
    at = np.maximum.accumulate(np.where(objective <= np.minimum.accumulate(objective, axis=1), rounds, 0), axis=1)
    return np.take_along_axis(objective, at, axis=1), np.take_along_axis(accuracy, at, axis=1)


def _mean(many: Sequence[tuple[Mapping[str, Mapping[str, float]], int]]) -> dict[str, float]:
    """Seconds of a round by kind, of runs of which the seconds of each exchange and the rounds are given."""
    return {
        kind: float(np.mean([sum(one[kind] for one in parts.values()) / rounds for parts, rounds in many]))
        for kind in KINDS
    }


def _simulated(network: SimulatedNetwork, told: Mapping[str, Any], clients: int) -> dict[str, dict[str, float]]:
    """By exchange, what the rounds of a run take over a network."""
    return simulate(network, told["exchanges"], set(told["simulated"]["set_up"]), clients).rounds


def _paillier(network: SimulatedNetwork) -> SimulatedNetwork:
    """The same with the published times and bytes, wherever the job says what a sealed value takes."""
    return SimulatedNetwork(**{key: value for key, value in vars(network).items() if key not in PER_VALUE})


def best_of(data: Path, penalty: float, kept: Path) -> float:
    """P* of the training rows of a federation, found once and kept in a file."""
    if kept.exists():
        return float(read_json(kept)["objective"])
    found = optimum(*whole(data), penalty, RELATIVE_GAP)
    kept.parent.mkdir(parents=True, exist_ok=True)
    told = {"objective": found.objective, "dual": found.dual, "relative_gap": found.relative_gap}
    replace_text(kept, json.dumps(told) + "\n")
    return found.objective


def whole(folder: Path) -> tuple[Any, Any]:
    """X [N, p] and y [N] of all training rows."""
    rows = read_rows(folder)
    (both,) = rows.pieces(len(rows.y))
    return both
