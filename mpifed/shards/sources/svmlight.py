"""Files in the format of SVMlight and LIBSVM: `label column:value column:value ...`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Gt

from mpifed.core.errors import DataError
from mpifed.core.protocols import Piece
from mpifed.core.record import Array
from mpifed.shards.memory import check_memory
from mpifed.shards.sources.dataset import (
    Dataset,
    Source,
    check_finite,
    check_packed,
    open_packed,
    shown,
    typed_labels,
    whole,
)

FEATURES = 2**24  # limit for small files, unless the user allows more; webspam has 16,609,143
DENSE_ABOVE = 0.3  # fraction of nonzero values; at 0.5, CSR takes as much memory as dense float32


@dataclass(frozen=True)
class Svmlight(Source):
    """A file of svmlight's form, `label column:value ...` in each line."""

    path: Path
    """The file of training rows; .gz, .bz2 and .xz are unpacked."""
    test: Path | None = None
    """File of test rows."""
    dense: bool | None = field(default=None, metadata={"off": "sparse"})
    """How rows are stored; by default by the share of zeros."""
    task: Literal["auto", "classification", "regression"] = "auto"
    """What labels are; auto: classes if they are integers, else real targets."""
    max_unpacked: Annotated[float, Gt(0)] | None = None
    """GiB that a packed file may unpack to; by default 100 times its size, at least 0.25."""
    max_features: Annotated[int, Gt(0)] | None = None
    """Features there may be; by default as many as there are values, at least 16777216."""

    def read(self, seed: int) -> Dataset:
        """The data.

        Raises DataError when a file is missing or damaged, or has a value that is not finite, or very many features
        with few values; UsageError when dense rows need more memory than there is.
        """
        files = [self.path] if self.test is None else [self.path, self.test]
        (X, labels), *rest = _load(files, self.max_unpacked)
        values, features = X.nnz + sum(part.nnz for part, _ in rest), X.shape[1]
        if features > (max(FEATURES, values) if self.max_features is None else self.max_features):
            raise DataError(
                f"{' and '.join(map(str, files))}: {values} values of {features} features; if that is correct, "
                f"allow it with --max-features {features}"
            )
        dense = X.nnz > DENSE_ABOVE * X.shape[0] * features if self.dense is None else self.dense
        if dense:
            rows = X.shape[0] + sum(part.shape[0] for part, _ in rest)
            check_memory(4 * rows * features, f"{rows} rows of {features} features as dense numbers", "use --sparse")
        labels = typed_labels(files[0], labels, self.task)
        task = "classification" if labels.dtype == np.int64 else "regression"
        test = None
        for test_X, test_labels in rest:
            test = (test_X.toarray() if dense else test_X), typed_labels(files[1], test_labels, task)
        chunks = whole(X.toarray() if dense else X)
        return Dataset(features, np.float32 if dense else None, labels, chunks, test, files=tuple(files))


def _load(files: list[Path], max_unpacked: float | None) -> list[tuple[Piece, Array]]:
    """(rows CSR [s, p] float32, labels [s]) of each file, with the same p."""
    from sklearn.datasets import load_svmlight_files

    for path in files:
        check_packed(path, max_unpacked)
    with ExitStack() as stack:
        opened = [stack.enter_context(open_packed(path, max_unpacked=max_unpacked)) for path in files]
        try:
            parts = load_svmlight_files(opened, dtype=np.float32)
        except (ValueError, IndexError, OverflowError) as error:
            for path in files:
                _explain(path, max_unpacked)
            raise DataError(f"{' or '.join(map(str, files))}: {error}") from error
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    for path, (X, labels) in zip(files, pairs, strict=True):
        if not X.nnz:
            raise DataError(f"{path}: no values at all; expected lines `label column:value column:value ...`")
        check_finite(path, X, labels)
        if X.shape[1] <= np.iinfo(np.int32).max:
            X.indices = X.indices.astype(np.int32)
    return pairs


def _explain(path: Path, max_unpacked: float | None) -> None:
    """Raise DataError for the first line that breaks the format."""
    with open_packed(path, max_unpacked=max_unpacked) as file:
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
