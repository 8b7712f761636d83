"""JSON files that contain their own checksum: of runs, checkpoints and submissions.

The last key, `sha256`, is the SHA-256 of the file without these digits. So a file that was edited, cut off or
damaged is detected, and so is one that was rewritten by another program than mpifed.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from mpifed.core.errors import DataError
from mpifed.core.io_errors import PathLike, open_regular
from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.reading import reading
from mpifed.files.write import replace_text
from mpifed.text import shown

JOB, RUN = "job.toml", "run.json"
_CHECKSUM = "sha256"


def content(path: PathLike) -> bytes:
    """The bytes of a regular file; OSError for anything else."""
    with open_regular(path) as file:
        return file.read()


def as_written(path: PathLike) -> bytes:
    """The bytes of a file in the folder of a run, as they were when the run ended.

    Raises OSError where it cannot be read; DataError where it is not what run.json, if that is sound, says of it.
    """
    digest = digest_of(path)  # before the file: a run that goes on takes it away before it writes
    data = content(path)
    if digest is not None and hashlib.sha256(data).hexdigest() != digest == digest_of(path):
        other = Path(path).name == JOB
        raise DataError(
            f"{path}: was changed or damaged since the run ended: its SHA-256 is not the one in {RUN}; put it back as "
            f"it was written; {'for another run copy it' if other else '--resume writes all but history.csv again'}"
        )
    return data


def digest_of(path: PathLike) -> str | None:
    """The SHA-256 that run.json beside a file says of it; None while a run goes on, and before version 0.2."""
    with suppress(DataError, LookupError, TypeError):
        about = read_json(Path(path).with_name(RUN))
        return str({**about["digests"], JOB: about["job_sha256"]}[Path(path).name])
    return None


def as_json(table: ReadOnlyTable) -> str:
    """A table as the text of a file; ValueError for numbers that are not finite, which JSON does not have."""
    content = {key: value for key, value in table.items() if key != _CHECKSUM}
    text = json.dumps({**content, _CHECKSUM: ""}, indent=2, allow_nan=False) + "\n"
    return f"{text[:-4]}{hashlib.sha256(text.encode()).hexdigest()}{text[-4:]}"


def read_json(path: PathLike) -> Table:
    """The table of a file without its checksum, which files of earlier versions do not have.

    Raises
    ------
    DataError
        when it is missing, not a JSON table, or does not match its checksum.
    """
    from pydantic_core import from_json  # which ranks that read nothing do without

    with reading(path, "is this the directory of a run?", OSError, ValueError):
        text = content(path)
        table: Table = from_json(text, allow_inf_nan=False)
        if not isinstance(table, dict):
            raise ValueError("it holds no table")
    stated = table.pop(_CHECKSUM, None)
    sha256 = hashlib.sha256(text.replace(str(stated).encode(), b"")).hexdigest()
    if stated not in (None, sha256):
        raise DataError(
            f"{path}: was changed or damaged: its {_CHECKSUM} is {shown(str(stated), 80)}, and {sha256} was expected; "
            "put back the file as it was written"
        )
    return table


def write_json(path: PathLike, table: ReadOnlyTable) -> None:
    """Write a table as JSON with its checksum, replacing the file atomically; ValueError if a number is not finite."""
    replace_text(Path(path), as_json(table))
