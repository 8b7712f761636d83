"""How files that runs and data leave are damaged on purpose: tables, models, and what is no file at all."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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


def spoil_model(path: Path, seed: int) -> None:
    """Another header of a file of safetensors, or another header's length."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.dumps(other_table(json.loads(content[8:end]), seed)).encode()
    length = len(header) if seed % 4 else random.Random(seed).choice([0, 1, end, 2**31, 2**63, 2**64 - 1])
    path.write_bytes(length.to_bytes(8, "little") + header + content[end:])


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
