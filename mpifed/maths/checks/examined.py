"""An object of a user's class, called in such a way that what it does to its arguments is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifed.core.device import host_record
from mpifed.core.record import Array, Record, bare_leaves, leaves

ROUNDING = 1e-5  # what arithmetic in float32 within a class may do to its answers, relative to their size
_REPEATS = 1e-9  # the same of the same call, done twice


class Broken(Exception):
    """A promise that a class does not keep."""

    def __init__(self, what: str, *methods: str) -> None:
        """`what` it does and what was expected; the `methods` to correct."""
        super().__init__(what)
        self.what, self.methods = what, methods


@dataclass(frozen=True)
class Examined:
    """The object, and how arrays get to where it is going to compute."""

    target: Any
    place: Callable[[Any], Any]  # from memory to the job's device; must not copy what stays in memory

    @property
    def in_memory(self) -> Examined:
        """The same, for methods whose arguments never are on a device."""
        return Examined(self.target, lambda value: value)

    def has(self, name: str) -> bool:
        """Whether it has such a method."""
        return callable(getattr(self.target, name, None))

    def call(self, name: str, /, **given: Any) -> Any:
        """What a method answers to copies of these arguments, given by position in this order; in memory.

        Raises
        ------
        Broken
            when the method has changed an argument.
        """
        handed = {key: self.place(_copied(value)) for key, value in given.items()}
        with np.errstate(all="ignore"):
            answer = getattr(self.target, name)(*handed.values())
        for key, value in given.items():
            if not _unchanged(value, handed[key]):
                raise Broken(f"{name}() changes its argument `{key}` in place; work on a copy", name)
        return host_record(answer) if _is_record(answer) else answer

    def call_twice(self, name: str, /, **given: Any) -> Any:
        """The same; `Broken` too when a second call answers otherwise."""
        first, second = self.call(name, **given), self.call(name, **given)
        if not same(first, second, _REPEATS):
            raise Broken(f"{name}() answers twice in two ways; it must not draw nor remember", name)
        return first


def must_be_array(value: Any, shape: tuple[int, ...], what: str, method: str, dtype: Any = None) -> Array:
    """`value`; raises Broken unless it is an array of that shape, and dtype where one is given."""
    if not isinstance(value, np.ndarray):
        raise Broken(f"{what} is of type {type(value).__name__}; an array of shape {shape} is expected", method)
    if value.shape != shape:
        raise Broken(f"{what} has shape {value.shape}; {shape} is expected", method)
    if dtype is not None and value.dtype != dtype:
        raise Broken(f"{what} is of {value.dtype} where the arguments are of {np.dtype(dtype)}", method)
    if value.dtype.kind not in "fiub":
        raise Broken(f"{what} is of {value.dtype}; numbers are expected", method)
    return value


def must_be_record(value: Any, like: Record, lead: tuple[int, ...], what: str, method: str, dtype: Any = None) -> None:
    """Raises Broken unless `value` has the fields of `like`, each leaf with the leading axes `lead` in front."""
    if not _is_record(value):
        raise Broken(f"{what} is a tuple without names; a NamedTuple like that of start() is expected", method)
    came, expected = dict(leaves(value, what)), dict(leaves(like, what))
    if came.keys() != expected.keys():
        raise Broken(f"{what} has {_listed(came)}; {_listed(expected)} is expected", method)
    for name, leaf in came.items():
        must_be_array(leaf, (*lead, *expected[name].shape), name, method, dtype)


def same(one: Record, other: Record, tolerance: float) -> bool:
    """Whether two answers agree, but for `tolerance` times the largest number of each leaf; NaN is NaN."""
    if not (_is_record(one) and _is_record(other)):
        return True  # of another kind than was promised, which is said elsewhere
    pairs = list(zip(map(np.asarray, bare_leaves(one)), map(np.asarray, bare_leaves(other)), strict=False))
    if len(pairs) != len(bare_leaves(one)) or len(pairs) != len(bare_leaves(other)):
        return False
    numbers = all(part.dtype.kind in "fiub" for pair in pairs for part in pair)
    return all(a.shape == b.shape and (not numbers or bool(np.all(near(a, b, tolerance)))) for a, b in pairs)


def near(a: Array, b: Array, tolerance: float) -> Array:
    """[...] where two arrays agree, but for `tolerance` times the largest number of both; what is not finite does."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    known = np.isfinite(a) & np.isfinite(b)
    a, b = np.where(known, a, 0.0), np.where(known, b, 0.0)
    size = max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))
    found: Array = np.abs(a - b) <= tolerance * size
    return found


def defines(kind: type, name: str) -> type | None:
    """The class among the ancestors of `kind`, itself first, that defines an attribute; None: nobody."""
    return next((one for one in kind.__mro__ if name in vars(one)), None)


def belongs_to_mpifed(kind: type) -> bool:
    """Whether a class is one of this package."""
    return kind.__module__.partition(".")[0] == "mpifed"


def _listed(named: dict[str, Any]) -> str:
    return ", ".join(named) or "nothing, ()"


def _is_record(value: Any) -> bool:
    """Whether it is an array, or NamedTuples of such, or ()."""
    if isinstance(value, tuple):
        return (not value or hasattr(value, "_fields")) and all(map(_is_record, value))
    return True


def _copied(value: Any) -> Any:
    if isinstance(value, tuple):
        parts = [_copied(part) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value.copy() if isinstance(value, np.ndarray) or hasattr(value, "indptr") else value


def _unchanged(before: Any, after: Any) -> bool:
    """Whether an argument still is what was given, wherever it is."""
    if isinstance(before, tuple):
        return all(_unchanged(*pair) for pair in zip(before, after, strict=True))
    if hasattr(before, "indptr"):
        return _unchanged(before.data, after.data) and _unchanged(before.indices, after.indices)
    if not isinstance(before, np.ndarray):
        return True
    return bool(np.array_equal(before, host_record(after), equal_nan=before.dtype.kind == "f"))
