"""Reading `federation.h5`, with checks of types, shapes, ranges, redundant entries, and the sizes of the shard files.

The checks precede every allocation whose size the file states, whether checksums are compared or not: checksums detect
damaged files, the checks malicious ones.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array
from mpifed.core.tables import Table
from mpifed.shards import layout
from mpifed.shards.extent import Extent, Files, is_finite
from mpifed.shards.hdf5 import Group, array_of, attribute_of, dataset_of, texts_of
from mpifed.shards.scaling import Scaling
from mpifed.shards.shard import DenseRows, SparseRows
from mpifed.shards.statistics import check_statistics

_MOST = 2**62
_MOST_CLASSES = 2**16  # unless there are more rows
_MOST_TARGETS = 2**16  # of a row
_SPLITS = ("rows", "columns", "grid")
_DTYPES = {np.dtype(name).newbyteorder("<").str for name in ("u1", "u2", "u4", "u8", "i4", "i8", "f4", "f8")}
# allowed kinds of dtypes of the datasets of a shard file
_KINDS = {"X": "uf", "data": "f", "indices": "i", "indptr": "i"}


class TestRows(NamedTuple):
    """How much the clients hold to test with; zeros where a federation has no such rows."""

    counts: NDArray[np.int64]  # [N] test rows of each client
    nbytes: NDArray[np.int64]  # [N] of these as stored


class Places(NamedTuple):
    """Offsets and dtypes of the datasets of the shard files, by dataset name."""

    offsets: dict[str, NDArray[np.int64]]  # [files] bytes from the start of the file
    dtypes: dict[str, list[str]]  # [files]
    nbytes: NDArray[np.int64]  # [files] size of the file

    def extent(self, path: Path, number: int, name: str, start: int, shape: tuple[int, ...], files: Files) -> Extent:
        """Items of a dataset of file `number`, from value `start` on; ValueError if they exceed the file."""
        dtype = np.dtype(self.dtypes[name][number])
        extent = Extent(path, int(self.offsets[name][number]) + start * dtype.itemsize, shape, dtype, files)
        if start < 0 or extent.offset + extent.nbytes > self.nbytes[number]:
            raise ValueError(f"{name}: {shape} values from index {start} on exceed {path.name}")
        return extent


def contents(file: Group, folder: Path) -> Table:
    """The fields of `mpifed.shards.store.ShardFolder`, by name, from an open `federation.h5`.

    Raises ValueError or KeyError when an entry is missing or invalid; DataError when a shard file is missing or has the
    wrong size.
    """
    entries = _numbers(file)
    clients, pack = entries["clients"], entries["pack"]
    entries["holds"] = holds = _whole(file, "holds", (clients, 2))
    entries["bounds"] = bounds = {
        axis: _bounds(file, axis, holds[:, i], entries[number])
        for i, (axis, number) in enumerate((("rows", "samples"), ("columns", "features")))
    }
    entries["counts"], entries["widths"] = (
        np.diff(bounds[axis])[groups] for axis, groups in zip(bounds, holds.T, strict=True)
    )
    if float(entries["counts"].astype(float) @ entries["widths"]) > _MOST:
        raise ValueError("its clients hold more than 2^62 values")
    files = -(-clients // pack)
    sizes = _whole(file, "files/nbytes", (files,))
    layout.check_sizes(folder, sizes, clients, pack)
    entries["targets"] = _targets(file, entries["classes"])
    entries["nbytes"] = _whole(file, "shard_nbytes", (clients,))
    entries["tests"] = _tests(file, entries)
    entries["checksums"] = tuple(texts_of(file, "files/checksum"))
    if len(entries["checksums"]) != files or not all(
        re.fullmatch("[0-9a-f]{64}", checksum) for checksum in entries["checksums"]
    ):
        raise ValueError(f"files/checksum: {len(entries['checksums'])} for {files} files, or not all of them SHA-256")
    entries["places"] = _places(file, entries, sizes)
    entries["scaling"] = Scaling(*(_reals(file, f"scaling/{name}", entries["features"]) for name in Scaling._fields))
    provenance = dataset_of(file, layout.PROVENANCE, "O")
    entries["provenance"] = json.loads(provenance.asstr()[()]) if provenance.shape == () else None
    if not isinstance(entries["provenance"], dict):
        raise ValueError(f"{layout.PROVENANCE} is not a JSON object")
    entries["statistics"] = check_statistics(entries["provenance"].get("statistics", {}), entries["features"])
    entries["target_scale"] = _target_scale(file)
    entries["shape"] = _shape(file, entries["features"])
    return entries


def identifiers(file: Group, clients: int) -> tuple[tuple[str, ...], NDArray[np.int64]] | None:
    """(identifiers [I], the client of each) of natural clients; None where there are none."""
    if "clients" not in file:
        return None
    ids, client_of = texts_of(file, "clients/ids"), array_of(file, "clients/of", "i").astype(np.int64)
    if client_of.shape != (len(ids),) or not np.array_equal(np.unique(client_of), np.arange(clients)):
        raise ValueError(f"clients/of has shape {client_of.shape}, for {len(ids)} identifiers of {clients} clients")
    return tuple(ids), client_of


def _tests(file: Group, entries: Table) -> TestRows:
    """The numbers of the clients' test rows."""
    shape = (entries["clients"],)
    if "client_tests" not in file:
        return TestRows(np.zeros(shape, np.int64), np.zeros(shape, np.int64))
    if entries["split"] != "rows":
        raise ValueError(f"client_tests, with split = {entries['split']}")
    tests = TestRows(*(_whole(file, f"client_tests/{name}", shape) for name in TestRows._fields))
    if float(tests.counts.astype(float) @ entries["widths"]) > _MOST:
        raise ValueError("its clients hold more than 2^62 test values")
    return tests


