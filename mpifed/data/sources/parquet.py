"""Tables with typed columns, read by Apache Arrow: Parquet files, and folders that `datasets.save_to_disk` wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from mpifed.core.errors import DataError
from mpifed.data.sources.columns import ColumnSource, TableLayout
from mpifed.data.sources.dataset import Dataset, check_file, listed, shown
from mpifed.data.sources.texts import null_for_nan

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 2**14
MOST_COLUMNS = 2**16
_STATE_BYTES = 2**20  # of a file that says which files there are


@dataclass(frozen=True)
class TypedSource(ColumnSource):
    """Tables whose columns have types."""

    def schema(self, path: Path) -> pa.Schema:
        raise NotImplementedError

    def record_batches(self, path: Path, columns: list[int]) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError

    def names(self, path: Path) -> tuple[list[str] | None, int]:
        names = list(map(str, self.schema(path).names))
        if len(set(names)) < len(names) or not 0 < len(names) <= MOST_COLUMNS:
            raise DataError(f"{path}: columns {listed(names)}; expected 1 to {MOST_COLUMNS} of distinct names")
        return names, len(names)

    def texts(self, path: Path, layout: TableLayout) -> set[int]:
        schema = self.schema(path)
        return {at for at in [*layout.features, *layout.labels] if _is_text(schema.types[at])}

    def index(self, path: Path) -> list[str]:
        try:
            return list(map(str, self.schema(path).pandas_metadata["index_columns"]))
        except (KeyError, TypeError, ValueError, RecursionError):  # not written by pandas
            return []

    def class_names(self, path: Path, layout: TableLayout) -> tuple[str, ...]:
        import pyarrow as pa

        schema, at = self.schema(path), layout.labels[0]
        if len(layout.labels) > 1 or self.task == "regression" or not pa.types.is_integer(schema.types[at]):
            return ()
        names = _names_of_label(schema, schema.names[at])
        if len(set(names)) < len(names):
            raise DataError(f"{path}: its ClassLabel names a class twice, of {listed(map(shown, names))}")
        return () if names == list(map(str, range(len(names)))) else tuple(names)

    def batches(self, path: Path, layout: TableLayout, texts: set[int] | None) -> Iterator[list[pa.Array]]:
        import pyarrow as pa
        import pyarrow.compute as pc

        used, schema = layout.used(), self.schema(path)
        for at in used:
            if (at in (texts or ()) or at == layout.by) and _is_text(schema.types[at]):
                continue
            if not _is_number(schema.types[at]):
                expected = "texts or integers" if at == layout.by else "numbers or texts"
                nested = "" if pa.types.is_primitive(schema.types[at]) or at == layout.by else (
                    " (lists and images: FederatedDataset.from_arrays in Python, see docs/how-to/data.md)"
                )  # fmt: skip
                raise DataError(
                    f"{path}: column {schema.names[at]!r} is of type {str(schema.types[at])[:80]}; expected "
                    f"{expected}; convert it{nested}, or leave it out, by --ignore NAME"
                )
        named = bool(self.class_names(path, layout))
        for batch in self.record_batches(path, used):
            columns: list[pa.Array] = [None] * len(schema)
            for at, column in zip(used, batch.columns, strict=True):
                if at == layout.by or at in (texts or ()):
                    if pa.types.is_floating(column.type):  # of integers, where others are gaps
                        with _reading(path):
                            column = pc.cast(null_for_nan(column), pa.int64())
                    columns[at] = pc.cast(column, pa.string())
                    continue
                values = null_for_nan(pc.cast(column, pa.float64(), safe=False))
                if named and at in layout.labels:  # a ClassLabel below 0 is of a row without a label
                    values = pc.if_else(pc.less(values, 0), pa.nulls(1, pa.float64())[0], values)
                columns[at] = values
            for at, column in enumerate(columns):
                columns[at] = pa.nulls(len(batch)) if column is None else column
            yield columns

    def refuse(self, path: Path, layout: TableLayout, row: int, at: int, why: str) -> DataError:
        name = layout.names[at] if layout.names else at
        fill = "" if at not in layout.features else "fill it in, by --missing mean, median or zero, or "
        remedy = f"{fill}leave the row out, by --missing drop"
        return DataError(f"{path}: row {row}, column {name!r} {why}; {remedy if 'missing' in why else 'correct it'}")


@dataclass(frozen=True)
class ParquetTable(TypedSource):
    """A Parquet file: columns of numbers, booleans and texts. Nulls and NaN are missing values."""

    def schema(self, path: Path) -> pa.Schema:
        with _reading(path):
            return self._opened(path).schema_arrow

    def record_batches(self, path: Path, columns: list[int]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with _reading(path):
            file = self._opened(path)
            names = [file.schema_arrow.names[at] for at in columns]
            for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                batch.validate(full=True)  # texts may be no UTF-8
                yield pa.RecordBatch.from_arrays([batch.column(name) for name in names], names)

    def _opened(self, path: Path) -> pa.parquet.ParquetFile:
        from pyarrow import parquet

        check_file(path)
        limits = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
        return parquet.ParquetFile(path, memory_map=False, page_checksum_verification=True, **limits)


@dataclass(frozen=True)
class ArrowFolder(TypedSource):
    """A folder that `datasets.save_to_disk` wrote, of a Dataset, or of a DatasetDict with `train` and `test`."""

    def read(self, seed: int) -> Dataset:
        if (self.path / "dataset_dict.json").is_file():
            test = self.test or (self.path / "test" if (self.path / "test").is_dir() else None)
            return replace(self, path=self.path / "train", test=test).read(seed)
        return super().read(seed)

    def files(self, path: Path) -> list[Path]:
        state = path / "state.json"
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
        return [path / name for name in names]

    def schema(self, path: Path) -> pa.Schema:
        import pyarrow as pa

        first = self.files(path)[0]
        check_file(first)
        with _reading(first), pa.OSFile(str(first)) as file, pa.ipc.open_stream(file) as reader:
            return reader.schema

    def record_batches(self, path: Path, columns: list[int]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        expected = self.schema(path)
        for part in self.files(path):
            check_file(part)
            with _reading(part), pa.OSFile(str(part)) as file, pa.ipc.open_stream(file) as reader:
                if reader.schema != expected:
                    raise DataError(f"{part}: other columns than the first file; write the folder again")
                for batch in reader:
                    batch.validate(full=True)  # offsets of a damaged file may point anywhere
                    yield batch.select(columns)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of Arrow become DataError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read ({shown(str(error))[1:-1]}); get the file again") from error


def _names_of_label(schema: pa.Schema, label: str) -> list[str]:
    """The names of a ClassLabel, as `datasets` writes them into the metadata of a table; [] where there are none."""
    try:
        table = json.loads((schema.metadata or {})[b"huggingface"])
        names = table["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):  # not written by `datasets`
        return []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    known: list[Callable[[pa.DataType], bool]] = [
        pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal,
    ]  # fmt: skip
    return any(is_kind(kind) for is_kind in known)
