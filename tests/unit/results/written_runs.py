"""Folders of runs and sweeps as mpifed's own writers leave them, with histories made by hand; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from click.testing import CliRunner
from written_files import History, write_json

from mpifed.cli import main
from mpifed.job.sweep import points
from mpifed.results.points import write_sweep

JOB: dict[str, Any] = {
    "name": "made", "rounds": 100, "data": {"path": "nowhere"}, "model": {"name": "softmax"},
    "algorithm": {"name": "fedavg", "batch_size": 4, "local_steps": 2}, "client_optimizer": {"learning_rate": 0.1},
}  # fmt: skip
KIB = 1024
Rows = Sequence[Mapping[str, float | None]]


def mpifed(*arguments: Any) -> Any:
    """How a command ends."""
    return CliRunner().invoke(main, [str(word) for word in arguments])


def write_run(folder: Path, rows: Rows = (), code: int | None = 0, job: Any = JOB, **about: Any) -> Path:
    """A run of these measured rounds; of each what is not given: a second and 2 KiB up and down for each round."""
    folder.mkdir(parents=True)
    (folder / "job.toml").write_text(job if isinstance(job, str) else tomli_w.dumps(job))
    history, costs = History(folder), dict[str, Any]()
    for row in rows or [{"round": 0}]:
        r = int(row["round"] or 0)
        costs = {"elapsed_s": row.get("elapsed_s", float(r)), "up_bytes": KIB * r, "down_bytes": KIB * r}
        if rows:
            history.append({**costs, **row})
    write_json(folder / "run.json", {"exit": code, "rounds": r, **costs, **about})
    return folder


def at_end(**columns: float | None) -> Rows:
    """A history that is measured at its end alone."""
    return [{"round": 100, **columns}]


def write_points(folder: Path, axes: Mapping[str, Any], runs: Sequence[Rows | int | None], job: Any = JOB) -> Path:
    """A sweep whose points have these histories; an integer: ended with this exit code, None: not run."""
    made = [
        point._replace(name=f"point-{number:04d}")
        for number, point in enumerate(points({**job, "sweep": dict(axes)}, "made"))
    ]
    folder.mkdir(parents=True)
    for point, rows in zip(made, runs, strict=True):
        if isinstance(rows, int):
            write_run(folder / point.name, (), rows, point.job.text())
        elif rows is not None:
            write_run(folder / point.name, rows, 0, point.job.text())
    write_sweep(folder, made)
    return folder
