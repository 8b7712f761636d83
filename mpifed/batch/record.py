"""What was submitted, and when: `RUN.submitted.json`, beside the folder of the run or sweep."""

from __future__ import annotations

import os
import re
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from mpifed.batch.traces import in_a_line
from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import open_regular
from mpifed.run.history import read_json, write_json
from mpifed.run.schemas import Submissions, checked, shown_value

_RECORD = ".submitted.json"
_TAIL_BYTES = 1 << 16
# what a rank, Slurm or the kernel say when something went wrong
_SAYS = re.compile(
    r"mpifed: (?!warning|note|interrupted)|error:|oom-?kill|Traceback|Error\b|^Killed|out of memory", re.IGNORECASE
)


class Submission(NamedTuple):
    """One call of sbatch."""

    id: str
    when: str  # UTC, ISO 8601
    command: list[str]  # of mpifed, as it was typed
    script: str
    log: str  # as sbatch was told: %j, %A and %a stand for numbers
    points: list[int] | None  # of a sweep's array; None of a job without

    def names(self, point: int | None) -> list[str]:
        """The ids under which Slurm knows a point, or all of it."""
        if self.points is None:
            return [self.id]
        if point is None:
            return [f"{self.id}_{number}" for number in self.points]
        return [f"{self.id}_{point}"] if point in self.points else []

    def log_of(self, point: int | None) -> Path:
        """Where the output of a point went."""
        number = self.id if self.points is None else f"{self.id}_{point}"
        known = {"%j": number, "%A": self.id, "%a": str(point), "%%": "%"}
        return Path(re.sub("%.", lambda found: known.get(found[0], found[0]), self.log))


class Record(NamedTuple):
    """All submissions of one run or sweep."""

    job: str  # the job file
    points: list[str]  # names of the sweep's points; none of a single run
    submissions: list[Submission]


def path_of(out: Path) -> Path:
    """Where the record of a run or sweep lies."""
    return beside(out, _RECORD)


def submitted_in(folder: Path) -> list[Path]:
    """The runs and sweeps in a folder of which there is a record."""
    return [path.with_name(path.name.removesuffix(_RECORD)) for path in folder.glob(f"?*{_RECORD}")]


def beside(out: Path, ending: str) -> Path:
    """A file beside a run's folder; UsageError where there is no beside."""
    whole = Path(os.path.normpath(out))
    if whole.name in ("", ".."):
        whole = Path(os.path.abspath(out))
    if not whole.name:
        raise UsageError(f"--out {out}: nothing can lie beside it; give a folder with a name")
    return whole.with_name(whole.name + ending)


def read(out: Path) -> Record | None:
    """What was submitted for this folder; None where nothing was."""
    path = path_of(out)
    if not path.exists():
        return None
    found = checked(path, Submissions, read_json(path), "put it back as it was written, or remove it")
    made = [Submission(**{name: getattr(one, name) for name in Submission._fields}) for one in found.submissions]
    for number, one in enumerate(made):
        if any(point >= len(found.points) for point in one.points or []):
            raise DataError(
                f"{path}: submissions.{number}.points = {shown_value(one.points)}: of {len(found.points)} points there "
                "are none such; put it back as it was written, or remove it"
            )
    return Record(found.job, found.points, made)


def write(out: Path, record: Record) -> None:
    """Replace the record."""
    path_of(out).parent.mkdir(parents=True, exist_ok=True)
    write_json(path_of(out), record._asdict() | {"submissions": [one._asdict() for one in record.submissions]})


def last_words(log: Path) -> str | None:
    """What a log tells last of an error, if anything: a line, with the indented ones that follow it."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    telling = [number for number, line in enumerate(lines) if _SAYS.search(line)]
    own = [number for number in telling if lines[number].startswith("mpifed: ")]
    if not telling:
        return None
    if not own:
        return lines[telling[-1]].strip()
    return in_a_line([lines[own[-1]], *takewhile(lambda line: line.startswith("  "), lines[own[-1] + 1 :])])
