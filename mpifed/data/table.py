"""Tables of named columns: files and frames become one table of Apache Arrow, and each of its columns gets a role."""

from __future__ import annotations

import csv
import io
import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.io_errors import open_regular
from mpifed.core.record import Array, Flags
from mpifed.data.natural import distinct_names, identifiers, plain
from mpifed.data.places import Places
from mpifed.data.recipe import GAPS, NONE, Cells, Public, RawColumns, Stated, check_feature, column_of, is_text
from mpifed.data.samples import Samples, Source, Task
from mpifed.data.source_files import check_choices, open_packed
from mpifed.files.reading import reading
from mpifed.text import listed, nearest, shown, wrong_line

if TYPE_CHECKING:
    import pyarrow as pa

_NULLS = [form for word in GAPS for form in {word, word.upper(), word.capitalize(), word.title()}] + ["NaN", NONE]
# columns of files that are the index of a frame of pandas or R
_NUMBERS_ROWS = r"__index_level_\d+__|Unnamed: \d+(\.\d+)*|rownames|"
_BLOCK_BYTES = 2**24  # of a CSV file that are parsed at a time; a line must fit
_NUMBER = r"\s*[-+]?(\d+[.,]?\d*|[.,]\d+)(e[-+]?\d+)?\s*"
# a number as people write it, with a unit, or with something between thousands; or a date
_FORMATTED = (
    r"[-+\u2212]?[$€£]?\s?(\d+|\d{1,3}([.,'\u2019_\s]\d{3})+)([.,]\d+)?\s?[%$€£]?|\d{1,4}([./-]\d{1,4}){2}([\WT].*)?"
    r"|\d{1,2}:\d\d.*|\d{4}-(0[1-9]|1[0-2])|(\d{1,2}[\s.-]+)?"
    r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}[\s.,-]+\d{2,4}\b.*"
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
        labels, by, features, left_out = self._roles(first, table)
        for what, each in tables.items():
            there = {*each.column_names}
            check_names(what, each.column_names)
            if differing := {*table.column_names} ^ there if what in parts else {*labels, *features} - there:
                raise DataError(f"{what}: other columns than {first}: {listed(sorted(differing))} differs")
        for name in public.columns:
            if name not in features:
                raise UsageError(f"--given: columns.{name}: no such feature{nearest(name, features)}")
        sizes = {what: len(each) for what, each in tables.items()}
        trained = np.repeat([what in parts for what in sizes], [*sizes.values()])
        texts, values = dict[str, tuple[str, ...] | None](), dict[str, Array]()
        gaps = dict[str, tuple[Cells, Flags]]()
        for name in features:
            stated = public.columns.get(name, Stated())
            column, known = column_of(tables, name, stated.categories or ()), stated.categories
            if known is None and self.categorical and is_text(column.values.type):
                known = ()
            texts[name], values[name] = column.raw(known)
            if known == () and not str(table[name].type).startswith("dictionary"):  # who made categories wants these
                _check_written(column, texts[name] or ())
            if self.missing == "drop" or (self.missing == "error" and stated.fill is None):
                gaps[name] = column, np.isnan(values[name])
        of_labels = [column_of(tables, name, public.classes, of_labels=True) for name in labels]
        y, classes = self._labels(of_labels, public, {_class_names(each, labels[0]) for each in tables.values()})
        for name, column, each in zip(labels, of_labels, y, strict=True):
            gaps[name] = column, each == "" if each.dtype.kind == "U" else np.isnan(each)
        ids = np.repeat([*(clients or [""] * len(parts)), *[""] * len(tests)], [*sizes.values()])
        tested = bool(by) and all(by[0] in each.column_names for each in tests.values())
        for name in by:
            owners = column_of(tables, name)
            ids = identifiers(owners.values.to_pylist(), owners.places.whole(), gaps=True)
            gaps[name] = owners, (ids == "") & (trained | tested)
        for name, (column, gap) in gaps.items():
            if gap.any() and self.missing != "drop":
                place, fill = column.places.at(int(gap.argmax())), "fill it in, by --missing mean, median or zero, or "
                raise DataError(
                    f"{place} is a missing value, of {gap.sum()}; {fill * (name in features)}leave these rows out, by "
                    "--missing drop"
                )
        stay = ~np.any([gap for _, gap in gaps.values()], axis=0)
        for what, rows in zip(tables, np.split(stay, np.cumsum([*sizes.values()])[:-1]), strict=True):
            if not rows.any():
                raise DataError(f"{what}: no rows, or none without gaps; expected a row for each sample")
        for name in features:
            if texts[name] is None:
                what = f"{listed(parts, 3)}: column {name!r}"
                check_feature(what, values[name][stay & trained], name in public.columns)
        X, label = np.stack([*values.values()], axis=1, dtype=np.float32), np.stack(y, axis=1)
        if labels[1:] and np.isin(label[stay], (0, 1)).all():
            label = np.nan_to_num(label).astype(np.int64)
        places = Places(sizes, ", ".join(labels))
        train, test = (
            Samples(
                X[rows], label[rows] if labels[1:] else label[rows, 0], ids=ids[rows] if own else None,
                places=places.of(np.flatnonzero(rows)),
            )
            for rows, own in ((stay & trained, by or clients), (stay & ~trained, tested))
        )  # fmt: skip
        return replace(
            train, test=test if tests else None, names=tuple(features), classes=tuple(classes) or None,
            columns=RawColumns(texts, self.missing, public), left_out=tuple(left_out),
            labels=tuple(labels), task="classification" if classes else self.task,
            numbered=bool(public.classes) and not is_text(of_labels[0].values.type),
        )  # fmt: skip

    def _labels(
        self, columns: list[Cells], public: Public, names: set[tuple[str, ...]]
    ) -> tuple[list[Array], tuple[str, ...]]:
        """([s] numbers, or texts, of each column, NaN or "" for gaps; names of the classes that they number)."""
        column, *others = columns
        if others and (public.classes or any(is_text(each.values.type) for each in columns)):
            raise UsageError(f"--label {self.label}: texts are classes, of one column; several are numbers")
        if is_text(column.values.type) and not public.classes:
            texts = column.values.fill_null("").to_pylist()
            _check_written(column, {*texts} - {""})
            return [np.array(texts, str)], ()
        known, y = column.raw(public.classes or None)
        if strange := (known or ())[len(public.classes) :]:
            place = column.places.at(int((y >= len(public.classes)).argmax()))
            raise DataError(f"{place}: label {strange[0]!r} is none of the given {listed(public.classes)}")
        classes = public.classes or (() if self.task == "regression" or others else max(names))
        if classes:
            y = np.where(y < 0, np.nan, y)  # a ClassLabel of a row without a label
            beyond = y >= len(classes)
            if len(names) > 1 or beyond.any() or len({*classes}) < len(classes):
                place = column.places.at(int(beyond.argmax()))
                raise DataError(
                    f"{place}: other names of classes in another table, or one twice, or more numbers than names; all "
                    f"are {listed(classes)}"
                )
        return [y, *(other.raw(None)[1] for other in others)], classes

    def _roles(self, what: str, table: pa.Table) -> tuple[list[str], list[str], list[str], list[str]]:
        """The columns of labels, the one that says whose rows are, or none, of features, and those that number rows.

        Raises UsageError for one that is not there, or has two roles.
        """
        names, index = table.column_names, _metadata(table, b"pandas", "index_columns")
        stored = [name for name in names if name in index or re.fullmatch(_NUMBERS_ROWS, name)]
        labels, by, ignored = (self._named(what, names, option, stored) for option in ("label", "by", "ignore"))
        if not labels or len(by) > 1:
            raise UsageError(
                f"{f'--by {self.by}: several columns' if labels else '--label is missing'}: {what} has the columns "
                f"{listed(names)}; name one"
            )
        for name, count in Counter([*labels, *by, *ignored]).items():
            if count > 1:
                raise UsageError(f"column {name!r} has two roles of --label, --by and --ignore; give it one")
        features = [name for name in names if name not in (*labels, *by, *ignored, *stored)]
        if not features:
            raise DataError(f"{what}: no column besides the label's; expected at least one feature")
        return labels, by, features, [name for name in stored if name not in (*labels, *by)]

    def _named(self, what: str, names: list[str], option: str, stored: Collection[str] = ()) -> list[str]:
        """The columns of an option: a list of names or, in one text, names or positions, separated by commas.

        Those that number rows, as `stored`, have no position.
        """
        value: Any = getattr(self, option)  # a number from Python
        value = [] if value is None else value if isinstance(value, (str, Iterable)) else [value]
        known = {name: name for name in names}
        if isinstance(value, str):
            places = {str(at): names[at] for at in range(-len(names), len(names)) if names[at] not in stored}
            value, known = [value] if value in names else value.split(","), places | known
        for part in map(str, value):
            if part not in known:
                raise UsageError(
                    f"--{option} {part}: {what} has no such column; expected the names {listed(names)}, or places of "
                    "those that do not number rows, of which the last is -1; a first line of numbers is a row"
                    f"{nearest(part, names)}"
                )
        return [known[str(part)] for part in value]


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
        textual = {name for name, column in Public.read(self.given).columns.items() if column.categories}
        parts = {str(path): self.table(path, textual) for path in self.path}
        textual.update(name for table in parts.values() for name in table.column_names if is_text(table[name].type))
        tests = [self.test] if self.test else []
        test = {f"{path}{' as test rows' * (path in self.path)}": self.table(path, textual) for path in tests}
        return replace(self.samples(parts, test, clients), files=(*self.path, *tests))


