"""`mpifed scale`: runs a study and writes its report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.files.json_file import read_json, write_json
from mpifed.forecast.scale import scale
from mpifed.job.job import Job
from mpifed.scaling.figures import draw
from mpifed.scaling.launch import cores, launcher, refuse_oversubscription
from mpifed.scaling.report import report
from mpifed.scaling.results import as_csv, read_series, rows
from mpifed.scaling.study import STRONG, WEAK, Study, plan, read_job
from mpifed.shards import store

_BEYOND = 4  # the prediction continues to 4, 16 and 64 times the ranks


class StudyOptions(NamedTuple):
    """The options of a study."""

    ranks: Sequence[int] = (1, 2, 4)
    clients: Sequence[int] = ()
    sizes: Sequence[int] = ()
    kinds: Sequence[str] = (STRONG, WEAK)
    rounds: int | None = None
    repeat: int = 3
    launcher: str | None = None
    oversubscribe: bool = False
    predict: bool = True
    latency_s: float | None = None
    bytes_per_s: float | None = None
    ranks_per_node: int | None = None
    check: bool = True  # user-defined classes, before each run


def study_command(
    path: Path, changes: tuple[str, ...], out: Path, options: StudyOptions, say: Callable[[str], None]
) -> Path:
    """Run the missing runs of a study; write scaling.csv, scaling.json, report.md and figures. The path of the report.

    Raises UsageError, DataError or MpifedError if the job is wrong, there are too few cores, or a run fails.
    """
    ranks, core_count = sorted(set(options.ranks)), cores()
    refuse_oversubscription(ranks, core_count, options.oversubscribe)
    table, rounds = read_job(path, changes, options.rounds)
    if options.sizes and "hidden" not in table.get("model", {}):
        name = table.get("model", {}).get("name")
        raise UsageError(f'--model-size: sets [model] hidden, which "{name}" does not have; leave it out')
    if options.sizes and isinstance(table["model"]["hidden"], list):
        raise UsageError(
            "--model-size: sets the units of a single hidden layer, and [model] hidden is a list; leave it out"
        )
    data = store.open_federation(table["data"]["path"])
    points = plan(options.kinds, ranks, options.clients, options.sizes, data.clients)
    study = Study(table, tuple(points), rounds, options.repeat, launcher(options.launcher), out, options.check)
    before = load()
    study.run_all(say)
    series = read_series(study, core_count)
    predicted = _predicted(study, options, ranks, say) if options.predict else {}
    seconds = {
        (kind, row["ranks"]): row["round_s"] for kind, prediction in predicted.items() for row in prediction["scaling"]
    }
    table_rows = rows(series, seconds)
    about = _about(study, Job.check(study.job_of(points[0])), core_count, ranks) | {"load_before": before}
    figures = draw(series, predicted, out, core_count)
    (out / "scaling.csv").write_text(as_csv(table_rows), encoding="utf-8")
    fits = [{"kind": line.kind, "series": line.label, "serial_fraction": line.serial} for line in series]
    write_json(out / "scaling.json", {**about, "points": table_rows, "fits": fits, "predicted": predicted})
    (out / "report.md").write_text(report(about, series, table_rows, predicted, figures), encoding="utf-8")
    return out / "report.md"


def _predicted(study: Study, options: StudyOptions, ranks: Sequence[int], say: Callable[[str], None]) -> Table:
    """Predictions by kind, for the job's own model on these numbers of ranks and larger ones."""
    say("predicting larger numbers of ranks")
    beyond = [max(ranks) * _BEYOND**power for power in (1, 2, 3)]
    predictions = {}
    for kind in options.kinds:
        first = next(point for point in study.points if point.kind == kind)
        path = study.out / "runs" / first.name / "job.toml"  # as it was run
        predictions[kind] = scale(
            path, (), [*ranks, *beyond], weak=kind == WEAK, latency_s=options.latency_s,
            bytes_per_s=options.bytes_per_s, ranks_per_node=options.ranks_per_node,
        )  # fmt: skip
    return predictions


def load() -> float | None:
    """The load average of this machine over the last minute; None if the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _about(study: Study, job: Job, core_count: int, ranks: Sequence[int]) -> Table:
    """The conditions of the measurements, from the runs themselves."""
    runs = [read_json(study.folder(point, 0) / "run.json") for point in study.points]
    return {
        "job": job.name,
        "host": runs[-1]["host"],
        "hosts": sorted({run["host"] for run in runs}),
        "cores": core_count,
        "launcher": study.launcher,
        "mpi": next((run["mpi"] for run in runs if run["mpi"]), None),
        "versions": runs[-1]["versions"],
        "blas": runs[-1]["blas"],
        "commit": runs[-1]["commit"],
        "rounds": study.rounds,
        "repeat": study.repeat,
        "oversubscribed": [count for count in ranks if count > core_count],
    }
