"""Samples, labels and numbers as Python programs have them: lists, frames, tensors, matrices.

Arrays are `Any` here: whatever NumPy takes.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.core.text import shown, wrong_line
from mpifed.data.samples import Samples
from mpifed.data.samples import Values as Values
from mpifed.data.sources.dataset import listed, numbers_rows
from mpifed.maths.sparse import summed

Pair = tuple[Values, Values]  # samples and labels


def array(values: Values, name: str) -> Array:
    """An array of a list, a frame, a tensor on any device; of objects, their numbers."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        found = np.asarray(values)
        if found.dtype == object:
            found = np.asarray(found.tolist())
            found = found.astype(np.float64) if found.dtype == object else found
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: no array of numbers ({error}); numbers [samples, ...] are expected") from error
    return found


def without_numbers(names: Sequence[Values], what: str) -> list[Values]:
    """The names of columns, with a warning but without those that number rows."""
    if left := list(filter(numbers_rows, names)):
        warnings.warn(f"{what}: column {listed(left)} numbers rows, and is left out", stacklevel=2)
    return [name for name in names if name not in left]


def rows_of(
    X: Values, name: str, names: Sequence[str] | None = None, expected: Sequence[int] | None = None
) -> tuple[Piece, tuple[int, ...] | None, Sequence[str] | None]:
    """(rows [s, p] dense or CSR, shape of a sample where it is no vector, names of the columns if there are any).

    Raises DataError for a frame without the columns `names`, or samples that have not the `expected` shape, up to axes
    of length 1; vectors are taken for it in C order.
    """
    columns = getattr(X, "column_names", getattr(X, "columns", None))
    if columns is not None:
        own = list(map(str, columns))
        names = without_numbers(own, name) if names is None else list(map(str, names))
        place = {column: at for at, column in enumerate(own)}
        wrong = sorted(column for column in {*names} ^ {*own} if column in names or not numbers_rows(column))
        if wrong or len(place) < len(own):
            raise DataError(
                f"{name}: a frame with the columns {listed(own)}; expected, in any order, are {listed(names)}: "
                f"{listed(wrong) or 'a name that is there twice'} differs"
            )
        X = X if own == names else np.asarray(X)[..., [place[column] for column in names]]
    if hasattr(X, "tocsr"):
        sparse = summed(X.tocsr().astype(np.float32))
        _check_finite(sparse.data, name, lambda at: int(np.searchsorted(sparse.indptr, at[0], side="right")) - 1)
        return sparse, None, names
    values = array(X, name)
    if values.ndim < 2 or not values.size or values.dtype.kind not in "biuf":
        one = "; one sample x is x[None]" if values.ndim == 1 and values.dtype.kind in "biuf" else ""
        raise DataError(
            f"{name}: an array of {values.dtype} of shape {values.shape}; numbers [samples, ...] are expected{one}"
        )
    shape = values.shape[1:] if values.ndim > 2 else None
    if shape and expected and [size for size in shape if size > 1] != [size for size in expected if size > 1]:
        raise DataError(
            f"{name}: samples of shape {shape}; those of the data have {tuple(expected)}: transpose, or reshape"
        )
    values = values.reshape(len(values), -1)
    if values.dtype == np.uint8:
        return np.ascontiguousarray(values), shape, names
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(values.astype(np.float32))
    _check_finite(values, name, lambda at: int(at[0]))
    return values, shape, names


def _check_finite(values: Array, name: str, row: Callable[[tuple[int, ...]], int]) -> None:
    wrong = ~np.isfinite(values)
    if wrong.any():
        at = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise DataError(
            f"{name}: {int(wrong.sum())} values that are no finite float32, the first {values[at]} in row {row(at)}; "
            "fill them in, or drop these rows"
        )