@dataclass(frozen=True)
class CsvTable(ColumnSource):
    """CSV files, with names in the first line or without: numbers, and texts as classes, categories or identifiers.

    Packed files, .gz, .bz2 and .xz, are unpacked. Empty cells and NA, N/A, NaN, null, None and ? are missing values.
    """

    separator: str = ","
    """What stands between cells, such as ';'; or tab."""
    decimal: str = "."
    """What stands before the fraction of a number."""

    def table(self, path: Path, texts: Collection[str] = ()) -> pa.Table:
        """The table; columns without names in the first line are called 0, 1, ...

        Columns of numbers of which an integer begins with 0, as 01 or 0x1, are codes, and no numbers: texts. So are
        those with an integer that int64 does not hold, and floats round.
        """
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyarrow import csv as arrow_csv

        separator = "\t" if self.separator == "tab" else self.separator
        if {len(separator), len(self.decimal)} != {1} or separator == self.decimal:
            raise UsageError(f"--separator {separator!r} --decimal {self.decimal!r}: expected two different characters")
        with open_packed(path) as file:
            content = file.read() + b"\n"  # else what Arrow says of a first line alone is of no use
        names, skipped = _first_line(path, content, separator)
        check_names(str(path), names)
        read = arrow_csv.ReadOptions(
            use_threads=False, block_size=_BLOCK_BYTES, column_names=names, skip_rows_after_names=skipped
        )

        def table_of(columns: list[str], of_texts: Iterable[str]) -> pa.Table:
            convert = arrow_csv.ConvertOptions(
                null_values=_NULLS, decimal_point=self.decimal, include_columns=columns,
                column_types=dict.fromkeys(of_texts, pa.large_string()),
            )  # fmt: skip
            with reading(path, f"expected UTF-8 with {separator!r} between cells; correct the file", pa.ArrowInvalid):
                parse = arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True)
                return arrow_csv.read_csv(pa.BufferReader(content), read, parse, convert)

        table = table_of(names, [*self._named(str(path), names, "by"), *texts])
        if b'"' in content and len(table) + skipped < (lines := len(re.findall(rb"(?:\A|[\r\n])[^\r\n]", content))):
            raise DataError(
                f"{path}: {lines} lines, and {len(table) + skipped} rows: a cell begins with a quote, and does not end "
                "with it in its line; double quotes inside of cells, and take ends of lines out of them"
            )
        whole = [field.name for field in table.schema if field.type in (pa.int64(), pa.float64())]
        begins = rf"(^|[\s\"]|{re.escape(separator)})[-+]?(0[\dx]|\d{{19}})"
        if whole and re.search(begins.encode(), content, re.I | re.M):
            written = table_of(whole, whole)
            for name in whole:
                wide = r"|\d{19,}\s*$" * (table.schema.field(name).type == pa.float64())
                if pc.any(pc.match_substring_regex(written[name], rf"^\s*[-+]?(0\d+\s*$|0[xX]{wide})")).as_py():
                    table = table.set_column(names.index(name), name, written[name])
        return table


