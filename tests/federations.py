"""Folders of data, made by `mpifed data`, the rows in them, and files to make them of."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from click.testing import CliRunner
from mapped import with_map
from PIL import Image

from mpifed.cli import main
from mpifed.data.command import data
from mpifed.data.shards import common_shard, shard_of
from mpifed.data.store import Federation, open_federation


def make(out: Path, *words: object) -> Federation:
    """What the command makes of these words, in the place of what was there; its errors are raised."""
    arguments = [*with_map(words), "--out", str(out), "--force"]
    CliRunner().invoke(data, arguments, catch_exceptions=False, standalone_mode=False)
    return open_federation(out, verify=True)


def held(folder: Federation, client: int = 0, tests: bool = False, dtype: str = "f8") -> Any:
    """[s, p] the rows with which a client trains, or tests; its labels are `shard_of(...).y`."""
    shard = shard_of(folder, client, tests)
    X = np.empty((shard.samples, shard.features), dtype)
    shard.take(np.arange(shard.samples), X)
    return X


def labelled(folder: Federation, client: int = 0, tests: bool = False) -> list[list[float]]:
    """The rows [x..., label] of a client, sorted."""
    return in_order(held(folder, client, tests, "f4"), shard_of(folder, client, tests).y)


def in_order(X: Any, y: Any) -> list[list[float]]:
    """Rows [x..., label], sorted; a sample may have any shape."""
    flat = np.reshape(X, (len(X), np.prod(np.shape(X)[1:], dtype=int)))
    return sorted(np.column_stack([flat, y]).astype("f4").tolist())


def common(folder: Federation, dtype: str = "f8") -> tuple[Any, Any]:
    """(X [s, p], y [s]) of the common test rows."""
    shard = common_shard(folder)
    assert shard is not None
    at = np.arange(shard.samples)
    if shard.sparse:
        return shard.take_sparse(at, dtype), shard.y
    X = np.empty((shard.samples, shard.features), dtype)
    shard.take(at, X)
    return X, shard.y


def command(*words: object) -> tuple[int, str]:
    """(exit code, what is printed) of an mpifed command."""
    ended = CliRunner().invoke(main, list(map(str, words)))
    return ended.exit_code, ended.output


def hdf5(**arrays: Any) -> bytes:
    """A file of HDF5 with these; `of_X` are attributes of X."""
    content, attributes = io.BytesIO(), arrays.pop("of_X", {})
    with h5py.File(content, "w") as file:
        for name, values in arrays.items():
            file[name] = values
        for name, value in attributes.items():
            file["X"].attrs[name] = value
    return content.getvalue()


def leaf(**users: tuple[Any, Any]) -> dict[str, object]:
    """(x, y) of each user, as a file of LEAF has them."""
    return {
        "users": list(users), "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }  # fmt: skip


def idx(values: Any) -> bytes:
    """A file of IDX, of unsigned bytes."""
    return (
        bytes([0, 0, 8, np.ndim(values)]) + np.array(np.shape(values), ">u4").tobytes() + values.astype("u1").tobytes()
    )


def png(*pixels: Any) -> bytes:
    """An image of [rows, columns] or [rows, columns, 3]; several are a moving one."""
    content = io.BytesIO()
    first, *others = map(Image.fromarray, pixels)
    first.save(content, "png", save_all=bool(others), append_images=others)
    return content.getvalue()
