"""Test rows of the clients' own: every row in one place, never among those that train; as stored, and as refused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federations import common, held
from scipy.sparse import csr_matrix

from mpifed.core.errors import DataError, UsageError
from mpifed.data.prepare import Options, prepare
from mpifed.data.samples import Samples, Source
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation

ROWS = 120
X = np.stack([np.arange(1, ROWS + 1), np.arange(ROWS) % 7, np.ones(ROWS)], axis=1).astype("f4")  # the first is the row
CLASSES = np.arange(ROWS) % 4


@dataclass(frozen=True)
class Numbered(Source):
    """Rows that tell their number."""

    sparse: bool = False
    tests: tuple[bool, ...] | None = None
    natural: bool = False

    @property
    def names_clients(self) -> bool:
        return self.natural

    def read(self, seed: int) -> Samples:
        tests = None if self.tests is None else np.array(self.tests)
        ids = np.arange(ROWS) ** 2 % 11 if self.natural else None  # of six clients
        return Samples(csr_matrix(X) if self.sparse else X, CLASSES, own_tests=tests, ids=ids)


def made(out: Path, source: Source | None = None, **options: Any) -> Federation:
    given = {"split": "rows", "clients": 7, "skew": 0.3, "client_test_fraction": 0.3} | options
    return prepare(Options("numbered", source or Numbered(), out, **given))


def numbers(folder: Federation, client: int, tests: bool) -> list[int]:
    found: list[int] = (np.rint(held(folder, client, tests)[:, 0]).astype(int) - 1).tolist()
    return found


@pytest.mark.parametrize("source", [Numbered(), Numbered(sparse=True), Numbered(natural=True)])
def test_every_row_is_in_exactly_one_place(source: Numbered, tmp_path: Path) -> None:
    options = {"split": None, "clients": None, "skew": None} if source.natural else {}
    folder = made(tmp_path / "data", source, test_fraction=0.1, **options)
    clients = range(folder.clients)
    found = [numbers(folder, client, tests) for client in clients for tests in (False, True)]
    X_test, _ = common(folder)
    of_all = np.asarray(X_test[:, 0] if not source.sparse else X_test.toarray()[:, 0]).astype(int) - 1
    assert sorted(sum(found, of_all.tolist())) == list(range(ROWS))
    assert [len(rows) for rows in found[::2]] == folder.counts.tolist()
    assert [len(rows) for rows in found[1::2]] == folder.test_counts.tolist()
    assert folder.samples == folder.counts.sum() == ROWS - len(of_all) - folder.test_counts.sum()
    for client in clients:
        for tests, rows in ((False, found[2 * client]), (True, found[2 * client + 1])):
            assert shard_of(folder, client, tests).y.tolist() == CLASSES[rows].tolist()
    training = np.sort(np.concatenate(found[::2]))  # indices of training rows go on without a gap
    if not source.natural:  # whose rows are in an order of their own
        assert [training[shard_of(folder, client).rows].tolist() for client in clients] == found[::2]


@dataclass(frozen=True)
class Owned(Source):
    """Rows of natural clients a and b, and test rows of a, b, and of c, who has no others."""

    sparse: bool = False
    tests: bool = False
    names_clients = True

    def read(self, seed: int) -> Samples:
        rows, tests = X[:5], X[5:9]
        given = np.arange(5) == 1 if self.tests else None
        held, test = (csr_matrix(rows), csr_matrix(tests)) if self.sparse else (rows, tests)
        tests_of = Samples(test, [1, 1, 0, 0], ids=["c", "b", "a", "b"])
        return Samples(held, [0, 1, 0, 1, 1], tests_of, ids=["a", "a", "b", "b", "b"], own_tests=given)


@pytest.mark.parametrize("sparse", [False, True])
def test_test_rows_of_natural_clients(sparse: bool, tmp_path: Path) -> None:
    options: Any = {"clients": None, "skew": None, "client_test_fraction": None, "split": None}
    folder = made(tmp_path / "data", Owned(sparse), **options)
    found = [[sorted(numbers(folder, client, tests)) for client in range(2)] for tests in (False, True)]
    assert found == [[[0, 1], [2, 3, 4]], [[7], [6, 8]]] and folder.test_samples == 4
    assert [shard_of(folder, client, True).y.sum() for client in range(2)] == [0, 1]
    given = made(tmp_path / "given", Owned(sparse, tests=True), **options)  # whose own say counts
    assert [numbers(given, client, True) for client in range(2)] == [[1], []]


def test_rows_that_the_source_determines(tmp_path: Path) -> None:
    tests, rows = np.arange(ROWS) % 3 == 0, {"client_test_fraction": None, "skew": None}
    folder = made(tmp_path / "data", Numbered(tests=tuple(tests.tolist())), **rows)
    trained = sorted(row for client in range(7) for row in numbers(folder, client, False))
    assert trained == np.flatnonzero(~tests).tolist()
    with pytest.raises(UsageError, match="own test rows; leave the option out"):
        made(tmp_path / "both", Numbered(tests=tuple(tests.tolist())))
    with pytest.raises(DataError, match=r"all its rows are test rows"):
        made(tmp_path / "none", Numbered(tests=(True,) * ROWS), client_test_fraction=None)
