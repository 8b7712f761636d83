"""Folders of runs and sweeps as mpifed's own writers leave them, with histories made by hand; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from written_files import History, write_json

from mpifed.job.sweep import SweepPoint, points
from mpifed.results.points import write_sweep

JOB: dict[str, Any] = {
    "name": "made",
    "rounds": 100,
    "data": {"path": "nowhere"},
    "model": {"name": "softmax"},
    "algorithm": {"name": "fedavg", "batch_size": 4, "local_steps": 2},
    "client_optimizer": {"learning_rate": 0.1},
}
KIB = 1024


def write_history(folder: Path, code: int | None, rows: Sequence[Mapping[str, float | None]], **about: Any) -> Path:
    """A run of these measured rounds; of each row what is not given: a second and 2 KiB up and down for each round."""
    history = History(folder)
    for row in rows:
        r = int(row["round"] or 0)
        history.append({"elapsed_s": float(r), "up_bytes": KIB * r, "down_bytes": KIB * r, **row})
    last = rows[-1] if rows else {"round": 0}
    r = int(last["round"] or 0)
    costs = {"rounds": r, "elapsed_s": last.get("elapsed_s", float(r)), "up_bytes": KIB * r, "down_bytes": KIB * r}
    write_json(folder / "run.json", {"exit": code, **costs, **about})
    return folder


def write_made_run(
    folder: Path,
    rows: Sequence[Mapping[str, float | None]],
    code: int | None = 0,
    job: dict[str, Any] | None = None,
    **about: Any,
) -> Path:
    """A run of its own."""
    folder.mkdir(parents=True)
    (folder / "job.toml").write_text(tomli_w.dumps(JOB if job is None else job))
    return write_history(folder, code, rows, **about)


def at_end(**columns: float | None) -> list[dict[str, float | None]]:
    """A history that is measured at its end alone."""
    return [{"round": 100, **columns}]


def write_made_sweep(
    folder: Path,
    axes: Mapping[str, Any],
    runs: Sequence[Sequence[Mapping[str, float | None]] | int | None],
    job: dict[str, Any] | None = None,
) -> Path:
    """A sweep whose points have these histories; an integer: ended with this exit code, None: not run."""
    made: list[SweepPoint] = points({**(job or JOB), "sweep": dict(axes)}, "made")
    made = [point._replace(name=f"point-{number:04d}") for number, point in enumerate(made)]
    assert len(made) == len(runs)
    folder.mkdir(parents=True)
    for point, rows in zip(made, runs, strict=True):
        if rows is not None:
            (folder / point.name).mkdir()
            (folder / point.name / "job.toml").write_text(point.job.text())
            code, rows = (rows, []) if isinstance(rows, int) else (0, rows)
            write_history(folder / point.name, code, rows)
    write_sweep(folder, made)
    return folder