@dataclass(frozen=True)
class ParquetTable(ColumnSource):
    """Parquet files: columns of numbers, booleans and texts. Nulls and NaN are missing values."""

    def table(self, path: Path, texts: Collection[str] = ()) -> pa.Table:
        import pyarrow as pa
        from pyarrow import parquet

        limits = {"thrift_string_size_limit": 2**24, "thrift_container_size_limit": 2**20}
        damaged = (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError)
        with reading(path, "get the file again", *damaged), open_regular(path) as file:
            table = parquet.read_table(file, page_checksum_verification=True, **limits)
            table.validate(full=True)  # texts may be no UTF-8
        for column in _metadata(table, b"pandas", "columns"):
            name = column["field_name"]
            if column["pandas_type"] == "categorical" and not is_text(table[name].type):  # stored as the numbers
                table = table.set_column(table.column_names.index(name), name, table[name].dictionary_encode())
        return table


def _first_line(path: Path, content: bytes, separator: str) -> tuple[list[str], int]:
    """(names of the columns of a CSV file; 1 if its first line has them, 0 if it is a row: all its cells are numbers).

    Raises DataError for a line of names and numbers, and for three numbers or more that are counted, as years or places
    are, since it can't be said what they are.
    """
    with reading(path, f"save it as UTF-8, with {separator!r} between cells", UnicodeDecodeError, csv.Error):
        text = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
        cells: list[str] = next(csv.reader(text, delimiter=separator), [])
    of_numbers = [re.fullmatch(_NUMBER, cell, re.I) is not None for cell in cells]
    counted = cells[2:] and all(map(str.isdecimal, cells)) and {int(b) - int(a) for a, b in pairwise(cells)} == {1}
    if len(cells) == 1 and (other := re.search("[,;\t|]", cells[0])):
        remedy = f"has no {separator!r}; give --separator {other[0]!r}, and --decimal ',' where fractions have that"
    elif not cells or counted or 0 < sum(of_numbers) < len(cells):
        remedy = "expected numbers of a row in all columns, or names in all, which are no numbers, as x0"
    else:
        return (list(map(str, range(len(cells)))), 0) if of_numbers[0] else ([cell.strip() for cell in cells], 1)
    raise DataError(f"{path}: line 1: {shown(', '.join(cells), 80)!r}; {remedy}")


