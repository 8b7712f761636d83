"""Tables of named columns: files and frames become one table of Apache Arrow, and each of its columns gets a role."""

from __future__ import annotations

import csv
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    Public,
    RawColumns,
    Stated,
    all_texts,
    check_feature,
    identities,
    is_decimal,
    is_text,
    not_a_number,
    numbers,
    raw_numbers,
    words,
)
from mpifed.data.samples import Samples, Source
from mpifed.data.source_files import check_choices, check_file, listed, numbers_rows, open_packed, train_and_test

if TYPE_CHECKING:
    import pyarrow as pa

_NULLS = [form for word in (*GAPS, "none") for form in {word, word.upper(), word.capitalize(), word.title()}] + ["NaN"]
_BLOCK_BYTES = 2**24  # of a CSV file that are parsed at a time; a line must fit
_NUMBER = r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)(e[-+]?\d+)?\s*"
# a number as people write it, with a unit, or with something between thousands
_FORMATTED = r"[-+]?[$€£]?\s?(\d+|\d{1,3}([.,'\s]\d{3})+)([.,]\d+)?\s?[%$€£]?"
_FORMATTED_REMEDY = (
    "where fractions have a comma, give --decimal ','; take what is between thousands, and units, out of numbers, or "
    "state categories in a file of --given"
)


class Roles(NamedTuple):
    """What the columns of a table are."""

    labels: list[str]
    by: list[str]  # none, or the one that says whose each row is
    features: list[str]
    left_out: list[str]  # they number rows
    classes: tuple[str, ...]  # names of the labels 0, 1, ..., where the table says them


