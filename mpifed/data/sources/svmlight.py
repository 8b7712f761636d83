"""Files in the format of SVMlight and LIBSVM: `label column:value column:value ...`."""

from __future__ import annotations

import io
import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from mpifed.core.errors import DataError
from mpifed.data.samples import Samples, Source, Task
from mpifed.data.source_files import open_packed, with_test
from mpifed.files.reading import reading

DENSE_ABOVE = 0.3  # fraction of nonzero values; at 0.5, CSR takes as much memory as dense float32


@dataclass(frozen=True)
class Svmlight(Source):
    """A file of svmlight's form, `label column:value ...` in each line."""

    computed = ("number of columns",)  # by the largest index in the rows, and whether one is 0

    path: Path
    """The file of training rows; .gz, .bz2 and .xz are unpacked."""
    test: Path | None = None
    """File of test rows."""
    dense: bool | None = field(default=None, metadata={"off": "/--sparse"})
    """How rows are stored; by default by the share of zeros."""
    task: Task = "auto"
    """What labels are; auto: classes if they are integers, else real targets."""

    def read(self, seed: int) -> Samples:
        """The data; DataError when a file is missing or damaged."""
        from sklearn.datasets import load_svmlight_files

        files = [self.path] if self.test is None else [self.path, self.test]
        opened = list[io.BytesIO]()
        for path in files:
            with open_packed(path) as file:
                opened.append(io.BytesIO(file.read()))
            if code := re.search(rb"(?m)^[ \t]*[-+]?0\d{1,20}", opened[-1].getvalue()):
                raise DataError(
                    f"{path}: the label {code[0].decode()} begins with 0, and would be read as a number; write it "
                    "without, or give codes as texts, by csv"
                )
        what, damaged = " or ".join(map(str, files)), (ValueError, IndexError, OverflowError)
        with reading(what, "expected lines `label column:value ...`, columns ascending below 2^31", *damaged):
            loaded = load_svmlight_files(opened)
        rows = loaded[::2]
        for path, X in zip(files, rows, strict=True):
            if not X.nnz:
                raise DataError(f"{path}: no values at all; expected lines `label column:value column:value ...`")
        if rows[0].nnz > DENSE_ABOVE * math.prod(rows[0].shape) if self.dense is None else self.dense:
            rows = [X.toarray() for X in rows]
        return with_test(map(Samples, rows, loaded[1::2]), files=tuple(files), task=self.task)
