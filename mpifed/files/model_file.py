"""Arrays by name in a safetensors file, such as a run's model, and the hash by which models are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from mpifed.core.errors import DataError
from mpifed.core.io_errors import PathLike
from mpifed.core.record import Array, Record, bare_leaves, leaves
from mpifed.files.json_file import as_written
from mpifed.files.reading import reading
from mpifed.files.write import replaced

MODEL = "model.safetensors"
_DAMAGED = (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError)
_ABOUT = "mpifed"  # one key of the metadata, whose order safetensors does not keep: equal models are equal files


def model_arrays(model: Record) -> dict[str, Array]:
    """The arrays of a model by name: its fields, or those of its head alone where there is nothing else."""
    head = getattr(model, "head", None)
    return dict(leaves(head if head and not bare_leaves(getattr(model, "first", ())) else model))


def write_arrays(
    path: Path, arrays: Mapping[str, Array], about: Mapping[str, int | str] = MappingProxyType({})
) -> None:
    """Write named arrays as a safetensors file, with a table about them; replaces the file atomically."""
    whole = {name: np.asarray(values, order="C") for name, values in arrays.items()}
    with replaced(path) as file:
        file.write(save(whole, {_ABOUT: json.dumps(dict(about))}))


def read_model(path: PathLike) -> dict[str, Array]:
    """The named arrays of a safetensors file, in the order of their names; DataError when it is missing or damaged."""
    if old := of_0_1(Path(path)):
        raise DataError(old)
    with reading(path, "let the run reach its end, or resume it", *_DAMAGED):
        arrays = load(as_written(path))
        if strange := [name for name, values in arrays.items() if values.dtype.kind not in "biuf"]:
            raise ValueError(f"{strange[0]} is of type {arrays[strange[0]].dtype}")
    return dict(sorted(arrays.items()))


def of_0_1(model: Path) -> str:
    """What is to be said of a model in the form of mpifed 0.1, at this path or in place of it; empty for no such."""
    old = model.with_name("model.h5")
    if not old.exists() or (model.exists() and model.name != old.name):
        return ""
    return (
        f"{old}: is of mpifed 0.1, and this version reads {MODEL} alone; write it with 0.1, by `mpifed export RUN --to "
        f"safetensors --out {MODEL}`, and put it beside, or train again"
    )


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
