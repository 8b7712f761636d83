"""Who holds which rows and columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpifed.core.errors import DataError, UsageError
from mpifed.shards.maps import read_map
from mpifed.shards.partition import Partition, by_columns, by_grid, by_rows, held_out

Y = np.repeat(np.arange(10), 100)  # 100 rows of each of 10 classes
HOWS = st.sampled_from(
    ["iid", "dirichlet:0.01", "dirichlet:0.5", "dirichlet:100", "classes:1", "classes:2", "classes:10"]
)
SKEWS = st.sampled_from([None, 0.05, 1.0, 100.0])


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


@given(how=HOWS, skew=SKEWS, clients=st.integers(10, 60), seed=st.integers(0, 2**32))
def test_rows_go_to_one_client_each_and_nobody_is_left_out(
    how: str, skew: float | None, clients: int, seed: int
) -> None:
    partition = by_rows(Y, 3, clients, how, skew, seed)
    assert (holders(partition, len(Y), 3) == 1).all()
    assert partition.counts.min() >= 1
    assert partition.widths.tolist() == [3] * clients
    assert all((np.diff(rows) > 0).all() for rows in partition.rows)


@given(features=st.integers(1, 900), data=st.data())
def test_columns_are_nearly_equal_blocks(features: int, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, features))
    partition = by_columns(2, features, clients)
    assert (holders(partition, 2, features) == 1).all()
    assert np.ptp(partition.widths) <= 1
    assert partition.counts.tolist() == [2] * clients


def test_784_columns_over_10_clients() -> None:
    assert by_columns(5, 784, 10).widths.tolist() == [79] * 4 + [78] * 6


@given(rows=st.integers(1, 20), columns=st.integers(1, 12), how=st.sampled_from(["iid", "dirichlet:0.3"]))
def test_grid(rows: int, columns: int, how: str) -> None:
    partition = by_grid(Y, 12, (rows, columns), how)
    assert partition.clients == rows * columns
    assert (holders(partition, len(Y), 12) == 1).all()


def test_iid_is_equal_in_size_and_mixed() -> None:
    partition = by_rows(Y, 1, 7)
    assert np.ptp(partition.counts) <= 1
    assert (class_counts(partition) > 0).all()


def test_classes_gives_each_client_so_many() -> None:
    counts = class_counts(by_rows(Y, 1, 20, "classes:2", seed=3))
    assert ((counts > 0).sum(axis=1) == 2).all()
    assert ((counts > 0).sum(axis=0) == 4).all()  # 20 clients x 2 over 10 classes


def test_smaller_dirichlet_parameter_skews_more() -> None:
    # the largest class's share of a client's rows: 0.1 where classes are alike, 1 where each client has one class
    shares = [
        float(np.mean([(c.max(axis=1) / c.sum(axis=1)).mean() for c in map(class_counts, parts)]))
        for parts in ([by_rows(Y, 1, 10, f"dirichlet:{a}", seed=s) for s in range(5)] for a in (0.05, 1, 1000))
    ]
    assert shares[0] > 0.6 > shares[1] > 0.2 > shares[2]


def test_skew_of_sizes() -> None:
    assert np.ptp(by_rows(Y, 1, 10, skew=0.5).counts) > 100
    assert np.ptp(by_rows(Y, 1, 10, skew=1e6).counts) <= 2


def test_seed_settles_the_partition() -> None:
    first, again, other = (by_rows(Y, 1, 10, "dirichlet:0.5", seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first.rows, again.rows, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first.rows, other.rows, strict=True))


@pytest.mark.parametrize(
    ("clients", "how", "skew", "words"),
    [
        (0, "iid", None, "give 1 to 1000"),
        (1001, "iid", None, "give 1 to 1000"),
        (5, "iid", 0.0, "--skew 0"),
        (5, "dirichlet:0", None, "dirichlet:A with A > 0"),
        (5, "dirichlet:x", None, "dirichlet:A with A > 0"),
        (5, "classes:1", None, "give K from 2 to 10"),
        (5, "classes:11", None, "give K from 2 to 10"),
        (5, "sorted", None, "expected iid"),
    ],
)
def test_impossible_wishes(clients: int, how: str, skew: float | None, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        by_rows(Y, 1, clients, how, skew)


def test_real_targets_have_no_classes_to_skew() -> None:
    with pytest.raises(UsageError, match="real targets"):
        by_rows(Y / 2, 1, 5, "dirichlet:1")


def test_more_clients_than_columns() -> None:
    with pytest.raises(UsageError, match="give 1 to 4"):
        by_columns(9, 4, 5)


def test_held_out_rows_are_stratified() -> None:
    out = held_out(Y, 0.2, seed=4)
    assert np.bincount(Y[out]).tolist() == [20] * 10
    assert held_out(Y / 2, 0.25, seed=4).sum() == 250  # real targets: of all rows


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan"), 1e-9])
def test_held_out_needs_a_fraction(fraction: float) -> None:
    with pytest.raises(UsageError, match="--test-fraction"):
        held_out(Y, fraction, seed=0)


MAP = "client,rows,columns\n1,2-3,1 2\n0,2 3,0\n2,0-1,all\n"


def test_map(tmp_path: Path) -> None:
    path = tmp_path / "map.csv"
    path.write_text(MAP)
    partition = read_map(path, 4, 3)
    assert (holders(partition, 4, 3) == 1).all()
    assert [part.tolist() for part in partition.of(1)] == [[2, 3], [1, 2]]
    assert len(partition.rows) == 2  # clients 0 and 1 share their group of rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("1,2-3,1 2", "1,2-3,1"), "row 2 and column 2 is held by nobody"),
        (("2,0-1,all", "2,0-2,all"), "row 2 and column 0 is held by clients 0, 2"),
        (("2,0-1,all", "2,0-9,all"), "line 4, rows: '0-9'; expected .* within 0 to 3"),
        (("2,0-1,all", "2,0-1"), "line 4, columns: nothing"),
        (("2,0-1,all", "1,0-1,all"), "line 4: client '1'"),
        (("2,0-1,all", "5,0-1,all"), "no line for client 2"),
        (("client,", "who,"), "expected client,rows,columns"),
    ],
)
def test_faulty_map(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    path = tmp_path / "map.csv"
    path.write_text(MAP.replace(*change))
    with pytest.raises(DataError, match=words) as caught:
        read_map(path, 4, 3)
    assert str(path) in str(caught.value)


def test_missing_map(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        read_map(tmp_path / "map.csv", 4, 3)
