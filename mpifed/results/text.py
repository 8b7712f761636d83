"""Numbers and lines of summaries, as text for people."""

from __future__ import annotations

import json
import re
from typing import TypeGuard

from mpifed.files import columns
from mpifed.files.ends import end_of
from mpifed.text import rounded_up


def human_bytes(count: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError


def human_seconds(seconds: float) -> str:
    """0.0021 -> '2.1 ms'."""
    for unit, size in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def meaning(code: int | None) -> str:
    return "killed or still running" if code is None else end_of(code).summary


def line_of(label: str, text: str) -> str:
    return f"{label:30} {text}"


def value_of(key: str, value: object, digits: int = 6) -> str:
    """A number of a column, formatted for reading."""
    unit = columns.column_of(key).unit
    if unit == "B" and is_number(value):
        return human_bytes(value)
    if unit == "%" and is_number(value):
        return f"{value:.2%}"
    if not isinstance(value, float):
        return str(value)
    if key.startswith("epsilon"):
        value = rounded_up(value)
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e15 else text


def toml_text(value: object) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(str(key))} = {toml_text(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    return str(value) if is_number(value) else json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