def labels_of(y: Values, name: str) -> Array:
    """[s] int64 classes, [s] words that name classes, or float64 targets [s] or [s, t]."""
    raw = np.asarray(y)
    if raw.dtype.kind in "OU" and raw.size and any(isinstance(label, str) for label in raw.ravel()):
        return _words(np.asarray(y, dtype=object), name)
    values = array(y, name)
    if values.dtype.kind not in "biuf":
        raise DataError(f"{name}: labels of {values.dtype}; integers and texts are classes, floats are targets")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim > 1 and values.dtype.kind != "f":
        raise DataError(
            f"{name}: integers of shape {values.shape}; classes are [samples]: y.argmax(axis=1) of one-hot rows; "
            "several real targets are floats"
        )
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def _words(labels: Array, name: str) -> Array:
    """[s] labels that are texts, each a class."""
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1:
        raise DataError(f"{name}: texts of shape {labels.shape}; a label for each sample is expected, [samples]")
    for row, label in enumerate(labels):
        if not isinstance(label, str):
            raise DataError(f"{name}: row {row} has {shown(repr(label))}, and others have texts; give each row a label")
        if why := wrong_line(label):
            raise DataError(f"{name}: row {row}: the label {shown(repr(label))} {why}")
    return labels.astype(str)


def classes_of(labels: Array, classes: Array | None, name: str) -> Array:
    """[s] labels, where they are texts as positions among the sorted `classes`, which are None where they are none."""
    if (labels.dtype.kind == "U") != (classes is not None):
        raise DataError(f"{name}: labels of {labels.dtype}, and those of y are not; give both as texts or as numbers")
    if classes is None:
        return labels
    strange = np.flatnonzero(~np.isin(labels, classes))
    if len(strange):
        raise DataError(
            f"{name}: row {strange[0]}: no training row has the label {shown(repr(str(labels[strange[0]])))}"
        )
    codes: Array = np.searchsorted(classes, labels)
    return codes


def held_apart(test: object, what: str) -> tuple[Pair | None, float | None]:
    """(test samples and labels, fraction of the rows to hold out) of the argument `test`."""
    if isinstance(test, (float, np.floating)) and 0 < test < 1:
        return None, float(test)
    if test is None or (isinstance(test, (tuple, list)) and len(test) == 2):
        return test if test is None else (test[0], test[1]), None
    raise UsageError(
        f"{what}: test = {_short(test)}; expected a pair (X, y), or a fraction above 0 and below 1, such as 0.2"
    )


def stacked(
    pairs: Sequence[Pair], tests: Sequence[Pair], columns: Sequence[str] | None
) -> tuple[Piece, Array, Sequence[str] | None, list[int]]:
    """(samples of all clients, then those with which they test, their labels, names of columns, counts of samples)."""
    names = [f"client {i}{what}" for what, part in (("", pairs), (": test", tests)) for i in range(len(part))]
    each = list(zip(names, [*pairs, *tests], strict=True))
    rows = []
    for name, (X, _) in each:
        *row, columns = rows_of(X, f"{name}: X", columns)
        rows.append(row)
    labels = [labels_of(y, f"{name}: y") for name, (_, y) in each]
    first, shape = rows[0]
    counts = [X.shape[0] for X, _ in rows]
    if len({values.dtype.kind == "U" for values in labels}) > 1:
        raise DataError("from_clients: some clients have texts as labels, and others numbers; give all the same")
    wrong = [f"{name}: {n} samples, {len(y)} labels" for name, n, y in zip(names, counts, labels, strict=True)
             if n != len(y)]  # fmt: skip
    wrong += [f"{name}: samples of shape {own or X.shape[1:]}, those of client 0 have {shape or first.shape[1:]}"
              for name, (X, own) in zip(names, rows, strict=True)
              if (own or X.shape[1:]) != (shape or first.shape[1:])]  # fmt: skip
    if wrong:
        raise DataError(f"from_clients: {'; '.join(wrong[:5])}")
    if all(isinstance(X, np.ndarray) for X, _ in rows):
        samples = np.concatenate([X for X, _ in rows]).reshape(-1, *(shape or first.shape[1:]))
        return samples, np.concatenate(labels), columns, counts
    from scipy.sparse import csr_matrix, vstack

    return vstack([csr_matrix(X) for X, _ in rows]).tocsr(), np.concatenate(labels), columns, counts


