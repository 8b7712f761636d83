"""Reading `federation.h5`: types, shapes and ranges, what it says twice, and what the shard files have room for.

All this is looked at before anything of a size that the file claims is in memory, whether checksums are compared or
not: they find what was damaged, and this what was made to do harm.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.record import Array
from mpifed.shards import layout
from mpifed.shards.hdf5 import array_of, attribute_of, dataset_of, texts_of
from mpifed.shards.scaling import Scaling
from mpifed.shards.shard import Extent, Files, is_finite

_MOST = 2**62
_MOST_CLASSES = 2**16  # where there are fewer rows
_SPLITS = ("rows", "columns", "grid")
_DTYPES = {np.dtype(name).newbyteorder("<").str for name in ("u1", "u2", "u4", "u8", "i4", "i8", "f4", "f8")}
_KINDS = {"X": "uf", "data": "f", "indices": "i", "indptr": "i"}  # of what a dataset of a shard file may be


class Places(NamedTuple):
    """Where the datasets of shard files lie; of each by its name."""

    offsets: dict[str, NDArray[np.int64]]  # [files] bytes from the start of the file
    dtypes: dict[str, list[str]]  # [files]
    nbytes: NDArray[np.int64]  # [files] of the whole file

    def extent(self, path: Path, number: int, name: str, start: int, shape: tuple[int, ...], files: Files) -> Extent:
        """So many items of a dataset of file `number`, from its value number `start` on; ValueError without room."""
        dtype = np.dtype(self.dtypes[name][number])
        found = Extent(path, int(self.offsets[name][number]) + start * dtype.itemsize, shape, dtype, files)
        if start < 0 or found.offset + found.nbytes > self.nbytes[number]:
            raise ValueError(f"{name}: {shape} values from number {start} on are not in {path.name}")
        return found


def contents(file: Any, folder: Path) -> dict[str, Any]:
    """What a federation is made of, by the names of `mpifed.shards.store.Federation`, from an open `federation.h5`.

    Raises
    ------
    ValueError, KeyError
        when something is missing or is not what it can be.
    DataError
        when a shard file is missing, or of another size.
    """
    found = _numbers(file)
    clients, pack = found["clients"], found["pack"]
    found["holds"] = holds = _whole(file, "holds", (clients, 2))
    found["bounds"] = bounds = {
        axis: _bounds(file, axis, holds[:, i], found[number])
        for i, (axis, number) in enumerate((("rows", "samples"), ("columns", "features")))
    }
    found["counts"], found["widths"] = (np.diff(bounds[axis])[one] for axis, one in zip(bounds, holds.T, strict=True))
    if float(found["counts"].astype(float) @ found["widths"]) > _MOST:
        raise ValueError("its clients hold more than can be counted")
    files = -(-clients // pack)
    sizes = _whole(file, "files/nbytes", (files,))
    layout.check_sizes(folder, sizes, clients, pack)
    found["nbytes"] = _whole(file, "shard_nbytes", (clients,))
    found["checksums"] = tuple(texts_of(file, "files/checksum"))
    if len(found["checksums"]) != files or not all(re.fullmatch("[0-9a-f]{64}", one) for one in found["checksums"]):
        raise ValueError(f"files/checksum: {len(found['checksums'])} for {files} files, or not all of them SHA-256")
    found["places"] = None if found.pop("schema") == 1 else _places(file, found, sizes)
    found["scaling"] = Scaling(*(_reals(file, f"scaling/{name}", found["features"]) for name in Scaling._fields))
    provenance = dataset_of(file, layout.PROVENANCE, "O")
    found["provenance"] = json.loads(provenance.asstr()[()]) if provenance.shape == () else None
    if not isinstance(found["provenance"], dict):
        raise ValueError(f"{layout.PROVENANCE} is no table")
    found["optimum"] = None
    if "optimum" in file:
        found["optimum"] = {name: array_of(file, f"optimum/{name}", "f") for name in ("w", "loss")}
        if found["optimum"]["loss"].shape != ():
            raise ValueError("optimum/loss is more than one number")
    return found


def _numbers(file: Any) -> dict[str, Any]:
    """The attributes."""
    least = {"schema": 1, "clients": 1, "samples": 1, "test_samples": 0, "features": 1, "classes": 0, "pack": 1}
    found: dict[str, Any] = {"seed": int(attribute_of(file, "seed"))}
    for name, low in least.items():
        value = attribute_of(file, name)
        if not isinstance(value, (int, np.integer)) or not low <= value <= _MOST:
            raise ValueError(f"{name} = {value!r:.80}, expected {low} or more")
        found[name] = int(value)
    rows = found["samples"] + found["test_samples"]
    if found["classes"] > max(rows, _MOST_CLASSES):
        raise ValueError(f"classes = {found['classes']} of {rows} rows")
    found["split"], sparse = attribute_of(file, "split"), attribute_of(file, "sparse")
    if found["split"] not in _SPLITS or not isinstance(sparse, (bool, np.bool_)):
        raise ValueError(f"split = {found['split']!r:.80}, sparse = {sparse!r:.80}")
    return found | {"sparse": bool(sparse)}


def _whole(file: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Numbers that count something."""
    found = dataset_of(file, name, "iu")
    if found.shape != shape:
        raise ValueError(f"{name} has shape {found.shape}, expected {shape}")
    values: NDArray[np.int64] = found[()]
    if values.size and not (values.min() >= 0 and values.max() <= _MOST):
        raise ValueError(f"{name}: from {values.min()} to {values.max()}")
    return values.astype(np.int64, copy=False)


