"""Tables whose columns have names and roles: features, labels, the client. Read in batches, stored on the disk."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array
from mpifed.data.encoding import FILLS, RawColumns
from mpifed.data.natural import canonical_order, in_order, natural_clients
from mpifed.data.sources.dataset import Dataset, Source, listed, numbers_rows, shown, typed_labels
from mpifed.data.sources.spool import Spool
from mpifed.data.sources.table import position, positions
from mpifed.data.sources.texts import Owners, Texts, identifiers, in_numpy, ranks_of

if TYPE_CHECKING:
    import pyarrow as pa

LARGEST = float(np.finfo(np.float32).max)


class TableLayout(NamedTuple):
    """The columns of a table, by position."""

    names: list[str] | None  # of all columns
    width: int  # how many they are
    labels: list[int]
    by: int | None
    features: list[int]
    left_out: tuple[str, ...] = ()  # that number rows

    def feature_names(self) -> tuple[str, ...] | None:
        return tuple(self.names[at] for at in self.features) if self.names else None

    def used(self) -> list[int]:
        """The columns that have a role."""
        return [*self.features, *self.labels, *([] if self.by is None else [self.by])]


class TextsMet(Exception):
    """A column that was taken for numbers holds texts."""


@dataclass
class RowsRead:
    """What was read of a file."""

    spool: Spool
    owners: Owners
    labels: list[Array] = field(default_factory=list)  # [b] or [b, t] float64, or [b] codes


class KnownTexts(NamedTuple):
    """Texts of the columns that have them."""

    features: dict[int, Texts]  # by position among the features
    label: Texts | None
    by: Texts


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
    def names(self, path: Path) -> tuple[list[str] | None, int]:
        """(names of the columns, number of columns) of a file."""

    def files(self, path: Path) -> list[Path]:
        """The files that are read of a path."""
        return [path]

    @abstractmethod
    def texts(self, path: Path, layout: TableLayout) -> set[int] | None:
        """Positions of the columns that hold texts; None where only a whole reading can say."""

    def all_texts(self, path: Path, layout: TableLayout) -> set[int]:
        """The same by a whole reading, where `batches` has raised TextsMet."""
        return self.texts(path, layout) or set()

    def index(self, path: Path) -> list[str]:
        """Names of the columns that a frame had as its index."""
        return []

    def class_names(self, path: Path, layout: TableLayout) -> tuple[str, ...]:
        """Names of the classes 0, 1, ... where the file says them beside labels that are integers; else ()."""
        return ()

    @abstractmethod
    def batches(self, path: Path, layout: TableLayout, texts: set[int] | None) -> Iterator[list[pa.Array]]:
        """The columns of batches of rows: texts in those in `texts` and the client's, else float64; null for gaps.

        Raises DataError for a cell that is no number, TextsMet where `texts` is None and the cell might be a text.
        """

    @abstractmethod
    def refuse(self, path: Path, layout: TableLayout, row: int, at: int, why: str) -> DataError:
        """The error for a cell: column `at` of row `row`, counted from 0."""

    def read(self, seed: int) -> Dataset:
        """The data; DataError for a damaged file or an unsuitable cell, UsageError for a column that is not there."""
        names, width = self.names(self.path)
        layout = self._layout(self.path, names, width)
        texts, test = self.texts(self.path, layout), None
        try:
            known = self._known(layout, texts)
            rows = self._load(self.path, layout, texts, known)
        except TextsMet:
            texts = self.all_texts(self.path, layout)
            known = self._known(layout, texts)
            rows = self._load(self.path, layout, texts, known)
        if self.test is not None:
            test_names, test_width = self.names(self.test)
            if test_names != names or test_width != width:
                differing = listed(sorted(set(names or ()) ^ set(test_names or ()))) or "their order"
                raise DataError(
                    f"{self.test}: other columns than {self.path} ({differing}); both need the same, in the same order"
                )
            if self.class_names(self.test, layout) != self.class_names(self.path, layout):
                raise DataError(f"{self.test}: other names of classes than {self.path}; both need the same numbering")
            test = self._load(self.test, layout, texts, known)
        return self._dataset(layout, known, rows, test)

    def _layout(self, path: Path, names: list[str] | None, width: int) -> TableLayout:
        """The columns by their roles; UsageError for one that is not there, or in two roles."""
        labels = positions(path, names, width, "label", self.label)
        if len(set(labels)) < len(labels):
            raise UsageError(f"--label {self.label}: names a column twice; name each once")
        if len(labels) > 1 and self.task == "classification":
            raise UsageError(f"--label {self.label}: several columns are real targets; give one, or --task regression")
        by = None if self.by is None else position(path, names, width, "by", self.by)
        if by in labels:
            raise UsageError(f"--by {self.by}: is the label's column, by --label {self.label}; give another")
        ignored = [] if self.ignore is None else positions(path, names, width, "ignore", self.ignore)
        if {by, *labels}.intersection(ignored):
            raise UsageError(f"--ignore {self.ignore}: has the column of --label or --by; leave out others alone")
        stored = self.index(path)
        numbers = {
            name: at
            for at, name in enumerate(names or ())
            if (numbers_rows(name) or name in stored) and name not in (*self.label.split(","), self.by)
        }
        for option, given, places in (("label", self.label, labels), ("by", self.by, [by])):
            if there := [shown(name) for name, at in numbers.items() if at in places]:
                raise UsageError(f"--{option} {given}: {path} has {listed(there)} there, which numbers rows; name it")
        features = [at for at in range(width) if at not in (by, *labels, *ignored, *numbers.values())]
        if not features:
            raise DataError(f"{path}: no column besides the label's; expected at least one feature")
        return TableLayout(names, width, labels, by, features, tuple(numbers))

    def _known(self, layout: TableLayout, texts: set[int] | None) -> KnownTexts:
        """Texts to come; DataError or UsageError where there may be none."""
        texts = texts or set()
        strange = sorted(texts & set(layout.features)) if self.categorical is None else []
        if strange:
            columns = listed(layout.names[at] if layout.names else at for at in strange)
            raise DataError(
                f"{self.path}: texts in column {columns}, not numbers; encode categories as numbers, by --categorical "
                "one-hot or --categorical ordinal, or leave columns out, by --ignore NAMES"
            )
        if texts & set(layout.labels) and (len(layout.labels) > 1 or self.task == "regression"):
            raise UsageError(f"--label {self.label}: texts are classes, not real targets; --task classification")
        features = {place: Texts() for place, at in enumerate(layout.features) if at in texts}
        return KnownTexts(features, Texts() if layout.labels[0] in texts else None, Texts())

    def _load(self, path: Path, layout: TableLayout, texts: set[int] | None, known: KnownTexts) -> RowsRead:
        """The rows of a file: features as numbers and codes of texts, NaN for gaps."""
        import pyarrow.compute as pc

        rows, done = RowsRead(Spool(len(layout.features), np.float32), Owners(known.by)), 0
        for batch in self.batches(path, layout, texts):
            used = layout.used()
            absent = {at: batch[at].is_null().to_numpy(zero_copy_only=False) for at in used if batch[at].null_count}
            size, keep = len(batch[used[0]]), None
            if absent and self.missing == "drop":
                keep = ~np.logical_or.reduce(list(absent.values()))
                batch = [pc.filter(column, keep) for column in batch]
            for at in absent if keep is None else []:
                if at not in layout.features or self.missing not in FILLS:
                    raise self.refuse(path, layout, done + int(np.argmax(absent[at])), at, "is a missing value")
            X = np.empty((len(batch[used[0]]), len(layout.features)), np.float32)
            for place, at in enumerate(layout.features):
                if place in known.features:
                    codes = known.features[place].codes(batch[at]).astype(np.float32)
                    X[:, place] = np.where(codes < 0, np.nan, codes)
                else:
                    X[:, place] = self._numbers(path, layout, batch[at], done, at, keep)
            rows.spool.append(X)
            if known.label is not None:
                rows.labels.append(known.label.codes(batch[layout.labels[0]]))
            else:
                columns = [self._numbers(path, layout, batch[at], done, at, keep) for at in layout.labels]
                rows.labels.append(columns[0] if len(columns) == 1 else np.stack(columns, axis=1))
            if layout.by is not None:
                rows.owners.append(batch[layout.by])
            done += size
        if not rows.spool.rows:
            raise DataError(f"{path}: no rows{' without gaps' if done else ''}; expected a row for each sample")
        return rows

    def _numbers(
        self, path: Path, layout: TableLayout, column: pa.Array, done: int, at: int, keep: Array | None
    ) -> Array:
        """[b] float64 of a column, NaN for gaps; DataError where a number is not finite in float32."""
        values = in_numpy(column)
        wrong = ~(np.abs(values) <= LARGEST) & ~np.isnan(values)
        if wrong.any():
            row = int(np.argmax(wrong)) if keep is None else int(np.flatnonzero(keep)[np.argmax(wrong)])
            raise self.refuse(path, layout, done + row, at, "is not a finite number")
        return values

    def _dataset(self, layout: TableLayout, known: KnownTexts, rows: RowsRead, test: RowsRead | None) -> Dataset:
        ranks = {place: ranks_of(texts, in_order) for place, texts in known.features.items()}

        def chunks(of: Spool, order: Array | None) -> Iterator[Array]:
            for X in of.chunks(order):
                for place, (rank, _) in ranks.items():
                    gaps = np.isnan(X[:, place])
                    X[:, place] = np.where(gaps, np.nan, rank[np.where(gaps, 0, X[:, place]).astype(np.int64)])
                yield X

        labels, test_labels, classes = self._labels(layout, known, rows, test)
        natural, order, test_order = None, None, None
        if layout.by is not None:
            owners, test_owners = rows.owners.all_codes(), None if test is None else test.owners.all_codes()
            natural = natural_clients(identifiers(self.path, known.by), owners, test_owners)
            order = canonical_order(natural.owner, labels, chunks(rows.spool, None))
            natural, labels = natural._replace(owner=natural.owner[order]), labels[order]
            if test is not None and test_labels is not None and natural.test_owner is not None:
                test_order = canonical_order(natural.test_owner, test_labels, chunks(test.spool, None))
                natural = natural._replace(test_owner=natural.test_owner[test_order])
                test_labels = test_labels[test_order]
        categories = {place: texts for place, (_, texts) in ranks.items()}
        gappy = self.missing in FILLS
        return Dataset(
            len(layout.features), np.float32, labels, lambda: chunks(rows.spool, order),
            None if test is None or test_labels is None
            else (np.concatenate(list(chunks(test.spool, test_order))), test_labels),
            names=layout.feature_names(), natural=natural, classes=classes,
            files=tuple(file for path in (self.path, self.test) if path for file in self.files(path)),
            left_out=layout.left_out,
            columns=RawColumns(categories, self.categorical, self.missing) if categories or gappy else None,
        )  # fmt: skip

    def _labels(
        self, layout: TableLayout, known: KnownTexts, rows: RowsRead, test: RowsRead | None
    ) -> tuple[Array, Array | None, tuple[str, ...] | None]:
        """(labels, test labels, names of the classes where they have any)."""
        labels, test_labels = np.concatenate(rows.labels), None if test is None else np.concatenate(test.labels)
        if known.label is not None:
            rank, names = ranks_of(known.label, sorted)
            return rank[labels], None if test_labels is None else rank[test_labels], names
        if labels.ndim > 1:
            return labels, test_labels, None
        if classes := self.class_names(self.path, layout):
            for path, numbers in ((self.path, labels), (self.test, test_labels)):
                if numbers is not None and not numbers.max() < len(classes):
                    raise DataError(f"{path}: label {numbers.max():g}, of {len(classes)} classes that it names from 0")
            return labels.astype(np.int64), None if test_labels is None else test_labels.astype(np.int64), classes
        labels = typed_labels(self.path, labels, self.task)
        task = "classification" if labels.dtype == np.int64 else "regression"
        if test_labels is not None and self.test is not None:
            test_labels = typed_labels(self.test, test_labels, task)
        return labels, test_labels, None
