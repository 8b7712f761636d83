"""Tables of named columns: files and frames become one table of Apache Arrow, and each of its columns gets a role."""

from __future__ import annotations

import csv
import io
import json
import re
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import open_regular
from mpifed.core.nearest import nearest
from mpifed.core.record import Array
from mpifed.data.natural import distinct_names
from mpifed.data.recipe import (
    GAPS,
    LEAVE_OUT,
    Cells,
    Public,
    RawColumns,
    Stated,
    all_texts,
    check_feature,
    is_decimal,
    is_text,
)
from mpifed.data.samples import Samples, Source, Task
from mpifed.data.source_files import check_choices, listed, numbers_rows, open_packed
from mpifed.files.reading import reading
from mpifed.text import shown, wrong_line

if TYPE_CHECKING:
    import pyarrow as pa

_NULLS = [form for word in (*GAPS, "none") for form in {word, word.upper(), word.capitalize(), word.title()}] + ["NaN"]
_BLOCK_BYTES = 2**24  # of a CSV file that are parsed at a time; a line must fit
_NUMBER = r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)(e[-+]?\d+)?\s*"
# a number as people write it, with a unit, or with something between thousands; or a date
_FORMATTED = (
    r"[-+\u2212]?[$€£]?\s?(\d+|\d{1,3}([.,'\u2019_\s]\d{3})+)([.,]\d+)?\s?[%$€£]?|\d{1,4}([./-]\d{1,4}){2}\b.*"
    r"|\d{1,2}:\d\d.*|\d{4}-(0[1-9]|1[0-2])|(\d{1,2}[\s.-]+)?"
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}[\s.,-]+\d{2,4}\b.*"
)
_FORMATTED_REMEDY = (
    "where fractions have a comma, give --decimal ','; take what is between thousands, and units, out of numbers; "
    "leave dates out; or state categories, or classes, in a file of --given"
)


