"""Data folders that were made to do harm, with checksums that nobody compares; HDF5 that reaches beyond its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy import sparse

from mpifed.core.errors import DataError
from mpifed.shards.hdf5 import array_of, open_hdf5
from mpifed.shards.partition import by_rows
from mpifed.shards.store import ShardFolder, open_federation

S, P = 60, 12
RNG = np.random.default_rng(0)
FLOATS = RNG.standard_normal((S, P)).astype(np.float32)
SPARSE = sparse.csr_matrix(np.where(RNG.random((S, P)) < 0.4, FLOATS, np.float32(0)))
Y = np.arange(S) % 3
Make = Callable[..., ShardFolder]


def put(path: Path, name: str, value: Any, **options: Any) -> None:
    """Another dataset in the place of one, in a folder without the checksum of all bytes."""
    (path.parent / "federation.sha256").unlink(missing_ok=True)
    with h5py.File(path, "r+") as file:
        del file[name]
        file.create_dataset(name, data=value, **options)


def virtual(file: Any, name: str, beside: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[...] = h5py.VirtualSource(str(beside), "x", (4,))
    file.create_virtual_dataset(name, layout)


def link(file: Any, name: str, beside: Path) -> None:
    file[name] = h5py.ExternalLink(str(beside), "x")


def soft(file: Any, name: str, beside: Path) -> None:
    file["there"], file[name] = np.zeros(4), h5py.SoftLink("/there")


def external(file: Any, name: str, beside: Path) -> None:
    file.create_dataset(name, (4,), "f8", external=[(str(beside), 0, 32)])


def bomb(file: Any, name: str, beside: Path) -> None:
    file.create_dataset(name, data=np.zeros(2**22), chunks=(2**22,), compression="gzip")


def empty_chunks(file: Any, name: str, beside: Path) -> None:
    file.create_dataset(name, (2**40,), "f8", chunks=(1024,), compression="gzip")


def unwritten(file: Any, name: str, beside: Path) -> None:
    file.create_dataset(name, (2**60,), "u1")


def compound(file: Any, name: str, beside: Path) -> None:
    file[name] = np.zeros(3, "i4,f8")


@pytest.mark.parametrize("make_it", [virtual, link, soft, external, bomb, empty_chunks, unwritten, compound])
def test_only_what_is_in_the_file_is_read(tmp_path: Path, make_it: Callable[[Any, str, Path], None]) -> None:
    with h5py.File(tmp_path / "beside.h5", "w") as file:
        file["x"] = np.arange(4.0)
    with h5py.File(tmp_path / "made.h5", "w") as file:
        make_it(file, "group/x", tmp_path / "beside.h5")
        file["group/y"] = np.arange(3)
        file.create_dataset("group/z", data=np.arange(10**5), compression="gzip", shuffle=True)
    with open_hdf5(tmp_path / "made.h5") as file:
        with pytest.raises(ValueError, match="group/x"):
            array_of(file, "group/x")
        assert array_of(file, "group/y").tolist() == [0, 1, 2]
        assert array_of(file, "group/z").sum() == np.arange(10**5).sum()


FAULTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "an object for a type": (lambda path: put(path, "files/X/dtype", ["O", "O"]), "files/X/dtype"),
    "a type of no length": (lambda path: put(path, "files/X/dtype", ["|V0", "|V0"]), "files/X/dtype"),
    "places beyond the file": (lambda path: put(path, "files/X/offset", [2**40, 0]), "exceeds the size of shard-00000"),
    "a place before it": (lambda path: put(path, "files/y/offset", [-8, 0]), "files/y/offset: from -8"),
    "groups that are not there": (lambda path: put(path, "holds", [[0, 0], [9, 0]]), "rows/bounds"),
    "bounds that descend": (lambda path: put(path, "rows/bounds", [0, 40, 30]), "a group is empty"),
    "more rows than are stored": (lambda path: put(path, "rows/bounds", [0, 30, 2**40]), "rows/members has shape"),
    "features for nobody": (lambda path: attribute(path, "features", 2**40), "columns/members has shape"),
    "more classes than rows": (lambda path: attribute(path, "classes", 2**40), "classes = "),
    "classes in words": (lambda path: attribute(path, "classes", "many"), "classes = 'many'"),
    "a scale that is not finite": (lambda path: put(path, "scaling/scale", np.nan), "scaling/scale is not finite"),
    "test rows of another width": (lambda path: put(path, "test/X", np.zeros((6, 3), "f4")), "test/X"),
    "test labels beyond classes": (lambda path: put(path, "test/y", np.full(6, 200, "u1")), "labels from 200"),
    "a scale of targets that is none": (lambda path: attribute(path, "target_scale", 3.0), "target_scale = "),
    "a scale of targets beyond all": (lambda path: attribute(path, "target_scale", 2.0**200), "target_scale = "),
    "a scale of targets in words": (lambda path: attribute(path, "target_scale", "large"), "target_scale = 'large'"),
    "statistics in a list": (lambda path: statistics(path, [1, 2]), "statistics: "),
    "a constant column that is not there": (lambda path: statistics(path, {"constant_columns": [99]}), "statistics: "),
    "a mean in words": (lambda path: statistics(path, {"target_mean": "x"}), "target_mean = 'x'"),
    "a deviation that is none": (lambda path: statistics(path, {"target_deviation": np.nan}), "target_deviation = nan"),
    "a checksum that is none": (lambda path: put(path, "files/checksum", ["x", "y"]), "files/checksum"),
}


def statistics(path: Path, value: Any) -> None:
    (path.parent / "federation.sha256").unlink(missing_ok=True)
    with h5py.File(path, "r+") as file:
        about = json.loads(file["provenance"].asstr()[()]) | {"statistics": value}
        del file["provenance"]
        file["provenance"] = json.dumps(about)


def attribute(path: Path, name: str, value: Any) -> None:
    (path.parent / "federation.sha256").unlink()
    with h5py.File(path, "r+") as file:
        file.attrs[name] = value


@pytest.mark.parametrize(("spoil", "said"), FAULTS.values(), ids=FAULTS)
def test_what_does_not_agree(make: Make, spoil: Callable[[Path], None], said: str) -> None:
    path = make(FLOATS, Y, by_rows(Y, P, 2), test=(FLOATS[:6], Y[:6])).path
    spoil(path / "federation.h5")
    with pytest.raises(DataError, match=rf"federation\.h5: .*{said}.*mpifed data"):
        open_federation(path).test(np.float32)


@pytest.mark.parametrize("members", [np.arange(S)[::-1], np.full(S, 2**40), np.arange(S) - 1])
def test_members_that_are_no_rows(make: Make, members: Any) -> None:
    path = make(FLOATS, Y, by_rows(Y, P, 2)).path
    put(path / "federation.h5", "rows/members", members, chunks=(60,), compression="gzip")
    with pytest.raises(DataError, match="members"):
        open_federation(path).shard(1, True).rows  # noqa: B018


def spoil_shard(path: Path, name: str, at: int, value: Any) -> None:
    with h5py.File(path, "r+") as file:
        file[name][np.unravel_index(at, file[name].shape)] = value


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    ("X", "name", "value", "said"),
    [
        (FLOATS, "y", 3, "labels from 0 to 3, expected 0 to 2"),
        (FLOATS, "X", np.nan, "not finite"),
        (FLOATS, "X", -np.inf, "not finite"),
        (SPARSE, "indices", P, "columns 0 to 12, expected 0 to 11"),
        (SPARSE, "indices", -1, "columns -1 to 11"),
        (SPARSE, "indptr", 2**40, "row pointers decrease"),
        (SPARSE, "data", np.inf, "not finite"),
    ],
)
def test_shards_without_checksums(make: Make, X: Any, name: str, value: Any, said: str, in_memory: bool) -> None:
    federation = make(X, Y, by_rows(Y, P, 2))
    spoil_shard(federation.path / "shard-00001.h5", name, 5, value)
    with pytest.raises(DataError, match=rf"shard-00001\.h5: client 1.*{said}"):
        shard = open_federation(federation.path).shard(1, in_memory)
        for _ in shard.pieces(np.float32):
            pass


def test_rows_that_claim_more_than_the_file_has(make: Make) -> None:
    federation = make(SPARSE, Y, by_rows(Y, P, 2))
    spoil_shard(federation.path / "shard-00001.h5", "indptr", 30, 2**50)
    for in_memory in (True, False):
        with pytest.raises(DataError, match=r"shard-00001\.h5: data: .* exceed shard-00001\.h5"):
            open_federation(federation.path).shard(1, in_memory)
