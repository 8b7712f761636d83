"""Tables of named columns: files and frames become one table of Apache Arrow, its columns numbers or texts."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.core.text import shown as in_one_line
from mpifed.core.text import wrong_line
from mpifed.data.natural import text_of
from mpifed.data.sources.dataset import check_file, open_packed, shown

if TYPE_CHECKING:
    import pyarrow as pa

GAPS = ("", "na", "n/a", "nan", "null", "none", "?")  # cells of numbers that are missing values, in small letters
LARGEST = float(np.finfo(np.float32).max)
_LEAVE_OUT = "leave the column out, by --ignore NAME, or of a frame by drop(columns=...)"
_ENCODE = f"encode categories, by --categorical one-hot or --categorical ordinal, or {_LEAVE_OUT}"
_BLOCK_BYTES = 2**24  # of a CSV file that are parsed at a time; a line must fit
_STATE_BYTES = 2**20  # of a file that says which files there are


def read_csv(path: Path) -> pa.Table:
    """The cells of a CSV file as texts; columns without names in the first line are called 0, 1, ..."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    names, width = first_line(path)
    known = names or list(map(str, range(width)))
    skipped = 0 if names is None else 1
    read = arrow_csv.ReadOptions(
        use_threads=False, block_size=_BLOCK_BYTES, column_names=known, skip_rows_after_names=skipped
    )  # fmt: skip
    parse = arrow_csv.ParseOptions(newlines_in_values=True)
    convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(known, pa.large_string()))
    with open_packed(path) as file:
        try:
            return arrow_csv.read_csv(pa.PythonFile(file, "r"), read, parse, convert)
        except pa.ArrowInvalid as error:
            straddling = "straddling" in str(error)
            why = "no rows, or a line of more than 16 MiB" if straddling else in_one_line(str(error))
            raise DataError(f"{path}: {why}; expected UTF-8 with commas; correct the file") from error


def first_line(path: Path) -> tuple[list[str] | None, int]:
    """(names of the columns of a CSV file, None if its first line has numbers; number of columns)."""
    with open_packed(path, "rt") as file:
        try:
            cells: list[str] = next(csv.reader(file), [])
        except csv.Error as error:
            raise DataError(f"{path}: line 1: {error}; expected numbers or names, separated by commas") from error
    if not cells:
        raise DataError(f"{path}: line 1 is empty; expected numbers or names, separated by commas")
    if len(cells) == 1 and re.search("[;\t|]", cells[0]):
        raise DataError(
            f"{path}: line 1: {shown(cells[0])} has no comma; expected numbers or names, separated by commas"
        )
    numbers = [number_in(cell) is not None for cell in cells]
    if all(numbers):
        return None, len(cells)
    if any(numbers):
        column = numbers.index(False)
        raise DataError(
            f"{path}: line 1, column {column + 1}: {shown(cells[column])} among numbers; "
            "expected numbers in all columns, or names in all"
        )
    names = [cell.strip() for cell in cells]
    check_names(str(path), names)
    return names, len(cells)


def read_parquet(path: Path) -> pa.Table:
    """The table of a Parquet file."""
    from pyarrow import parquet

    check_file(path)
    limits = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
    with reading(path):
        table = parquet.ParquetFile(path, memory_map=False, page_checksum_verification=True, **limits).read()
        table.validate(full=True)  # texts may be no UTF-8
    check_names(str(path), table.column_names)
    return table


def read_arrow(folder: Path) -> pa.Table:
    """The table in a folder of `datasets.save_to_disk`."""
    import pyarrow as pa

    parts = []
    for path in arrow_files(folder):
        check_file(path)
        with reading(path), pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
            parts.append(reader.read_all())
            parts[-1].validate(full=True)  # offsets of a damaged file may point anywhere
    with reading(folder):
        table = pa.concat_tables(parts)
    check_names(str(folder), table.column_names)
    return table


def arrow_files(folder: Path) -> list[Path]:
    """The files of such a folder, in order."""
    state = folder / "state.json"
    check_file(state)
    with state.open("rb") as file:
        text = file.read(_STATE_BYTES)
    try:
        table = json.loads(text)
        names = [entry["filename"] for entry in table["_data_files"]]
        if not names or not all(isinstance(name, str) and name == Path(name).name for name in names):
            raise ValueError("_data_files does not name files of the folder")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{state}: {shown(str(error))}; expected a folder of datasets.save_to_disk") from error
    if table.get("_indices_data_files"):
        raise DataError(f"{state}: rows are chosen by indices; write it again after dataset.flatten_indices()")
    return [folder / name for name in names]