def tests_of(clients: object, count: int, given: object) -> tuple[list[Pair], float | None]:
    """(samples and labels with which each client tests, fraction of its rows for that) of the argument `client_test`.

    Parameters
    ----------
    clients : the argument of `from_clients`
    count : of clients

    Raises
    ------
    UsageError : when there are not as many pairs as clients, or their names differ.
    """
    if not isinstance(given, Iterable) or isinstance(given, str):
        return [], fraction_of(given)
    if isinstance(clients, Mapping) and isinstance(given, Mapping):
        if differing := sorted({str(name) for name in {*clients} ^ {*given}}):
            raise UsageError(f"from_clients: client_test: names differ: {', '.join(differing[:5])}; give each client's")
        given = {name: given[name] for name in clients}
    entries = list(given.values() if isinstance(given, Mapping) else given)
    wrong = no_pairs(entries)
    if wrong or len(entries) != count:
        came = f"entry {wrong[0]} is no pair" if wrong else f"{len(entries)} pairs for {count} clients"
        raise UsageError(
            f"from_clients: client_test: {came}; expected a pair (X, y) for each client, or a fraction such as 0.2"
        )
    return [(X, y) for X, y in entries], None


def no_pairs(entries: Sequence[Values]) -> list[int]:
    """Positions of entries that are no pair."""
    return [i for i, pair in enumerate(entries) if not isinstance(pair, (tuple, list)) or len(pair) != 2]


def fraction_of(value: object) -> float | None:
    """A fraction of rows, for `client_test`."""
    if value is None or (isinstance(value, (float, np.floating)) and 0 < value < 1):
        return None if value is None else float(value)
    raise UsageError(f"client_test = {_short(value)}; expected a fraction above 0 and below 1, such as 0.2")


def _short(value: object) -> str:
    return repr(value) if isinstance(value, (int, float, str, np.number)) else f"a {type(value).__name__}"


def integer(value: object, name: str) -> int:
    """A whole number, also one of NumPy's."""
    try:
        return operator.index(value)  # type: ignore[arg-type]  # it says so itself
    except TypeError:
        raise UsageError(f"{name} = {value!r}: expected an integer") from None


def dataset(
    X: Values, y: Values, test: Pair | None, shape: Sequence[int] | None, names: Sequence[str] | None
) -> Samples:
    """Samples and labels, checked, for `mpifed.data.prepare`."""
    rows, own_shape, names = rows_of(X, "X", names, shape)
    shape = tuple(shape) if shape is not None else own_shape
    given = labels_of(y, "y")
    classes = np.unique(given) if given.dtype.kind == "U" else None
    labels = classes_of(given, classes, "y")
    if len(labels) != rows.shape[0]:
        raise DataError(f"y: {len(labels)} labels for {rows.shape[0]} samples")
    tested: Samples | None = None
    if test is not None:
        test_rows, *_ = rows_of(test[0], "test X", names, shape or rows.shape[1:])
        test_labels = classes_of(labels_of(test[1], "test y"), classes, "test y")
        if test_rows.shape != (len(test_labels), rows.shape[1]):
            raise DataError(
                f"test: {test_rows.shape[0]} samples of {test_rows.shape[1]} numbers and {len(test_labels)} labels; "
                f"samples of X have {rows.shape[1]}"
            )
        tested = Samples(test_rows, test_labels.astype(labels.dtype, copy=False))
    return Samples(
        rows, labels, tested, names=None if names is None else tuple(map(str, names)), shape=shape,
        classes=None if classes is None else tuple(classes.tolist()),
    )  # fmt: skip