@dataclass(frozen=True, kw_only=True)
class ColumnUses:
    """What becomes of the columns of tables."""

    label: str | Sequence[str] | None = None
    """Name or position of the label's column; -1 is the last. Several, separated by commas, are real targets."""
    task: Literal["auto", "classification", "regression", "multilabel"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""
    by: str | Sequence[str] | None = None
    """Name or position of the column that says whose each row is: natural clients. It is no feature."""
    ignore: str | Sequence[str] | None = None
    """Names or positions of columns that are left out, separated by commas, such as numbers of rows."""
    categorical: Literal["one-hot", "ordinal"] | None = None
    """What columns of texts become, by the sorted texts of the training rows; by default they are refused."""
    given: Path | None = None
    """A TOML file of what is known without the rows: [columns.NAME] with categories, fill, range; and classes."""
    missing: Literal["error", "zero", "drop", "mean", "median"] = "error"  # what becomes of gaps

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
            if what in parts and (differing := {*each.column_names} ^ {*table.column_names}):
                raise DataError(f"{what}: other columns than {first}: {listed(sorted(differing))} differs")
        roles = self._roles(first, table, tests)
        for name in public.columns:
            if name not in roles.features:
                raise UsageError(f"--given: columns.{name}: no such feature{nearest(name, roles.features)}")
        texts = {name: self._texts(name, tables, parts, public) for name in roles.features}
        for name in roles.labels:
            texts[name] = public.classes if public.classes or _holds_texts(name, parts, True) else None
            if texts[name] is not None and roles.labels[1:]:
                raise not_a_number(first, name, table[name], "correct it; texts are classes, of one column")
        rows = {what: self._rows(what, each, roles, texts, public) for what, each in tables.items()}
        test = [rows.pop(what) for what in tests]
        X, y = (np.concatenate([getattr(each, key) for each in rows.values()]) for key in ("X", "y"))
        ids = np.repeat(clients, [len(each.y) for each in rows.values()]) if clients else None
        if roles.by:
            ids = np.concatenate([each.ids for each in rows.values()])
        for what, labels in ((listed(parts, 3), y), *((what, each.y) for what, each in zip(tests, test, strict=True))):
            if not len(labels):
                raise DataError(f"{what}: no rows, or none without gaps; expected a row for each sample")
        for at, name in enumerate(roles.features):
            if texts[name] is None:
                check_feature(first, name, X[:, at], name in public.columns)
        classes = public.classes or (roles.classes if self.task != "regression" else ())
        return Samples(
            X.astype(np.float32), _whole_labels(y), replace(test[0], y=_whole_labels(test[0].y)) if test else None, ids,
            names=tuple(roles.features), classes=classes or (tuple(roles.labels) if roles.labels[1:] else None),
            columns=RawColumns({name: texts[name] for name in roles.features}, self.categorical, self.missing, public),
            left_out=tuple(roles.left_out), task="classification" if classes else self.task,
        )  # fmt: skip

    def _roles(self, what: str, table: pa.Table, tests: Mapping[str, pa.Table]) -> Roles:
        """The columns by their roles; UsageError for one that is not there, or has two roles."""
        names, index = table.column_names, _metadata(table, b"pandas", "index_columns")
        stored = [name for name in names if numbers_rows(name) or name in index]
        labels, by, ignored = (self._named(what, names, option) for option in ("label", "by", "ignore"))
        if not labels:
            raise UsageError(f"--label is missing: {what} has the columns {listed(names)}; name that of the labels")
        for option, chosen in (("label", labels), ("by", by)):
            for name in stored:
                if name in chosen and name not in str(getattr(self, option)).split(","):
                    raise UsageError(f"--{option}: {what} has {name!r} there, which numbers rows; name it")
        if len(by) > 1:
            raise UsageError(f"--by {self.by}: several columns; give one that says whose each row is")
        for name, count in Counter([*labels, *by, *ignored]).items():
            if count > 1:
                raise UsageError(f"column {name!r} has two roles of --label, --by and --ignore; give it one")
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
        return Roles(labels, by, features, left_out, classes)

    def _named(self, what: str, names: list[str], option: str) -> list[str]:
        """The columns of an option: a list of names or, in one text, names or positions, separated by commas."""
        value = getattr(self, option) or ()
        parts = [value] if value in names else value.split(",") if isinstance(value, str) else list(map(str, value))
        positions = range(-len(names), len(names)) if isinstance(value, str) else ()
        known = {**{str(at): names[at] for at in positions}, **{name: name for name in names}}
        for part in parts:
            if part not in known:
                places = f", or numbers from {-len(names)} to {len(names) - 1}" if positions else ""
                raise UsageError(
                    f"--{option} {part}: {what} has no such column; expected the names {listed(names)}{places}"
                    f"{nearest(part, names)}"
                )
        return [known[part] for part in parts]

    def _texts(
        self, name: str, tables: Mapping[str, pa.Table], parts: Mapping[str, pa.Table], public: Public
    ) -> tuple[str, ...] | None:
        """All texts of a column of features, those that are given first; None where it holds numbers."""
        stated = public.columns.get(name, Stated()).categories
        if stated is None and not _holds_texts(name, parts):
            return None
        (what, first), *_ = parts.items()
        if self.categorical is None:
            raise not_a_number(what, name, first[name])
        texts = all_texts(name, tables, stated or ())
        formatted = all(re.fullmatch(_FORMATTED, text) for text in texts)
        if stated is None and formatted and not all(map(is_decimal, texts)):
            raise not_a_number(what, name, first[name], _FORMATTED_REMEDY)
        return texts

    def _rows(
        self, what: str, table: pa.Table, roles: Roles, texts: Mapping[str, tuple[str, ...] | None], public: Public
    ) -> Samples:
        """Raw rows of a table in float64, their labels and clients; without rows of gaps that are not filled."""
        X = np.stack([raw_numbers(what, name, table[name], texts[name]) for name in roles.features], axis=1)
        labels = [_labels(what, name, table[name], texts[name], roles.classes) for name in roles.labels]
        there = [name for name in roles.by if name in table.column_names]  # not in all test rows
        ids = [identities(what, name, table[name]) for name in there]
        gaps = dict(zip(roles.features, np.isnan(X).T, strict=True))
        for name in roles.features:
            stated = public.columns.get(name, Stated())
            if self.missing in FILLS or (self.missing == "error" and stated.fill is not None):
                del gaps[name]
        for name, values in zip([*roles.labels, *there], [*labels, *ids], strict=True):
            gaps[name] = values == "" if values.dtype.kind == "U" else np.isnan(values)
        for name, gap in gaps.items():
            if gap.any() and self.missing != "drop":
                fill = "fill it in, by --missing mean, median or zero, or " if name in roles.features else ""
                raise DataError(
                    f"{what}: row {gap.argmax() + 1}, column {name!r} is a missing value, of {gap.sum()}; {fill}leave "
                    "these rows out, by --missing drop"
                )
        stay = ~np.any([*gaps.values()], axis=0)
        y = np.stack(labels, axis=1) if labels[1:] else labels[0]
        return Samples(X[stay], y[stay], ids=ids[0][stay] if ids else None)


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

    def files(self, path: Path) -> list[Path]:
        """The files that are read of a path."""
        return [path]

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file or an unsuitable cell, UsageError for a column that is not there."""
        names = [path.name.partition(".")[0] for path in self.path]
        clients = distinct_names(names, listed(self.path, 3)) if names[1:] else []
        stated = Public.read(self.given).columns
        textual = {name for name, column in stated.items() if column.categories}
        parts = {str(path): self.table(path, textual) for path in self.path}
        textual.update(name for table in parts.values() for name in table.column_names if is_text(table[name].type))
        tests = [path for path in (self.test,) if path is not None]
        test = {f"{path}{' as test rows' * (path in self.path)}": self.table(path, textual) for path in tests}
        files = tuple(file for path in (*self.path, *tests) for file in self.files(path))
        return replace(self.samples(parts, test, clients), files=files)


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

        check_file(path)
        limits = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
        with _reading(path):
            file = parquet.ParquetFile(path, memory_map=False, page_checksum_verification=True, **limits)
            table = file.read()
            table.validate(full=True)  # texts may be no UTF-8
        groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
        chunks = [group.column(at) for group in groups for at in range(group.num_columns)]
        unsaid = {chunk.path_in_schema for chunk in chunks if not chunk.has_dictionary_page}
        of_pandas = _metadata(table, b"pandas", "columns")
        categories = {column["field_name"] for column in of_pandas if column["pandas_type"] == "categorical"}
        for at, field in enumerate(table.schema):
            if getattr(field.type, "ordered", False) and field.name in unsaid:
                raise DataError(
                    f"{path}: column {field.name!r} has ordered categories, and the file does not say their order; "
                    "write it with a dictionary, or as texts"
                )
            if field.name in categories and not is_text(field.type):  # numbers, which Parquet stores as such
                table = table.set_column(at, field.name, table[field.name].dictionary_encode())
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

    def table(self, path: Path, texts: Collection[str] = ()) -> pa.Table:
        import pyarrow as pa

        parts = []
        for file in self.files(path):
            check_file(file)
            with _reading(file), pa.OSFile(str(file)) as opened, pa.ipc.open_stream(opened) as reader:
                parts.append(reader.read_all())
                parts[-1].validate(full=True)  # offsets of a damaged file may point anywhere
        with _reading(path):
            return pa.concat_tables(parts)


def read_csv(
    path: Path, texts: Callable[[list[str]], Collection[str]], separator: str = ",", decimal: str = "."
) -> pa.Table:
    """The table of a CSV file, packed or not; columns without names in the first line are called 0, 1, ...

    `texts`: of the names of all columns those that have texts, even where all are numbers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv as arrow_csv

    names, skipped = _first_line(path, separator)
    check_names(str(path), names)
    read = arrow_csv.ReadOptions(
        use_threads=False, block_size=_BLOCK_BYTES, column_names=names, skip_rows_after_names=skipped
    )
    parse = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)

    def table_of(types: Mapping[str, pa.DataType]) -> pa.Table:
        convert = arrow_csv.ConvertOptions(null_values=_NULLS, decimal_point=decimal, column_types=types)
        with open_packed(path) as file:
            try:
                return arrow_csv.read_csv(pa.PythonFile(file, "r"), read, parse, convert)
            except pa.ArrowInvalid as error:
                why = "no rows, or a line of more than 16 MiB" if "straddling" in str(error) else shown(str(error))
                raise DataError(
                    f"{path}: {why}; expected UTF-8 with {separator!r} between cells; correct the file"
                ) from error

    table = table_of(dict.fromkeys(texts(names), pa.large_string()))
    whole = [field.name for field in table.schema if field.type == pa.int64()]
    if negative := [name for name in whole if (pc.min(table[name]).as_py() or 0) < 0]:
        table_of(dict.fromkeys(negative, pa.float64()))  # refuses 0xFFFFFFFFFFFFFFFF, which became -1
    return table


