"""Files in the format of SVMlight and LIBSVM: `label column:value column:value ...`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from mpifed.core.errors import DataError
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.data.memory import check_memory
from mpifed.data.sources.arrays import typed
from mpifed.data.sources.dataset import (
    Dataset,
    Source,
    open_packed,
    shown,
    whole,
)

_FEATURE_BYTES = 64  # for the number, counts and scale of a column, and copies of these
DENSE_ABOVE = 0.3  # fraction of nonzero values; at 0.5, CSR takes as much memory as dense float32


@dataclass(frozen=True)
class Svmlight(Source):
    """A file of svmlight's form, `label column:value ...` in each line."""

    path: Path
    """The file of training rows; .gz, .bz2 and .xz are unpacked."""
    test: Path | None = None
    """File of test rows."""
    dense: bool | None = field(default=None, metadata={"off": "/--sparse"})
    """How rows are stored; by default by the share of zeros."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers, else real targets."""

    def read(self, seed: int) -> Dataset:
        """The data.

        Raises DataError when a file is missing or damaged, or has a value that is not finite; UsageError when its
        columns, or dense rows, need more memory than there is.
        """
        files = [self.path] if self.test is None else [self.path, self.test]
        parts, labels = _load(files)
        samples, features = parts[0].shape
        what = f"{' and '.join(map(str, files))}: {features} features"
        check_memory(_FEATURE_BYTES * features, what, "number the columns from 1 on, without gaps")
        dense = parts[0].nnz > DENSE_ABOVE * samples * features if self.dense is None else self.dense
        if dense:
            rows = sum(map(len, labels))
            check_memory(4 * rows * features, f"{rows} rows of {features} features as dense numbers", "use --sparse")
            parts = [part.toarray() for part in parts]
        y, test_y, _ = typed(files, self.task, labels[0], labels[1] if self.test else None)
        test = None if test_y is None else (parts[1], test_y)
        return Dataset(features, np.float32 if dense else None, y, whole(parts[0]), test, files=tuple(files))


def _load(files: list[Path]) -> tuple[list[Piece], list[Array]]:
    """(rows CSR [s, p] float32, labels [s]) of all files, with the same p."""
    from sklearn.datasets import load_svmlight_files

    try:
        with ExitStack() as stack:
            parts = load_svmlight_files([stack.enter_context(open_packed(path)) for path in files], dtype=np.float32)
    except (ValueError, IndexError, OverflowError, DataError) as error:
        for path in files:
            _explain(path)
        raise DataError(f"{' or '.join(map(str, files))}: {error}") from error
    for path, X, labels in zip(files, parts[::2], parts[1::2], strict=True):
        if not X.nnz:
            raise DataError(f"{path}: no values at all; expected lines `label column:value column:value ...`")
        bad = ~(np.abs(labels) <= np.finfo(np.float32).max)
        bad[np.searchsorted(X.indptr, np.flatnonzero(~np.isfinite(X.data)), side="right") - 1] = True
        if bad.any():
            raise DataError(f"{path}: row {np.argmax(bad) + 1} has a value that is not finite; correct or remove it")
        if X.shape[1] <= np.iinfo(np.int32).max:
            X.indices = X.indices.astype(np.int32)
    return parts[::2], parts[1::2]


def _explain(path: Path) -> None:
    """Raise DataError for the first line that breaks the format."""
    with open_packed(path) as file:
        for number, line in enumerate(file, 1):
            words = line.partition(b"#")[0].split()
            try:
                columns = [int(word.partition(b":")[0]) for word in words[1:] if not word.startswith(b"qid:")]
                for word in words[:1] + [word.partition(b":")[2] for word in words[1:]]:
                    float(word)
            except ValueError as error:
                what = shown(str(error))[1:-1]
                raise DataError(f"{path}: line {number}: {what}; expected `label column:value ...`") from error
            if any(left >= right for left, right in zip([-1, *columns], columns, strict=False)):
                raise DataError(f"{path}: line {number}: columns {shown(columns)} are not ascending numbers from 0")
            if columns and columns[-1] > np.iinfo(np.int32).max:
                raise DataError(f"{path}: line {number}: column {shown(columns[-1])}; expected a column below 2^31")
