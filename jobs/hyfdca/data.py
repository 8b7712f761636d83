"""The data of the paper's settings as grids of clients, made once: rows of norm 1, two classes, no intercept.

The columns of Covertype are metres, degrees, shades of grey and kinds of soil, and are taken to [0, 1] first: in rows
of norm 1 alone the metres would be nearly everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mpifed.core.errors import DataError
from mpifed.data.store import open_federation

FOLDER = Path("data")

# by data set: what `mpifed data` is told but for the grid and the scale; $ is the folder of real data
SOURCES: dict[str, tuple[str, ...]] = {
    "mnist": ("mnist", "$/mnist", "--labels", "even-odd"),
    "newsgroups": ("svmlight", "$/libsvm/20news-binary.train.svm.bz2", "--test", "$/libsvm/20news-binary.test.svm.bz2"),
    "covtype": (
        "csv",
        "$/libsvm/covtype-15k.csv.bz2",
        "--label",
        "-1",
        "--labels",
        "class:2",
        "--test-fraction",
        "0.2",
    ),
    "digits": ("digits", "--labels", "even-odd", "--test-fraction", "0.2"),
    "a9a": ("svmlight", "$/libsvm/a9a.bz2", "--test", "$/libsvm/a9a.t.bz2"),
}
SCALES = {"covtype": "minmax,unit-rows"}  # where it is not "unit-rows"


def folder_of(data: str, grid: str) -> Path:
    """Where the shards of a setting are."""
    return FOLDER / f"hyfdca-{data}-{grid}"


def prepare(data: str, grid: str) -> None:
    """Shares a data set out to a grid of clients, unless that is done.

    Raises
    ------
    DataError
        When what is there was scaled in another way.
    """
    folder, scale = folder_of(data, grid), SCALES.get(data, "unit-rows")
    if (folder / "federation.h5").exists():
        found = open_federation(folder).provenance["options"]["scale"]
        if found != scale:
            raise DataError(
                f"{folder}: scaled by {found}, expected {scale}; remove the folder, and the runs on it with its optimum"
            )
        return
    real = os.environ.get("MPIFED_DATA", "data")
    source = [part.replace("$", real) for part in SOURCES[data]]
    options = ["--split", "grid", "--grid", grid, "--scale", scale, "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "mpifed", "data", *source, *options], check=True)
