"""Who holds which rows and columns."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from federations import common, held
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import mpifed as mf
from mpifed.core.errors import DataError, UsageError
from mpifed.data.holding_out import hold_out, own_tests
from mpifed.data.labels import encode
from mpifed.data.partition import Partition, by_grid, by_rectangles, check_partition
from mpifed.data.samples import Samples
from mpifed.data.scaling import Scaling, fit, unit_rows
from mpifed.data.shards import shard_of
from mpifed.data.store import open_federation

Y = np.repeat(np.arange(10), 100)  # 100 rows of each of 10 classes
HOWS = st.sampled_from([
    "iid", "dirichlet:0.01", "dirichlet:0.5", "dirichlet:100", "classes:1", "classes:2", "classes:10", "shards:1",
    "shards:7",
])  # fmt: skip
SKEWS = st.sampled_from([None, 0.05, 1.0, 100.0, "power:1.5", "dirichlet:0.1"])


def by_rows(y: np.ndarray, features: int, clients: int, *how: Any, **more: Any) -> Partition:
    return by_grid("rows", y, features, (clients, 1), *how, **more)


def holders(partition: Partition, samples: int, features: int) -> np.ndarray:
    """[s, p] how many clients hold each cell."""
    count = np.zeros((samples, features), dtype=int)
    for client in range(partition.clients):
        rows, columns = partition.of(client)
        count[np.ix_(rows, columns)] += 1
    return count


def class_counts(partition: Partition) -> np.ndarray:
    """[N, 10] rows of each class of Y held by each client."""
    return np.array([np.bincount(Y[partition.of(n)[0]], minlength=10) for n in range(partition.clients)])


@given(
    how=HOWS, skew=SKEWS, groups=st.integers(10, 60), parts=st.integers(1, 12), features=st.integers(12, 30),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_every_cell_has_one_client(
    how: str, skew: float | None, groups: int, parts: int, features: int, seed: int
) -> None:
    partition = by_grid("grid", Y, features, (groups, parts), how, None if how.startswith("shards") else skew, seed)
    assert partition.clients == groups * parts and (holders(partition, len(Y), features) == 1).all()
    assert partition.counts.min() >= 1 and np.ptp(partition.widths) <= 1
    assert all((np.diff(rows) > 0).all() for rows in (*partition.rows, *partition.columns))


@pytest.mark.parametrize(("how", "skew", "digest"), [
    ("iid", None, "ea48fcc3"),
    ("iid", "power:1.5", "8cceaea6"),
    ("dirichlet:0.5", None, "042385f2"),
    ("dirichlet:0.01", 1.0, "6a08d28a"),
    ("classes:2", None, "e74af803"),
    ("shards:2", None, "bbb3c9a9"),
])  # fmt: skip
def test_draws_are_those_of_all_versions(how: str, skew: str | float | None, digest: str) -> None:
    """The digests are of the rows of ten clients, and of where each client's end, as first released."""
    groups = by_rows(Y, 1, 10, how, skew, 3).rows
    content = np.concatenate(groups).tobytes() + np.cumsum(list(map(len, groups))).tobytes()
    assert hashlib.sha256(content).hexdigest()[:8] == digest


def test_what_each_partition_is_called_for() -> None:
    """Equal sizes; K classes each, equally often; runs of the sorted rows; the more skew, the smaller the parameter."""
    assert np.ptp(by_rows(Y, 1, 7).counts) <= 1 and (class_counts(by_rows(Y, 1, 7)) > 0).all()
    there = class_counts(by_rows(Y, 1, 20, "classes:2", seed=3)) > 0
    assert (there.sum(axis=1) == 2).all() and (there.sum(axis=0) == 4).all()  # 20 clients x 2 over 10 classes
    runs = class_counts(by_rows(Y, 1, 20, "shards:2", seed=3))  # as McMahan et al. 2017, 40 of 25 rows
    assert set(np.unique(runs)) <= {0, 25, 50} and (runs.sum(axis=1) == 50).all()
    # the largest class's share of a client's rows: 0.1 where classes are alike, 1 where each client has one class
    of = {a: class_counts(by_rows(Y, 1, 10, f"dirichlet:{a}", seed=1)) for a in (0.05, 1, 1000)}
    assert (shares := [float((c.max(axis=1) / c.sum(axis=1)).mean()) for c in of.values()]) == sorted(shares)[::-1]


