"""`mpifed scale`: a study from its options to its report."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mpifed.core.errors import UsageError
from mpifed.forecast.scale import scale
from mpifed.run.config import Job
from mpifed.run.history import read_json, write_json
from mpifed.scaling.figures import draw
from mpifed.scaling.launch import cores, launcher, refuse_oversubscription
from mpifed.scaling.plan import STRONG, WEAK, plan
from mpifed.scaling.report import report
from mpifed.scaling.results import as_csv, measured, rows
from mpifed.scaling.study import Study, read_job
from mpifed.shards import store

_BEYOND = 4  # the prediction goes on to so many times the ranks, three times


class Asked(NamedTuple):
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
    check: bool = True  # own classes, before each run


def study_command(path: Path, changes: tuple[str, ...], out: Path, asked: Asked, say: Callable[[str], None]) -> Path:
    """Run what is left of a study, and write scaling.csv, scaling.json, report.md and the figures; where the report is.

    Raises
    ------
    UsageError, DataError, MpifedError
        where the job is wrong, there are too few cores, or a run fails.
    """
    ranks, room = sorted(set(asked.ranks)), cores()
    refuse_oversubscription(ranks, room, asked.oversubscribe)
    table, rounds = read_job(path, changes, asked.rounds)
    if asked.sizes and "hidden" not in table.get("model", {}):
        name = table.get("model", {}).get("name")
        raise UsageError(f'--model-size: is that of [model] hidden, which "{name}" has not; leave it out')
    data = store.open_federation(table["data"]["path"])
    points = plan(asked.kinds, ranks, asked.clients, asked.sizes, data.clients)
    study = Study(table, tuple(points), rounds, asked.repeat, launcher(asked.launcher), out, asked.check)
    before = load()
    study.play(say)
    series = measured(study, room)
    predicted = _predicted(study, asked, ranks, say) if asked.predict else {}
    seconds = {(kind, row["ranks"]): row["round_s"] for kind, one in predicted.items() for row in one["scaling"]}
    found = rows(series, seconds)
    about = _about(study, Job.check(study.job_of(points[0])), room, ranks) | {"load_before": before}
    figures = draw(series, predicted, out, room)
    (out / "scaling.csv").write_text(as_csv(found), encoding="utf-8")
    fits = [{"kind": one.kind, "series": one.label, "serial_fraction": one.serial} for one in series]
    write_json(out / "scaling.json", {**about, "points": found, "fits": fits, "predicted": predicted})
    (out / "report.md").write_text(report(about, series, found, predicted, figures), encoding="utf-8")
    return out / "report.md"


def _predicted(study: Study, asked: Asked, ranks: Sequence[int], say: Callable[[str], None]) -> dict[str, Any]:
    """By kind: the job's own model at these numbers of ranks, and beyond."""
    say("predicting what comes beyond")
    beyond = [max(ranks) * _BEYOND**power for power in (1, 2, 3)]
    found = {}
    for kind in asked.kinds:
        first = next(point for point in study.points if point.kind == kind)
        path = study.out / "runs" / first.name / "job.toml"  # as it was run
        found[kind] = scale(
            path, (), [*ranks, *beyond], weak=kind == WEAK, latency_s=asked.latency_s, bytes_per_s=asked.bytes_per_s,
            ranks_per_node=asked.ranks_per_node,
        )  # fmt: skip
    return found


def load() -> float | None:
    """How many processes of this machine have wanted a core during the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _about(study: Study, job: Job, room: int, ranks: Sequence[int]) -> dict[str, Any]:
    """What the numbers rest on, from the runs themselves."""
    runs = [read_json(study.folder(point, 0) / "run.json") for point in study.points]
    return {
        "job": job.name,
        "host": runs[-1]["host"],
        "hosts": sorted({run["host"] for run in runs}),
        "cores": room,
        "launcher": study.launcher,
        "mpi": next((run["mpi"] for run in runs if run["mpi"]), None),
        "versions": runs[-1]["versions"],
        "blas": runs[-1]["blas"],
        "commit": runs[-1]["commit"],
        "rounds": study.rounds,
        "repeat": study.repeat,
        "oversubscribed": [count for count in ranks if count > room],
    }