def _shape(file: Group, features: int) -> tuple[int, ...] | None:
    """The attribute, positive integers whose product is the number of features; None where it is absent."""
    if "shape" not in file.attrs:
        return None
    shape = attribute_of(file, "shape")
    if not isinstance(shape, np.ndarray) or shape.dtype.kind not in "iu" or shape.ndim != 1 or not len(shape) <= 8:
        raise ValueError(f"shape = {shape!r:.80}, expected integers")
    lengths = tuple(int(length) for length in shape)
    if min(lengths, default=0) < 1 or math.prod(lengths) != features:
        raise ValueError(f"shape = {lengths!r:.80}, expected lengths whose product is {features}, that of features")
    return lengths


def _targets(file: Group, classes: int) -> int:
    """The attribute, the number of real targets of a row; 1 where it is absent."""
    if "targets" not in file.attrs:
        return 1
    targets = attribute_of(file, "targets")
    if not isinstance(targets, (int, np.integer)) or not 2 <= targets <= _MOST_TARGETS or classes:
        raise ValueError(f"targets = {targets!r:.80} and {classes} classes, expected 2 to {_MOST_TARGETS}, and none")
    return int(targets)


def _target_scale(file: Group) -> float:
    """The attribute, a power of two that float32 has; 1 where it is absent."""
    scale = attribute_of(file, "target_scale") if "target_scale" in file.attrs else 1.0
    if not isinstance(scale, (float, np.floating)) or scale not in 2.0 ** np.arange(128):
        raise ValueError(f"target_scale = {scale!r:.80}, expected a power of two from 1 to 2^127")
    return float(scale)


def _numbers(file: Group) -> Table:
    """The attributes of `federation.h5`, checked."""
    lowest = {"clients": 1, "samples": 1, "test_samples": 0, "features": 1, "classes": 0, "pack": 1}
    seed = attribute_of(file, "seed")
    if not isinstance(seed, (int, np.integer)):
        raise ValueError(f"seed = {seed!r:.80}, expected an integer")
    attributes: Table = {"seed": int(seed)}
    for name, low in lowest.items():
        value = attribute_of(file, name)
        if not isinstance(value, (int, np.integer)) or not low <= value <= _MOST:
            raise ValueError(f"{name} = {value!r:.80}, expected {low} or more")
        attributes[name] = int(value)
    rows = attributes["samples"] + attributes["test_samples"]
    if attributes["classes"] > max(rows, _MOST_CLASSES):
        raise ValueError(f"classes = {attributes['classes']} of {rows} rows")
    attributes["split"], sparse = attribute_of(file, "split"), attribute_of(file, "sparse")
    if attributes["split"] not in _SPLITS or not isinstance(sparse, (bool, np.bool_)):
        raise ValueError(f"split = {attributes['split']!r:.80}, sparse = {sparse!r:.80}")
    return attributes | {"sparse": bool(sparse)}


