"""Tables of named columns: files and frames become one table of Apache Arrow, and each of its columns gets a role."""

from __future__ import annotations

import csv
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.nearest import nearest
from mpifed.core.record import Array
from mpifed.core.text import shown, wrong_line
from mpifed.data.natural import distinct_names
from mpifed.data.recipe import (
    FILLS,
    GAPS,
    LEAVE_OUT,
    Encoding,
    Public,
    RawColumns,
    check_feature,
    identities,
    in_numpy,
    is_text,
    not_a_number,
    numbers,
    raw_rows,
    texts,
    with_texts,
)
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import check_file, listed, numbers_rows, open_packed, train_and_test

if TYPE_CHECKING:
    import pyarrow as pa

_NULLS = [form for word in (*GAPS, "none") for form in {word, word.upper(), word.capitalize(), word.title()}] + ["NaN"]
_BLOCK_BYTES = 2**24  # of a CSV file that are parsed at a time; a line must fit
# a number as people write it, with a unit, or with something between thousands
_FORMATTED = r"[-+]?[$€£]?\s?(\d+|\d{1,3}([.,'\s]\d{3})+)([.,]\d+)?\s?[%$€£]?"
_FORMATTED_REMEDY = (
    "where fractions have a comma, give --decimal ','; take what is between thousands, and units, out of numbers, or "
    "state categories in a file of --given"
)
_AS_CLASSES = "correct it; texts are classes, of one column, by --task classification"


class Roles(NamedTuple):
    """What the columns of a table are."""

    labels: list[str]
    by: str | None
    features: list[str]
    left_out: list[str]  # they number rows
    classes: tuple[str, ...]  # names of the labels 0, 1, ..., where the table says them


