"""clients.csv of a run: the scores of the clients on their own test rows, when these were last measured."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.files.atomic import replace_text
from mpifed.files.history_csv import as_csv, cell_of, columns_of
from mpifed.files.json_file import content

CLIENTS = "clients.csv"


class ClientScores(NamedTuple):
    """Of the clients that have test rows, in the order of their numbers."""

    client: NDArray[np.int64]  # [n]
    rows: NDArray[np.int64]  # [n] test rows
    quality: Array  # [n] accuracy, or RMSE of real targets
    loss: Array  # [n] mean loss


def write_clients(run_dir: Path, scores: ClientScores, classifies: bool) -> None:
    """Write clients.csv; `classifies`: whether the quality is an accuracy."""
    header = ("client", "rows", "accuracy" if classifies else "rmse", "loss")
    lines = (map(cell_of, row) for row in zip(*(column.tolist() for column in scores), strict=True))
    replace_text(run_dir / CLIENTS, as_csv([header, *lines]))


def read_clients(run_dir: str | os.PathLike[str]) -> dict[str, Array]:
    """The columns of a run's clients.csv, [clients with test rows]: client, rows, accuracy or rmse, loss.

    Raises
    ------
    DataError
        the file is missing, or is none that a run writes.
    """
    path = Path(run_dir, CLIENTS)
    try:
        lines = list(csv.reader(io.StringIO(content(path).decode("utf-8"), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(
            f"{path}: no scores of clients ({why}); a run writes them where its data have the clients' own test rows: "
            "`mpifed data ... --client-test-fraction 0.2`"
        ) from error
    if not lines or len(lines[0]) != 4 or any(len(line) != 4 for line in lines):
        raise DataError(f"{path}: not the scores of clients; expected lines of 4 cells; restore the file")
    return columns_of(path, lines)
