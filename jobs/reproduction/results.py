"""What runs have measured, over their seeds, and comparisons of such curves."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import FINISHED
from mpifed.files.history import read_history
from mpifed.files.json_file import read_json
from mpifed.files.run_folder import job_of

Floats = NDArray[np.float64]
Rounds = NDArray[np.int64]


class Runs(NamedTuple):
    """Those that differ in their seed alone."""

    job: dict[str, Any]  # of the first
    folders: Sequence[Path]
    rounds: Rounds  # [T] that all of them have measured
    columns: Mapping[str, Floats]  # [seeds, T], NaN where a run has no such column

    def last(self, name: str) -> Floats:
        """[seeds] a column at the last round."""
        return self.columns[name][:, -1]


class Spread(NamedTuple):
    """Over seeds."""

    mean: float
    deviation: float  # standard; 0 of one seed
    seeds: int

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.deviation / float(np.sqrt(self.seeds))


class Measured(Protocol):
    """What can be compared: the lower the cost, the better."""

    @property
    def rounds(self) -> Rounds:
        """[T]"""

    @property
    def cost(self) -> Floats:
        """[seeds, T]"""


def spread(values: Floats) -> Spread:
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0, len(values))


def read_runs(run_dirs: Sequence[Path], rounds: int, names: Sequence[str]) -> Runs | None:
    """Some columns of the runs that have come to round `rounds`; None without any."""
    folders = [run for run in run_dirs if ended(run, rounds)]
    if not folders:
        return None
    found = [read_history(run) for run in folders]
    common = found[0]["round"]
    for history in found:
        common = np.intersect1d(common, history["round"])
    common = common[common <= rounds]

    def column(history: Mapping[str, Any], name: str) -> Floats:
        values = history.get(name)
        return np.full(len(common), np.nan) if values is None else values[np.isin(history["round"], common)]

    columns = {name: np.stack([column(history, name) for history in found]) for name in names}
    return Runs(job_of(folders[0]), folders, common, columns)


def ended(run: Path, rounds: int, other_ends: Collection[int] = ()) -> bool:
    """Whether a run has come to round `rounds`, or ended with one of some other exit codes."""
    if not (run / "run.json").exists():
        return False
    found = read_json(run / "run.json")
    return found["exit"] in other_ends or (found["exit"] in FINISHED and found["rounds"] >= rounds)


def place(rounds: Rounds, round: int) -> int | None:
    """Where a round stands; None when it was not measured."""
    here = np.flatnonzero(rounds == round)
    return int(here[0]) if len(here) else None


# --- comparisons -------------------------------------------------------------------------------------------------


def order(a: Floats, b: Floats) -> int:
    """-1 when the mean of `a` is the lower by more than two standard errors of the difference, 1 the higher, else 0."""
    one, other = spread(a), spread(b)
    difference, error = one.mean - other.mean, float(np.hypot(one.error, other.error))
    return 0 if abs(difference) <= 2 * error else int(np.sign(difference))


def compare(a: Measured, b: Measured, t: int) -> int | None:
    """The order of the costs of `a` and `b` at round `t`; None where one of them was not measured."""
    i, j = place(a.rounds, t), place(b.rounds, t)
    return None if i is None or j is None else order(a.cost[:, i], b.cost[:, j])


def race(a: Measured, b: Measured, rounds: Sequence[int]) -> tuple[str, str]:
    """How `a` fares against `b`, and whether that is `converges faster`: yes, in part or no."""
    signs = {t: sign for t in rounds if (sign := compare(a, b, t)) is not None}
    ahead, level, behind = ([t for t, sign in signs.items() if sign == kind] for kind in (-1, 0, 1))
    words = (("ahead", ahead), ("level", level), ("behind", behind))
    parts = [f"{word} at {', '.join(map(str, some))}" for word, some in words if some]
    verdict = "no" if not ahead else "in part" if behind else "yes"
    return "; ".join(parts), verdict


def overall(verdicts: Sequence[str]) -> str:
    """Of several parts of one statement."""
    return verdicts[0] if len(set(verdicts)) == 1 else "in part"