def as_table(frame: Any, what: str) -> pa.Table:  # whatever holds named columns
    """The table of a frame of pandas, whose index is left out, or of polars, of Arrow, or of `datasets`."""
    try:
        import pyarrow as pa
    except ModuleNotFoundError as error:
        raise UsageError(f"{what}: {error.name} is not installed; pip install 'mpifed[data]'") from error

    damaged = (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError)
    with reading(
        f"{what}: a {type(frame).__name__}", "expected a DataFrame, or another table of named columns", *damaged
    ):
        if hasattr(frame, "with_format"):
            frame = frame.with_format("arrow")[:]
        return pa.Table.from_pandas(frame, preserve_index=False) if hasattr(frame, "iloc") else pa.table(frame)


def check_names(what: str, names: list[str]) -> None:
    """Raise DataError for columns of one name, or without one: the index of a frame may be without, as the first."""
    counts = Counter(map(plain, names))
    for column, name in enumerate(names):
        count = counts[plain(name)]
        why = f"has the name of {count} columns" if count > 1 else wrong_line(name)
        if (column and not name) or why:
            raise DataError(f"{what}: column {column + 1} {name!r:.80} {why or 'has no name'}; give it one of its own")


def _check_written(column: Cells, texts: Collection[str]) -> None:
    """Raise DataError for texts that are numbers as people write them, or dates, all or nearly all; but for codes."""
    numbers = [text for text in texts if re.fullmatch(_FORMATTED, text, re.I)]
    others, digits = len(texts) - len(numbers), [text for text in texts if re.fullmatch(r"[-+]?\d{1,18}", text)]
    codes = len(digits) == len(texts) if not others else any(re.match(r"0\d", text) for text in texts)
    if numbers and not codes and (not others or len(numbers) > max(10, 3 * others)):
        raise column.not_a_number(
            f"{len(numbers)} of {len(texts)} texts are, or nearly: where fractions have a comma, give --decimal ','; "
            "take what is between thousands, and units, out of numbers; empty it if it is a gap; leave dates out; or "
            "state categories, or classes, in a file of --given"
        )


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


def _class_names(table: pa.Table, label: str) -> tuple[str, ...]:
    """The names of a ClassLabel, as `datasets` writes them into the metadata of a table; () where there are none."""
    names = tuple(map(str, _metadata(table, b"huggingface", "info", "features", label, "names")))
    are_numbers = names == tuple(map(str, range(len(names))))
    return () if are_numbers or "int" not in str(table.schema.field(label).type) else names
