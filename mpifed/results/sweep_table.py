"""sweep.csv: the points of a sweep with their settings and results."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path

from mpifed.files.atomic import aside
from mpifed.files.run_folder import RUN, SUMMARY, summary
from mpifed.job.sweep import SweepPoint


def write_sweep(folder: Path, points: Sequence[SweepPoint]) -> None:
    """Write sweep.csv: a row for each point, with its settings and its run's `summary`, empty where not run."""
    names = list(points[0].settings)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["point", *names, *SUMMARY])
    for point in points:
        run_dir = folder / point.name
        values = summary(run_dir) if (run_dir / RUN).exists() else dict.fromkeys(SUMMARY)
        rows.writerow([point.name, *point.settings.values(), *values.values()])
    # the tasks of a job array may write at the same time
    temporary_name = folder / f".sweep-{os.uname().nodename}-{os.getpid()}"
    with aside(temporary_name) as temporary:
        temporary.write_text(text.getvalue(), encoding="utf-8")
    os.replace(temporary_name, folder / "sweep.csv")