def _bounds(file: Any, axis: str, held: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Of the groups of one axis, each of which somebody has, and which together have `number` members."""
    groups = int(held.max()) + 1
    bounds = _whole(file, f"{axis}/bounds", (groups + 1,))
    if bounds[0] != 0 or (np.diff(bounds) < 1).any() or len(np.unique(held)) < groups:
        raise ValueError(f"{axis}/bounds and holds: a group is empty, or nobody's")
    members = dataset_of(file, f"{axis}/members", "i")
    if members.shape != (bounds[-1],) or number > bounds[-1]:
        raise ValueError(f"{axis}/members has shape {members.shape}, for {bounds[-1]} members and {number} {axis}")
    return bounds


def _reals(file: Any, name: str, features: int) -> Array:
    """One finite number, or one for each feature."""
    found = dataset_of(file, name, "uif")
    if found.shape not in ((), (features,)):
        raise ValueError(f"{name} has shape {found.shape}, expected one number or {features}")
    values = np.asarray(found[()])
    if not np.isfinite(values).all():
        raise ValueError(f"{name} is not finite")
    return values


def _places(file: Any, found: dict[str, Any], sizes: NDArray[np.int64]) -> Places:
    """Where the datasets of the shard files lie, in which all that the clients hold has room."""
    names = ("y", "data", "indices", "indptr") if found["sparse"] else ("y", "X")
    kinds, places = {"y": "ui" if found["classes"] else "uif", **_KINDS}, Places({}, {}, sizes)
    starts = np.arange(0, found["clients"], found["pack"])
    rows, values = (
        np.add.reduceat(one.astype(float), starts) for one in (found["counts"], found["counts"] * found["widths"])
    )
    least = {"y": rows, "X": values, "indptr": rows + 1}  # how many numbers there must be in each file
    for name in names:
        places.offsets[name] = offsets = _whole(file, f"files/{name}/offset", (len(sizes),))
        places.dtypes[name] = dtypes = texts_of(file, f"files/{name}/dtype")
        wrong = [one for one in dtypes if one not in _DTYPES or np.dtype(one).kind not in kinds[name]]
        if wrong or len(dtypes) != len(sizes):
            raise ValueError(f"files/{name}/dtype: {len(dtypes)} for {len(sizes)} files, such as {wrong[:1]!r:.80}")
        nbytes = least.get(name, 0) * np.array([np.dtype(one).itemsize for one in dtypes])
        if (offsets + nbytes > sizes).any():
            number = int(np.argmax(offsets + nbytes > sizes))
            raise ValueError(f"files/{name}: more than {layout.shard_name(number)} has room for")
    return places


def check_labels(whose: str, y: Array, classes: int) -> None:
    """ValueError unless labels are class numbers from 0 on or, without classes, finite."""
    if classes and y.size and not (y.min() >= 0 and y.max() < classes):
        raise ValueError(f"{whose} has labels from {y.min()} to {y.max()}, expected 0 to {classes - 1}")
    if not is_finite(y):
        raise ValueError(f"{whose} has a target that is not finite")


def check_rows(whose: str, indptr: NDArray[np.int64]) -> None:
    """ValueError unless the row pointers of a sparse matrix ascend."""
    if indptr[0] < 0 or (np.diff(indptr) < 0).any():
        raise ValueError(f"{whose}: its row pointers do not ascend")


def check_members(members: NDArray[np.int64], bounds: NDArray[np.int64], number: int) -> None:
    """ValueError unless the members of each group ascend, and are among so many; `bounds` begin with 0."""
    if members.size and not (members.min() >= 0 and members.max() < number):
        raise ValueError(f"members from {members.min()} to {members.max()}, expected 0 to {number - 1}")
    descends = np.flatnonzero(np.diff(members) <= 0) + 1
    if not np.isin(descends, bounds).all():
        raise ValueError("the members of a group do not ascend")
