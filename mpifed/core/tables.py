"""Types of the tables that TOML and JSON files hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

# values of any type: whoever reads one has checked it with a schema, or does so there
Table: TypeAlias = dict[str, Any]
ReadOnlyTable: TypeAlias = Mapping[str, Any]  # the same
