"""`mpifed show RUN`: how a run ended, its costs, and its certificates."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files import columns
from mpifed.files.history import history_so_far
from mpifed.files.model_file import MODEL, of_0_1
from mpifed.files.run_folder import JOB, RUN, job_of, read_run, summary
from mpifed.files.schemas import RunJson
from mpifed.privacy import protection
from mpifed.privacy.disclosure import uncovered
from mpifed.privacy.ledger_file import spent
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
_OF_LIMITS = tuple(_LABELS)[:4]  # shown where there are limits, or [stop] asks for them


def run_summary(folder: Path) -> Table:
    """The results of a run, with the costs of each exchange and its warnings.

    Raises DataError when it is not the folder of a run, or the run's ledger does not match its other files.
    """
    return _results(folder)[0]


def _results(folder: Path) -> tuple[Table, Table, Table | None]:
    """(those of a run, its run.json, all that it has spent)."""
    if not (folder / RUN).exists():
        if (folder / JOB).exists() or any(folder.glob("ledger.*")):
            raise DataError(f"{folder}: a run that was ended before it wrote run.json; go on with --resume")
        raise DataError(f"{folder}: no run.json; give the folder of a run")
    released = spent(folder)
    run = read_run(folder)  # costs of key agreement and of each exchange, up to the last checkpoint
    said: list[str] = [*(run.get("warnings") or ()), *filter(None, [of_0_1(folder / MODEL)])]
    gone = [name for name in (JOB, *(run.get("digests") or ())) if not (folder / name).exists()]
    said += [f"{name} is missing: put it back; --resume writes all but history.csv again" for name in gone]
    said += [str(warning) for warning in run_warnings(folder) if not {warning.text, str(warning)} & {*said}]
    more = {"exchanges": run.get("exchanges"), "simulated": run.get("simulated"), "warnings": said}
    return summary(folder, released) | more, run, released


def run_text(folder: Path) -> str:
    results, run, released = _results(folder)
    status = f"{meaning(None)} after round {results['rounds'] or 0}; resume it with --resume if it is not running"
    if results["exit"] is not None:
        status = f"{meaning(results['exit'])} (exit {results['exit']})"
    pairs = [("status", status)]
    for column in columns.shown("show"):
        if (value := results[column.name]) is not None:
            pairs.append((column.label, value_of(column.name, value) + " s" * (column.unit == "s")))
    if run.get("returned_round") is not None:
        pairs.append(("model", f"of round {run['returned_round']}, the best that met all limits"))
    if run.get("clients_without_tests"):
        tested, without = run.get("clients_tested"), run["clients_without_tests"]
        pairs.append(("clients tested", f"{tested}; {without} more have no test rows of their own"))
    if run.get("simulated_s") is not None:
        pairs.append(("simulated seconds", value_of("simulated_s", run.get("simulated_s"))))
    pairs += protection.shown(run, released)
    if run.get("delta") is not None:
        pairs.append(("epsilon does not cover", "; ".join(uncovered(folder))))
    pairs += [*_certificate(folder, run), *(("warning", warning) for warning in results["warnings"])]
    if unknown := RunJson.model_validate(run).unknown():
        names = ", ".join(map(shown, unknown))
        pairs.append(("warning", f"{RUN} has {names}, of another version of mpifed, which is left out here"))
    pairs.append(("results", f"{folder}{'/' * (not str(folder).endswith('/'))}"))
    return "\n".join(line_of(*pair) for pair in pairs)


def _certificate(folder: Path, run: ReadOnlyTable) -> Iterator[tuple[str, str]]:
    """(label, text) for each constraint and each number of the certificate, from run.json or the history's last row.

    The value of a constraint is exact, a mean over all the training rows of the term, and it alone decides whether it
    is met; its margin bounds how far the mean over new samples of the same distribution may be from it.
    """
    history = history_so_far(folder)
    last: Table = {name: values[-1] for name, values in history.items() if len(values)}
    last |= run  # null where the last model, over all rows, has no such number
    last = {name: float(value) for name, value in last.items() if isinstance(value, (int, float, np.number))}
    last = {name: value for name, value in last.items() if math.isfinite(value)}
    job = job_of(folder)
    limits = list(enumerate(job.get("constraint", []), 1))
    for m, constraint in limits:
        if (value := last.get(f"constraint_{m}")) is None:
            continue
        limit, margin = constraint["limit"], last.get(f"margin_{m}", 0.0)
        classes = ", ".join(map(str, constraint.get("classes") or ()))
        text = f"{value:.6g}{f' +- {margin:.2g}' if margin else ''}, limit {limit:g}: "
        text += "met" if value <= limit else f"NOT met, by {value - limit:.2g}"
        if value <= limit < value + margin:
            text += " on the training rows; so near the limit that it may not be on new samples"
        yield f"constraint {m} ({constraint['name']}{f' of classes {classes}' if classes else ''})", text
    asked = limits or job.get("stop", {}).get("reached")
    for name, label in _LABELS.items():
        if name in last and (asked or name not in _OF_LIMITS):
            objective = abs(last.get("objective", 0.0)) if name == "duality_gap" else 0.0
            yield label, f"{last[name]:.6g}{f' ({last[name] / objective:.2%} of the objective)' if objective else ''}"
