"""Rows and labels of a source, as arrays that are sliced: in memory, mapped from a file, or sparse."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array, Flags
from mpifed.data.block import Piece
from mpifed.data.natural import EXACT, identifiers, owners_of, plain
from mpifed.data.partition import Partition, training_rows
from mpifed.data.places import Places
from mpifed.data.recipe import RawColumns, check_feature
from mpifed.files.reading import reading
from mpifed.text import shown, wrong_line

Values: TypeAlias = Any  # whatever NumPy makes an array of, and SciPy's sparse matrices and arrays

Task: TypeAlias = Literal["auto", "classification", "regression", "multilabel"]  # what labels are
CHUNK_VALUES = 1 << 22  # dense values that are worked on at a time: 32 MiB of float64
_NO_LABEL = ("", "nan", "<NA>", "NaT")
_EXACT = 2**24  # up to which float32 holds every integer


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows and labels of a source.

    As a source gives them, arrays may be of any kind of number; `stored_samples` makes of them what is in brackets.
    """

    X: Values  # [s, ...] (uint8 or float32 [s, p], or CSR): rows, in memory or np.memmap
    y: Values  # [s] integers or texts of classes (int64), real targets [s] or [s, t] (float64); [s, t] labels 0 or 1
    test: Samples | None = None  # common test rows; where `ids` says whose they are, its own test rows as well
    ids: Values = None  # [s] whose each row is, integers or texts (positions in `owners`)
    owners: tuple[str, ...] = ()  # who there is besides, without rows (all, in order)
    names: tuple[str, ...] | None = None  # [p] of the features
    shape: tuple[int, ...] | None = None  # of a sample, such as (channels, height, width); None: that of X
    top: float | None = None  # the largest possible value, by which `--scale unit` divides
    classes: tuple[str, ...] | None = None  # names of the labels 0, 1, ..., of texts, or of several of each row
    own_tests: Flags | None = None  # [s] True for rows with which the client that holds them tests
    partition: Partition | None = None  # of rows and columns among clients, if the source determines it
    columns: RawColumns | None = None  # how rows are to be encoded, where they hold codes of texts, or gaps
    files: tuple[Path, ...] = ()  # from which the data were read
    left_out: tuple[str, ...] = ()  # columns that number rows, such as the index of a frame
    labels: tuple[str, ...] = ()  # names of the columns of labels, where these have some
    places: Places = field(default_factory=lambda: Places({}))  # where labels stand, for messages
    numbered: bool = False  # whether `classes` are stated of labels that are no texts
    task: str | None = None  # what numbers of a file are as labels, see `labels_of`; None: integers are classes

    @property
    def features(self) -> int:
        """p."""
        return int(self.X.shape[1])

    @property
    def sparse(self) -> bool:
        """Whether rows are CSR."""
        return not isinstance(self.X, np.ndarray)

    def rows(self, at: Array) -> Samples:
        """The training rows `at` alone, ascending positions; or all of them in this order, without a `partition`."""
        partition = self.partition
        if partition is not None:
            partition = training_rows(partition, np.isin(np.arange(len(self.y)), at))
        return replace(
            self, X=self.X[at], y=self.y[at], ids=None if self.ids is None else self.ids[at],
            own_tests=None if self.own_tests is None else self.own_tests[at], partition=partition,
            places=self.places.of(at),
        )  # fmt: skip


class Source(ABC):
    """A source of data: a frozen dataclass whose fields are options of `mpifed data`.

    Name your own source as my_module:MyClass. The docstring below a field is the help of its option; the field `path`
    is the argument after the name.

    Attributes
    ----------
    published : whether everybody knows which classes there are, whatever the rows
    computed : what `read` computes from rows
    """

    published: ClassVar[bool] = False
    computed: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def read(self, seed: int) -> Samples:
        """Read or generate the data; `seed` is for random data and subsets."""

    @property
    def names_clients(self) -> bool:
        """Whether `read` will say who holds what (`Samples.ids`, `partition`): no number of clients is needed."""
        return getattr(self, "by", None) is not None


