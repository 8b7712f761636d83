"""Tables whose columns have names and roles: features, labels, the client."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.core.text import wrong_line
from mpifed.data.encoding import FILLS, RawColumns
from mpifed.data.natural import WHOLE, in_order
from mpifed.data.samples import Samples, Source
from mpifed.data.sources import table as arrow
from mpifed.data.sources.dataset import listed, numbers_rows, shown, typed_labels

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT_GAPS = tuple(gap for gap in arrow.GAPS if gap != "none")  # which may be a category
_AS_CLASSES = "correct it; texts are classes, of one column, by --task classification"
_ID_GAPS = ("", "nan", "<na>", "nat")


@dataclass(frozen=True)
class Roles:
    """The columns of a table by their roles, and what becomes of texts and gaps, as `ColumnSource` says."""

    labels: list[str]
    by: str | None
    features: list[str]
    task: str
    categorical: str | None
    missing: str
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ..., where the table says them

    def __post_init__(self) -> None:
        """UsageError for a column in two roles."""
        label = ",".join(self.labels)
        if len(set(self.labels)) < len(self.labels):
            raise UsageError(f"--label {label}: names a column twice; name each once")
        if len(self.labels) > 1 and self.task == "classification":
            raise UsageError(f"--label {label}: several columns are real targets; give one, or --task regression")
        if self.by in self.labels:
            raise UsageError(f"--by {self.by}: is the label's column; give another")

    def names(self) -> list[str]:
        """All columns that have a role."""
        return [*self.features, *self.labels, *([] if self.by is None else [self.by])]

    def samples(self, whats: list[str], tables: list[pa.Table]) -> Samples:
        """The data of the table of training rows, and of that of test rows where there is one.

        Raises DataError for an unsuitable cell, and UsageError for texts where real targets are expected; both name the
        table by `whats`.
        """
        import pyarrow as pa

        if not self.features:
            raise DataError(f"{whats[0]}: no column besides the label's; expected at least one feature")
        types = dict(zip(tables[0].column_names, tables[0].schema.types, strict=True))
        of_labels = {name: getattr(types[name], "value_type", types[name]) for name in self.labels}  # not of categories
        texts = {name for name in self.features if arrow.is_text(types[name])}
        texts |= {name for name in self.labels if arrow.is_text(of_labels[name])}
        parts = [self._checked(what, table, texts) for what, table in zip(whats, tables, strict=True)]
        rows, count = pa.concat_tables(parts, promote_options="default"), len(parts[0])
        X, categories = np.empty((len(rows), len(self.features)), np.float32), {}
        for at, name in enumerate(self.features):
            if name in texts:
                X[:, at], categories[at] = arrow.numbered(rows[name], in_order)
                continue
            values = arrow.in_numpy(rows[name])
            X[:, at] = values
            if (X[:, at] == X[0, at]).all() and (values != values[0]).any():
                raise DataError(
                    f"{whats[0]}: column {name!r}: {values[0]:.17g} and all others are one number in float32; subtract "
                    "an offset, or leave it out: dates and identifiers are no features"
                )
        labels, classes = self._labels(whats, rows, count, texts)
        ids: list[Array | None] = [None, None]
        names: tuple[str, ...] = ()
        if self.by is not None:
            owner, names = arrow.numbered(rows[self.by].fill_null(""), in_order)
            if wrong := [name for name in names if not name.isprintable() and wrong_line(name)]:
                raise DataError(f"{whats[0]}: identifier {shown(wrong[0])} has a control character; rename it")
            tested = len(tables) > 1 and self.by in tables[1].column_names
            ids = [owner[:count].astype(np.int64), owner[count:].astype(np.int64) if tested else None]
        columns = RawColumns(categories, self.categorical, self.missing)
        return Samples(
            X[:count], labels[:count], Samples(X[count:], labels[count:], ids=ids[1]) if len(tables) > 1 else None,
            ids=ids[0], owners=names if ids[0] is not None else (),
            names=tuple(self.features), classes=classes or None,
            columns=columns if categories or self.missing in FILLS else None,
        )  # fmt: skip

    def _checked(self, what: str, table: pa.Table, known: set[str]) -> pa.Table:
        """The columns that have a role: numbers, or texts where they are `known`; without gaps that are not filled."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = {}
        for name in self.names():
            if name not in table.column_names:
                continue  # the client of test rows
            is_text = name in known or name == self.by
            columns[name] = (arrow.texts if is_text else arrow.numbers)(what, name, table[name])
            is_feature = name in self.features
            if name in known and is_feature and self.categorical is None:
                raise arrow.not_a_number(what, name, columns[name])
            if name in known and not is_feature and (len(self.labels) > 1 or self.task == "regression"):
                raise arrow.not_a_number(what, name, columns[name], _AS_CLASSES)
            filled = self.missing == "drop" or (is_feature and self.missing in FILLS)
            if columns[name].null_count and not filled:
                row = pc.index(columns[name].is_null(), True).as_py() + 1
                fill = "fill it in, by --missing mean, median or zero, or " * is_feature
                raise DataError(
                    f"{what}: row {row}, column {name!r} is a missing value; {fill}leave the row out, by --missing drop"
                )
        rows = pa.table(columns)
        rows = rows.drop_null() if self.missing == "drop" else rows
        if not len(rows):
            raise DataError(f"{what}: no rows{' without gaps' if len(table) else ''}; expected a row for each sample")
        return rows

    def _labels(
        self, whats: list[str], rows: pa.Table, count: int, texts: set[str]
    ) -> tuple[Array, tuple[str, ...] | None]:
        """([s] labels, or [s, t] of several columns; names of the classes where they have any)."""
        if self.labels[0] in texts:
            codes, names = arrow.numbered(rows[self.labels[0]], sorted)
            return codes.astype(np.int64), names
        if len(self.labels) > 1:
            return np.stack([arrow.in_numpy(rows[name]) for name in self.labels], axis=1), None
        labels = arrow.in_numpy(rows[self.labels[0]])
        if self.classes:
            if not labels.max() < len(self.classes):
                raise DataError(f"{whats[0]}: label {labels.max():g}, of {len(self.classes)} classes named from 0")
            return labels.astype(np.int64), self.classes
        trained = typed_labels(Path(whats[0]), labels[:count], self.task)
        task = "classification" if trained.dtype == np.int64 else "regression"
        tested = [typed_labels(Path(what), labels[count:], task) for what in whats[1:]]
        return np.concatenate([trained, *tested]), None