def test_sizes_follow_their_laws() -> None:
    expected = len(Y) / np.arange(1, 11) / (1 / np.arange(1, 11)).sum()
    assert abs(np.sort(by_rows(Y, 1, 10, skew="power:1").counts)[::-1] - expected).max() <= 1


def test_held_out_rows_are_stratified() -> None:
    rows = np.arange(len(Y), dtype="f4")[:, None]
    held = hold_out(Samples(rows, Y), 0.2, 4).test
    assert held is not None and np.bincount(held.y).tolist() == [20] * 10
    out = np.isin(rows[:, 0], held.X[:, 0])
    assert hashlib.sha256(out.tobytes()).hexdigest()[:8] == "53e47ece"
    of_targets = hold_out(Samples(rows, Y / 2), 0.25, 4).test
    assert of_targets is not None and len(of_targets.y) == 250


def test_a_partition_of_ones_own_gives_each_cell_to_one_client() -> None:
    columns = np.arange(3)
    held = [([2, 3], [1, 2]), ([2, 3], [0]), ([0, 1], columns)]
    partition = by_rectangles((np.array(rows), np.array(cols)) for rows, cols in held)
    assert (holders(partition, 4, 3) == 1).all() and len(partition.rows) == 2  # two clients share their group of rows
    check_partition(partition, 4, 3)
    for change, words in {
        (0, (2, 3), (0, 2)): "row 2 and column 0 are held by several clients",
        (0, (2, 3), (2,)): "row 2 and column 1 are held by no client",
        (2, (0, 4), (0, 1, 2)): "client 2: expected indices from 0 to 3, ascending",
        (2, (1, 0), (0, 1, 2)): "client 2: expected indices from 0 to 3, ascending",
        (2, (), (0, 1, 2)): "client 2: expected indices from 0 to 3, ascending",
    }.items():
        client, rows, cols = change
        parts = [*held[:client], (rows, cols), *held[client + 1 :]]
        with pytest.raises(DataError, match=words):
            check_partition(by_rectangles((np.array(r, int), np.array(c, int)) for r, c in parts), 4, 3)


# --- test rows of clients, labels, scalings --------------------------------------------------------------------------


def test_a_fraction_of_each_client_and_class() -> None:
    y = np.random.default_rng(1).integers(0, 5, 3000)
    partition = by_rows(y, 3, 12, "dirichlet:0.5", 1.0, 2)
    mask = own_tests(partition, y, None, 0.2, 4)
    for rows in partition.rows:
        assert mask[rows].sum() == min(round(0.2 * len(rows)), len(rows) - 1)
        shares = np.bincount(y[rows[mask[rows]]], minlength=5) - 0.2 * np.bincount(y[rows], minlength=5)
        assert (np.abs(shares) <= 1 + 0.5 / len(rows) * np.bincount(y[rows], minlength=5)).all()
    again, other = (own_tests(partition, y, None, 0.2, seed) for seed in (4, 5))
    assert (again == mask).all() and (other != mask).any()
    assert own_tests(partition, y, mask, None, 0) is mask  # as the source says
    with pytest.raises(UsageError, match="own test rows; leave the option out"):
        own_tests(partition, y, mask, 0.2, 0)


