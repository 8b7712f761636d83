"""`mpifed show RUN`: how a run ended, its costs, and its certificates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.tables import Table
from mpifed.files import columns
from mpifed.files.history import read_history
from mpifed.files.history_csv import HISTORY
from mpifed.files.model_file import MODEL, of_0_1
from mpifed.files.run_folder import RUN, job_of, read_run, summary
from mpifed.files.schemas import RunJson
from mpifed.job.goals import contradiction
from mpifed.privacy import protection
from mpifed.privacy.disclosure import uncovered
from mpifed.privacy.ledger_file import spent
from mpifed.results.costs import cost_lines, simulated_lines
from mpifed.results.run_warnings import run_warnings
from mpifed.results.text import line_of, meaning, value_of
from mpifed.text import shown

_LABELS = {
    "kkt_residual": "KKT residual",
    "stationarity": "  stationarity",
    "feasibility": "  feasibility",
    "complementarity": "  complementarity",
    "lower_bound": "lower bound, by this model",
    "duality_gap": "duality gap",
}


def run_summary(folder: Path) -> Table:
    """The results of a run, with the costs of each exchange and its warnings.

    Raises DataError when it is not the folder of a run, or the run's ledger does not match its other files.
    """
    return _results(folder)[0]


def _results(folder: Path) -> tuple[Table, Table | None]:
    """(those of a run, all that it has spent)."""
    if not (folder / RUN).exists():
        if (folder / "job.toml").exists() or any(folder.glob("ledger.*")):
            raise DataError(f"{folder}: a run that was ended before it wrote run.json; go on with --resume")
        raise DataError(f"{folder}: no run.json; give the folder of a run")
    released = spent(folder)
    run = read_run(folder)  # costs of key agreement and of each exchange, up to the last checkpoint
    results = summary(folder, released) | {
        "exchanges": run.get("exchanges"),
        "simulated": run.get("simulated"),
        "warnings": _warnings(folder, run),
    }
    return results, released


def run_text(folder: Path) -> str:
    summary, released = _results(folder)
    labels = columns.labels("show")
    lines = [line_of("status", _status(summary))]
    lines += [
        line_of(label, _with_unit(key, summary[key])) for key, label in labels.items() if summary[key] is not None
    ]
    run = read_run(folder)
    if run.get("returned_round") is not None:
        lines.append(line_of("model", f"of round {run['returned_round']}, the best that met all limits"))
    lines += cost_lines(summary["exchanges"] or {}, "  ")
    if run.get("clients_without_tests"):
        tested, without = run.get("clients_tested"), run["clients_without_tests"]
        lines.append(line_of("clients tested", f"{tested}; {without} more have no test rows of their own"))
    if run.get("simulated"):
        lines += [line_of("simulated seconds", value_of("simulated_s", run.get("simulated_s")))]
        lines += simulated_lines(run["simulated"], run.get("rounds", 0), "  ")
    lines += [line_of(label, text) for label, text in protection.shown(run, released)]
    if run.get("delta") is not None:
        lines.append(line_of("epsilon does not cover", "; ".join(uncovered(folder))))
    lines += [line_of(label, text) for label, text in _certificate(folder)]
    lines += [line_of("warning", warning) for warning in [*summary["warnings"], *_not_known(run)]]
    lines.append(line_of("results", f"{folder}{'/' * (not str(folder).endswith('/'))}"))
    return "\n".join(lines)


def _warnings(folder: Path, run: Table) -> list[str]:
    """The warnings of a run: those of run.json, and those that its end gives reason to."""
    said: list[str] = list(run.get("warnings") or [])
    said += filter(None, [of_0_1(folder / MODEL)])
    gone = [name for name in run.get("digests") or () if not (folder / name).exists()]
    said += [f"{name} is missing: put it back; --resume writes all but history.csv again" for name in gone]
    return said + [str(warning) for warning in run_warnings(folder) if not {warning.text, str(warning)} & {*said}]


def _not_known(run: Table) -> Iterator[str]:
    """A warning with the keys of run.json that this version does not know."""
    if names := RunJson.model_validate(run).unknown():
        yield f"{RUN} has {', '.join(map(shown, names))}, of another version of mpifed, which is left out here"


def _status(summary: Table) -> str:
    if summary["exit"] is not None:
        return f"{meaning(summary['exit'])} (exit {summary['exit']})"
    return f"{meaning(None)} after round {summary['rounds'] or 0}; resume it with --resume if it is not running"


def _with_unit(key: str, value: object) -> str:
    text = value_of(key, value)
    return f"{text} s" if columns.column_of(key).unit == "s" else text


def _certificate(folder: Path) -> Iterator[tuple[str, str]]:
    """(label, text) for each constraint and each number of the certificate, from run.json or the history's last row."""
    columns = read_history(folder) if (folder / HISTORY).exists() else {}
    last: Table = {name: values[-1] for name, values in columns.items() if len(values)}
    last |= read_run(folder)  # null where the last model, over all rows, has no such number
    last = {name: float(value) for name, value in last.items() if isinstance(value, (int, float, np.number))}
    last = {name: value for name, value in last.items() if math.isfinite(value)}
    job = job_of(folder)
    limits = {f"constraint_{m}": constraint["limit"] for m, constraint in enumerate(job.get("constraint", []), 1)}
    met = all(last.get(name, math.inf) <= limit for name, limit in limits.items())
    for m, constraint in enumerate(job.get("constraint", []), 1):
        if f"constraint_{m}" in last:
            text = _constraint_text(last[f"constraint_{m}"], last.get(f"margin_{m}"), constraint["limit"])
            yield f"constraint {m}{_what(constraint)}", text + _multiplier(last, m, met)
    if why := contradiction(last):
        yield "constraints", why
    for name, label in _LABELS.items():
        if name in last:
            yield label, f"{last[name]:.6g}{_relative(name, last)}"


def _multiplier(last: Mapping[str, float], m: int, met: bool) -> str:
    """The multiplier with its error, where all limits are met; otherwise it is that of no solution."""
    value, error = last.get(f"multiplier_{m}"), last.get(f"multiplier_error_{m}")
    if value is None or error is None or not met:
        return ""
    return f"; multiplier {value:.4g}{f' +- {error:.2g}' if error else ''}" if error < value or not value else ""


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
