"""The certificate of a run, computed once more from its model and the raw data: `python -m jobs.constraints.certify`.

Nothing of mpifed is imported: files are read by h5py, and all numbers come from definitions, see `certificate.py`.
For runs of the objectives and terms of this package, without a regularizer. It prints the numbers beside those of the
history, and ends with 1 where they differ: by more than 1e-6 relative in float64, 1e-3 in float32, whose gradients are
sums of numbers of 24 bits.
"""

from __future__ import annotations

import csv
import math
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from jobs.constraints.certificate import Point, certificate
from jobs.constraints.functions import OfLoss, convex, curvatures, flat, functions
from jobs.constraints.rows import Model, Rows, first_iterate, read_job, read_model, read_rows

TOLERANCE = {"float32": 1e-3, "float64": 1e-6}

Columns = dict[str, "float | None"]


def certified(
    run: Path, data: Path | None = None, own: Mapping[str, OfLoss] | None = None, convex_own: Collection[str] = ()
) -> Columns:
    """The columns of the history's last row that a certificate fills, and values with their margins.

    Parameters
    ----------
    run : folder of a run that has ended
    data : folder of the shards, if it is not where the job says
    own : terms of one's own that are functions of the loss, by name
    convex_own : those of them that are convex with a convex loss

    Raises
    ------
    ValueError
        Where the job asks for what is not written out here.
    """
    job = read_job(run)
    for problem in _not_written_out(job, own or {}):
        raise ValueError(f"{run}: {problem}")
    rows = _rows(data or Path(job["data"]["path"]))
    return recomputed(job, rows, read_model(run / "model.h5"), own, convex_own)


def recomputed(
    job: dict[str, Any],
    rows: Rows,
    model: Model,
    own: Mapping[str, OfLoss] | None = None,
    convex_own: Collection[str] = (),
) -> Columns:
    """The same of a model in memory."""
    first = first_iterate(job, rows.raw.shape[1], rows.outputs)
    now, before = functions(job, rows, model, own), functions(job, rows, first, own)
    at = Point(
        value=np.array([f.value for f in now]),
        gradient=np.array([f.gradient for f in now]),
        limit=np.array([table["limit"] for table in job["constraint"]]),
        root_mean_square=np.array([f.root_mean_square for f in now[1:]]),
        first_value=np.array([f.value for f in before]),
        first_slopes=np.array([np.linalg.norm(f.gradient) for f in before]),
        length=float(np.linalg.norm(flat(model))),
        curvature=curvatures(job, convex_own),
        convex=convex(job, convex_own),
    )
    found: Columns = {"objective": now[0].value}
    for m, function in enumerate(now[1:], 1):
        found |= {f"constraint_{m}": function.value, f"margin_{m}": 1.96 * function.standard_error}
    return found | certificate(at)


def _not_written_out(job: Mapping[str, Any], own: Mapping[str, OfLoss]) -> list[str]:
    known = ("loss", "error-rate", "norm", *own)
    names = [table["name"] for table in (job["minimize"], *job["constraint"])]
    found = [f'name = "{name}": only {", ".join(known)} are written out here' for name in names if name not in known]
    if job.get("regularizer"):
        found.append("[regularizer]: none is written out here")
    if job["record"].get("rows"):
        found.append("[record] evaluate_rows: certificates here are of all rows; leave the key out")
    return found


@lru_cache(maxsize=1)
def _rows(folder: Path) -> Rows:
    return read_rows(folder)


# --- beside the history ---------------------------------------------------------------------------------------------


def last_row(run: Path) -> Columns:
    """The history's last row; None for empty cells."""
    with (run / "history.csv").open(encoding="utf-8", newline="") as file:
        *_, last = csv.DictReader(file)
    return {name: float(cell) if cell else None for name, cell in last.items()}


def compared(ours: Columns, theirs: Columns, tolerance: float) -> list[tuple[str, float | None, float | None, bool]]:
    """(column, here, in the history, whether they agree) of each number here.

    Rounding errors are relative to what a number is a difference of: the parts of the residual to 1, of which 1e-3 is
    demanded here, a gap and a margin to their values, `feasible_direction` to the length of the model.
    """
    scales = dict.fromkeys(("lower_bound", "duality_gap"), abs(ours["objective"] or 0.0))
    scales |= dict.fromkeys(("kkt_residual", "stationarity", "feasibility", "complementarity"), 1e-3)
    of_margins = {name.replace("constraint", "margin"): value for name, value in ours.items() if "constraint_" in name}
    scales |= {name: abs(value or 0.0) for name, value in of_margins.items()}
    found, steps = [], [_step(columns.get("feasible_direction")) for columns in (ours, theirs)]
    for name, here in ours.items():
        there = theirs.get(name, math.nan)
        if name == "feasible_direction":
            same = name in theirs and _agree(steps[0], steps[1], 1e-3, tolerance)
        elif name == "duality_gap" and (here is None) != (there is None):
            same = max(steps) <= 1e-3 * tolerance  # limits that are met, or not, by a rounding error
        elif name == "lower_bound" and here == math.inf:
            same = there is not None  # any number is a bound where nothing meets the limits
        else:
            same = _agree(here, there, scales.get(name, 0.0), tolerance)
        found.append((name, here, there, same))
    return found


def _agree(ours: float | None, theirs: float | None, scale: float, tolerance: float) -> bool:
    if ours is None or theirs is None:
        return ours is theirs
    return bool(ours == theirs or abs(ours - theirs) <= tolerance * max(abs(ours), abs(theirs), scale))


def _step(direction: float | None) -> float:
    """The length of the shortest step that meets all limits, in those of the model."""
    return 0.0 if direction is None else 1 / direction if direction else math.inf


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints both for each run; 1 where they differ."""
    parser = ArgumentParser(prog="python -m jobs.constraints.certify", description=__doc__)
    parser.add_argument("run", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("--data", type=Path, help="folder of the shards, if it is not where the jobs say")
    asked, differ = parser.parse_args(arguments), False
    if problem := next((f"{run}: {one}" for run in asked.run for one in _not_written_out(read_job(run), {})), None):
        parser.error(problem)
    for run in asked.run:
        tolerance = TOLERANCE[read_job(run)["compute"]["dtype"]]
        print(f"{run}\n  {'':<22}{'here':>16}{'history':>16}")
        for name, here, there, same in compared(certified(run, asked.data), last_row(run), tolerance):
            differ |= not same
            print(f"  {name:<22}{_cell(here):>16}{_cell(there):>16}{'' if same else '  differ'}")
    return int(differ)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.9g}"


if __name__ == "__main__":
    sys.exit(main())
