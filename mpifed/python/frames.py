"""Data of DataFrames."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.data.recipe import FILLS
from mpifed.data.samples import Samples, Values
from mpifed.data.sources.dataset import listed
from mpifed.data.sources.table import Frames, as_table, join_tables
from mpifed.python.values import samples_or_fraction


def of_frame(frame: Values, test: Values, options: Table, **columns: Values) -> tuple[Samples, Table]:
    """(the data of a frame, by the options `columns` of its source; options of `prepare`)."""
    if (columns["by"] is None) == (options["clients"] is None):
        raise UsageError("from_dataframe: give either by, the column that names clients, or clients, how many")
    choices = {"categorical": (None, "one-hot", "ordinal"), "missing": ("error", "drop", *FILLS),
               "task": ("auto", "classification", "regression", "multilabel")}  # fmt: skip
    for name, known in choices.items():
        if columns[name] not in known:
            raise UsageError(
                f"from_dataframe: {name} = {columns[name]!r}: expected one of {', '.join(map(str, known))}"
            )
    tested, fraction = samples_or_fraction(test)
    frames = {"from_dataframe: frame": frame} | ({} if tested is None else {"from_dataframe: test": tested})
    data = Frames(tables={what: as_table(each, what) for what, each in frames.items()}, **columns).read(0)
    if data.left_out:
        warnings.warn(f"from_dataframe: column {listed(data.left_out)} numbers rows, and is left out", stacklevel=2)
    shape = options.pop("shape", None)
    options |= {"test_fraction": fraction, "missing": columns["missing"]}
    return replace(data, shape=None if shape is None else tuple(shape)), options


def of_clients(clients: Mapping[str, Values]) -> tuple[Values, str]:
    """(a table of all clients' rows, the column that names them)."""
    if not clients:
        raise UsageError("from_clients: no clients; expected a frame of each")
    origins = [f"from_clients: client {name}" for name in clients]
    tables = {what: as_table(frame, what) for what, frame in zip(origins, clients.values(), strict=True)}
    by = "client of from_clients"
    return join_tables(tables, list(clients), by), by
