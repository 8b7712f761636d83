"""Data of DataFrames."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table
from mpifed.data.recipe import FILLS
from mpifed.data.samples import Samples
from mpifed.data.sources.dataset import listed
from mpifed.data.sources.table import Frames, as_table
from mpifed.python.values import Values, apart


def of_frame(
    frame: Values, label: str | Sequence[str], by: str | None, clients: int | None, test: Values, task: str,
    ignore: Sequence[str], categorical: str | None, missing: str, given: str | Path | None, options: Table,
) -> tuple[Samples, Table]:  # fmt: skip
    """(the data of a frame, options of `prepare`)."""
    if (by is None) == (clients is None):
        raise UsageError("from_dataframe: give either by, the column that names clients, or clients, how many")
    choices = {"categorical": (None, "one-hot", "ordinal"), "missing": ("error", "drop", *FILLS),
               "task": ("auto", "classification", "regression", "multilabel")}  # fmt: skip
    for name, value in (("categorical", categorical), ("missing", missing), ("task", task)):
        if value not in choices[name]:
            raise UsageError(
                f"from_dataframe: {name} = {value!r}: expected one of {', '.join(map(str, choices[name]))}"
            )
    fraction, tables = None, {"from_dataframe: frame": as_table(frame, "from_dataframe: frame")}
    if hasattr(test, "columns") or hasattr(test, "column_names"):
        tables["from_dataframe: test"] = as_table(test, "from_dataframe: test")
    else:
        other, fraction = apart(test, "test")
        if other is not None:
            raise UsageError("from_dataframe: test: a pair; expected a DataFrame, or the fraction that is held out")
    words: Table = {"label": label, "by": by, "ignore": ignore, "task": task, "categorical": categorical}
    place = None if given is None else Path(given)
    data = Frames(tables=tables, missing=missing, given=place, **words).read(0)
    if data.left_out:
        warnings.warn(f"from_dataframe: column {listed(data.left_out)} numbers rows, and is left out", stacklevel=2)
    chosen: Table = {name: value for name, value in options.items() if name not in ("shape", "client_test")}
    chosen |= {"test_fraction": fraction, "client_test_fraction": options.get("client_test"), "missing": missing}
    if by is None:
        chosen["clients"] = clients
    shape = options.get("shape")
    return replace(data, shape=None if shape is None else tuple(shape)), chosen


def of_clients(clients: Mapping[str, Values]) -> tuple[Values, str]:
    """(a table of all clients' rows, the column that names them)."""
    import pyarrow as pa

    tables = {}
    for name, frame in clients.items():
        if not isinstance(frame, tuple):
            tables[name] = as_table(frame, f"from_clients: client {name}")
    names = next(iter(tables.values())).column_names if tables else []
    by = "client" if "client" not in names else "client of from_clients"
    parts = []
    for name in clients:
        if name not in tables or sorted(tables[name].column_names) != sorted(names):
            came = listed(tables[name].column_names) if name in tables else "a pair"
            raise DataError(f"from_clients: client {name}: {came}; expected a frame with the columns {listed(names)}")
        table = tables[name].select(names)
        parts.append(table.append_column(by, pa.array([str(name)] * len(table), pa.string())))
    return pa.concat_tables(parts, promote_options="permissive"), by
