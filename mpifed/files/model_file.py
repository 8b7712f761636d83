"""Arrays by name in an HDF5 file, such as model.h5, and the hash by which models are compared."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from mpifed.core.record import Array, Record, bare_leaves, leaves
from mpifed.core.tables import Table
from mpifed.files.hdf5 import array_of, attribute_of, reading_hdf5, write_hdf5
from mpifed.files.write import replaced

_NO_MODEL = "no readable model", "let the run reach its end, or resume it"


def model_arrays(model: Record) -> dict[str, Array]:
    """The arrays of a model by name: its fields, or those of its head alone where there is nothing else."""
    head = getattr(model, "head", None)
    return dict(leaves(head if head and not bare_leaves(getattr(model, "first", ())) else model))


def write_arrays(
    path: Path, arrays: Mapping[str, Array], attributes: Mapping[str, int | str] = MappingProxyType({})
) -> None:
    """Write named arrays as the datasets of an HDF5 file, with root attributes; replaces the file atomically."""
    assert not any("/" in name for name in arrays), tuple(arrays)
    with replaced(path) as part, write_hdf5(Path(part.name)) as file:
        for name, values in arrays.items():
            file[name] = values
        file.attrs.update(attributes)


def read_model(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The named arrays of a file that `write_arrays` wrote; DataError when it is missing or damaged."""
    with reading_hdf5(path, *_NO_MODEL) as file:
        return {name: array_of(file, name) for name in file}


def read_attributes(path: str | os.PathLike[str]) -> Table:
    """The attributes of a file that `write_arrays` wrote; DataError when it is missing or damaged."""
    with reading_hdf5(path, *_NO_MODEL) as file:
        return {name: attribute_of(file, name) for name in file.attrs}


def model_sha256(arrays: Mapping[str, Array]) -> str:
    r"""The hexadecimal SHA-256 of named arrays: equal exactly when names, shapes, dtypes and all bits are.

    Hashed are, for each name in ascending order of code points and with nothing in between: the name, a zero byte,
    numpy's string of the dtype in little-endian order (``<f4``), a zero byte, the decimal lengths of the axes joined by
    commas (``784,128``; nothing for a scalar), a zero byte, all in UTF-8; then the values in C order, little-endian.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        values = np.asarray(arrays[name])
        values = values.astype(values.dtype.newbyteorder("<"), order="C", copy=False)
        digest.update(f"{name}\0{values.dtype.str}\0{','.join(map(str, values.shape))}\0".encode())
        digest.update(values.tobytes())
    return digest.hexdigest()
