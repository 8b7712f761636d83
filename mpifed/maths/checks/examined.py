"""Calls of methods of a user's object that detect changed arguments and results that differ from call to call.

What such a class gives may be anything, and so is `object` here, or Any where its parts are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import DTypeLike

from mpifed.core.device import host_record
from mpifed.core.record import Array, Record, bare_leaves, leaves

ROUNDING = 1e-5  # relative error that arithmetic in float32 within a class may cause
_REPEATS = 1e-9  # relative difference between the results of two identical calls


class Broken(Exception):
    """A violated contract of a class."""

    def __init__(self, what: str, *methods: str) -> None:
        """`what` the class does and what was expected; `methods` that need correction."""
        super().__init__(what)
        self.what, self.methods = what, methods


@dataclass(frozen=True)
class Examined:
    """The object under test, and how its arguments get to the job's device."""

    target: Any
    place: Callable[[Any], object]  # copies from memory to the job's device; on the CPU returns its argument

    @property
    def in_memory(self) -> Examined:
        """The same, for methods whose arguments are always in memory."""
        return Examined(self.target, lambda value: value)

    def has(self, name: str) -> bool:
        return callable(getattr(self.target, name, None))

    def call(self, name: str, /, **arguments: object) -> Any:
        """The result of a method, in memory, for copies of these arguments, passed by position in this order.

        Raises
        ------
        Broken : when the method changes an argument.
        """
        copies = {key: self.place(_copied(value)) for key, value in arguments.items()}
        with np.errstate(all="ignore"):
            result = getattr(self.target, name)(*copies.values())
        for key, value in arguments.items():
            if not _unchanged(value, copies[key]):
                raise Broken(f"{name}() changes its argument `{key}` in place; work on a copy", name)
        return host_record(result) if _is_record(result) else result

    def call_twice(self, name: str, /, **arguments: object) -> Any:
        """`call`; raises Broken also when a second call returns something else."""
        first, second = self.call(name, **arguments), self.call(name, **arguments)
        if not same(first, second, _REPEATS):
            raise Broken(
                f"{name}() gives different results for equal arguments; it must not be random or stateful",
                name,
            )
        return first


def must_be_array(
    value: object, shape: tuple[int, ...], what: str, method: str, dtype: DTypeLike | None = None
) -> Array:
    """`value`; raises Broken unless it is an array of that shape, and of `dtype` unless that is None."""
    if not isinstance(value, np.ndarray):
        raise Broken(f"{what} is of type {type(value).__name__}; an array of shape {shape} is expected", method)
    if value.shape != shape:
        raise Broken(f"{what} has shape {value.shape}; {shape} is expected", method)
    if dtype is not None and value.dtype != dtype:
        raise Broken(f"{what} is of {value.dtype} where the arguments are of {np.dtype(dtype)}", method)
    if value.dtype.kind not in "fiub":
        raise Broken(f"{what} is of {value.dtype}; numbers are expected", method)
    return value


def must_be_record(
    value: object, like: Record, lead: tuple[int, ...], what: str, method: str, dtype: DTypeLike | None = None
) -> None:
    """Raise Broken unless `value` has the fields of `like`, each leaf with the leading axes `lead` in front."""
    if not _is_record(value):
        raise Broken(f"{what} is a plain tuple; a NamedTuple like that of start() is expected", method)
    came, expected = dict(leaves(value, what)), dict(leaves(like, what))
    if came.keys() != expected.keys():
        raise Broken(f"{what} has {_listed(came)}; {_listed(expected)} is expected", method)
    for name, leaf in came.items():
        must_be_array(leaf, (*lead, *expected[name].shape), name, method, dtype)


def same(first: object, second: object, tolerance: float) -> bool:
    """Whether two records agree up to `tolerance` times the largest number of each leaf; NaN equals NaN."""
    if not (_is_record(first) and _is_record(second)):
        return True  # a wrong type, which another check reports
    pairs = list(zip(map(np.asarray, bare_leaves(first)), map(np.asarray, bare_leaves(second)), strict=False))
    if len(pairs) != len(bare_leaves(first)) or len(pairs) != len(bare_leaves(second)):
        return False
    numbers = all(part.dtype.kind in "fiub" for pair in pairs for part in pair)
    return all(a.shape == b.shape and (not numbers or bool(np.all(near(a, b, tolerance)))) for a, b in pairs)


def near(a: Array, b: Array, tolerance: float) -> Array:
    """[...] where two arrays agree up to `tolerance` times their largest number, or either is not finite."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    known = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(known, a, 0.0), np.where(known, b, 0.0)
    size = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    agree: Array = np.abs(a - b) <= tolerance * size
    return agree


def defines(kind: type, name: str) -> type | None:
    """The first class in the method resolution order of `kind` that defines an attribute; None: no class."""
    return next((ancestor for ancestor in kind.__mro__ if name in vars(ancestor)), None)


def belongs_to_mpifed(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "mpifed"


def _listed(named: Iterable[str]) -> str:
    return ", ".join(named) or "nothing, ()"


def _is_record(value: object) -> TypeGuard[Record]:
    """Whether `value` is an array, a NamedTuple of such, or ()."""
    if isinstance(value, tuple):
        return (not value or hasattr(value, "_fields")) and all(map(_is_record, value))
    return True


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value.copy() if isinstance(value, np.ndarray) or hasattr(value, "indptr") else value


def _unchanged(before: Any, after: Any) -> bool:
    """Whether an argument is unchanged after the call, in memory or on a device."""
    if isinstance(before, tuple):
        return all(_unchanged(*pair) for pair in zip(before, after, strict=True))
    if hasattr(before, "indptr"):
        return _unchanged(before.data, after.data) and _unchanged(before.indices, after.indices)
    if not isinstance(before, np.ndarray):
        return True
    return bool(np.array_equal(before, host_record(after), equal_nan=before.dtype.kind == "f"))
