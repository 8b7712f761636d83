"""A run by its folder: its job, its run.json, how it ended, and the summary of its results."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import numpy as np

from mpifed.core.io_errors import PathLike
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files import columns
from mpifed.files.ends import FINISHED
from mpifed.files.history import last_row
from mpifed.files.history_csv import FIRST, LEDGER
from mpifed.files.json_file import JOB as JOB
from mpifed.files.json_file import RUN as RUN
from mpifed.files.json_file import as_written, read_json
from mpifed.files.model_file import MODEL, model_sha256, read_model
from mpifed.files.reading import reading
from mpifed.files.write import sha256

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUMMARY = tuple(column.name for column in columns.shown("summary"))
_OF_ROW = ("elapsed_s", "up_bytes", "down_bytes")  # both in a row and in run.json


def read_run(run_dir: PathLike) -> Table:
    """The table of run.json, with types and ranges as in `mpifed.files.schemas`.

    Raises
    ------
    DataError
        when it is missing, was changed or damaged, or has an invalid value.
    """
    from mpifed.files.schemas import RunJson, checked  # with pydantic, which rank 0 alone needs

    path = Path(run_dir, RUN)
    table = read_json(path)
    checked(path, RunJson, table, "put back the file as it was written; without [privacy], --resume writes it anew")
    return table


def job_of(run_dir: Path) -> Table:
    """The job of a run, as run; empty where it has not begun.

    Raises
    ------
    DataError
        when job.toml cannot be read, is not that of a run, or has been changed since the run ended.
    """
    path, remedy = run_dir / JOB, f"is {run_dir} the folder of a run?"
    if not path.exists():
        return {}
    with reading(path, remedy, OSError, ValueError, RecursionError):
        job: Table = tomllib.loads(as_written(path).decode("utf-8"))
    from mpifed.files.schemas import JobTables, checked

    checked(path, JobTables, job, remedy)
    return job


def ended(run_dir: Path) -> int | None:
    """The exit code of a run; None when it has not begun, or is still running, or was killed."""
    code: int | None = read_run(run_dir)["exit"] if (run_dir / RUN).exists() else None
    return code


def changed_since(run_dir: Path) -> str:
    """What is not as run.json says that it was when the run ended, as text; empty where all is, or the run goes on."""
    about = read_run(run_dir)
    digests = {JOB: about.get("job_sha256"), **(about.get("digests") or {})}
    wrong = []
    for name, digest in digests.items():
        path = run_dir / name
        if not path.exists():
            wrong.append(f"{name} is missing")
        elif digest not in (None, sha256(path)):
            wrong.append(f"{name} is another than when {RUN} was written")
    return ", ".join(wrong)


def finished(run_dir: Path) -> bool:
    """Whether a run's result is valid: it is done, did not reach a required certificate, or has spent its budget."""
    return ended(run_dir) in FINISHED


def summary(run_dir: PathLike, spent: ReadOnlyTable | None = None) -> Table:
    """What `mpifed show RUN --json` prints: exactly the keys `SUMMARY`, None for values that the run does not have.

    Values are those of run.json, else of the last row of history.csv (a number that is not finite counts as absent);
    `constraint_values` lists the columns `constraint_*` in their order, `multipliers` the columns `multiplier_*`; the
    hash and the count of nonzero entries come from model.safetensors. What a private run has spent is in `spent`.
    """
    run = Path(run_dir)
    last, about = last_row(run), read_run(run)
    if about.get("exit") is None and last:  # it is as at the start: the last row knows more
        about |= {"rounds": last["round"]} | {name: last[name] for name in _OF_ROW}
    about = {name: value for name, value in about.items() if value is not None or name not in FIRST + LEDGER}
    result = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in (dict.fromkeys(SUMMARY) | last | about | dict(spent or {})).items()
    }
    for name, prefix in (("constraint_values", "constraint_"), ("multipliers", "multiplier_")):
        numbers = sorted(int(found[1]) for key in result if (found := re.fullmatch(rf"{prefix}(\d+)", key)))
        result[name] = [result[f"{prefix}{m}"] for m in numbers] or None
    if (run / MODEL).exists():
        model = read_model(run / MODEL)
        nonzeros = sum(int(np.count_nonzero(values)) for values in model.values())
        result |= {"model_sha256": model_sha256(model), "nonzeros": nonzeros}
    return {name: result[name] for name in SUMMARY}