def pieces(X: Piece) -> Iterator[tuple[int, Piece]]:
    """(number of the first row, rows) of X [s, p], a few dense ones at a time; sparse ones at once."""
    if not isinstance(X, np.ndarray):
        yield 0, X
        return
    size = max(1, CHUNK_VALUES // X.shape[1])
    yield from ((start, X[start : start + size]) for start in range(0, len(X), size))


def stack_rows(parts: Sequence[Piece]) -> Piece:
    """The rows of all parts [s_i, p], one part after the other."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from scipy.sparse import vstack  # slow to import

    return vstack(parts, "csr")


def stored_samples(name: str, data: object) -> Samples:
    """The data as they are stored: see `Samples`.

    Raises DataError, which names the first file or the source, where arrays do not fit each other, or hold what is no
    number, a gap, or different integers that are one in float32.
    """
    if not isinstance(data, Samples):
        raise DataError(f"{name}: read() returned {type(data).__name__}; expected mpifed.data.samples.Samples")
    what = str(data.files[0]) if data.files else name
    stored = stored_rows(what, data, data, data.task)
    (samples, features), own, owners = stored.X.shape, data.own_tests, data.owners
    if stored.shape is not None and math.prod(stored.shape) != features:
        raise DataError(f"{what}: shape {stored.shape} for {features} features; their product must be that number")
    if data.names is not None and len({*data.names}) != features:
        raise DataError(f"{what}: {len({*data.names})} different names for {features} features; give each its own")
    if own is not None and (np.shape(own) != (samples,) or np.asarray(own).dtype != np.bool_):
        raise DataError(f"{what}: own_tests is {_kind(own)}; expected bool ({samples},), as the labels")
    parts = [stored]
    if data.test is not None:
        of_test = f"{data.files[-1] if data.files else name}: test"
        parts.append(as_trained(of_test, stored, stored_rows(of_test, data.test, data, data.task and "any")))
    classes, kind = data.classes, stored.y.dtype.kind
    if kind == "U":
        texts, codes = np.unique(np.concatenate([part.y for part in parts]), return_inverse=True)
        parts = [replace(part, y=y) for part, y in zip(parts, np.split(codes, [samples]), strict=False)]
        classes = tuple(texts.tolist())
    elif kind == "f":
        classes = None
    elif stored.y.ndim > 1:
        classes = classes or data.labels or None
    if stored.ids is not None:
        owners, ids = owners_of([part.ids for part in parts], owners)
        parts = [replace(part, ids=each) for part, each in zip(parts, ids, strict=True)]
    rows, *tests = parts
    top = 255.0 if data.top is None and rows.X.dtype == np.uint8 else data.top
    return replace(rows, test=tests[0] if tests else None, owners=owners, classes=classes, top=top)


def stored_rows(what: str, part: Samples, data: Samples, task: str | None = None) -> Samples:
    """The training or test rows of `data` as they are stored, but for texts; `task` is that of `labels_of`."""
    X, shape = rows_of(part.X, f"{what}: X", data.columns is not None)
    places, ids = part.places if part.places.sizes else Places({f"{what}: y": 0}), part.ids
    y = labels_of(part.y, places, task)
    if len(y) != X.shape[0]:
        raise DataError(f"{what}: {X.shape[0]} rows and {len(y)} labels; expected a label for each row")
    if ids is not None:
        if np.shape(ids) != (len(y),):
            raise DataError(f"{what}: ids of shape {np.shape(ids)}; expected one for each of {len(y)} rows")
        ids = identifiers(array(ids, f"{what}: ids"), f"{what}: ids")
    check_layout(what, shape, part.shape)
    return replace(part, X=X, y=y, ids=ids, shape=tuple(part.shape) if part.shape else shape, places=places)


def check_layout(what: str, given: Sequence[int] | None, expected: Sequence[int] | None) -> None:
    """DataError unless the shape of a sample is the expected one, up to axes of length 1; None: any."""
    if given and expected and [size for size in given if size > 1] != [size for size in expected if size > 1]:
        raise DataError(f"{what}: samples of shape {tuple(given)}; expected {tuple(expected)}: transpose, or reshape")


def as_trained(what: str, rows: Samples, test: Samples) -> Samples:
    """Test rows, dense or sparse as the training rows; DataError where they are of another layout, scale or kind."""
    for given, expected in ((test.shape, rows.shape or rows.X.shape[1:]), (test.X.shape[1:], rows.X.shape[1:])):
        check_layout(what, given, expected)
    if rows.X.dtype != test.X.dtype:
        kinds = f"{test.X.dtype}, those to train on {rows.X.dtype}"
        raise DataError(f"{what}: samples are {kinds}: bytes are divided by 255, others are not; give both alike")
    y = labels_of(in_kind(test.y, rows.y.dtype.kind), test.places)
    if (rows.y.dtype.kind, rows.y.shape[1:]) != (y.dtype.kind, y.shape[1:]):
        such = f", such as {y[y % 1 > 0][0]:g}" if rows.y.dtype.kind == "i" and y.dtype.kind == "f" else ""
        raise DataError(f"{what}: labels are {_kind(y)}{such}, those to train on {_kind(rows.y)}; give both alike")
    X = test.X
    if rows.sparse != test.sparse:
        X = type(rows.X)(X) if rows.sparse else X.toarray()
    return replace(test, X=X, y=y)


def in_kind(y: Array, kind: str) -> Array:
    """Labels as integers or floats, "i" or "f", where nothing is lost; else as they are."""
    if kind == "f" and y.dtype.kind == "i":
        return y.astype(np.float64)
    return y.astype(np.int64) if kind == "i" and y.dtype.kind == "f" and not (y % 1).any() else y


def rows_of(X: Values, what: str, gaps: bool = False) -> tuple[Piece, tuple[int, ...] | None]:
    """(rows [s, p], uint8 or float32, or CSR of float32; shape of a sample where it is no vector).

    Raises DataError for what is no number [s, ...], masked, not finite (NaN is allowed with `gaps`), or a column of
    different numbers that are one in float32.
    """
    if hasattr(X, "tocsr"):
        from scipy.sparse import csr_matrix  # of SciPy's sparse arrays too, which lack what matrices have

        if X.dtype.kind not in "biuf" or X.ndim != 2:
            raise DataError(f"{what}: a sparse array of {_kind(X)}; expected numbers [samples, features]")
        # in a wide type: several values in a cell count as their sum, which SciPy takes in that of the array
        fits = X.dtype.kind in "iu" and np.abs(X.data.astype(np.float64)).sum() < 2.0**63
        wide = X.dtype if X.dtype.kind == "b" else np.result_type(X.dtype, np.int64 if fits else np.float64)
        X = csr_matrix(X.astype(wide, copy=True))
        if not X.has_canonical_format:
            X.has_sorted_indices = False  # rows in order are sorted too: no bit of a row depends on the others
            X.sum_duplicates()
        for column in np.unique(X.indices[np.abs(X.data) > _EXACT]).tolist():
            check_feature(f"{what}[:, {column}]", X.data[X.indices == column], stated=True)
        return csr_matrix((_as_float(X.data, what, gaps, X), X.indices, X.indptr), shape=X.shape), None
    values = array(X, what)
    if values.ndim < 2 or not values.size or values.dtype.kind not in "biuf":
        alone = "; one sample x is x[None]" if values.ndim == 1 and values.dtype.kind in "biuf" else ""
        raise DataError(f"{what}: an array of {values.dtype} {values.shape}; expected numbers [samples, ...]{alone}")
    shape = values.shape[1:] if values.ndim > 2 else None
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values.reshape(len(values), -1)), shape
    rows = _as_float(values, what, gaps).reshape(len(values), -1)
    if values.dtype != rows.dtype:
        values = values.reshape(rows.shape)
        low, high = rows.min(axis=0), rows.max(axis=0)
        alike = (low == high) & (values.min(axis=0) != values.max(axis=0))
        for column in np.flatnonzero(alike | (np.maximum(high, -low) > _EXACT)).tolist():
            at = ", ".join(map(str, np.unravel_index(column, shape or rows.shape[1:])))
            check_feature(f"{what}[:, {at}]", values[:, column], stated=True)
    return np.ascontiguousarray(rows), shape


def _as_float(values: Array, what: str, gaps: bool, sparse: Any = None) -> Array:  # of SciPy
    """Values [...] in float32; those of a matrix in CSR, which then says where they stand."""
    with np.errstate(over="ignore"):
        rows = values.astype(np.float32, copy=False)
    if not np.isfinite([rows.min(initial=0), rows.max(initial=0)]).all():
        wrong = ~np.isfinite(rows) & ~(np.isnan(rows) & gaps)
        for index in np.argwhere(wrong)[:1]:
            entries = None if sparse is None else sparse.tocoo()
            at = index if entries is None else (entries.row[index[0]], entries.col[index[0]])
            raise DataError(
                f"{what}[{', '.join(map(str, at))}]: {values[tuple(index)]} is not a finite number in float32, as are "
                f"{wrong.sum() - 1} others; fill them in, or leave their rows out"
            )
    return rows


def labels_of(y: Values, places: Places, task: str | None = None) -> Array:
    """[s] int64 classes, [s] texts of classes, float64 targets [s] or [s, t], or [s, t] int64 labels that are 0 or 1.

    Parameters
    ----------
    places : of the rows, for messages
    task : where it can't be said of numbers whether they are classes: "classification", "regression", "multilabel" of
        several, each 0 or 1; "auto": by the numbers; "any": targets; None: integers are classes, and floats targets

    Raises
    ------
    DataError : for anything else, or when the task is classification and a label is not an integer.
    UsageError : when the task does not go with the labels, or "auto" with many different integers, few rows of each.
    """
    what = places.whole()
    values = array(y, what)
    if values.dtype.kind == "U" and isinstance(y, (list, tuple)):  # of which all have become texts
        values = np.array(y, object)
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    kind = values.dtype.kind
    if kind not in "biufUO" or not values.size or not 0 < values.ndim <= (1 if kind in "UO" else 2):
        raise DataError(
            f"{what}: labels are {_kind(values)}; expected integers or texts of classes, [rows], or real targets, "
            "[rows] or [rows, targets]"
        )
    if kind in "UO":
        for row, label in enumerate(values.tolist()):
            gap = "is a gap" if str(label).strip() in _NO_LABEL else None  # NumPy makes texts of a list with gaps
            if why := gap or (wrong_line(label) if isinstance(label, str) else "is no text"):
                raise DataError(f"{places.at(row)}: the label {shown(repr(label))} {why}; name it, or leave it out")
        if task == "regression":
            raise UsageError(f"{what}: labels that are texts are classes, not real targets; leave --task out")
        texts = np.array([plain(label) for label in values.tolist()])
        if task == "auto":
            _check_few(texts, what)
        return texts
    several, most = values.ndim > 1, float(np.finfo(np.float32).max)
    if task == ("classification" if several else "multilabel"):
        raise UsageError(
            f"{what}: --task {task}: {'several labels' if several else 'one label'} of each row; classes are one, and "
            "several are 0 or 1, by --task multilabel, or real targets, by --task regression"
        )
    if task == "auto":
        whole = (values == np.rint(values)) & (np.abs(values) <= most)
        binary = kind != "f" and np.isin(values, (0, 1)).all()
        task = "classification" if (binary if several else whole.all()) else "regression"
        if task == "classification":
            _check_few(values, what)
    if task in ("regression", "any"):
        values = values.astype(np.float64)
    elif task is not None:
        for place in np.argwhere((values != np.rint(values)) | (np.abs(values) >= EXACT))[:1]:
            raise DataError(
                f"{places.at(place[0])}: the label {values[tuple(place)]} is not a class; correct it, or use --task "
                "regression"
            )
        values = values.astype(np.int64)
    kind = values.dtype.kind
    if several and kind != "f" and (strange := values[(values != 0) & (values != 1)]).size:
        raise DataError(
            f"{what}: labels are {_kind(values)}, such as {strange[0]}; several labels of a row are 0 or 1, several "
            "real targets are floats, and a class is one integer"
        )
    if kind == "u":
        most = np.iinfo(np.int64).max
    for row in np.flatnonzero(~(np.abs(values) <= most).reshape(len(values), -1).all(axis=1))[:1].tolist():
        raise DataError(f"{places.at(row)}: the label {values[row]}; expected finite numbers")
    return values.astype(np.float64 if kind == "f" else np.int64)


def _check_few(labels: Array, what: str) -> None:
    """Raise UsageError where labels [s], [s, t] are many different ones, few rows of each."""
    if (different := len(np.unique(labels))) > max(20, len(labels) / 10):
        kind = "texts" if labels.dtype.kind == "U" else "integers"
        raise UsageError(
            f"{what}: the labels are {different} different {kind} in {len(labels)} rows, classes or targets; give "
            f"--task classification{' or --task regression' if kind == 'integers' else ', or name another column'}"
        )


def array(values: Values, what: str) -> Array:
    """An array of a list, a frame or a tensor; of objects, their numbers, where none is a text.

    Raises DataError for masked entries, which are gaps, and ragged lists.
    """
    of_python, parts = isinstance(values, (list, tuple)), [values]
    while parts and all(isinstance(part, (list, tuple)) for part in parts):
        parts = [each for part in parts for each in part]
    if masked := sum(int(part.mask.sum()) for part in parts if isinstance(part, np.ma.MaskedArray)):
        raise DataError(f"{what}: {masked} masked entries; fill them in, or leave their rows out")
    if hasattr(values, "detach"):  # a tensor
        values = values.detach().cpu()
    with reading(what, "expected numbers [samples, ...]", TypeError, ValueError, RuntimeError):
        content = np.asarray(values)
        if content.dtype == object and not any(isinstance(value, str) for value in content.ravel()):
            of_python, content = True, np.asarray(content.tolist())
            content = content.astype(np.float64) if content.dtype == object else content
        large = of_python and content.dtype.kind == "f" and np.abs(content).max(initial=0) >= EXACT
        if large and any(
            isinstance(value, int) and abs(value) >= EXACT for value in np.asarray(values, object).ravel()
        ):
            raise ValueError("integers beyond 2^53 would be rounded to floats; give texts, or floats")
    return content


def _kind(value: object) -> str:
    """What somebody gave in place of an array, or of another one."""
    return f"{getattr(value, 'dtype', type(value).__name__)} {getattr(value, 'shape', '')}"