def as_table(frame: Any, what: str) -> pa.Table:  # whatever holds named columns
    """The table of a frame of pandas, whose index is left out, or of polars, of Arrow, or of `datasets`."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise UsageError(f"{what}: {error.name} is not installed; pip install 'mpifed[data]'") from error

    if hasattr(frame, "with_format"):
        frame = frame.with_format("arrow")[:]
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False) if hasattr(frame, "iloc") else pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{what}: a {type(frame).__name__} ({error}); expected a DataFrame, or another table of named columns"
        ) from error
    check_names(what, table.column_names)
    return table


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Errors of Arrow become DataError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read ({in_one_line(str(error))}); get the file again") from error


def check_names(what: str, names: list[str]) -> None:
    """Raise DataError for columns of one name, or without one: the index of a frame may be without, as the first."""
    for column, name in enumerate(names):
        if why := "has no name; give it one" if column and not name else wrong_line(name):
            raise DataError(f"{what}: column {column + 1} {shown(name)} {why}")
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(f"{what}: {count} columns are called {shown(name)}; every column needs a name of its own")


def number_in(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def is_text(kind: pa.DataType) -> bool:
    """Whether a column holds texts or categories."""
    return re.match("(large_)?string|dictionary", str(kind)) is not None


def with_gaps(texts: pa.ChunkedArray, gaps: Iterable[str]) -> pa.ChunkedArray:
    """Texts without whitespace around them; null for a gap."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(texts)
    absent = pc.is_in(pc.utf8_lower(trimmed), pa.array(gaps, trimmed.type))
    return pc.if_else(absent, pa.scalar(None, trimmed.type), trimmed)


def parsed(texts: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """[s] float64 of cells, null for gaps; None where one is no number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        return pc.cast(texts, pa.float64())
    except pa.ArrowInvalid:
        cells = with_gaps(texts, GAPS)
    try:
        return pc.cast(cells, pa.float64())
    except pa.ArrowInvalid:  # signs, and whatever else Python knows
        known = [None if cell is None else number_in(cell) for cell in cells.to_pylist()]
    values = pa.chunked_array([pa.array(known, pa.float64())])
    return values if values.null_count == cells.null_count else None


def numbers(what: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """[s] float64 of a column, null for gaps; DataError for what is no number that float32 holds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if is_text(column.type):
        cells = texts(what, name, column)
        column = parsed(cells)
        if column is None:
            raise not_a_number(what, name, cells)
    elif not _is_number(column.type):
        raise _wrong_type(what, name, column.type, "numbers or texts")
    values = pc.cast(column, pa.float64(), safe=False)
    values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    row = pc.index(pc.greater(pc.abs(values), LARGEST), True).as_py()
    if row >= 0:
        raise DataError(f"{what}: row {row + 1}, column {name!r}: {shown(column[row].as_py())} is not a finite number")
    return values


def texts(what: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """[s] texts of a column of texts, categories or numbers, null for gaps."""
    import pyarrow as pa

    if not is_text(column.type) and not _is_number(column.type):
        raise _wrong_type(what, name, column.type, "texts or integers")
    encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
    values = [value if value == value else None for value in encoded.dictionary.to_pylist()]
    if parts := [value for value in values if isinstance(value, float) and value % 1 and not is_text(column.type)]:
        raise DataError(f"{what}: column {name!r}: {parts[0]} is no identifier; expected integers or texts")
    words = [None if value is None else text_of(value) for value in values]
    return pa.chunked_array([pa.array(words, pa.large_string()).take(encoded.indices)])


def not_a_number(what: str, name: str, texts: pa.ChunkedArray, remedy: str = _ENCODE) -> DataError:
    """The error for the first cell of texts that is no number."""
    cells = texts.to_pylist()
    wrong = (row for row, cell in enumerate(cells) if cell is not None and number_in(cell) is None)
    row = next(wrong, 0)  # where all are numbers, they are texts for Parquet all the same
    return DataError(f"{what}: row {row + 1}, column {name!r}: {shown(cells[row])} is not a number; {remedy}")


def numbered(texts: pa.ChunkedArray, order: Callable[[list[str]], list[str]]) -> tuple[Array, tuple[str, ...]]:
    """([s] float64 number of each text among the distinct ones in this order, NaN for a gap; these texts)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = tuple(order(texts.unique().drop_null().to_pylist()))
    return in_numpy(pc.index_in(texts, pa.array(names, texts.type))), names


def in_numpy(column: pa.ChunkedArray) -> Array:
    """[s] float64 of a column of numbers, NaN for null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = pc.cast(column, pa.float64()).fill_null(np.nan).combine_chunks()
    return np.from_dlpack(values)  # `to_numpy` would import pandas


def _is_number(kind: pa.DataType) -> bool:
    return re.match("u?int|halffloat|float|double|bool|decimal|null", str(kind)) is not None


def _wrong_type(what: str, name: str, kind: pa.DataType, expected: str) -> DataError:
    nested = " (lists and images: FederatedDataset.from_arrays in Python, see docs/how-to/data.md)"
    return DataError(
        f"{what}: column {name!r} is of type {str(kind)[:80]}; expected {expected}; convert it"
        f"{nested if kind.num_fields else ''}, or {_LEAVE_OUT}"
    )
