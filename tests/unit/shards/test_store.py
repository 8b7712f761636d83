"""Round trips through the files, and files that are not what they should be."""

from __future__ import annotations

import gc
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from lengths import covering
from scipy import sparse

from mpifed.core.errors import DataError
from mpifed.shards.partition import Partition, by_columns, by_grid, by_rows
from mpifed.shards.scaling import IDENTITY, Scaling
from mpifed.shards.store import About, ShardFolder, open_federation, write_federation

S, P = 60, 12
RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (S, P), dtype=np.uint8)
FLOATS = RNG.standard_normal((S, P)).astype(np.float32)
SPARSE = sparse.csr_matrix(np.where(RNG.random((S, P)) < 0.2, FLOATS, np.float32(0)))
Y = np.arange(S) % 3
PARTITIONS = [by_rows(Y, P, 4, skew=1.0), by_columns(S, P, 5), by_grid(Y, P, (3, 2))]
SCALINGS = {
    "identity": IDENTITY,
    "scalar": Scaling(np.array(1 / 255), np.array(0.0)),
    "columns": Scaling(np.linspace(0.5, 2, P), np.linspace(-1, 1, P)),
    "no shift": Scaling(np.linspace(0.5, 2, P), np.zeros(P)),
}
Make = Callable[..., ShardFolder]


def dense(X: Any) -> np.ndarray:
    """X as a dense array in double precision."""
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)


@covering(
    {
        "X": [BYTES, FLOATS, SPARSE],
        "pack": [1, 3],
        "in_memory": [True, False],
        "partition": PARTITIONS,
    }
)
def test_shards_hold_what_was_written(make: Make, X: Any, pack: int, in_memory: bool, partition: Partition) -> None:
    federation = make(X, Y, partition, chunks=3, pack=pack)
    assert (federation.samples, federation.features, federation.classes) == (S, P, 3)
    assert federation.counts.tolist() == partition.counts.tolist()
    assert federation.widths.tolist() == partition.widths.tolist()
    for client in range(federation.clients):
        shard = federation.shard(client, in_memory)
        rows, columns = partition.of(client)
        assert np.array_equal(shard.rows, rows)
        assert np.array_equal(shard.columns, columns)
        assert np.array_equal(shard.y, Y[rows])
        out = np.empty((len(rows), len(columns)))
        shard.take(np.arange(len(rows)), out)
        assert np.array_equal(out, dense(X)[np.ix_(rows, columns)])


@covering({"X": [BYTES, FLOATS], "dtype": [np.float32, np.float64], "scaling": SCALINGS.values()})
def test_take_scales_alike_from_memory_and_file(make: Make, X: Any, dtype: Any, scaling: Scaling) -> None:
    federation = make(X, Y, by_grid(Y, P, (2, 2)), scaling)
    expected = X * scaling.scale + scaling.shift
    at = np.array([3, 4, 5, 29, 0, 3, 3])
    for client in range(4):
        memory, file = federation.shard(client, True), federation.shard(client, False)
        ours, theirs = (np.full((len(at), memory.features), np.nan, dtype) for _ in range(2))
        memory.take(at, ours)
        file.take(at, theirs)
        assert np.array_equal(ours, theirs)
        # one product and one sum, rounded to `dtype`
        rounding = 4 * np.finfo(dtype).eps * np.abs(expected).max()
        np.testing.assert_allclose(ours, expected[np.ix_(memory.rows[at], memory.columns)], rtol=0, atol=rounding)


@pytest.mark.parametrize("scaling", [SCALINGS["identity"], SCALINGS["scalar"], SCALINGS["no shift"]])
def test_take_sparse_alike_from_memory_and_file(make: Make, scaling: Scaling) -> None:
    federation = make(SPARSE, Y, by_grid(Y, P, (2, 2)), scaling)
    at = np.array([3, 4, 5, 29, 0, 3, 3])
    for client in range(4):
        memory, file = federation.shard(client, True), federation.shard(client, False)
        ours, theirs = memory.take_sparse(at, np.float64), file.take_sparse(at, np.float64)
        expected = (dense(SPARSE) * scaling.scale)[np.ix_(memory.rows[at], memory.columns)]
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours.toarray(), expected, rtol=1e-15)
        assert np.array_equal(ours.toarray(), theirs.toarray())


