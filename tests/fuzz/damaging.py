"""How files that runs and data leave are damaged on purpose: tables, HDF5 files, and what is no file at all."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_TOO_DEEP: list[Any] = []
for _ in range(300):
    _TOO_DEEP = [_TOO_DEEP]
_STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.5, 1e308, 5e-324, "", "x", "\x1b[31m", "\0",
    "../../x", "/dev/zero", "9" * 400, "\u2028", "nan", "a" * 5000, [], [[]], [1, 2, 3], [None], [[0]] * 3, {}, {"": 0},
    {"x": {"y": []}}, _TOO_DEEP, {"0" * 64: "0" * 64}, ["point-0000"] * 2, "[/red]", "$x$",
]  # fmt: skip


def other_table(table: dict[str, Any], seed: int) -> dict[str, Any]:
    """A table with one to three changes: a value replaced, removed, there twice, or put where another is."""
    draw = random.Random(seed)
    found = _copied(table)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(found))
        if not places:
            break
        held, key = draw.choice(places)
        kind = draw.randrange(6)
        if kind < 3:
            held[key] = _copied(draw.choice(_STRANGE))  # which a later change may be within
        elif kind == 3:
            del held[key]
        elif kind == 4 and isinstance(held, dict):
            held[draw.choice([f"{key} ", "x", "", "schema", "a" * 300])] = _copied(draw.choice([held[key], *_STRANGE]))
        else:
            other, its = draw.choice(places)
            held[key] = _copied(other[its]) if _has(other, its) else None
    return found


def _has(held: Any, key: Any) -> bool:
    return key in held if isinstance(held, dict) else key < len(held)


def _copied(value: Any) -> Any:
    """A copy without what is within itself; `copy` would not come to the end of lists that are too deep."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    return [_copied(one) for one in value] if isinstance(value, list) and value is not _TOO_DEEP else value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place within tables and lists."""
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 50)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        if value[key] is not _TOO_DEEP:
            yield from _places(value[key])


def spoil_hdf5(path: Path, seed: int, beside: Path) -> None:
    """Replace, remove or disguise one to three datasets or attributes; `beside` is a file that must not be read."""
    draw = random.Random(seed)
    with h5py.File(path, "r+", locking=False) as file:
        for _ in range(draw.randint(1, 3)):
            names: list[str] = []
            file.visit(names.append)
            if draw.random() < 0.3:
                _spoil_attribute(file if not names or draw.random() < 0.7 else file[draw.choice(names)], draw)
            elif names:
                _spoil_dataset(file, draw.choice(names), draw, beside)


_VALUES: list[Any] = [
    -1, 0, 1, 2**31, 2**62, np.uint64(2**64 - 1), 0.5, np.nan, np.inf, True, "", "x", "rows", "0" * 64, b"\xff\xfe",
    np.zeros(0), np.zeros((2, 3)), np.arange(5), np.array(["a", "b"], dtype=object), np.zeros(3, "i4,f8"),
    h5py.Empty("f8"), "\x1b[31m", "a" * 5000, '{"options": 3}', "[" * 3000,
]  # fmt: skip


def _text(value: Any) -> Any:
    """What h5py can write: texts have a type of their own there."""
    is_text = isinstance(value, np.ndarray) and value.dtype == object
    return np.array([str(one) for one in value], dtype=h5py.string_dtype()) if is_text else value


def _spoil_attribute(held: Any, draw: random.Random) -> None:
    keys = list(held.attrs)
    if not keys:
        return
    key = draw.choice(keys)
    if draw.random() < 0.2:
        del held.attrs[key]
    else:
        held.attrs[key] = _text(draw.choice(_VALUES))


def _spoil_dataset(file: Any, name: str, draw: random.Random, beside: Path) -> None:
    found, kind = file[name], draw.randrange(12)
    if not isinstance(found, h5py.Dataset) and kind not in (0, 7, 8):
        kind = 0
    values = np.zeros(2)
    if isinstance(found, h5py.Dataset) and found.shape is not None and found.size < 2**20 and not _elsewhere(found):
        values = np.asarray(found[()])
    numbers = values if values.dtype.kind in "iuf" else np.zeros(2)
    if kind == 1 and values is numbers and values.size and found.shape == values.shape:  # a value of it
        values = np.array(values)
        values.reshape(-1)[draw.randrange(values.size)] = _of(values.dtype, draw)
        found[...] = values
        return
    del file[name]
    if kind == 0:
        return
    if kind <= 3:
        file[name] = _text(draw.choice(_VALUES))
    elif kind == 4:
        with np.errstate(all="ignore"):
            file[name] = numbers.astype(draw.choice(["i1", "u8", "f4", "f2", "c16", ">i8", "S8"]))
    elif kind == 5:
        file[name] = numbers.reshape(-1)[: draw.randrange(3)]
    elif kind == 6:  # claims more than there is
        shape = draw.choice([(2**40,), (2**60,), (2**20, 2**20), (2**31,)])
        chunked: dict[str, Any] = {"chunks": (2**10,) * len(shape)}
        options = draw.choice([{}, chunked, {**chunked, "compression": "gzip"}])
        file.create_dataset(name, shape, draw.choice(["u1", "i8", "f4"]), **options)
    elif kind == 7:
        file[name] = draw.choice([h5py.SoftLink("/"), h5py.SoftLink(f"/{name}"), h5py.ExternalLink(str(beside), "/x")])
    elif kind == 8:
        file.create_group(name)
    elif kind == 9:
        shape = np.shape(values) or (4,)
        layout = h5py.VirtualLayout(shape, "f8")
        layout[...] = h5py.VirtualSource(str(beside), "x", shape)
        file.create_virtual_dataset(name, layout)
    elif kind == 10:
        shape = np.shape(values) or (4,)
        nbytes = 8 * int(np.prod(shape))
        file.create_dataset(name, shape, "f8", external=[(str(beside), 0, nbytes)])
    else:
        file.create_dataset(name, (2**22,), "i8", data=np.zeros(2**22, "i8"), chunks=(2**22,), compression="gzip")


def _elsewhere(dataset: Any) -> bool:
    """Whether it was disguised before."""
    return bool(dataset.is_virtual or dataset.external)


def _of(dtype: Any, draw: random.Random) -> Any:
    if dtype.kind == "f":
        return draw.choice([np.nan, np.inf, -1.0, 1e30, 0.0])
    limits = np.iinfo(dtype)
    return draw.choice([limits.min, limits.max, 0, 1, limits.max // 2])


def replace(path: Path, seed: int) -> None:
    """Something else than a file, or nothing, in the place of a file or folder."""
    draw = random.Random(seed)
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    kind = draw.randrange(8)
    if kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(path)
    elif kind == 3:
        path.touch()
    elif kind == 4:
        os.mkfifo(path)
    elif kind == 5:
        path.symlink_to("/dev/zero")
    elif kind == 6:
        path.symlink_to("/nowhere/at/all")
    elif kind == 7:
        path.write_bytes(draw.randbytes(1000))