@dataclass(frozen=True, kw_only=True)
class ColumnUses:
    """What becomes of the columns of tables."""

    label: str | Sequence[str] | None = None
    """Name or position of the label's column; -1 is the last. Several, separated by commas, are real targets."""
    task: Task = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""
    by: str | Sequence[str] | None = None
    """Name or position of the column that says whose each row is: natural clients. It is no feature."""
    ignore: str | Sequence[str] | None = None
    """Names or positions of columns that are left out, separated by commas, such as numbers of rows."""
    categorical: Literal["one-hot"] | None = None
    """What columns of texts become, by the sorted texts of the training rows; by default they are refused."""
    given: Path | None = None
    """A TOML file of what is known without the rows: [columns.NAME] with categories, fill, range; and classes."""
    missing: Literal["error", "zero", "drop", "mean", "median"] = "error"
    """What becomes of gaps: an error, zero (of one-hot categories: all zeros), their row is left out, or the mean or
    the median of the training rows, of categories the most frequent one."""

    def __post_init__(self) -> None:
        check_choices(self)

    def samples(
        self, parts: Mapping[str, pa.Table], tests: Mapping[str, pa.Table], clients: Sequence[str] = ()
    ) -> Samples:
        """The data of tables of training rows, and of that of test rows, if there is one, by what messages call them.

        `clients`: whose the rows of each are, where there are several; `by` may name a column that says so instead.
        """
        public, tables = Public.read(self.given), {**parts, **tests}
        (first, table), *_ = parts.items()
        for what, each in tables.items():
            check_names(what, each.column_names)
        labels, by, features, left_out = self._roles(first, table)
        for what, each in tables.items():
            needed, there = {*labels, *features}, {*each.column_names}
            if differing := {*table.column_names} ^ there if what in parts else needed - there:
                raise DataError(f"{what}: other columns than {first}: {listed(sorted(differing))} differs")
        names = {_class_names(what, each, labels) for what, each in tables.items()}
        if len(names) > 1:
            raise DataError(f"{listed(tables, 3)}: other names of classes; all need the same numbering")
        for name in public.columns:
            if name not in features:
                raise UsageError(f"--given: columns.{name}: no such feature{nearest(name, features)}")
        cells = {name: [Cells(what, name, each[name]) for what, each in tables.items()] for name in features}
        for name in labels:
            cells[name] = [Cells(what, name, _decoded(each[name])) for what, each in tables.items()]
        texts = {name: self._texts(cells[name], len(parts), public) for name in features}
        of_texts = bool(public.classes) or any([_holds_texts(cells[name][: len(parts)]) for name in labels])
        if of_texts and labels[1:]:
            raise UsageError(f"--label {self.label}: texts are classes, of one column; several are numbers")
        stated = {name for name, column in public.columns.items() if column.fill is not None}
        filled = {"error": stated, "drop": ()}.get(self.missing, features)

        def rows(at: int) -> Samples:
            """Raw rows in float64, their labels and clients; without rows of gaps that are not filled."""
            what, each = list(tables.items())[at]
            columns = {name: cells[name][at].raw(texts[name]) for name in features}
            y = [_labels(cells[name][at], public.classes if of_texts else None, *names) for name in labels]
            ids = [Cells(what, name, each[name]).identities() for name in by if name in each.column_names]
            gaps = [(name, np.isnan(x)) for name, x in columns.items() if name not in filled]
            for name, values in zip([*labels, *by], [*y, *ids], strict=False):
                gaps.append((name, values == "" if values.dtype.kind == "U" else np.isnan(values)))
            for name, gap in gaps:
                if gap.any() and self.missing != "drop":
                    fill = "fill it in, by --missing mean, median or zero, or " if name in features else ""
                    raise DataError(
                        f"{what}: row {gap.argmax() + 1}, column {name!r} is a missing value, of {gap.sum()}; {fill}"
                        "leave these rows out, by --missing drop"
                    )
            stay = ~np.any([gap for _, gap in gaps], axis=0)
            if not stay.any():
                raise DataError(f"{what}: no rows, or none without gaps; expected a row for each sample")
            label = np.stack(y, axis=1)[stay] if labels[1:] else y[0][stay]
            if labels[1:] and np.isin(label, (0, 1)).all():
                label = label.astype(np.int64)
            return Samples(np.stack([*columns.values()], axis=1)[stay], label, ids=ids[0][stay] if ids else None)

        stored = list(map(rows, range(len(tables))))
        trained, test = stored[: len(parts)], stored[len(parts) :]
        X, y = (np.concatenate([getattr(part, key) for part in trained]) for key in ("X", "y"))
        ids = np.repeat(clients, [len(part.y) for part in trained]) if clients else None
        if by:
            ids = np.concatenate([part.ids for part in trained])
        for at, name in enumerate(features):
            if texts[name] is None:
                check_feature(first, name, X[:, at], name in public.columns)
        classes = public.classes or (names.pop() if self.task != "regression" else ())
        return Samples(
            X.astype(np.float32), y, test[0] if test else None, ids, names=tuple(features), classes=classes or None,
            columns=RawColumns(texts, self.missing, public), left_out=tuple(left_out),
            labels=tuple(labels), task="classification" if classes else self.task,
        )  # fmt: skip

    def _roles(self, what: str, table: pa.Table) -> tuple[list[str], list[str], list[str], list[str]]:
        """The columns of labels, the one that says whose rows are, or none, of features, and those that number rows.

        Raises UsageError for one that is not there, or has two roles.
        """
        names, index = table.column_names, _metadata(table, b"pandas", "index_columns")
        stored = [name for name in names if numbers_rows(name) or name in index]
        labels, by, ignored = (self._named(what, names, option) for option in ("label", "by", "ignore"))
        if not labels:
            raise UsageError(f"--label is missing: {what} has the columns {listed(names)}; name that of the labels")
        given = [
            part
            for value in (self.label, self.by)
            for part in (value.split(",") if isinstance(value, str) else value or ())
        ]
        for name in stored:
            if name in (*labels, *by) and name not in map(str, given):
                raise UsageError(f"--label, --by: {what} has {name!r} there, which numbers rows; name it")
        if len(by) > 1:
            raise UsageError(f"--by {self.by}: several columns; give one that says whose each row is")
        for name, count in Counter([*labels, *by, *ignored]).items():
            if count > 1:
                raise UsageError(f"column {name!r} has two roles of --label, --by and --ignore; give it one")
        left_out = [name for name in stored if name not in (*labels, *by)]
        features = [name for name in names if name not in (*labels, *by, *ignored, *left_out)]
        if not features:
            raise DataError(f"{what}: no column besides the label's; expected at least one feature")
        return labels, by, features, left_out

    def _named(self, what: str, names: list[str], option: str) -> list[str]:
        """The columns of an option: a list of names or, in one text, names or positions, separated by commas."""
        value = getattr(self, option) or ()
        parts = [value] if value in names else value.split(",") if isinstance(value, str) else list(map(str, value))
        positions = range(-len(names), len(names)) if isinstance(value, str) else ()
        known = {**{str(at): names[at] for at in positions}, **{name: name for name in names}}
        for part in parts:
            if part not in known:
                places = f", or places from {-len(names)}; a first line of numbers is a row" if positions else ""
                raise UsageError(
                    f"--{option} {part}: {what} has no such column; expected the names {listed(names)}{places}"
                    f"{nearest(part, names)}"
                )
        return [known[part] for part in parts]

    def _texts(self, cells: Sequence[Cells], parts: int, public: Public) -> tuple[str, ...] | None:
        """All texts of a column of features, those that are given first; None where it holds numbers.

        `parts`: how many are of training rows.
        """
        name, first = cells[0].name, cells[0]
        stated = public.columns.get(name, Stated()).categories
        if stated is None and not _holds_texts(cells[:parts]):
            return None
        if self.categorical is None:
            raise first.not_a_number()
        texts = all_texts(cells, stated or ())
        if stated is None:
            _check_written(first, texts)
        return texts