def test_take_into_a_part_of_an_array(make: Make) -> None:
    shard = make(FLOATS, Y, by_rows(Y, P, 2)).shard(0, False)
    out = np.zeros((2, 2 * P), np.float32)
    shard.take(np.array([1, 7]), out[:, ::2])
    assert np.array_equal(out[:, ::2], FLOATS[shard.rows[[1, 7]]])
    assert not out[:, 1::2].any()


@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_outside_the_shard_are_refused(make: Make, in_memory: bool) -> None:
    shard = make(BYTES, Y, by_rows(Y, P, 2)).shard(1, in_memory)
    with pytest.raises(IndexError, match="30"):
        shard.take(np.array([30]), np.empty((1, shard.features), np.float32))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpifed.shards.shard.PIECE_NBYTES", 160)


@pytest.mark.usefixtures("small_pieces")
@covering({"X": [BYTES, FLOATS, SPARSE], "dtype": [np.float32, np.float64], "scaling": SCALINGS.values()})
def test_pieces_are_all_rows_alike_from_memory_and_file(make: Make, X: Any, dtype: Any, scaling: Scaling) -> None:
    if sparse.issparse(X) and scaling.shift.any():
        return
    federation = make(X, Y, by_grid(Y, P, (2, 2)), scaling)
    for client in range(4):
        memory, file = (federation.shard(client, in_memory) for in_memory in (True, False))
        expected = np.empty((memory.samples, memory.features), dtype)
        memory.take(np.arange(memory.samples), expected)
        for _ in range(2):  # what is kept is the same again
            ours, theirs = list(memory.pieces(dtype)), list(file.pieces(dtype))
            assert [rows for rows, _ in ours] == [rows for rows, _ in theirs]
            assert len(ours) >= 2
            assert np.concatenate([np.arange(30)[rows] for rows, _ in ours]).tolist() == list(range(30))
            for (rows, mine), (_, its) in zip(ours, theirs, strict=True):
                assert mine.dtype == its.dtype == dtype
                assert sparse.issparse(mine) == sparse.issparse(its) == sparse.issparse(X)
                assert np.array_equal(dense(mine), expected[rows])
                assert np.array_equal(dense(its), expected[rows])


@pytest.mark.usefixtures("small_pieces")
def test_pieces_are_cut_by_their_bytes(make: Make) -> None:
    rows = np.array([20, 0, 0, 12, 12, 1, 30, 2, 18, 0])  # values in each
    X = sparse.csr_matrix((np.arange(30) < rows[:, None]).astype(np.float32))
    partition = by_rows(Y[:10], 30, 1)
    shard = make(X, Y[:10], partition).shard(0, True)
    cuts = [(piece.start, piece.stop) for piece, _ in shard.pieces(np.float64)]
    assert cuts == [(0, 1), (1, 5), (5, 7), (7, 9), (9, 10)]  # 20 values of 8 bytes; a row is never cut
    shard = make(X.toarray().astype(np.uint8), Y[:10], partition).shard(0, True)
    assert [(piece.start, piece.stop) for piece, _ in shard.pieces(np.float64)] == [(i, i + 1) for i in range(10)]


def test_pieces_of_rows_without_values(make: Make) -> None:
    X = sparse.csr_matrix(([1.0], ([9], [3])), shape=(10, 4), dtype=np.float32)
    federation = make(X, Y[:10], by_columns(10, 4, 2))
    for in_memory in (True, False):
        pieces = list(federation.shard(0, in_memory).pieces(np.float32))
        assert [(rows, X.shape, X.nnz) for rows, X in pieces] == [(slice(0, 10), (10, 2), 0)]


