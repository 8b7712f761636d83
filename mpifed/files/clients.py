"""clients.csv of a run: the scores of the clients on their own test rows, when these were last measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mpifed.core.io_errors import PathLike
from mpifed.core.record import Array, Integers
from mpifed.files.history_csv import as_csv, cell_of, columns_of, read_csv
from mpifed.files.json_file import as_written
from mpifed.files.reading import reading
from mpifed.files.write import replace_text

CLIENTS = "clients.csv"
# what a client's quality is, by what y are
QUALITY = {"classification": "accuracy", "multilabel": "label_accuracy", "regression": "rmse"}


class ClientScores(NamedTuple):
    """Of the clients that have test rows, in the order of their numbers."""

    client: Integers  # [n]
    rows: Integers  # [n] test rows
    quality: Array  # [n] see `QUALITY`
    loss: Array  # [n] mean loss


def write_clients(run_dir: Path, scores: ClientScores, task: str, names: Sequence[str] = ()) -> None:
    """Write clients.csv; `task`: what y are; `names` of all clients, where they have some."""
    lines = [["client", "rows", QUALITY[task], "loss", *["name"] * bool(names)]]
    for row in zip(*map(np.ndarray.tolist, scores), strict=True):
        lines.append([*map(cell_of, row), *names[row[0] : row[0] + 1]])
    replace_text(run_dir / CLIENTS, as_csv(lines))


def read_clients(run_dir: PathLike) -> dict[str, Array]:
    """The columns of a run's clients.csv, [clients with test rows]: client, rows, quality by `QUALITY`, loss, and name
    where clients have one.

    Raises
    ------
    DataError
        the file is missing, or is none that a run writes.
    """
    path = Path(run_dir, CLIENTS)
    made_by = "`mpifed data ... --client-test-fraction 0.2`, in Python client_test=0.2"
    with reading(
        path, f"a run writes it where its data have the clients' own test rows: {made_by}", OSError, ValueError
    ):
        lines = read_csv(as_written(path))
        columns = columns_of([line[:4] for line in lines])
        if len(columns) < 4 or len({*map(len, lines)}) > 1:
            raise ValueError("expected lines of 4 cells, or all of 5")
        return columns | ({"name": np.array([line[4] for line in lines[1:]])} if len(lines[0]) > 4 else {})
