"""Whether a checkpoint can hold the states that an algorithm gives, so that a resumed run computes the same bits.

Python's own numbers would not do: they come back as NumPy's, which round and promote otherwise.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mpifed.core.errors import UsageError
from mpifed.core.record import Record, leaves, namespace

Specs = dict[str, str]  # dtype and shape of each leaf, by its name


def check_state(
    algorithm: str, whose: str, state: Record | None, before: Specs | None = None, clients: int | None = None
) -> Specs:
    """Shape and dtype of each leaf of a state, which is checked; of none where it is None, as this rank lacks it.

    Parameters
    ----------
    algorithm : its name in the job
    whose : which of its states this is, as messages say it
    before : what each leaf was before round 0; all stay what they were
    clients : of a block's state, how many clients are in it: the length of each leading axis

    Raises
    ------
    UsageError : when a leaf is no NumPy array or scalar of numbers (on a device: no CuPy array), or is not as it was.
    """
    wrong, specs, found = list[str](), Specs(), list[tuple[str, Any]]()  # leaves of any type
    try:
        found += () if state is None else leaves(state)
    except TypeError as error:  # a tuple without the names of fields
        wrong.append(str(error))
    for name, leaf in found:
        why = ""
        if not (isinstance(leaf, np.ndarray | np.generic) or namespace(leaf) is not np):
            why = (
                f"is of type {type(leaf).__name__}; every field of a state must be a NumPy array or scalar, or a "
                "NamedTuple of these, so that a checkpoint can hold it: np.int64(1) or np.float64(0.5) in place of a "
                "number, and () for nothing"
            )
        elif leaf.dtype.kind not in "biuf":
            why = f"is of dtype {leaf.dtype}; expected booleans, integers or floating-point numbers"
        elif clients is not None and leaf.shape[:1] != (clients,):
            why = f"has shape {leaf.shape}; its first axis must be the block's clients, {clients} here"
        elif leaf.ndim and not leaf.flags.c_contiguous:
            why = (
                "is not in C order, in which a checkpoint gives it back: after a resume its sums and products could "
                "have other bits; write np.ascontiguousarray(...), for instance of a transposed array"
            )
        wrong += [f"{name or 'the state'} {why}"] if why else []
        specs[name] = "" if why else f"{leaf.dtype} {leaf.shape}"
    if state is not None and before is not None and not wrong:
        wrong += [
            f"{name or 'the state'} is {specs.get(name, 'absent')}, and was {before.get(name, 'absent')} before round "
            "0; a state keeps its fields, shapes and dtypes"
            for name in dict.fromkeys([*before, *specs])
            if before.get(name) != specs.get(name)
        ]
    if wrong:
        raise UsageError("\n".join(f'[algorithm] name = "{algorithm}": {whose}: {line}' for line in wrong))
    return specs
