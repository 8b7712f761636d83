"""The record of submissions: `RUN.submitted.json`, next to the folder of the run or sweep."""

from __future__ import annotations

import os
import re
from itertools import takewhile
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field

from mpifed.batch.run_files import in_a_line
from mpifed.core.errors import DataError, UsageError
from mpifed.core.expected import Count, Text
from mpifed.core.io_errors import open_regular
from mpifed.files.json_file import read_json, write_json
from mpifed.files.schemas import Schema, checked, shown_value

_RECORD = ".submitted.json"
_TAIL_BYTES = 1 << 16
# messages of a rank, of Slurm or of the kernel about an error
_ERROR = re.compile(
    r"mpifed: (?!warning|note|interrupted)|error:|oom-?kill|Traceback|Error\b|^Killed|out of memory", re.IGNORECASE
)


class Submitted(Schema):
    """One call of sbatch; see `mpifed.batch.record`."""

    id: Annotated[str, Field(pattern="^[0-9]{1,18}$")]
    when: Text
    command: list[Text]
    script: Text
    log: Text
    points: list[Count] | None


class Submissions(Schema):
    """RUN.submitted.json."""

    job: Text
    points: list[Annotated[str, Field(pattern="^point-[0-9]{4,9}$")]]
    submissions: list[Submitted]


class Submission(NamedTuple):
    """One call of sbatch."""

    id: str
    when: str  # UTC, ISO 8601
    command: list[str]  # arguments of mpifed, as typed
    script: str
    log: str  # as given to sbatch: %j, %A and %a stand for numbers
    points: list[int] | None  # of a sweep's array; None for a job without array

    def names(self, point: int | None) -> list[str]:
        """Slurm's ids of a point, or of the whole submission if `point` is None."""
        if self.points is None:
            return [self.id]
        if point is None:
            return [f"{self.id}_{number}" for number in self.points]
        return [f"{self.id}_{point}"] if point in self.points else []

    def log_of(self, point: int | None) -> Path:
        """The file with the output of a point."""
        number = self.id if self.points is None else f"{self.id}_{point}"
        known = {"%j": number, "%A": self.id, "%a": str(point), "%%": "%"}
        return Path(re.sub("%.", lambda match: known.get(match[0], match[0]), self.log))


class BatchRecord(NamedTuple):
    """All submissions of one run or sweep."""

    job: str  # the job file
    points: list[str]  # names of the sweep's points; empty for a single run
    submissions: list[Submission]


def path_of(out: Path) -> Path:
    return beside(out, _RECORD)


def submitted_in(folder: Path) -> list[Path]:
    """The runs and sweeps in a folder that have a record."""
    return [path.with_name(path.name.removesuffix(_RECORD)) for path in folder.glob(f"?*{_RECORD}")]


def beside(out: Path, ending: str) -> Path:
    """The path of a file next to a run's folder; UsageError if the folder is the root."""
    whole = Path(os.path.normpath(out))
    if whole.name in ("", ".."):
        whole = Path(os.path.abspath(out))
    if not whole.name:
        raise UsageError(f"--out {out}: no file can be written next to it; give a folder with a name")
    return whole.with_name(whole.name + ending)


def read(out: Path) -> BatchRecord | None:
    """The submissions for this folder; None if there are none."""
    path = path_of(out)
    if not path.exists():
        return None
    stored = checked(path, Submissions, read_json(path), "restore it as it was written, or remove it")
    submissions = [
        Submission(**{name: getattr(submission, name) for name in Submission._fields})
        for submission in stored.submissions
    ]
    for number, submission in enumerate(submissions):
        if any(point >= len(stored.points) for point in submission.points or []):
            raise DataError(
                f"{path}: submissions.{number}.points = {shown_value(submission.points)}: expected numbers below "
                f"{len(stored.points)}, the number of points; restore the file as it was written, or remove it"
            )
    return BatchRecord(stored.job, stored.points, submissions)


def write(out: Path, record: BatchRecord) -> None:
    path_of(out).parent.mkdir(parents=True, exist_ok=True)
    write_json(
        path_of(out), record._asdict() | {"submissions": [submission._asdict() for submission in record.submissions]}
    )


def last_words(log: Path) -> str | None:
    """The last error in a log, if there is one: a line and the indented lines that follow it."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    matching = [number for number, line in enumerate(lines) if _ERROR.search(line)]
    ours = [number for number in matching if lines[number].startswith("mpifed: ")]
    if not matching:
        return None
    if not ours:
        return lines[matching[-1]].strip()
    return in_a_line([lines[ours[-1]], *takewhile(lambda line: line.startswith("  "), lines[ours[-1] + 1 :])])
