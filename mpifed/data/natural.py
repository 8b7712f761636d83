"""Natural clients: rows that say whose they are, by an identifier.

Clients are numbered in the order of their sorted identifiers, and a client's rows are in an order of their content, so
that a shuffled file gives the same shards: by a digest, since rows are many, wide or sparse.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.record import Array

GAPS = ("nan", "None", "<NA>", "NaT")  # as texts
WHOLE = r"^(-?[0-9]+)\.0$"  # an integer in a file, where another one is missing
_DIGITS = 18  # of identifiers that are ordered as numbers


class NaturalClients(NamedTuple):
    """Whose each row is."""

    ids: tuple[str, ...]  # [I] sorted, each of at least one training row
    owner: NDArray[np.int64]  # [s] index into `ids` of each training row
    test_owner: NDArray[np.int64] | None = None  # [t] of each test row; -1 for one whose owner has no training rows
    untrained: tuple[str, ...] = ()  # identifiers without training rows, sorted: they are no clients

    def of_rows(self, keep: NDArray[np.bool_]) -> NaturalClients:
        """Those who have one of the training rows where `keep` [s] is True."""
        present = np.unique(self.owner[keep])
        number = np.full(len(self.ids) + 1, -1)  # the last one is that of -1
        number[present] = np.arange(len(present))
        ids = tuple(self.ids[at] for at in present.tolist())
        if self.test_owner is None:
            return NaturalClients(ids, number[self.owner[keep]], None, self.untrained)
        tested = np.unique(self.test_owner[self.test_owner >= 0])
        lost = [self.ids[at] for at in tested[number[tested] < 0].tolist()]
        untrained = tuple(in_order([*self.untrained, *lost]))
        return NaturalClients(ids, number[self.owner[keep]], number[self.test_owner], untrained)


def identifiers(values: object, what: str) -> Array:
    """[s] whose each row is, as texts: integers, whole floats, texts or categories.

    Raises DataError for gaps, with their number, and for other numbers.
    """
    ids = np.asarray(values, None if hasattr(values, "dtype") else object)
    mixed = ids.tolist() if ids.dtype.kind in "fO" else []
    texts = list(map(text_of, mixed)) or ids.astype(str).tolist()
    if gaps := sum(text in GAPS for text in texts):
        raise DataError(f"{what}: {gaps} rows have no value; drop them, or name one")
    if wrong := [value for value in mixed if isinstance(value, float) and value % 1]:
        raise DataError(f"{what}: {ids.dtype}, such as {wrong[0]}; expected integers or texts")
    if strange := [text for text in set(texts) if not text.isprintable()]:
        raise DataError(f"{what}: {strange[0][:80]!r} has a control character; rename it")
    return np.array(texts)


def text_of(value: object) -> str:
    """An identifier or category as a text: a whole number as an integer, since a gap makes floats of a column."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def in_order(ids: Iterable[str]) -> list[str]:
    """Distinct identifiers, ascending: as numbers where all are integers as Python writes them, else as texts."""
    texts = list(ids)
    whole = all(len(text) <= _DIGITS and _is_integer(text) for text in texts)
    return sorted(texts, key=int) if whole else sorted(texts)


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and str(int(text)) == text


def natural_clients(
    names: list[str], codes: NDArray[np.int64], test_codes: NDArray[np.int64] | None = None
) -> NaturalClients:
    """Clients of rows whose identifiers are names[codes].

    Parameters
    ----------
    names : distinct identifiers, in any order
    codes : [s] of the training rows
    test_codes : [t] of the test rows
    """
    trained = np.bincount(codes, minlength=len(names)) > 0
    number = {name: code for code, name in enumerate(names)}
    ids = in_order(names[code] for code in np.flatnonzero(trained).tolist())
    rank = np.full(len(names), -1)
    rank[[number[name] for name in ids]] = np.arange(len(ids))
    untrained = in_order(names[code] for code in np.flatnonzero(~trained).tolist())
    return NaturalClients(tuple(ids), rank[codes], None if test_codes is None else rank[test_codes], tuple(untrained))


def canonical_order(owner: Array, labels: Array, chunks: Iterable[Array]) -> NDArray[np.int64]:
    """[s] the rows by owner, and those of an owner in an order of label and content, whatever their order was.

    Parameters
    ----------
    owner : [s] -1 or more
    labels : [s] or [s, t]
    chunks : the rows [b, p] of numbers, in order
    """
    rows = (row for X in chunks for row in X)
    digests = [blake2b(label.tobytes() + row.tobytes(), digest_size=16).digest()
               for label, row in zip(labels, rows, strict=True)]  # fmt: skip
    return np.lexsort((np.array(digests), owner))
