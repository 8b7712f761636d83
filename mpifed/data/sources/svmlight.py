"""Files in the format of SVMlight and LIBSVM: `label column:value column:value ...`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from mpifed.core.errors import DataError
from mpifed.data.memory import check_memory
from mpifed.data.samples import Samples, Source
from mpifed.data.sources.dataset import open_packed, shown, with_tests

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

    def read(self, seed: int) -> Samples:
        """The data.

        Raises DataError when a file is missing or damaged; UsageError when its columns, or dense rows, need more memory
        than there is.
        """
        from sklearn.datasets import load_svmlight_files

        files = [self.path] if self.test is None else [self.path, self.test]
        try:
            with ExitStack() as stack:
                opened = [stack.enter_context(open_packed(path)) for path in files]
                loaded = load_svmlight_files(opened, dtype=np.float32)
        except (ValueError, IndexError, OverflowError, DataError) as error:
            for path in files:
                _explain(path)
            raise DataError(f"{' or '.join(map(str, files))}: {error}") from error
        rows, labels = loaded[::2], loaded[1::2]
        for path, X in zip(files, rows, strict=True):
            if not X.nnz:
                raise DataError(f"{path}: no values at all; expected lines `label column:value column:value ...`")
        (samples, features), count = rows[0].shape, sum(map(len, labels))
        what = f"{' and '.join(map(str, files))}: {features} features"
        check_memory(_FEATURE_BYTES * features, what, "number the columns from 1 on, without gaps")
        if rows[0].nnz > DENSE_ABOVE * samples * features if self.dense is None else self.dense:
            check_memory(4 * count * features, f"{count} rows of {features} features as dense numbers", "use --sparse")
            rows = [X.toarray() for X in rows]
        return with_tests(self.task, files, *map(Samples, rows, labels))


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
