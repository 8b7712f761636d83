"""Arrays by name in a safetensors file, such as a run's model, and the hash by which models are compared."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import numpy as np
from pydantic_core import from_json
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from mpifed.core.errors import DataError
from mpifed.core.io_errors import open_regular
from mpifed.core.record import Array, Record, bare_leaves, leaves
from mpifed.core.tables import Table
from mpifed.files.json_file import as_written
from mpifed.files.write import replaced

MODEL = "model.safetensors"
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


def read_model(path: str | os.PathLike[str]) -> dict[str, Array]:
    """The named arrays of a safetensors file, in the order of their names; DataError when it is missing or damaged."""
    with _reading(path):
        arrays = load(as_written(path))
        if strange := [name for name, values in arrays.items() if values.dtype.kind not in "biuf"]:
            raise ValueError(f"{strange[0]} is of type {arrays[strange[0]].dtype}")
        return dict(sorted(arrays.items()))


def read_about(path: str | os.PathLike[str]) -> Table:
    """The table about the arrays of a file that `write_arrays` wrote; DataError when it is missing or damaged."""
    with _reading(path), open_regular(path), safe_open(path, "np") as file:
        about = from_json((file.metadata() or {}).get(_ABOUT, "{}"))
        if not isinstance(about, dict):
            raise ValueError(f"its metadata have no table {_ABOUT}")
        return about


def of_0_1(model: Path) -> str:
    """What is to be said of a model in the form of mpifed 0.1, at this path or in place of it; empty for no such."""
    old = model.with_name("model.h5")
    if not old.exists() or (model.exists() and model.name != old.name):
        return ""
    return (
        f"{old}: is of mpifed 0.1, and this version reads {MODEL} alone; write it with 0.1, by `mpifed export RUN --to "
        f"safetensors --out {MODEL}`, and put it beside, or train again"
    )


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors of a file of a model into a DataError."""
    if old := of_0_1(Path(path)):
        raise DataError(old)
    try:
        yield
    except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: no readable model ({type(error).__name__}: {str(error)[:200]}); let the run reach its end, or "
            "resume it"
        ) from error


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
