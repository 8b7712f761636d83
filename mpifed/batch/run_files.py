"""The files of a run, without Slurm: whether it has begun, its last round, how it ended."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, TypeVar

from mpifed.core.errors import DataError
from mpifed.files.columns import of_kind
from mpifed.files.history import read_history
from mpifed.files.history_csv import HISTORY
from mpifed.files.json_file import content
from mpifed.files.run_folder import JOB, job_of, read_run
from mpifed.files.scratch import is_alive
from mpifed.run.checkpoint import generations
from mpifed.run.outcome import FAILURE

Content = TypeVar("Content")


class RunFiles(NamedTuple):
    """The state of one run according to its files."""

    begun: bool  # its first files are there
    code: int | None  # exit code; None while it runs, and if it was killed
    alive: bool | None  # whether the process of rank 0 exists; None if it ran on another machine
    job: str | None  # SLURM_JOB_ID of its last start
    rounds: int | None  # of its job
    round: int | None  # last round that was evaluated or checkpointed
    checkpoint: int | None  # last round that it can be resumed from
    measured: int | None  # last round that was evaluated
    objective: float | None  # at that round; the training loss if no objective was evaluated
    accuracy: float | None  # at that round; of the test rows
    changed: float | None  # time of the last write to its files, in seconds since 1970
    failure: str | None  # message of the first rank that failed, on one line
    text: str | None  # text of the job as run


def read_run_files(run_dir: Path) -> RunFiles:
    """The state of a run according to the files in its folder; a damaged file counts as missing."""
    run = _if_sound(read_run, run_dir)
    last, saved = _last_row(run_dir), _checkpoint(run_dir)
    rounds = [value for value in (run.get("rounds"), last.get("round"), saved) if value is not None]
    return RunFiles(
        begun=(run_dir / JOB).exists(),
        code=run.get("exit"),
        alive=is_alive(run["process"]) if run.get("process") and run.get("exit") is None else None,
        job=run.get("slurm_job"),
        rounds=_if_sound(job_of, run_dir).get("rounds"),
        round=int(max(rounds)) if rounds else None,
        checkpoint=saved,
        measured=int(last["round"]) if "round" in last else None,
        objective=last.get(of_kind("loss", last) or ""),
        accuracy=last.get("test_accuracy"),
        changed=_changed(run_dir),
        failure=_failure(run_dir),
        text=_text(run_dir / JOB),
    )


def _if_sound(read: Callable[[Path], dict[str, Content]], run_dir: Path) -> dict[str, Content]:
    """What `read` gives; nothing where the file is damaged."""
    try:
        return read(run_dir)
    except DataError:
        return {}


def _last_row(run_dir: Path) -> dict[str, float]:
    """The finite values of the last evaluated round, by column."""
    columns = _if_sound(read_history, run_dir) if (run_dir / HISTORY).exists() else {}
    last = {name: float(values[-1]) for name, values in columns.items() if len(values)}
    return {name: value for name, value in last.items() if math.isfinite(value)}


def _checkpoint(run_dir: Path) -> int | None:
    checkpoints = generations(run_dir)
    return int(checkpoints[0].name.removeprefix("round-")) if checkpoints else None


def _changed(run_dir: Path) -> float | None:
    times = []
    for path in (run_dir / HISTORY, run_dir / "run.json", run_dir / "job.toml", run_dir / "checkpoint"):
        try:
            times.append(path.stat().st_mtime)
        except OSError:
            continue
    return max(times, default=None)


def _failure(run_dir: Path) -> str | None:
    lines = (_text(run_dir / FAILURE) or "").strip().splitlines()
    if len(lines) > 1 and "unexpected" in lines[0]:  # a traceback follows
        return f"{lines[0]}: {lines[-1]}"
    return in_a_line(lines) if lines else None


def in_a_line(lines: Sequence[str]) -> str:
    """A message of several lines as one line."""
    first, *more = (line.strip() for line in lines)
    return f"{first}: {'; '.join(more)}" if more else first


def _text(path: Path) -> str | None:
    """The text of a file; None if it cannot be read or is not text."""
    try:
        return content(path).decode("utf-8")
    except (OSError, ValueError):
        return None


def iso(seconds: float | None) -> str | None:
    """Seconds since 1970 as UTC in ISO 8601, to the second."""
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