def _first_line(path: Path, separator: str) -> tuple[list[str], int]:
    """(names of the columns of a CSV file; 1 if its first line has them, 0 if it has numbers)."""
    with open_packed(path, "rt") as file:
        try:
            cells: list[str] = next(csv.reader(file, delimiter=separator), [])
        except csv.Error as error:
            raise DataError(
                f"{path}: line 1: {error}; expected numbers or names, with {separator!r} between"
            ) from error
    if len(cells) == 1 and (other := re.search("[,;\t|]", cells[0])):
        raise DataError(
            f"{path}: line 1: {shown(cells[0], 80)!r} has no {separator!r}; give --separator {other[0]!r}, and "
            "--decimal ',' where fractions have that"
        )
    of_numbers = [re.fullmatch(_NUMBER, cell, re.I) is not None for cell in cells]
    positions = list(map(str, range(len(cells))))
    if not any(of_numbers) and cells:
        return [cell.strip() for cell in cells], 1
    if not all(of_numbers) or not cells or (cells == positions and cells[2:]):
        raise DataError(
            f"{path}: line 1: {shown(', '.join(cells), 80)!r}; expected numbers in all columns, or names in all, which "
            "are no numbers, as x0"
        )
    return positions, 0


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
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise DataError(f"{what}: {count} columns are called {name!r:.80}; every column needs a name of its own")


