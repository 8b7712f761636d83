"""Whether a checkpoint can hold the states that an algorithm gives, so that a resumed run computes the same bits.

Python's own numbers would not do: they come back as NumPy's, which round and promote otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Record, Spec, leaves, namespace

_KINDS = "biuf"  # of dtypes: booleans, integers, floating point
_INSTEAD = {
    bool: "write np.bool_({})",
    int: "write np.int64({})",
    float: "write np.float64({})",
    str: "text belongs into a key of [algorithm]",
    dict: "write a NamedTuple of arrays",
    list: "write an array, or a NamedTuple of arrays",
    tuple: "give it field names, as a NamedTuple of arrays",
    type(None): "write () for nothing",
}

Specs = dict[str, Spec]  # shape and dtype of each leaf, by its name


def check_started(name: str, server: Record | None, clients: Record | None, count: int) -> Specs:
    """Check the initial states of the algorithm `name`: the server's, and that of a block of `count` clients.

    Either is None where this rank does not have it. Returns what `check_renewed` compares with.
    """
    place = f'[algorithm] name = "{name}"'
    if clients is not None:
        check_state(clients, f"{place}: start_clients()", clients=count)
    return {} if server is None else check_state(server, f"{place}: start_server()")


def check_renewed(
    name: str, server: Record | None, before: Specs, clients: Record | None, begun: Record | None, count: int
) -> None:
    """Check the states after a round; `begun` is the block's state before round 0."""
    place = f'[algorithm] name = "{name}"'
    if clients is not None:
        where = f"{place}: a client's state after a round"
        check_state(clients, where, check_state(() if begun is None else begun, where, clients=count), count)
    if server is not None:
        check_state(server, f"{place}: the server's state after a round", before)


def check_state(state: Record, where: str, before: Specs | None = None, clients: int | None = None) -> Specs:
    """Shape and dtype of each leaf of a state, which is checked.

    Parameters
    ----------
    where : whose state it is, as messages say it
    before : what each leaf was before round 0; all stay what they were
    clients : of a block's state, how many clients are in it: the length of each leading axis

    Raises
    ------
    UsageError : when a leaf is no NumPy array or scalar of numbers (on a device: no CuPy array), or is not as it was.
    """
    wrong, specs = [], Specs()
    for name, leaf in _leaves(state):
        place = f"{where}: {_field(name)}"
        if not (isinstance(leaf, np.ndarray | np.generic) or namespace(leaf) is not np):
            wrong.append(
                f"{place} is of type {type(leaf).__name__}; every field of a state must be a NumPy array or scalar, so "
                f"that a checkpoint can hold it: {_instead(leaf)}"
            )
        elif leaf.dtype.kind not in _KINDS:
            wrong.append(f"{place} is of dtype {leaf.dtype}; expected booleans, integers or floating-point numbers")
        elif clients is not None and (not leaf.ndim or len(leaf) != clients):
            wrong.append(f"{place} has shape {leaf.shape}; its first axis must be the block's clients, {clients} here")
        elif leaf.ndim and not leaf.flags.c_contiguous:
            wrong.append(
                f"{place} is not in C order, in which a checkpoint gives it back: after a resume its sums and products "
                "could have other bits; write np.ascontiguousarray(...), for instance of a transposed array"
            )
        else:
            specs[name] = Spec(leaf.shape, leaf.dtype.str)
    if not wrong and before is not None and before != specs:
        changes = _changes(before, specs)
        wrong += [f"{where}: {change}; a state keeps its fields, shapes and dtypes" for change in changes]
    if wrong:
        raise UsageError("\n".join(wrong))
    return specs


def _leaves(state: Record, name: str = "") -> Iterator[tuple[str, Any]]:  # what a user's class gives
    """As `mpifed.core.record.leaves`; a tuple without field names, which that refuses, is a leaf."""
    if isinstance(state, tuple) and state:
        if not hasattr(state, "_fields"):
            yield name, state
            return
        for field, value in zip(state._fields, state, strict=True):
            yield from _leaves(value, f"{name}.{field}" if name else field)
        return
    yield from leaves(state, name)


def _instead(leaf: object) -> str:
    """What to write in place of a leaf that is not an array."""
    for kind, text in _INSTEAD.items():
        if isinstance(leaf, kind):
            return text.format(leaf)
    return "write a NumPy array, or a NamedTuple of arrays"


def _changes(before: Specs, now: Specs) -> Iterator[str]:
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        if old != new:
            yield f"{_field(name)} is {_form(new)}, and was {_form(old)} before round 0"


def _form(spec: Spec | None) -> str:
    return "absent" if spec is None else f"{np.dtype(spec.dtype)} {spec.shape}"


def _field(name: str) -> str:
    return name or "the state"
