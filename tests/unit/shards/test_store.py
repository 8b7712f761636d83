"""Round trips through the files, and files that are not what they should be."""

from __future__ import annotations

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


def test_the_same_data_have_the_same_checksums(make: Make) -> None:
    first = make(BYTES, Y, by_rows(Y, P, 3)).checksums
    assert make(BYTES, Y, by_rows(Y, P, 3), chunks=4).checksums == first


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


@pytest.mark.parametrize("X", [BYTES, SPARSE], ids=["uint8", "sparse"])
def test_file_cut_off_while_it_is_read(make: Make, X: Any) -> None:
    federation = make(X, Y, by_rows(Y, P, 1))
    shard = federation.shard(0, False)
    os.truncate(federation.file_of(0), 100)
    with pytest.raises(DataError, match=r"shard-00000.h5: ends at byte .*make the data again"):
        shard.take(np.arange(S), np.empty((S, P)))