@dataclass(frozen=True)
class ColumnSource(Source):
    """The options of tables."""

    path: Path
    """The file of training rows."""
    test: Path | None = None
    """File of test rows."""
    label: str = "-1"
    """Name or position of the label's column; -1 is the last. Several, separated by commas, are real targets."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers or texts, else real targets."""
    by: str | None = None
    """Name or position of the column that says whose each row is: natural clients. It is no feature."""
    ignore: str | None = None
    """Names or positions of columns that are left out, separated by commas, such as numbers of rows."""
    categorical: Literal["one-hot", "ordinal"] | None = None
    """What columns of texts become, by the sorted texts of the training rows; by default they are refused."""
    missing: str = "error"  # what becomes of gaps, see `mpifed.data.encoding`

    @abstractmethod
    def table(self, path: Path) -> pa.Table:
        """The whole table of a file."""

    def files(self, path: Path) -> list[Path]:
        """The files that are read of a path."""
        return [path]

    def typed(self, what: Path, table: pa.Table, roles: Roles, first: pa.Table | None) -> pa.Table:
        """The table with numbers and texts; `first` is that of the training rows, where this is of the test rows."""
        return table

    def read(self, seed: int) -> Samples:
        """The data; DataError for a damaged file or an unsuitable cell, UsageError for a column that is not there."""
        table = self.table(self.path)
        roles, left_out = self._roles(table)
        paths, tables = [self.path], [self.typed(self.path, table.select(roles.names()), roles, None)]
        if self.test is not None:
            test = self.table(self.test)
            if differing := {*test.column_names} ^ {*table.column_names}:
                raise DataError(f"{self.test}: other columns than {self.path}: {listed(sorted(differing))} differs")
            if _class_names(self.test, test, roles.labels) != _class_names(self.path, table, roles.labels):
                raise DataError(f"{self.test}: other names of classes than {self.path}; both need the same numbering")
            tables.append(self.typed(self.test, test.select(roles.names()), roles, tables[0]))
            paths.append(self.test)
        files = tuple(file for path in paths for file in self.files(path))
        return replace(roles.samples(list(map(str, paths)), tables), files=files, left_out=left_out)

    def _roles(self, table: pa.Table) -> tuple[Roles, tuple[str, ...]]:
        """(the columns by their roles, those that number rows); UsageError for one that is not there."""
        names = table.column_names
        labels, ignored = self._named(names, "label", self.label), self._named(names, "ignore", self.ignore)
        by = self._named(names, "by", self.by)
        if {*by, *labels}.intersection(ignored):
            raise UsageError(f"--ignore {self.ignore}: has the column of --label or --by; leave out others alone")
        if len(by) > 1:
            raise UsageError(f"--by {self.by}: several columns; give one that says whose each row is")
        chosen, stored = (*self.label.split(","), self.by), _index(table)
        left_out = [name for name in names if (numbers_rows(name) or name in stored) and name not in chosen]
        for option, given, places in (("label", self.label, labels), ("by", self.by, by)):
            if there := [shown(name) for name in left_out if name in places]:
                raise UsageError(
                    f"--{option} {given}: {self.path} has {listed(there)} there, which numbers rows; name it"
                )
        features = [name for name in names if name not in (*by, *labels, *ignored, *left_out)]
        classes = () if self.task == "regression" else _class_names(self.path, table, labels)
        owner = by[0] if by else None
        return Roles(labels, owner, features, self.task, self.categorical, self.missing, classes), tuple(left_out)

    def _named(self, names: list[str], option: str, text: str | None) -> list[str]:
        """The columns of an option, by their names or positions, separated by commas."""
        parts = [] if text is None else [text] if text in names else text.split(",")
        try:
            return [part if part in names else names[int(part)] for part in parts]
        except (ValueError, IndexError) as error:
            raise UsageError(
                f"--{option} {text}: {self.path} has no such column; expected the names {listed(names)} or a number "
                f"from {-len(names)} to {len(names) - 1}"
            ) from error


