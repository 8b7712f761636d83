"""Records of arrays, from what `mpifed.testing` says of states by dotted names."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpifed.core.record import leaves, map_leaves


def record_of(named: Mapping[str, Any]) -> Any:
    """A named tuple with the fields of these names, "model.first" in `model`; an array alone where its name is ""."""
    if set(named) == {""}:
        return named[""]
    parts: dict[str, dict[str, Any]] = {}
    for name, leaf in named.items():
        field, _, rest = name.partition(".")
        parts.setdefault(field, {})[rest] = leaf
    fields: Any = namedtuple("Record", parts)  # type: ignore[misc]
    kind: Any = type("Record", (fields,), {"__getattr__": _absent})
    return kind(*map(record_of, parts.values()))


def _absent(record: Any, name: str) -> tuple[()]:
    """A field that a method does without is (), of which `mpifed.testing` has no name."""
    if name.startswith("_"):
        raise AttributeError(name)
    return ()


def together(clients: Sequence[Mapping[str, Any]]) -> Any:
    """The states of all clients as one record, leaves [N, ...], with zeros behind those that are shorter."""
    return record_of({name: _stacked([one[name] for one in clients]) for name in clients[0]})


def _stacked(arrays: Sequence[Any]) -> Any:
    shape = np.max([np.shape(array) for array in arrays], axis=0)
    found = np.zeros((len(arrays), *shape.astype(int)), arrays[0].dtype)
    for i, array in enumerate(arrays):
        found[(i, *map(slice, np.shape(array)))] = array
    return found


def bare_leaves(record: Any) -> list[Any]:
    """The arrays of a record, depth first."""
    return [leaf for _, leaf in leaves(record)]


def flat(record: Any) -> Any:
    """[d] all leaves in float64, one after the other."""
    return np.concatenate([np.ravel(leaf) for leaf in bare_leaves(record)], dtype=np.float64)


def unflat(values: Any, like: Any) -> Any:
    """The record of which `values` [d] are the leaves one after the other, in the shapes of those of `like`."""
    parts = iter(np.split(values, np.cumsum([leaf.size for leaf in bare_leaves(like)])[:-1]))
    return map_leaves(lambda leaf: next(parts).reshape(leaf.shape), like)
