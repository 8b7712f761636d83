"""`mpifed show RUN`: how a run ended, its costs, and its certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table
from mpifed.core.text import shown
from mpifed.files import columns
from mpifed.files.run_folder import RUN, read_run, summary
from mpifed.files.schemas import RunJson
from mpifed.privacy import protection
from mpifed.privacy.disclosure import uncovered
from mpifed.privacy.ledger_file import read_compared
from mpifed.results.costs import cost_lines, simulated_lines
from mpifed.results.points import is_sweep
from mpifed.results.show_certificate import certificate_lines
from mpifed.results.text import line_of, meaning, value_of


def run_summary(folder: Path) -> Table:
    """The results of a run, with the costs of each exchange.

    Raises
    ------
    UsageError
        when the folder is that of a sweep.
    DataError
        when it is not the folder of a run, or the run's ledger does not match its other files.
    """
    if is_sweep(folder):
        raise UsageError(f"{folder}: is a sweep; mpifed compare {folder} shows its points")
    if not (folder / "run.json").exists():
        if (folder / "job.toml").exists() or any(folder.glob("ledger.*")):
            raise DataError(f"{folder}: a run that was ended before it wrote run.json; go on with --resume")
        raise DataError(f"{folder}: no run.json; give the folder of a run")
    read_compared(folder)
    run = read_run(folder)  # costs of key agreement and of each exchange, up to the last checkpoint
    return summary(folder) | {"exchanges": run.get("exchanges"), "simulated": run.get("simulated")}


def run_text(folder: Path) -> str:
    """The results of a run as text."""
    summary = run_summary(folder)
    labels = columns.labels("show")
    lines = [line_of("status", _status(summary))]
    lines += [
        line_of(label, _with_unit(key, summary[key])) for key, label in labels.items() if summary[key] is not None
    ]
    lines += cost_lines(summary["exchanges"] or {}, "  ")
    run = read_run(folder)
    if run.get("simulated"):
        lines += [line_of("simulated seconds", value_of("simulated_s", run.get("simulated_s")))]
        lines += simulated_lines(run["simulated"], run.get("rounds", 0), "  ")
    lines += [line_of(label, text) for label, text in protection.shown(run, summary)]
    if run.get("delta") is not None:
        lines.append(line_of("epsilon does not cover", "; ".join(uncovered(folder))))
    lines += [line_of(label, text) for label, text in certificate_lines(folder)]
    lines += [line_of("warning", str(warning)) for warning in [*(run.get("warnings") or []), *_not_known(run)]]
    lines.append(line_of("results", f"{folder}{'/' * (not str(folder).endswith('/'))}"))
    return "\n".join(lines)


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
