"""Records: NamedTuples of named arrays, nested where that reads better.

Models, states, questions, answers and sums are records. The functions here see a record as its leaves in order;
an array alone is a record of one leaf, and the empty tuple is the record of nothing. They take NumPy and CuPy arrays
alike. Fields that Python reads, and that therefore never go to a device, are named at their class: `in_memory`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

# of any shape and dtype, which comments give; also a cupy.ndarray, whose interface is the same
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
# a NamedTuple of arrays and records, an array, a NumPy scalar, or (); `leaves` refuses plain tuples
Record: TypeAlias = "Array | np.generic | tuple[Record, ...]"

AnyRecord = TypeVar("AnyRecord", bound=Record)

ABSENT: Any = ()  # in place of an array or record that is not needed: which are, the settings say, not the types

if TYPE_CHECKING:
    InPlaceOfArray = Array  # base of what stands in place of an array in a record, whose class says arrays
else:
    InPlaceOfArray = object

Class = TypeVar("Class", bound=type)


def in_memory(*fields: str) -> Callable[[Class], Class]:
    """Marks fields of a record class that stay in host memory, since Python reads them."""

    def mark(kind: Class) -> Class:
        kind.in_memory = fields  # type: ignore[attr-defined]
        return kind

    return mark


class ArrayModule(Protocol):
    """What numpy and cupy have in common: functions that give arrays, and what is named here."""

    def __getattr__(self, name: str) -> Callable[..., Array]: ...

    def __hash__(self) -> int: ...

    def finfo(self, dtype: DTypeLike) -> np.finfo[Any]: ...  # of any float


_NUMPY = cast("ArrayModule", np)  # mypy looks for each of its names


def namespace(array: object) -> ArrayModule:
    """The module whose functions work on `array`: numpy, or cupy for arrays on a device."""
    if type(array) is not np.ndarray and type(array).__module__.startswith("cupy"):
        import cupy

        return cast("ArrayModule", cupy)
    return _NUMPY


def beside(like: Record, values: ArrayLike, dtype: DTypeLike | None = None) -> Array:
    """`values` where `like` is, in memory or on the device; copied only if they are elsewhere, or of another dtype."""
    return namespace(like).asarray(values, dtype=dtype)


def on_host(array: Array) -> Array:
    """`array` in memory: a copy of what is on a device, else itself."""
    if namespace(array) is np:
        return array
    copied: Array = cast("Any", array).get()  # of CuPy, whose arrays alone have it
    return copied


def leaves(record: Record, name: str = "") -> Iterator[tuple[str, Array]]:
    """The (dotted name, leaf) pairs of a record, depth first."""
    if not isinstance(record, tuple):
        yield name, record  # type: ignore[misc]  # as in `bare_leaves`
        return
    if record and not hasattr(record, "_fields"):
        raise TypeError(f"{name or 'record'}: a plain tuple has no field names; use a NamedTuple")
    for field, value in zip(getattr(record, "_fields", ()), record, strict=True):
        yield from leaves(value, f"{name}.{field}" if name else field)


def bare_leaves(record: Record) -> list[Array]:
    """The leaves of a record, depth first; quicker than with their names."""
    if not isinstance(record, tuple):
        return [record]  # type: ignore[list-item]  # a scalar has the interface of an array; `cast` takes its time
    if record and not hasattr(record, "_fields"):
        raise TypeError("a plain tuple has no field names; use a NamedTuple")
    parts: list[Array] = []
    for part in record:  # a call for each array, or for what is absent, takes as long as all else
        if not isinstance(part, tuple):
            parts.append(part)  # type: ignore[arg-type]
        elif part:
            parts += bare_leaves(part)
    return parts


def map_leaves(function: Callable[..., object], record: AnyRecord, *others: Record) -> AnyRecord:
    """A record of the same structure whose leaves are ``function(leaf, *leaves of the others)``."""
    if not isinstance(record, tuple):
        return cast("AnyRecord", function(record, *others))
    if others:
        values = [
            map_leaves(function, *parts) if isinstance(parts[0], tuple) else function(*parts)
            for parts in zip(record, *others, strict=True)
        ]
    else:  # a call for each leaf, or for what is absent, takes as long as all else
        values = [
            function(part) if not isinstance(part, tuple) else map_leaves(function, part) if part else part
            for part in record
        ]
    # mypy cannot follow that the class of a tuple goes through the recursion
    return type(record)(*values) if record else record  # type: ignore[arg-type]


def take(record: AnyRecord, who: Array) -> AnyRecord:
    """The entries `who`, in ascending order, of every leaf's leading axis."""
    return map_leaves(lambda leaf: leaf if len(who) == len(leaf) else leaf[beside(leaf, who)], record)


def writable(leaf: Array) -> bool:
    """Whether it can be written to; CuPy does not keep from writing to what was broadcast, where rows share memory."""
    if namespace(leaf) is np:
        return bool(leaf.flags.writeable)
    return not any(stride == 0 and size > 1 for stride, size in zip(leaf.strides, leaf.shape, strict=True))


def nbytes(record: Record) -> int:
    return sum(np.asarray(leaf).nbytes for leaf in bare_leaves(record))


def read_only(leaf: Array) -> Array:
    """The same array, which cannot be written to by this name; as it is on a device."""
    if isinstance(leaf, np.ndarray):
        leaf = leaf.view()
        leaf.flags.writeable = False
    return leaf


def as_before(leaf: Array, before: Array) -> Array:
    """The same array in the dtype of the one in whose place it comes, which a guard's may be wider than."""
    same: Array = leaf.astype(before.dtype, copy=False)
    return same