def _whole(file: Group, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """A dataset of nonnegative integers of this shape."""
    dataset = dataset_of(file, name, "iu")
    if dataset.shape != shape:
        raise ValueError(f"{name} has shape {dataset.shape}, expected {shape}")
    values: NDArray[np.int64] = dataset[()]
    if values.size and not (values.min() >= 0 and values.max() <= _MOST):
        raise ValueError(f"{name}: from {values.min()} to {values.max()}")
    return values.astype(np.int64, copy=False)


def _bounds(file: Group, axis: str, held: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Bounds of the groups of an axis, each nonempty and held by a client, with at least `number` members."""
    groups = int(held.max()) + 1
    bounds = _whole(file, f"{axis}/bounds", (groups + 1,))
    if bounds[0] != 0 or (np.diff(bounds) < 1).any() or len(np.unique(held)) < groups:
        raise ValueError(f"{axis}/bounds and holds: a group is empty, or belongs to no client")
    members = dataset_of(file, f"{axis}/members", "i")
    if members.shape != (bounds[-1],) or number > bounds[-1]:
        raise ValueError(f"{axis}/members has shape {members.shape}, for {bounds[-1]} members and {number} {axis}")
    return bounds


def _reals(file: Group, name: str, features: int) -> Array:
    """A finite scalar, or [p] finite numbers."""
    dataset = dataset_of(file, name, "uif")
    if dataset.shape not in ((), (features,)):
        raise ValueError(f"{name} has shape {dataset.shape}, expected () or ({features},)")
    values = np.asarray(dataset[()])
    if not np.isfinite(values).all():
        raise ValueError(f"{name} is not finite")
    return values


def _places(file: Group, entries: Table, sizes: NDArray[np.int64]) -> Places:
    """The places of the datasets in the shard files, which must have room for all that the clients hold."""
    places = Places({}, {}, sizes)
    _place(file, entries, places, "", entries["counts"])
    if entries["tests"].counts.any():
        _place(file, entries, places, layout.TEST, entries["tests"].counts)
    return places


def _place(file: Group, entries: Table, places: Places, prefix: str, counts: NDArray[np.int64]) -> None:
    """Add the places of the datasets whose names begin with `prefix`, which hold `counts` [N] rows of the clients."""
    names = ("y", "data", "indices", "indptr") if entries["sparse"] else ("y", "X")
    kinds, sizes = {"y": "ui" if entries["classes"] else "uif", **_KINDS}, places.nbytes
    starts = np.arange(0, entries["clients"], entries["pack"])
    rows, values = (np.add.reduceat(c.astype(float), starts) for c in (counts, counts * entries["widths"]))
    # least number of values in each file
    least_counts = {"y": rows * entries["targets"], "X": values, "indptr": rows + 1}
    for kind in names:
        name = f"{prefix}{kind}"
        places.offsets[name] = offsets = _whole(file, f"files/{name}/offset", (len(sizes),))
        places.dtypes[name] = dtypes = texts_of(file, f"files/{name}/dtype")
        invalid = [dtype for dtype in dtypes if dtype not in _DTYPES or np.dtype(dtype).kind not in kinds[kind]]
        if invalid or len(dtypes) != len(sizes):
            raise ValueError(f"files/{name}/dtype: {len(dtypes)} for {len(sizes)} files, such as {invalid[:1]!r:.80}")
        nbytes = least_counts.get(kind, 0) * np.array([np.dtype(dtype).itemsize for dtype in dtypes])
        if (offsets + nbytes > sizes).any():
            number = int(np.argmax(offsets + nbytes > sizes))
            raise ValueError(f"files/{name}: exceeds the size of {layout.shard_name(number)}")


def check_labels(whose: str, y: Array, classes: int) -> None:
    """Raise ValueError unless labels are classes from 0 to classes - 1 or, for classes = 0, finite."""
    if classes and y.size and not (y.min() >= 0 and y.max() < classes):
        raise ValueError(f"{whose} has labels from {y.min()} to {y.max()}, expected 0 to {classes - 1}")
    if not is_finite(y):
        raise ValueError(f"{whose} has a target that is not finite")


def check_rows(whose: str, indptr: NDArray[np.int64]) -> None:
    """Raise ValueError unless the row pointers of a CSR matrix are nondecreasing."""
    if indptr[0] < 0 or (np.diff(indptr) < 0).any():
        raise ValueError(f"{whose}: its row pointers decrease")


def check_members(members: NDArray[np.int64], bounds: NDArray[np.int64], number: int) -> None:
    """Raise ValueError unless members of each group increase strictly, within 0 to number - 1; bounds[0] is 0."""
    if members.size and not (members.min() >= 0 and members.max() < number):
        raise ValueError(f"members from {members.min()} to {members.max()}, expected 0 to {number - 1}")
    descends = np.flatnonzero(np.diff(members) <= 0) + 1
    if not np.isin(descends, bounds).all():
        raise ValueError("the members of a group do not increase strictly")


def raw_rows(group: Group, shape: tuple[int, int], sparse: bool, files: Files) -> DenseRows | SparseRows:
    """The raw rows [s, p] in the HDF5 group of the test rows, in memory; ValueError if they are malformed."""
    whose = group.name.removeprefix("/")
    if not sparse:
        return DenseRows(_extent(group, "X", shape, files), True, whose)
    indptr = array_of(group, "indptr", "i").astype(np.int64, copy=False)
    if indptr.shape != (shape[0] + 1,) or indptr[0] != 0:
        raise ValueError(f"{whose}/indptr has shape {indptr.shape}, or does not begin with 0")
    check_rows(whose, indptr)
    stored = (int(indptr[-1]),)
    data, indices = (_extent(group, name, stored, files) for name in ("data", "indices"))
    return SparseRows(data, indices, indptr, shape[1], True, whose)


def _extent(group: Group, name: str, shape: tuple[int, ...], files: Files) -> Extent:
    """The extent of a contiguous dataset in its file."""
    dataset = dataset_of(group, name, "i" if name == "indices" else "uf")
    if dataset.chunks or dataset.shape != shape or (dataset.size and dataset.id.get_offset() is None):
        raise ValueError(f"{dataset.name} has shape {dataset.shape}, expected {shape} in one piece")
    return Extent(Path(group.file.filename), dataset.id.get_offset() or 0, shape, dataset.dtype, files)
