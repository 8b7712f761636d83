"""Types of the tables that TOML and JSON files hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

# values of any type: whoever reads one has checked it with a schema, or does so there
Table: TypeAlias = dict[str, Any]
ReadOnlyTable: TypeAlias = Mapping[str, Any]  # the same


def dotted(table: ReadOnlyTable, prefix: str = "") -> Iterator[tuple[str, object]]:
    """The ("table.key", value) pairs of nested tables."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