def _labels(
    what: str, name: str, column: pa.ChunkedArray, texts: tuple[str, ...] | None, classes: tuple[str, ...]
) -> Array:
    """[s] labels: texts, or numbers; "" or NaN where there is none. Of given classes, `texts`, their numbers."""
    if texts is None:
        y = numbers(what, name, column)
        if classes and (y >= len(classes)).any():
            raise DataError(f"{what}: label {np.nanmax(y):g}, of {len(classes)} classes named from 0")
        return np.where(y < 0, np.nan, y) if classes else y  # a ClassLabel of a row without a label
    found = words(what, name, column, texts).fill_null("").to_pylist()
    if not texts:
        return np.array(found, str)
    place = {"": np.nan, **{text: at for at, text in enumerate(texts)}}
    if unknown := {*found}.difference(place):
        raise DataError(f"{what}: label {min(unknown)!r} is none of the given classes {listed(texts)}")
    return np.array([place[word] for word in found])


def _whole_labels(labels: Array) -> Array:
    """Several labels of each row as integers, where all are 0 or 1; others as they are."""
    return labels.astype(np.int64) if labels.ndim > 1 and np.isin(labels, (0, 1)).all() else labels


def _holds_texts(name: str, parts: Mapping[str, pa.Table], is_label: bool = False) -> bool:
    """Whether a column holds texts; DataError for one of numbers in one table, and of texts in another."""
    first: dict[bool, str] = {}  # the table that has texts, or numbers
    for what, table in parts.items():
        kind = table[name].type
        if is_label:
            kind = getattr(kind, "value_type", kind)  # of categories
        if str(kind) != "null":
            first.setdefault(is_text(kind), what)
    if len(first) > 1:
        numeric = f"{first[False]} has {parts[first[False]][name].type}"
        remedy = f"correct it, state the categories of [columns.{name}] in a file of --given, or {LEAVE_OUT}"
        raise not_a_number(first[True], name, parts[first[True]][name], f"{numeric}; {remedy}")
    return True in first


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Errors of Arrow become DataError."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise DataError(f"{path}: cannot be read ({shown(str(error))}); get the file again") from error


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
