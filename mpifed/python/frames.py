"""Data of DataFrames."""

from __future__ import annotations

import warnings
from dataclasses import replace
from numbers import Integral

from mpifed.core.errors import UsageError
from mpifed.core.tables import Table
from mpifed.data.samples import Samples, Values
from mpifed.data.source_files import listed
from mpifed.data.table import ColumnUses, as_table
from mpifed.python.values import samples_or_fraction

_FRAME, _TEST = "from_dataframe: frame", "from_dataframe: test"


class Clients(dict[str, Values]):
    """Frames of clients, by their names."""


def of_frame(frame: Values, test: Values, options: Table, **columns: Values) -> tuple[Samples, Table]:
    """(the data of a frame, or of `Clients`, by the options `columns` of its source; options of `prepare`)."""
    several = isinstance(frame, Clients)
    if several + (columns["by"] is not None) + (options["clients"] is not None) != 1:
        raise UsageError("from_dataframe: give either by, the column that names clients, or clients, how many")
    tested, fraction = samples_or_fraction(test)
    frames = {f"from_clients: client {name}": part for name, part in frame.items()} if several else {_FRAME: frame}
    if not frames:
        raise UsageError("from_clients: no clients; expected a frame of each")
    tables = {what: as_table(each, what) for what, each in frames.items()}
    tests = {} if tested is None else {_TEST: as_table(tested, _TEST)}
    for name, value in columns.items():
        if name in ("label", "by", "ignore") and value is not None:
            whole = isinstance(value, str) and name == "ignore"
            columns[name] = value if whole else [value] if isinstance(value, (str, Integral)) else list(value)
    data = ColumnUses(**columns).samples(tables, tests, list(frame) if several else ())
    for what, each in {**frames, _TEST: tested}.items():
        if index := [name for name in getattr(getattr(each, "index", None), "names", ()) if name is not None]:
            warnings.warn(f"{what}: the index {listed(index)} is left out; .reset_index() makes columns", stacklevel=2)
    if data.left_out:
        warnings.warn(f"from_dataframe: column {listed(data.left_out)} numbers rows, and is left out", stacklevel=2)
    shape = options.pop("shape", None)
    options |= {"test_fraction": fraction}
    return replace(data, shape=None if shape is None else tuple(shape)), options