@dataclass(frozen=True)
class ColumnSource(Source):
    """The options of tables."""

    path: tuple[Path, ...]
    """The file of training rows. Of several files of the same columns each is a client, unless --by names a column."""
    test: Path | None = None
    """File of test rows."""
    label: str | None = None
    """Name or position of the label's column; -1 is the last. Several, separated by commas, are real targets."""
    task: Literal["auto", "classification", "regression", "multilabel"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""
    by: str | None = None
    """Name or position of the column that says whose each row is: natural clients. It is no feature."""
    ignore: str | None = None
    """Names or positions of columns that are left out, separated by commas, such as numbers of rows."""
    categorical: Literal["one-hot", "ordinal"] | None = None
    """What columns of texts become, by the sorted texts of the training rows; by default they are refused."""
    given: Path | None = None
    """A TOML file of what is known without the rows: [columns.NAME] with categories, fill, range; and classes."""
    missing: str = "error"  # what becomes of gaps, see `mpifed.data.recipe`

    @property
    def names_clients(self) -> bool:
        return self.by is not None or len(self.path) > 1

    @abstractmethod
    def table(self, path: Path, public: Public, texts: Collection[str] = ()) -> pa.Table:
        """The whole table of a file, whose types are texts in `texts` if it has none; DataError for a damaged one."""

    def files(self, path: Path) -> list[Path]:
        """The files that are read of a path."""
        return [path]

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file or an unsuitable cell, UsageError for a column that is not there."""
        public, tests = Public.read(self.given), [] if self.test is None else [self.test]
        names = [path.name.partition(".")[0] for path in self.path]
        clients = distinct_names(names, listed(self.path, 3)) if self.path[1:] else []
        tables = {str(path): self.table(path, public) for path in self.path}
        textual = {name for table in tables.values() for name in table.column_names if is_text(table[name].type)}
        test = {f"{path}{' as test rows' * (str(path) in tables)}": self.table(path, public, textual) for path in tests}
        files = tuple(file for path in (*self.path, *tests) for file in self.files(path))
        return replace(self.samples(tables, test, public, clients), files=files)

    def samples(
        self, parts: Mapping[str, pa.Table], test: Mapping[str, pa.Table], public: Public, clients: Sequence[str]
    ) -> Samples:
        """The data of tables of training rows, and of that of test rows, if there is one, by what messages call them.

        `clients`: whose the rows of each are, where there are several; --by may name a column that says so instead.
        """
        import pyarrow as pa

        (first, table), *others = parts.items()
        tables = {**parts, **test}
        for what, each in tables.items():
            check_names(what, each.column_names)
        for what, each in others:
            if differing := {*each.column_names} ^ {*table.column_names}:
                raise DataError(f"{what}: other columns than {first}: {listed(sorted(differing))} differs")
        roles = self._roles(first, table, test)
        for name in public.columns:
            if name not in roles.features:
                raise UsageError(f"--given: columns.{name}: no such feature{nearest(name, roles.features)}")
        raw = self._columns(parts, tables, roles, public)
        rows = {what: self._rows(what, each, roles, raw) for what, each in tables.items()}
        of_parts = [rows.pop(what) for what in parts]
        whole = pa.concat_tables(of_parts)
        sets = {listed(parts, 3): whole, **rows}
        for what, each in sets.items():
            if not len(each):
                gaps = " without gaps" if len(tables.get(what, ())) else ""
                raise DataError(f"{what}: no rows{gaps}; expected a row for each sample")
        for name in roles.features:
            if raw[name].categories is None:
                check_feature(first, name, in_numpy(whole[name]), name in public.columns)
        columns = tuple(raw[name] for name in roles.features)
        data, *tested = (
            Samples(
                raw_rows(columns, each, what),
                _labels(what, each, roles, raw),
                ids=np.array(each[roles.by].to_pylist()) if roles.by in each.column_names else None,
            )
            for what, each in sets.items()
        )
        if clients and roles.by is None:
            data = replace(data, ids=np.repeat(clients, [len(each) for each in of_parts]))
        classes = public.classes or (roles.classes if self.task != "regression" else ())
        return replace(
            data, test=tested[0] if tested else None, names=tuple(roles.features), left_out=tuple(roles.left_out),
            classes=classes or (tuple(roles.labels) if roles.labels[1:] else None),
            columns=RawColumns(columns, self.categorical, self.missing, public),
            task="classification" if classes else self.task,
        )  # fmt: skip

    def _roles(self, what: str, table: pa.Table, tests: Mapping[str, pa.Table]) -> Roles:
        """The columns by their roles; UsageError for one that is not there, or has two roles."""
        names = table.column_names
        stored = [name for name in names if numbers_rows(name) or name in _index(table)]
        labels, by, ignored = (self._named(what, names, option) for option in ("label", "by", "ignore"))
        if not labels:
            raise UsageError(f"--label is missing: {what} has the columns {listed(names)}; name that of the labels")
        for option, chosen in (("label", labels), ("by", by)):
            if (there := set(chosen).intersection(stored)) and min(there) not in str(getattr(self, option)).split(","):
                raise UsageError(f"--{option}: {what} has {min(there)!r} there, which numbers rows; name it")
        if len(by) > 1:
            raise UsageError(f"--by {self.by}: several columns; give one that says whose each row is")
        if twice := [name for name, count in Counter([*labels, *by, *ignored]).items() if count > 1]:
            raise UsageError(f"column {twice[0]!r} has two roles of --label, --by and --ignore; give it one")
        left_out = [name for name in stored if name not in (*labels, *by)]
        features = [name for name in names if name not in (*labels, *by, *ignored, *left_out)]
        if not features:
            raise DataError(f"{what}: no column besides the label's; expected at least one feature")
        classes = _class_names(what, table, labels)
        for other, test in tests.items():
            if missing := [name for name in (*labels, *features) if name not in test.column_names]:
                raise DataError(f"{other}: no column {listed(map(repr, missing))}, which {what} has")
            if _class_names(other, test, labels) != classes:
                raise DataError(f"{other}: other names of classes than {what}; both need the same numbering")
        return Roles(labels, by[0] if by else None, features, left_out, classes)

    def _named(self, what: str, names: list[str], option: str) -> list[str]:
        """The columns of an option, by their names or positions, separated by commas."""
        text = getattr(self, option)
        parts = [] if text is None else [text] if text in names else text.split(",")
        try:
            return [part if part in names else names[int(part)] for part in parts]
        except (ValueError, IndexError) as error:
            raise UsageError(
                f"--{option} {text}: {what} has no such column; expected the names {listed(names)} or a number from "
                f"{-len(names)} to {len(names) - 1}"
            ) from error

    def _columns(
        self, parts: Mapping[str, pa.Table], tables: Mapping[str, pa.Table], roles: Roles, public: Public
    ) -> dict[str, Encoding]:
        """The features and labels, of texts with all that occur; DataError for texts where numbers must be."""
        (what, first), *_ = parts.items()
        raw = {}
        for name in roles.labels:
            textual = _holds_texts(name, parts, roles)
            raw[name] = Encoding(name, public.classes if public.classes or textual else None)
            if roles.labels[1:] and textual:
                raise not_a_number(what, name, first[name], _AS_CLASSES)
        for name in roles.features:
            given = public.columns.get(name, Encoding())
            raw[name] = Encoding(name, given.categories, fill=given.fill)
            if given.categories is not None or _holds_texts(name, parts, roles):
                raw[name] = with_texts(raw[name], tables)
                if self.categorical is None:
                    raise not_a_number(what, name, first[name])
                met = raw[name].categories or ()
                plain = rf"[-+]?\d+([{getattr(self, 'decimal', '.')}]\d+)?"
                formatted = [re.fullmatch(_FORMATTED, text) for text in met]
                if given.categories is None and all(formatted) and not all(re.fullmatch(plain, text) for text in met):
                    raise not_a_number(what, name, first[name], _FORMATTED_REMEDY)
        return raw

    def _rows(self, what: str, table: pa.Table, roles: Roles, raw: Mapping[str, Encoding]) -> pa.Table:
        """The columns that have a role, as numbers or texts; without rows of gaps that are not filled."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = {}
        for name in (*roles.features, *roles.labels, *([] if roles.by is None else [roles.by])):
            if name not in table.column_names:
                continue  # the client of test rows
            values, categories = table[name], raw[name].categories if name in raw else None
            if name == roles.by:
                columns[name] = identities(what, name, values)
            elif categories is not None:
                columns[name] = texts(what, name, values, categories)
            else:
                columns[name] = pa.array(numbers(what, name, values), from_pandas=True)
            if roles.classes and name in roles.labels:  # a ClassLabel below 0 is of a row without a label
                columns[name] = pc.if_else(pc.less(columns[name], 0), None, columns[name])
            filled = self.missing == "drop"
            if name in roles.features:
                filled |= self.missing in FILLS or raw[name].fill is not None
            if columns[name].null_count and not filled:
                row = pc.index(columns[name].is_null(), True).as_py()
                fill = "fill it in, by --missing mean, median or zero, or " * (name in roles.features)
                raise DataError(
                    f"{what}: row {row + 1}, column {name!r} is a missing value, of {columns[name].null_count}; {fill}"
                    "leave these rows out, by --missing drop"
                )
        rows = pa.table(columns)
        return rows.drop_null() if self.missing == "drop" else rows


@dataclass(frozen=True)
class CsvTable(ColumnSource):
    """CSV files, with names in the first line or without: numbers, and texts as classes, categories or identifiers.

    Packed files, .gz, .bz2 and .xz, are unpacked. Empty cells and NA, N/A, NaN, null and ? are missing values.
    """

    separator: str = ","
    """What stands between cells, such as ';'; or tab."""
    decimal: str = "."
    """What stands before the fraction of a number."""

    def table(self, path: Path, public: Public, texts: Collection[str] = ()) -> pa.Table:
        separator = "\t" if self.separator == "tab" else self.separator
        if {len(separator), len(self.decimal)} != {1} or separator == self.decimal:
            raise UsageError(f"--separator {separator!r} --decimal {self.decimal!r}: expected two different characters")
        stated = {*texts, *(name for name, column in public.columns.items() if column.categories)}
        return read_csv(path, separator, self.decimal, lambda names: {*self._named(str(path), names, "by"), *stated})


@dataclass(frozen=True)
class ParquetTable(ColumnSource):
    """Parquet files: columns of numbers, booleans and texts. Nulls and NaN are missing values."""

    def table(self, path: Path, public: Public, texts: Collection[str] = ()) -> pa.Table:
        from pyarrow import parquet

        check_file(path)
        limits = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
        with _reading(path):
            file = parquet.ParquetFile(path, memory_map=False, page_checksum_verification=True, **limits)
            table = file.read()
            table.validate(full=True)  # texts may be no UTF-8
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
        plain = {chunk.path_in_schema for chunk in chunks if not chunk.has_dictionary_page}
        ordered = [column.name for column in table.schema if getattr(column.type, "ordered", False)]
        if unsaid := [name for name in ordered if name in plain]:
            raise DataError(
                f"{path}: column {unsaid[0]!r} has ordered categories, and the file does not say their order; write it "
                "with a dictionary, or as texts"
            )
        for at, name in enumerate(table.column_names):
            if name in _categories(table) and not is_text(table[name].type):  # numbers, which Parquet stores as such
                table = table.set_column(at, name, table[name].dictionary_encode())
        return table


@dataclass(frozen=True)
class ArrowFolder(ColumnSource):
    """A folder that `datasets.save_to_disk` wrote, of a Dataset, or of a DatasetDict with `train` and `test`."""

    def read(self, seed: int) -> Samples:
        test = self.test if self.path[1:] else train_and_test(self.path[0], self.test)[1]
        return ColumnSource.read(replace(self, test=test), seed)

    def files(self, path: Path) -> list[Path]:
        folder = train_and_test(path)[0] if path in self.path else path
        files = sorted(file for file in folder.glob("*.arrow") if not file.name.startswith("cache-"))  # of its `map`
        if not files:
            raise DataError(f"{path}: no file *.arrow; expected a folder of datasets.save_to_disk")
        return files

    def table(self, path: Path, public: Public, texts: Collection[str] = ()) -> pa.Table:
        import pyarrow as pa

        parts = []
        for file in self.files(path):
            check_file(file)
            with _reading(file), pa.OSFile(str(file)) as opened, pa.ipc.open_stream(opened) as reader:
                parts.append(reader.read_all())
                parts[-1].validate(full=True)  # offsets of a damaged file may point anywhere
        with _reading(path):
            return pa.concat_tables(parts)


@dataclass(frozen=True)
class Frames(ColumnSource):
    """Frames of a program, whose columns have names alone."""

    path: tuple[Path, ...] = ()
    tables: Mapping[str, pa.Table] = field(default_factory=dict)  # of training rows
    tests: Mapping[str, pa.Table] = field(default_factory=dict)  # of test rows
    clients: Sequence[str] = ()  # whose the rows of each table are, of several

    def table(self, path: Path, public: Public, texts: Collection[str] = ()) -> pa.Table:
        return self.tables[str(path)]

    def read(self, seed: int) -> Samples:
        return self.samples(self.tables, self.tests, Public.read(self.given), self.clients)

    def _named(self, what: str, names: list[str], option: str) -> list[str]:
        value = getattr(self, option)
        chosen = [] if value is None else list(map(str, value if isinstance(value, list | tuple) else [value]))
        for name in chosen:
            if name not in names:
                meant = nearest(name, names)
                raise DataError(f"{what}: no column {name!r}{meant}; there are {', '.join(names)}")
        return chosen


def read_csv(
    path: Path, separator: str = ",", decimal: str = ".", texts: Callable[[list[str]], set[str]] = lambda _: set()
) -> pa.Table:
    """The table of a CSV file, packed or not; columns without names in the first line are called 0, 1, ...

    `texts`: of the names of all columns those that have texts, even where all are numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    names, width = _first_line(path, separator)
    known, skipped = names or list(map(str, range(width))), 0 if names is None else 1
    check_names(str(path), known)
    read = arrow_csv.ReadOptions(
        use_threads=False, block_size=_BLOCK_BYTES, column_names=known, skip_rows_after_names=skipped
    )  # fmt: skip
    parse = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)

    def with_texts_in(columns: Iterable[str]) -> pa.Table:
        types = dict.fromkeys(columns, pa.large_string())
        convert = arrow_csv.ConvertOptions(null_values=_NULLS, decimal_point=decimal, column_types=types)
        with open_packed(path) as file:
            try:
                return arrow_csv.read_csv(pa.PythonFile(file, "r"), read, parse, convert)
            except pa.ArrowInvalid as error:
                why = "no rows, or a line of more than 16 MiB" if "straddling" in str(error) else shown(str(error))
                raise DataError(
                    f"{path}: {why}; expected UTF-8 with {separator!r} between cells; correct the file"
                ) from error

    are_texts = texts(known).intersection(known)
    table = with_texts_in(are_texts)
    negative = [name for name, column in zip(known, table.columns, strict=True)
                if column.type == pa.int64() and (pc.min(column).as_py() or 0) < 0]  # fmt: skip
    if negative:  # Arrow reads 0xFFFFFFFFFFFFFFFF as -1
        as_texts = with_texts_in(negative)
        hexadecimal = [
            name for name in negative if pc.any(pc.match_substring(as_texts[name], "x", ignore_case=True)).as_py()
        ]
        table = with_texts_in({*are_texts, *hexadecimal}) if hexadecimal else table
    return table


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
    except (pa.ArrowException, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{what}: a {type(frame).__name__} ({error}); expected a DataFrame, or another table of named columns"
        ) from error


def check_names(what: str, names: list[str]) -> None:
    """Raise DataError for columns of one name, or without one: the index of a frame may be without, as the first."""
    for column, name in enumerate(names):
        if why := "has no name; give it one" if column and not name else wrong_line(name):
            raise DataError(f"{what}: column {column + 1} {name!r:.80} {why}")
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise DataError(f"{what}: {count} columns are called {name!r:.80}; every column needs a name of its own")


def _labels(what: str, rows: pa.Table, roles: Roles, raw: Mapping[str, Encoding]) -> Array:
    """[s] texts or numbers of classes, or [s, t] numbers."""
    name = roles.labels[0]
    classes = raw[name].categories
    if classes is not None:
        words = rows[name].to_pylist()
        if not classes:
            return np.array(words)
        place = {text: at for at, text in enumerate(classes)}
        if unknown := {*words} - {*place}:
            raise DataError(f"{what}: label {min(unknown)!r} is none of the given classes {listed(classes)}")
        return np.array([place[word] for word in words])
    y = np.stack([in_numpy(rows[name]) for name in roles.labels], axis=1)
    y = y if roles.labels[1:] else y[:, 0]
    if roles.classes and not y.max() < len(roles.classes):
        raise DataError(f"{what}: label {y.max():g}, of {len(roles.classes)} classes named from 0")
    return y.astype(np.int64) if roles.labels[1:] and np.isin(y, (0, 1)).all() else y


def _holds_texts(name: str, parts: Mapping[str, pa.Table], roles: Roles) -> bool:
    """Whether a column holds texts; DataError for one of numbers in one table, and of texts in another."""
    import pyarrow as pa

    first: dict[bool, str] = {}  # the table that has texts, or numbers
    for what, table in parts.items():
        kind = table[name].type
        if name in roles.labels:
            kind = getattr(kind, "value_type", kind)  # of categories
        if not pa.types.is_null(kind):
            first.setdefault(is_text(kind), what)
    if len(first) > 1:
        numeric = f"{first[False]} has {parts[first[False]][name].type}"
        remedy = f"correct it, state the categories of [columns.{name}] in a file of --given, or {LEAVE_OUT}"
        raise not_a_number(first[True], name, parts[first[True]][name], f"{numeric}; {remedy}")
    return True in first


def _first_line(path: Path, separator: str) -> tuple[list[str] | None, int]:
    """(names of the columns of a CSV file, None if its first line has numbers; number of columns)."""
    with open_packed(path, "rt") as file:
        try:
            cells: list[str] = next(csv.reader(file, delimiter=separator), [])
        except csv.Error as error:
            raise DataError(
                f"{path}: line 1: {error}; expected numbers or names, with {separator!r} between"
            ) from error
    if not cells:
        raise DataError(f"{path}: line 1 is empty; expected numbers or names, with {separator!r} between")
    if len(cells) == 1 and (other := re.search("[,;\t|]", cells[0])):
        raise DataError(
            f"{path}: line 1: {shown(cells[0], 80)!r} has no {separator!r}; give --separator {other[0]!r}, and "
            "--decimal ',' where fractions have that"
        )
    numbers = [re.fullmatch(r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)(e[-+]?\d+)?\s*", cell, re.I) is not None for cell in cells]
    if all(numbers):
        if cells == list(map(str, range(len(cells)))) and len(cells) > 2:
            raise DataError(
                f"{path}: line 1 is 0, 1, 2, ...: such names of columns can't be told from a row of numbers; name them "
                "by texts, as x0, or leave the line out"
            )
        return None, len(cells)
    if any(numbers):
        column = numbers.index(False)
        raise DataError(
            f"{path}: line 1, column {column + 1}: {shown(cells[column], 80)!r} among numbers; "
            "expected numbers in all columns, or names in all"
        )
    return [cell.strip() for cell in cells], len(cells)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of Arrow become DataError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read ({shown(str(error))}); get the file again") from error


def _index(table: pa.Table) -> list[str]:
    """Names of the columns that a frame had as its index."""
    try:
        return list(map(str, table.schema.pandas_metadata["index_columns"]))
    except (KeyError, TypeError, ValueError, RecursionError):  # not written by pandas
        return []


def _categories(table: pa.Table) -> list[str]:
    """Names of the columns that were categories in a frame of pandas."""
    try:
        columns = table.schema.pandas_metadata["columns"]
        return [str(column["field_name"]) for column in columns if column["pandas_type"] == "categorical"]
    except (KeyError, TypeError, ValueError, RecursionError):  # not written by pandas
        return []


def _class_names(what: str, table: pa.Table, labels: list[str]) -> tuple[str, ...]:
    """The names of a ClassLabel, as `datasets` writes them into the metadata of a table; () where there are none."""
    try:
        (label,) = labels
        content = json.loads((table.schema.metadata or {})[b"huggingface"])
        names = content["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError, RecursionError):  # not written by `datasets`, or several
        return ()
    known = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not known or "int" not in str(table.schema.field(label).type) or names == list(map(str, range(len(names)))):
        return ()
    if len(set(names)) < len(names):
        raise DataError(f"{what}: its ClassLabel names a class twice, of {listed(map(repr, names))}")
    return tuple(names)
