"""Columns of Arrow as arrays: numbers, and texts as the numbers of distinct ones."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.record import Array
from mpifed.data.sources.dataset import shown

if TYPE_CHECKING:
    import pyarrow as pa

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # Unicode's Cc
_OWNER_BYTES = 2**25  # of identifiers that wait for their numbers


class Texts:
    """Distinct texts, numbered as they come; training and test rows share them."""

    def __init__(self) -> None:
        self._known: pa.Array | None = None

    def codes(self, column: pa.Array) -> NDArray[np.int64]:
        """[b] numbers of the texts in a column; -1 for null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        encoded = column.cast(pa.large_string()).dictionary_encode()  # of more than 2 GiB as well
        texts = encoded.dictionary
        known = texts[:0] if self._known is None else self._known
        new = texts.filter(pc.invert(pc.is_in(texts, known)))
        self._known = known = pa.concat_arrays([known, new])
        number = np.append(in_numpy(pc.index_in(texts, known)), -1)
        places = in_numpy(encoded.indices.fill_null(len(texts)) if encoded.null_count else encoded.indices)
        return number[places].astype(np.int64)

    def names(self) -> list[str]:
        """The texts, by their numbers."""
        return [] if self._known is None else self._known.to_pylist()


@dataclass
class Owners:
    """Whose each row is: identifiers as numbers, found for many rows at a time since the known ones are many."""

    texts: Texts
    codes: list[Array] = field(default_factory=list)
    waiting: list[pa.Array] = field(default_factory=list)  # whose numbers are not known yet

    def append(self, column: pa.Array) -> None:
        import pyarrow as pa

        self.waiting.append(column.cast(pa.large_string()))
        if sum(part.nbytes for part in self.waiting) >= _OWNER_BYTES:
            self._settle()

    def all_codes(self) -> Array:
        """[s] numbers of the identifiers."""
        self._settle()
        return np.concatenate(self.codes)

    def _settle(self) -> None:
        import pyarrow as pa

        if self.waiting:
            self.codes.append(self.texts.codes(pa.concat_arrays(self.waiting)))
            self.waiting = []


def ranks_of(texts: Texts, order: Callable[[list[str]], list[str]]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """(rank [n] of each text in the order in which they came, the texts as `order` sorts them)."""
    names = texts.names()
    number = {name: at for at, name in enumerate(names)}
    rank = np.empty(max(1, len(names)), np.int64)
    ordered = order(names)
    rank[[number[name] for name in ordered]] = np.arange(len(names))
    return rank, tuple(ordered)


def numbered(texts: Array, others: Array | None) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64] | None]:
    """(the distinct texts of both arrays, ascending; the number of each of `texts` [s], and of `others` [t])."""
    names, codes = np.unique(texts if others is None else np.concatenate([texts, others]), return_inverse=True)
    return names.tolist(), codes[: len(texts)], None if others is None else codes[len(texts) :]


def identifiers(path: Path, texts: Texts) -> list[str]:
    """The identifiers as they came; DataError for one that no file of text can hold."""
    names = texts.names()
    if _CONTROLS.search("".join(names)):
        wrong = next(name for name in names if _CONTROLS.search(name))
        raise DataError(f"{path}: identifier {shown(wrong)} has a control character; rename it")
    return names


def in_numpy(column: pa.Array) -> Array:
    """The numbers [b] of a column, NaN for null."""
    if column.null_count:
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.from_dlpack(column)  # `to_numpy` would import pandas


def null_for_nan(values: pa.Array) -> pa.Array:
    """The numbers [b], with null in place of NaN."""
    import pyarrow as pa
    import pyarrow.compute as pc

    absent = pc.is_nan(values)
    return pc.if_else(absent, pa.nulls(1, values.type)[0], values) if pc.any(absent).as_py() else values
