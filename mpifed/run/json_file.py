"""JSON files with a checksum of their own: what a run, a checkpoint or a submission says of itself.

The last key, `sha256`, is the SHA-256 of the file in which its own digits are left out. So a file that was edited, torn
or damaged is found, and so is one that was written anew by something else than mpifed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from mpifed.core.errors import DataError
from mpifed.core.io_errors import open_regular
from mpifed.run.schemas import Run, checked, shown_value

RUN = "run.json"
_CHECKSUM = "sha256"
_AT_THE_END = re.compile(rb'\n  "sha256": "([0-9a-f]{64})"\n}\n\Z')


def content(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a regular file; OSError for anything else."""
    with open_regular(path) as file:
        return file.read()


def as_json(table: Mapping[str, Any]) -> str:
    """A table as the text of a file; not-finite numbers raise ValueError, JSON has none."""
    text = json.dumps({**_without_checksum(table), _CHECKSUM: ""}, indent=2, allow_nan=False) + "\n"
    return f"{text[:-4]}{hashlib.sha256(text.encode()).hexdigest()}{text[-4:]}"


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The table of a file, as it was written, without its checksum; a file of an earlier version has none.

    Raises
    ------
    DataError
        when it is missing, not JSON, something else, or not what its checksum says.
    """
    try:
        text = content(path)
        found = from_json(text, allow_inf_nan=False)
        if not isinstance(found, dict):
            raise ValueError("it holds no table")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"{path}: cannot be read as JSON ({why}); is this the directory of a run?") from error
    if _CHECKSUM in found:
        end = _AT_THE_END.search(text)
        sha256 = hashlib.sha256(text[: end.start(1)] + text[end.end(1) :]).hexdigest() if end else ""
        if end is None or end[1].decode() != sha256:
            raise DataError(
                f"{path}: was changed or damaged: its {_CHECKSUM} is {shown_value(found[_CHECKSUM])}, and "
                f"{sha256 or 'one at its end'} was expected; put back the file as it was written"
            )
    return _without_checksum(found)


def _without_checksum(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != _CHECKSUM}


def read_run(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """What run.json says, with the types and ranges that `mpifed.run.schemas` has.

    Raises
    ------
    DataError
        when it is missing, was changed or damaged, or a value is not what it can be.
    """
    path = Path(run_dir, RUN)
    found = read_json(path)
    checked(path, Run, found, "put back the file as it was written; without [privacy], --resume writes it anew")
    return found