@dataclass(frozen=True)
class ColumnSource(ColumnUses, Source):
    """The options of files of tables."""

    path: tuple[Path, ...]
    """The file of training rows. Of several files of the same columns each is a client, unless --by names a column."""
    test: Path | None = None
    """File of test rows."""

    @property
    def names_clients(self) -> bool:
        return self.by is not None or len(self.path) > 1

    @abstractmethod
    def table(self, path: Path, texts: Collection[str] = ()) -> pa.Table:
        """The whole table of a file, whose types are texts in `texts` if it has none; DataError for a damaged one."""

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file or an unsuitable cell, UsageError for a column that is not there."""
        names = [re.sub(r"\.\w+(\.(gz|bz2|xz))?$", "", path.name, flags=re.I) for path in self.path]
        clients = distinct_names(names, listed(self.path, 3)) if names[1:] else []
        stated = Public.read(self.given).columns
        textual = {name for name, column in stated.items() if column.categories}
        parts = {str(path): self.table(path, textual) for path in self.path}
        textual.update(name for table in parts.values() for name in table.column_names if is_text(table[name].type))
        tests = [path for path in (self.test,) if path is not None]
        test = {f"{path}{' as test rows' * (path in self.path)}": self.table(path, textual) for path in tests}
        return replace(self.samples(parts, test, clients), files=(*self.path, *tests))


@dataclass(frozen=True)
class CsvTable(ColumnSource):
    """CSV files, with names in the first line or without: numbers, and texts as classes, categories or identifiers.

    Packed files, .gz, .bz2 and .xz, are unpacked. Empty cells and NA, N/A, NaN, null and ? are missing values.
    """

    separator: str = ","
    """What stands between cells, such as ';'; or tab."""
    decimal: str = "."
    """What stands before the fraction of a number."""

    def table(self, path: Path, texts: Collection[str] = ()) -> pa.Table:
        separator = "\t" if self.separator == "tab" else self.separator
        if {len(separator), len(self.decimal)} != {1} or separator == self.decimal:
            raise UsageError(f"--separator {separator!r} --decimal {self.decimal!r}: expected two different characters")

        return read_csv(path, lambda names: {*self._named(str(path), names, "by"), *texts}, separator, self.decimal)


@dataclass(frozen=True)
class ParquetTable(ColumnSource):
    """Parquet files: columns of numbers, booleans and texts. Nulls and NaN are missing values."""

    def table(self, path: Path, texts: Collection[str] = ()) -> pa.Table:
        from pyarrow import parquet

        limits = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
        with _reading(path), open_regular(path) as file:
            table = parquet.read_table(file, page_checksum_verification=True, **limits)
            table.validate(full=True)  # texts may be no UTF-8
        for column in _metadata(table, b"pandas", "columns"):
            name = column["field_name"]
            if column["pandas_type"] == "categorical" and not is_text(table[name].type):  # stored as the numbers
                table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
        return table


def read_csv(
    path: Path, texts: Callable[[list[str]], Collection[str]], separator: str = ",", decimal: str = "."
) -> pa.Table:
    """The table of a CSV file, packed or not; columns without names in the first line are called 0, 1, ...

    Columns of integers of which one begins with 0, as 01 or 0x1, are codes, and no numbers: texts, as those are that
    `texts` picks from the names of all columns.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    with open_packed(path) as file:
        content = file.read()
    names, skipped = _first_line(path, content, separator)
    check_names(str(path), names)
    read = arrow_csv.ReadOptions(
        use_threads=False, block_size=_BLOCK_BYTES, column_names=names, skip_rows_after_names=skipped
    )
    parse = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)

    def table_of(columns: list[str], of_texts: Collection[str]) -> pa.Table:
        types = dict.fromkeys(of_texts, pa.large_string())
        convert = arrow_csv.ConvertOptions(
            null_values=_NULLS, decimal_point=decimal, column_types=types, include_columns=columns
        )
        try:
            return arrow_csv.read_csv(pa.BufferReader(content), read, parse, convert)
        except pa.ArrowInvalid as error:
            why = "no rows, or a line of more than 16 MiB" if "straddling" in str(error) else shown(str(error))
            raise DataError(
                f"{path}: {why}; expected UTF-8 with {separator!r} between cells; correct the file"
            ) from error

    table = table_of(names, texts(names))
    if b'"' in content and len(table) + skipped < content.count(b"\n"):  # a quote that is not closed swallows rows
        lines = csv.reader(
            io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline=""), delimiter=separator, strict=True
        )
        try:
            deque(lines, 0)
        except csv.Error as error:
            raise DataError(
                f"{path}: up to line {lines.line_num}: {error}: a cell that begins with a quote, and does not end with "
                "it; double those inside of cells, or take them out"
            ) from error
    whole = [field.name for field in table.schema if field.type == pa.int64()]
    begins_with_0 = rf"(^|[\s\"]|{re.escape(separator)})[-+]?0[\dx]"
    if whole and re.search(begins_with_0.encode(), content, re.I | re.M):
        written = table_of(whole, whole)
        for name in whole:
            if pc.any(pc.match_substring_regex(written[name], r"^\s*[-+]?0[\dxX]")).as_py():
                table = table.set_column(names.index(name), name, written[name])
    return table