@dataclass(frozen=True)
class CsvTable(ColumnSource):
    """A CSV file, with names in its first line or without: numbers, and texts as classes, categories or identifiers.

    Packed files, .gz, .bz2 and .xz, are unpacked. Empty cells and NA, N/A, NaN, null and ? are missing values.
    """

    def table(self, path: Path) -> pa.Table:
        return arrow.read_csv(path)

    def read(self, seed: int) -> Samples:
        data = super().read(seed)
        return data if arrow.first_line(self.path)[0] else replace(data, names=None)

    def typed(self, what: Path, table: pa.Table, roles: Roles, first: pa.Table | None) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        typed = {}
        for name in table.column_names:
            if name == roles.by:
                ids = arrow.with_gaps(table[name], _ID_GAPS)
                typed[name] = pc.replace_substring_regex(ids, WHOLE, r"\1")
                continue
            are_texts = first is not None and arrow.is_text(first.schema.field(name).type)
            numbers = None if are_texts else arrow.parsed(table[name])
            typed[name] = arrow.with_gaps(table[name], _TEXT_GAPS) if numbers is None else numbers
            if numbers is None and first is None and name in roles.labels and self.task == "auto":
                cells = typed[name].unique().drop_null().to_pylist()
                if any(arrow.number_in(cell) is not None for cell in cells):
                    raise arrow.not_a_number(str(what), name, typed[name], _AS_CLASSES)
        return pa.table(typed)


@dataclass(frozen=True)
class ParquetTable(ColumnSource):
    """A Parquet file: columns of numbers, booleans and texts. Nulls and NaN are missing values."""

    def table(self, path: Path) -> pa.Table:
        return arrow.read_parquet(path)

    def typed(self, what: Path, table: pa.Table, roles: Roles, first: pa.Table | None) -> pa.Table:
        import pyarrow.compute as pc

        if not roles.classes:
            return table
        (label,) = roles.labels  # a ClassLabel below 0 is of a row without a label
        at, numbers = table.column_names.index(label), table[label]
        return table.set_column(at, label, pc.if_else(pc.less(numbers, 0), None, numbers))


@dataclass(frozen=True)
class ArrowFolder(ParquetTable):
    """A folder that `datasets.save_to_disk` wrote, of a Dataset, or of a DatasetDict with `train` and `test`."""

    def read(self, seed: int) -> Samples:
        if (self.path / "dataset_dict.json").is_file():
            test = self.test or (self.path / "test" if (self.path / "test").is_dir() else None)
            return replace(self, path=self.path / "train", test=test).read(seed)
        return super().read(seed)

    def files(self, path: Path) -> list[Path]:
        return arrow.arrow_files(path)

    def table(self, path: Path) -> pa.Table:
        return arrow.read_arrow(path)


def _index(table: pa.Table) -> list[str]:
    """Names of the columns that a frame had as its index."""
    try:
        return list(map(str, table.schema.pandas_metadata["index_columns"]))
    except (KeyError, TypeError, ValueError, RecursionError):  # not written by pandas
        return []


def _class_names(path: Path, table: pa.Table, labels: list[str]) -> tuple[str, ...]:
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
        raise DataError(f"{path}: its ClassLabel names a class twice, of {listed(map(shown, names))}")
    return tuple(names)
