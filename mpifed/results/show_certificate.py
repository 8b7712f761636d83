"""The lines of `mpifed show RUN` on the constraints and the certificate of a run's last model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from mpifed.core.tables import Table
from mpifed.files.history import read_history
from mpifed.files.history_csv import HISTORY
from mpifed.files.run_folder import job_of, read_run
from mpifed.job.goals import contradiction

_LABELS = {
    "kkt_residual": "KKT residual",
    "stationarity": "  stationarity",
    "feasibility": "  feasibility",
    "complementarity": "  complementarity",
    "lower_bound": "lower bound, by this model",
    "duality_gap": "duality gap",
}


def certificate_lines(folder: Path) -> Iterator[tuple[str, str]]:
    """(label, text) for each constraint and each number of the certificate, from run.json or the history's last row."""
    columns = read_history(folder) if (folder / HISTORY).exists() else {}
    last: Table = {name: values[-1] for name, values in columns.items() if len(values)}
    last |= read_run(folder)  # null where the last model, over all rows, has no such number
    last = {name: float(value) for name, value in last.items() if isinstance(value, (int, float, np.number))}
    last = {name: value for name, value in last.items() if math.isfinite(value)}
    job = job_of(folder)
    for m, constraint in enumerate(job.get("constraint", []), 1):
        if f"constraint_{m}" in last:
            text = _constraint_text(last[f"constraint_{m}"], last.get(f"margin_{m}"), constraint["limit"])
            yield f"constraint {m}{_what(constraint)}", text + _multipliers(last, m)
    if why := contradiction(last):
        yield "constraints", why
    for name, label in _LABELS.items():
        if name in last:
            bound = job.get("stop", {}).get(name)
            more = "" if bound is None else f", asked for {bound:g} or less"
            yield label, f"{last[name]:.6g}{_relative(name, last)}{more}"


def _multipliers(last: Mapping[str, float], m: int) -> str:
    """The multiplier of the certificate, and that of the last convex subproblem if the algorithm solves one."""
    texts = [
        f"{label} {last[name]:.4g}"
        for name, label in ((f"multiplier_{m}", "multiplier"), (f"subproblem_multiplier_{m}", "in the last subproblem"))
        if name in last
    ]
    return f"; {', '.join(texts)}" if texts else ""


def _relative(name: str, last: Mapping[str, float]) -> str:
    """The gap relative to the objective, as text."""
    objective = abs(last.get("objective", 0.0))
    return f" ({last[name] / objective:.2%} of the objective)" if name == "duality_gap" and objective else ""


def _what(constraint: Table) -> str:
    """The term that a constraint bounds, as text."""
    classes = constraint.get("classes")
    of = f" of classes {', '.join(map(str, classes))}" if classes else ""
    return f" ({constraint['name']}{of})"


def _constraint_text(value: float, margin: float | None, limit: float) -> str:
    """Whether a constraint is met, as text.

    The value is exact, a mean over all the training rows of the term, and it alone decides; its margin bounds how
    far the mean over new samples of the same distribution may be from it.
    """
    text = f"{value:.6g}{f' +- {margin:.2g}' if margin else ''}, limit {limit:g}: "
    if value > limit:
        return f"{text}NOT met, by {value - limit:.2g}"
    if margin and value + margin > limit:
        return f"{text}met on the training rows; so near the limit that it may not be on new samples"
    return f"{text}met"