def _first_line(path: Path, content: bytes, separator: str) -> tuple[list[str], int]:
    """(names of the columns of a CSV file; 1 if its first line has them, 0 if it is a row: all its cells are numbers).

    Raises DataError for a line of names and numbers, and for three numbers or more that are counted, as years or places
    are, since it can't be said what they are.
    """
    text = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    with reading(path, f"save it as UTF-8, with {separator!r} between cells", UnicodeDecodeError, csv.Error):
        cells: list[str] = next(csv.reader(text, delimiter=separator), [])
    if len(cells) == 1 and (other := re.search("[,;\t|]", cells[0])):
        raise DataError(
            f"{path}: line 1: {shown(cells[0], 80)!r} has no {separator!r}; give --separator {other[0]!r}, and "
            "--decimal ',' where fractions have that"
        )
    of_numbers = [re.fullmatch(_NUMBER, cell, re.I) is not None for cell in cells]
    if not any(of_numbers) and cells:
        return [cell.strip() for cell in cells], 1
    counted = all(map(str.isdecimal, cells)) and {b - a for a, b in pairwise(map(float, cells))} == {1}
    if not all(of_numbers) or not cells or (counted and cells[2:]):
        raise DataError(
            f"{path}: line 1: {shown(', '.join(cells), 80)!r}; expected numbers of a row in all columns, or names in "
            "all, which are no numbers, as x0"
        )
    return list(map(str, range(len(cells)))), 0


def as_table(frame: Any, what: str) -> pa.Table:  # whatever holds named columns
    """The table of a frame of pandas, whose index is left out, or of polars, of Arrow, or of `datasets`."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise UsageError(f"{what}: {error.name} is not installed; pip install 'mpifed[data]'") from error

    if hasattr(frame, "with_format"):
        frame = frame.with_format("arrow")[:]
    try:
        return pa.Table.from_pandas(frame, preserve_index=False) if hasattr(frame, "iloc") else pa.table(frame)
    except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(
            f"{what}: a {type(frame).__name__} ({error}); expected a DataFrame, or another table of named columns"
        ) from error


def check_names(what: str, names: list[str]) -> None:
    """Raise DataError for columns of one name, or without one: the index of a frame may be without, as the first."""
    for column, name in enumerate(names):
        if why := "has no name; give it one" if column and not name else wrong_line(name):
            raise DataError(f"{what}: column {column + 1} {name!r:.80} {why}")
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise DataError(f"{what}: {count} columns are called {name!r:.80}; every column needs a name of its own")


def _decoded(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Categories as the texts or numbers that they stand for."""
    kind = getattr(values.type, "value_type", None)
    return values if kind is None or kind.num_fields or values.type.num_fields else values.cast(kind)


