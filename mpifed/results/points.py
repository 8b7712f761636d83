"""sweep.csv, which marks the folder of a sweep: its points, and what sets each apart."""

from __future__ import annotations

import ast
import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from mpifed.core.errors import DataError
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.json_file import content
from mpifed.files.run_folder import RUN, SUMMARY, summary
from mpifed.files.write import replace_text
from mpifed.job.sweep import LABEL, POINT, SweepPoint
from mpifed.privacy.ledger_file import spent
from mpifed.results.text import toml_text
from mpifed.text import shown

SWEEP = "sweep.csv"
TRIALS, BEST = "tune.csv", "best.toml"  # of a tuning


def is_sweep(folder: Path) -> bool:
    return (folder / SWEEP).exists()


def write_sweep(folder: Path, points: Sequence[SweepPoint]) -> None:
    """Write sweep.csv: a row for each point, with its settings and its run's `summary`, empty where not run."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["point", *points[0].settings, *SUMMARY])
    for point in points:
        run_dir = folder / point.name
        values = summary(run_dir, spent(run_dir)) if (run_dir / RUN).exists() else dict.fromkeys(SUMMARY)
        rows.writerow([point.name, *point.settings.values(), *values.values()])
    replace_text(folder / SWEEP, text.getvalue())


def point_settings(folder: Path) -> list[tuple[str, Table]]:
    """The name of each point of a sweep, and what sets it apart; DataError when sweep.csv is not such a list."""
    path = folder / SWEEP
    try:
        header, *rows = csv.reader(io.StringIO(content(path).decode("utf-8"), newline=""))
        names = header[1 : len(header) - header[::-1].index(SUMMARY[0]) - 1]  # a setting may be called so too
        strange = [name for name in names if not name.isprintable() or names.count(name) > 1]
        strange += [str(row[:1]) for row in rows if len(row) != len(header) or not POINT.fullmatch(row[0])]
        if strange or not rows:
            raise ValueError(f"not so in a table of points: {shown(strange[0])}" if strange else "it lists no points")
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path}: not the points of a sweep ({error}); let the sweep write it anew: remove it and run with --resume"
        ) from error
    return [(row[0], {name: _parsed(name, cell) for name, cell in zip(names, row[1:], strict=False)}) for row in rows]


def told(settings: ReadOnlyTable) -> str:
    """What sets a point apart, on one line: a label in the place of the tables that it is of."""
    label = settings.get(LABEL)
    values = [
        f"{key} = {toml_text(value)}" for key, value in settings.items() if not (label and isinstance(value, dict))
    ]
    return shown(", ".join([str(label), *values[1:]] if label else values))


def _parsed(name: str, cell: str) -> object:
    """The value of a setting, from the text that `csv` made of it; a label is a text, whatever it looks like."""
    if name == LABEL:
        return cell
    try:
        value = ast.literal_eval(cell)
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return cell
    return value