def test_pieces_in_memory_are_not_copied(make: Make) -> None:
    shard = make(FLOATS, Y, by_grid(Y, P, (2, 2))).shard(0, True)
    (_, once), (_, again) = (piece for _ in range(2) for piece in shard.pieces(np.float32))
    assert np.shares_memory(once, again)
    with pytest.raises(ValueError, match="read-only"):
        once[0, 0] = 1


@pytest.mark.parametrize("scaling", [SCALINGS["identity"], SCALINGS["scalar"]])
def test_sparse_pieces_are_made_once(make: Make, scaling: Scaling) -> None:
    shard = make(SPARSE, Y, by_rows(Y, P, 1), scaling).shard(0, True)
    (_, raw), (_, wide) = (piece for dtype in (np.float32, np.float64) for piece in shard.pieces(dtype))
    assert raw is next(X for _, X in shard.pieces(np.float32))
    assert wide is next(X for _, X in shard.pieces(np.float64))
    assert np.shares_memory(raw.indices, wide.indices)
    stored = shard._values._memory  # type: ignore[union-attr]
    assert np.shares_memory(raw.indices, stored.indices)
    assert np.shares_memory(raw.data, stored.data) == (scaling is IDENTITY)


def test_dense_shards_have_no_sparse_rows(make: Make) -> None:
    with pytest.raises(TypeError, match="`take`"):
        make(BYTES, Y, by_rows(Y, P, 2)).shard(0, True).take_sparse(np.array([0]), np.float32)


@pytest.mark.parametrize("X", [BYTES, SPARSE], ids=["uint8", "sparse"])
def test_federation_file(make: Make, X: Any) -> None:
    scaling = SCALINGS["no shift"]
    names = tuple(f"x{i}" for i in range(P))
    federation = make(X, Y, by_rows(Y, P, 3), scaling, test=(X[:9], Y[:9]), names=names)
    assert federation.names() == names
    assert federation.provenance == {"source": "test"}
    test = federation.test(np.float64)
    assert test is not None
    assert federation.test_samples == 9
    np.testing.assert_allclose(dense(test[0]), dense(X[:9]) * scaling.scale, rtol=1e-15)
    assert np.array_equal(test[1], Y[:9])


def test_no_test_rows_and_no_names(make: Make) -> None:
    federation = make(BYTES, Y, by_rows(Y, P, 3))
    assert federation.test(np.float32) is None
    assert federation.names() is None


@pytest.mark.parametrize(("y", "stored"), [(Y, "u1"), (Y * 200, "<u2"), (Y / 2, "<f4"), (Y / 3, "<f8")])
def test_types_on_disk_are_compact(make: Make, y: np.ndarray, stored: str) -> None:
    federation = make(BYTES, y, by_rows(y, P, 2))
    with h5py.File(federation.file_of(1)) as file:
        assert file["y"].dtype == stored
        assert file["X"].dtype == np.uint8
        assert federation.nbytes[1] == 30 * P + 30 * np.dtype(stored).itemsize
    assert np.array_equal(federation.shard(0, True).y, y[federation.shard(0, True).rows])