def _labels(column: Cells, known: Sequence[str] | None, classes: Sequence[str]) -> Array:
    """[s] labels: places among `known` texts or, where these are empty, texts, or numbers; "" or NaN for gaps.

    `classes`: the names of a ClassLabel.
    """
    if known:
        for strange in all_texts([column], tuple(known))[len(known) :]:
            raise DataError(f"{column.what}: label {strange!r} is none of the given classes {listed(known)}")
        return column.raw(known)
    if known is not None:
        texts = column.words().fill_null("").to_pylist()
        _check_written(column, {*texts} - {""})
        return np.array(texts, str)
    if column.is_text:
        first = column.words().drop_null()[:1].to_pylist()
        raise DataError(f"{column} has texts, such as {first}, and training rows numbers; write both alike")
    y = column.raw()
    if classes and (y >= len(classes)).any():
        raise DataError(f"{column.what}: label {np.nanmax(y):g}, of {len(classes)} classes named from 0")
    return np.where(y < 0, np.nan, y) if classes else y  # a ClassLabel of a row without a label


def _check_written(column: Cells, texts: Collection[str]) -> None:
    """Raise DataError for texts that are all numbers as people write them, or dates, but for codes; or nearly all."""
    numbers = [text for text in texts if re.fullmatch(_FORMATTED, text, re.I)]
    if str(column.values.type).startswith("dictionary"):  # who made categories of numbers wants these
        are_codes = all(map(is_decimal, texts))
    else:
        are_codes = all(re.fullmatch(r"[-+]?\d+", text) for text in texts)
        others, codes = len(texts) - len(numbers), any(re.match(r"0\d", text) for text in texts)
        if others and not codes and len(numbers) > max(10, 3 * others):
            raise column.not_a_number(
                f"{len(numbers)} others are: correct it, empty it if it is a gap, or state categories, or classes, in "
                "a file of --given"
            )
    if len(numbers) == len(texts) and not are_codes:
        raise column.not_a_number(_FORMATTED_REMEDY)


def _holds_texts(parts: Sequence[Cells]) -> bool:
    """Whether columns hold texts; DataError for one of numbers in one table, and of texts in another."""
    first: dict[bool, Cells] = {}  # the column that has texts, or numbers
    for column in parts:
        if str(column.values.type) != "null":
            first.setdefault(column.is_text, column)
    if len(first) > 1:
        other = f"{first[False].what} has {first[False].values.type}"
        remedy = f"correct it, state the categories of [columns.{parts[0].name}] in a file of --given, or {LEAVE_OUT}"
        raise first[True].not_a_number(f"{other}; {remedy}")
    return True in first


def _reading(path: Path) -> AbstractContextManager[None]:
    """Errors of Arrow become DataError."""
    import pyarrow as pa

    return reading(path, "get the file again", pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)


def _metadata(table: pa.Table, *keys: bytes | str) -> list[Any]:  # of JSON
    """A list that a writer of tables has noted beside it, pandas or `datasets`; empty where there is none."""
    content: Any = table.schema.metadata or {}  # of JSON
    try:
        for key in keys:
            content = content[key]
            content = json.loads(content) if isinstance(content, bytes) else content
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    return content if isinstance(content, list) else []


def _class_names(what: str, table: pa.Table, labels: list[str]) -> tuple[str, ...]:
    """The names of a ClassLabel, as `datasets` writes them into the metadata of a table; () where there are none."""
    names = tuple(map(str, _metadata(table, b"huggingface", "info", "features", labels[0], "names")))
    are_numbers = names == tuple(map(str, range(len(names))))
    if labels[1:] or are_numbers or "int" not in str(table.schema.field(labels[0]).type):
        return ()
    if len({*names}) < len(names):
        raise DataError(f"{what}: its ClassLabel names a class twice, of {listed(map(repr, names))}")
    return names
