"""What of a private run's folder no epsilon covers; `tests/laws/disclosed.py` has the kind of each file and key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mpifed.files.clients import CLIENTS
from mpifed.files.columns import TABLE
from mpifed.files.history import history_so_far
from mpifed.files.write import replace_text

RAW_FOLDERS = ("checkpoint", "audit")
NOTE = "RAW-DATA.txt"
_NOTE = """\
This folder holds raw data: states and messages of single clients, sums without noise, or what was found in them.
No epsilon covers it. Whoever is to see no more than the run has released must not get this folder.
"""
# columns of the history that follow from releases, or from what is public, and times
_COVERED = re.compile(r"round|(up|down)_bytes|gradients|epsilon(_unamplified|_paper|_if_secret)?|(elapsed|simulated)_s")


def uncovered(run_dir: Path) -> Iterator[str]:
    """The contents of a private run's folder that epsilon does not cover, as text."""
    folders = [f"{name}/" for name in RAW_FOLDERS if (run_dir / name).exists()]
    columns = history_so_far(run_dir)
    tests = {column.name for column in TABLE if column.data == "test"}
    measured = [
        name
        for name, values in columns.items()
        if name not in tests and not _COVERED.fullmatch(name) and not np.isnan(values.astype(float)).all()
    ]
    if folders:
        yield f"raw data in {', '.join(folders)}"
    if (run_dir / CLIENTS).exists():
        yield f"clients' scores in {CLIENTS}"
    if measured:
        yield f"measured without noise: {', '.join(measured)}"
    if shown := sorted(tests & columns.keys()):
        yield f"test rows, of which {', '.join(shown)} tell"
    yield "times"


def mark(folder: Path) -> None:
    """Make a folder that will hold raw data, and a note in it that says so."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / NOTE, _NOTE)