@pytest.mark.parametrize(("kind", "clients"), [(np.asarray, 7), (sparse.csr_matrix, 7), (np.asarray, "of rows")])
def test_every_row_is_in_exactly_one_place(kind: Any, clients: Any) -> None:
    """To train, for its client to test, or for all to test with; the first column is the row's number."""
    y = np.arange(120) % 4
    X = np.stack([np.arange(1, 121), np.arange(120) % 7, np.ones(120)], axis=1).astype("f4")
    whose: dict[str, Any] = {"clients": y**2 % 3 + 2} if clients == "of rows" else {"clients": clients, "skew": 0.3}
    data = mf.FederatedDataset.from_arrays(kind(X), y, test=0.1, client_test=0.3, scale="none", **whose)
    folder = open_federation(data.path)
    found, of_all = list[list[int]](), common(folder)[0]
    for client in range(folder.clients):
        for tests in (False, True):
            found.append((np.rint(held(folder, client, tests)[:, 0]).astype(int) - 1).tolist())
            assert shard_of(folder, client, tests).y.tolist() == y[found[-1]].tolist()
    common_rows = np.asarray(of_all.toarray() if sparse.issparse(of_all) else of_all)[:, 0].astype(int) - 1
    assert sorted(sum(found, common_rows.tolist())) == list(range(120))
    assert [len(rows) for rows in found[::2]] == folder.counts.tolist()
    assert [len(rows) for rows in found[1::2]] == folder.test_counts.tolist()
    training = np.sort(np.concatenate(found[::2]))  # indices of training rows go on without a gap
    if clients == 7:  # natural clients have their rows in an order of their own
        assert [training[shard_of(folder, client).rows].tolist() for client in range(7)] == found[::2]


def test_every_row_is_as_likely_to_be_tested_with() -> None:
    """3 of 10 rows in 4,000 draws: each 1,200 times, with a standard deviation of 29."""
    y = np.array([0] * 7 + [1] * 2 + [2])
    counts = sum(own_tests(by_rows(y, 3, 1), y, None, 0.3, seed).astype(int) for seed in range(4000))
    assert (np.abs(counts - 1200) < 6 * 29).all(), counts


@pytest.mark.parametrize(("rule", "y", "test_y", "meaning"), [
    ("all", [2, 1, 0, 1], [2], ("-3", "4", "7")),
    ("even-odd", [1, 0, 1, 0], [1], ("even", "odd")),
    ("class:4", [0, 1, 0, 1], [0], ("not 4", "4")),
])  # fmt: skip
def test_rules_of_labels(rule: str, y: list[int], test_y: list[int], meaning: tuple[str, ...]) -> None:
    X = np.zeros((4, 1), np.float32)
    labels, names, _ = encode(Samples(X, np.array([7, 4, -3, 4]), Samples(X[:1], np.array([7]))), rule)
    assert ([part.tolist() for part in labels], names) == ([y, test_y], meaning)


def test_scalings_of_sparse_rows() -> None:
    X = sparse.csr_matrix(np.array([[0, 2, 0], [0, 0, -4], [0, 1, -1]], dtype=np.float32))
    assert fit("unit", [X], None).scale == 0.25
    for kind in ("standard", "minmax"):
        with pytest.raises(UsageError, match="fills the zeros of sparse data; use --scale unit"):
            fit(kind, [X], None)
    assert fit("minmax", [abs(X)], None).scale.tolist() == [1, 0.5, 0.25]  # needs no shift
    balanced = sparse.csr_matrix(np.array([[1.0], [-1.0], [0.0]]))
    assert fit("standard", [balanced], None) == Scaling(pytest.approx(np.sqrt([1.5])), pytest.approx(0))
    for pack in (np.asarray, sparse.csr_matrix):
        rows: Any = unit_rows(pack(np.array([[3, 4], [0, 0], [255, 0]], dtype=np.uint8)))
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows @ np.eye(2), [[0.6, 0.8], [0, 0], [1, 0]], rtol=1e-7)


def test_a_constant_column_is_zero_after_another_scaling_too() -> None:
    X = np.full((60, 2), 7 / 255)  # whose sum is rounded
    X[0, 1] = 1
    fitted = fit("standard", [X[:20], X[20:]], None)
    assert fitted.scale[0] == 1 and not (X * fitted.scale + fitted.shift)[:, 0].any()
    assert fitted.scale[1] == pytest.approx(1 / X[:, 1].std())
