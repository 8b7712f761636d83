"""What is learnt, and how values are scaled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from mpifed.core.errors import UsageError
from mpifed.data.labels import encode
from mpifed.data.samples import Samples
from mpifed.data.scaling import Scaling, fit, unit_rows


def dataset(labels: Any, test: Any = None) -> Samples:
    """A data set of these labels."""
    X = np.zeros((len(labels), 1), np.float32)
    tests = None if test is None else Samples(X[: len(test)], np.array(test))
    return Samples(X, np.array(labels), tests, files=(Path("a"), Path("t")))


@pytest.mark.parametrize(("rule", "y", "test_y", "meaning"), [
    ("all", [2, 1, 0, 1], [2], ("-3", "4", "7")),
    ("even-odd", [1, 0, 1, 0], [1], ("even", "odd")),
    ("class:4", [0, 1, 0, 1], [0], ("not 4", "4")),
])  # fmt: skip
def test_rules_of_labels(rule: str, y: list[int], test_y: list[int], meaning: tuple[str, ...]) -> None:
    labels = encode(dataset([7, 4, -3, 4], [7]), rule)
    assert (labels.y.tolist(), labels.meaning) == (y, meaning)
    assert labels.test_y is not None
    assert labels.test_y.tolist() == test_y


def test_scalings_of_sparse_rows() -> None:
    X = sparse.csr_matrix(np.array([[0, 2, 0], [0, 0, -4], [0, 1, -1]], dtype=np.float32))
    assert fit("unit", [X], None).scale == 0.25
    for kind in ("standard", "minmax"):
        with pytest.raises(UsageError, match="fills the zeros of sparse data; use --scale unit"):
            fit(kind, [X], None)
    assert fit("minmax", [abs(X)], None).scale.tolist() == [1, 0.5, 0.25]  # needs no shift
    balanced = sparse.csr_matrix(np.array([[1.0], [-1.0], [0.0]]))
    assert fit("standard", [balanced], None) == Scaling(pytest.approx(np.sqrt([1.5])), pytest.approx(0))


def test_a_constant_column_is_zero_after_another_scaling_too() -> None:
    X = np.full((60, 2), 7 / 255)  # whose sum is rounded
    X[0, 1] = 1
    fitted = fit("standard", [X[:20], X[20:]], None)
    assert fitted.scale[0] == 1 and not (X * fitted.scale + fitted.shift)[:, 0].any()
    assert fitted.scale[1] == pytest.approx(1 / X[:, 1].std())


@pytest.mark.parametrize("pack", [np.asarray, sparse.csr_matrix])
def test_unit_rows(pack: Callable[[Any], Any]) -> None:
    X = unit_rows(pack(np.array([[3, 4], [0, 0], [255, 0]], dtype=np.uint8)))
    assert X.dtype == np.float32
    dense = X.toarray() if sparse.issparse(X) else X
    np.testing.assert_allclose(dense, [[0.6, 0.8], [0, 0], [1, 0]], rtol=1e-7)