def test_streaming_needs_memory_for_a_batch_only(make: Make) -> None:
    X = np.zeros((20000, 200), np.float32)
    shard = make(X, np.zeros(len(X), dtype=np.int64), by_rows(np.zeros(len(X), dtype=int), 200, 1)).shard(0, False)
    out = np.empty((100, 200), np.float64)
    tracemalloc.start()
    for start in range(0, len(X), 100):
        shard.take(np.arange(start, start + 100), out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 100 * 200 * 4  # a few batches; the shard has 200


def test_few_files_are_open(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpifed.shards.extent.MOST_OPEN", 2)
    federation = make(BYTES, Y, by_rows(Y, P, 5))
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else pytest.skip("no /proc here")
    shards = [federation.shard(client, False) for client in range(5)]
    out = np.empty((12, P))
    for shard in shards * 2:
        shard.take(np.arange(12), out)
        assert np.array_equal(out, BYTES[shard.rows])
        assert len(os.listdir("/proc/self/fd")) <= before + 2
    del federation, shards, shard
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_clients_share_their_groups_of_rows_and_columns(make: Make) -> None:
    federation = make(BYTES, Y, by_grid(Y, P, (2, 2)))
    shards = [federation.shard(client, True) for client in range(4)]
    assert shards[0].rows is shards[1].rows is not shards[2].rows
    assert shards[0].columns is shards[2].columns is not shards[1].columns


def test_the_same_data_have_the_same_checksums(make: Make) -> None:
    first = make(BYTES, Y, by_rows(Y, P, 3)).checksums
    assert make(BYTES, Y, by_rows(Y, P, 3), chunks=4).checksums == first


def test_writing_leaves_nothing_of_an_earlier_federation(make: Make) -> None:
    make(BYTES, Y, by_rows(Y, P, 6))
    federation = make(BYTES, Y, by_rows(Y, P, 2))
    names = sorted(path.name for path in federation.path.iterdir())
    assert names == ["federation.h5", "federation.sha256", "shard-00000.h5", "shard-00001.h5"]


def test_interrupted_writing_does_not_look_complete(make: Make, tmp_path: Path) -> None:
    make(BYTES, Y, by_rows(Y, P, 2))

    def broken() -> Any:
        yield BYTES[:30]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_federation(tmp_path, by_rows(Y, P, 2), Y, broken(), np.uint8, 1, About(3, IDENTITY, 0, {}))
    with pytest.raises(DataError, match=r"federation.h5: no such file; make the data with `mpifed data"):
        open_federation(tmp_path)


def check_open(folder: Path) -> None:
    """What a careful run does."""
    federation = open_federation(folder, verify=True)
    for client in range(federation.clients):
        federation.shard(client, True)


def truncate(path: Path, nbytes: int) -> None:
    """Cut the last bytes off."""
    os.truncate(path, path.stat().st_size - nbytes)


def flip(path: Path) -> None:
    """Change the last byte."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def set_attribute(path: Path, name: str, value: Any) -> None:
    """Change an attribute of a file."""
    with h5py.File(path, "a") as file:
        file.attrs[name] = value


def change(path: Path, name: str, at: Any, value: Any) -> None:
    """Change a value of a dataset."""
    with h5py.File(path, "a") as file:
        file[name][at] = value


CHANGED = "federation.h5: SHA-256 of its content is .*changed or damaged"
FAULTS: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "shard missing": ("shard-00001.h5", Path.unlink, "it holds clients 2 to 3; put it back"),
    "shard truncated": ("shard-00001.h5", lambda path: truncate(path, 10), "bytes, .* were written for clients 2 to 3"),
    "shard changed": ("shard-00002.h5", flip, "SHA-256 is .*changed or damaged"),
    "other schema": (
        "federation.h5",
        lambda path: set_attribute(path, "schema", 99),
        "schema version .*99.* version 2",
    ),
    "other counts": ("federation.h5", lambda path: set_attribute(path, "clients", 9), r"holds has shape \(5, 2\), exp"),
    "other seed": ("federation.h5", lambda path: set_attribute(path, "seed", 99), CHANGED),
    "other scale": ("federation.h5", lambda path: change(path, "scaling/scale", (), 2.0), CHANGED),
    "other test labels": ("federation.h5", lambda path: change(path, "test/y", 0, 2), CHANGED),
    "other provenance": ("federation.h5", lambda path: change(path, "provenance", (), "{}"), CHANGED),
    "other data checksum": ("federation.h5", lambda path: set_attribute(path, "data_sha256", "0" * 64), CHANGED),
    "no HDF5": ("federation.h5", lambda path: path.write_bytes(b"x" * 100) and None, "damaged"),
    "map truncated": ("federation.h5", lambda path: truncate(path, 10), "damaged"),
}


@pytest.mark.parametrize(("name", "break_it", "words"), FAULTS.values(), ids=FAULTS)
def test_faulty_files(make: Make, name: str, break_it: Callable[[Path], None], words: str) -> None:
    federation = make(BYTES, Y, by_rows(Y, P, 5), pack=2, test=(BYTES[:6], Y[:6]))
    check_open(federation.path)
    break_it(federation.path / name)
    if name == "federation.h5":
        with pytest.raises(DataError, match=r"federation\.h5: SHA-256 is .*, federation\.sha256 beside it says"):
            open_federation(federation.path)
        (federation.path / "federation.sha256").unlink()  # as of an earlier version
    with pytest.raises(DataError, match=words) as caught:
        check_open(federation.path)
    assert str(federation.path / name) in str(caught.value)
    assert "mpifed data" in str(caught.value)


def test_the_checksum_of_data_tells_them_from_others_wherever_they_lie(
    make: Make, tmp_path_factory: pytest.TempPathFactory
) -> None:
    partition = by_rows(Y, P, 3)
    first = make(BYTES, Y, partition)
    before = first.sha256
    assert make(BYTES, Y, partition, chunks=2).sha256 == before
    moved = Path(shutil.copytree(first.path, tmp_path_factory.mktemp("moved"), dirs_exist_ok=True))
    assert open_federation(moved, verify=True).sha256 == before
    (moved / "federation.sha256").unlink()
    with h5py.File(moved / "federation.h5", "a") as file:
        file["provenance"][()] = '{"made": "another day"}'
        for name in ("sha256", "data_sha256"):  # as earlier versions wrote it
            del file.attrs[name]
    assert open_federation(moved, verify=True).sha256 == before
    others = [
        (BYTES, Y, by_rows(Y, P, 4)), (BYTES, Y, partition, SCALINGS["scalar"]), (BYTES, (Y + 1) % 3, partition),
        (BYTES[:, ::-1], Y, partition), (FLOATS, Y, partition), (SPARSE, Y, partition),
    ]  # fmt: skip
    assert len({before, *(make(*one).sha256 for one in others)}) == 7


def test_shard_verifies_its_own_file(make: Make) -> None:
    federation = make(BYTES, Y, by_rows(Y, P, 3))
    shards = [federation.shard(client, False) for client in range(3)]
    flip(federation.file_of(1))
    shards[0].verify()
    with pytest.raises(DataError, match=r"shard-00001.h5: SHA-256"):
        shards[1].verify()


def test_shard_of_another_federation(make: Make) -> None:
    federation = make(BYTES, Y, by_rows(Y, P, 3))
    other = federation.file_of(1).read_bytes()
    make(BYTES[:59], Y[:59], by_rows(Y[:59], P, 3))
    federation.file_of(1).write_bytes(other)
    with pytest.raises(DataError, match=r"shard-00001.h5: (\d+ bytes, \d+ were written for client 1|SHA-256)"):
        open_federation(federation.path, verify=True)


@pytest.mark.parametrize("X", [BYTES, SPARSE], ids=["uint8", "sparse"])
def test_file_cut_off_while_it_is_read(make: Make, X: Any) -> None:
    federation = make(X, Y, by_rows(Y, P, 1))
    shard = federation.shard(0, False)
    os.truncate(federation.file_of(0), 100)
    with pytest.raises(DataError, match=r"shard-00000.h5: ends at byte .*make the data again"):
        shard.take(np.arange(S), np.empty((S, P)))


def test_file_removed_before_it_is_read(make: Make) -> None:
    federation = make(BYTES, Y, by_rows(Y, P, 1))
    federation.file_of(0).unlink()
    with pytest.raises(DataError, match=r"shard-00000.h5: cannot be opened"):
        federation.shard(0, False)
