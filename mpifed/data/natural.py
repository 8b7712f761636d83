"""Natural clients: rows that say whose they are, by an identifier.

Clients are numbered in the order of their sorted identifiers, and a client's rows are in an order of their content, so
that a shuffled file gives the same shards: by a digest, since rows are many, wide or sparse.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.record import Array

GAPS = ("", "nan", "None", "<NA>", "NaT")  # as texts
WHOLE = r"^(-?[0-9]+)\.0$"  # an integer in a file, where another one is missing
_DIGITS = 18  # of identifiers that are ordered as numbers


def identifiers(values: object, what: str) -> Array:
    """[s] whose each row is, as texts: integers, whole floats, texts or categories.

    Raises DataError for gaps, with their number, and for other numbers.
    """
    ids = np.asarray(values, None if hasattr(values, "dtype") else object)
    mixed = ids.tolist() if ids.dtype.kind in "fO" else []
    texts = list(map(text_of, mixed)) or ids.astype(str).tolist()
    plain = {text: normalize("NFC", text).strip() for text in {*texts}}
    if gaps := sum(plain[text] in GAPS for text in texts):
        raise DataError(f"{what}: {gaps} rows have no value; drop them, or name one")
    if wrong := [value for value in mixed if isinstance(value, float) and value % 1]:
        raise DataError(f"{what}: {ids.dtype}, such as {wrong[0]}; expected integers or texts")
    if strange := [text for text in {*texts} if not text.isprintable()]:
        raise DataError(f"{what}: {strange[0][:80]!r} has a control character; rename it")
    name = {text: re.sub(WHOLE, r"\1", plain[text]) for text in plain}
    return np.array([name[text] for text in texts])


def distinct_names(values: Iterable[object], what: str) -> list[str]:
    """What clients are called, as `identifiers` has it; DataError where two are called the same."""
    names: list[str] = identifiers(list(values), what).tolist()
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise DataError(f"{what}: {count} clients are called {name!r:.80}; give each a name of its own")
    return names


def text_of(value: object) -> str:
    """An identifier or category as a text: a whole number as an integer, since a gap makes floats of a column."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def in_order(ids: Iterable[str]) -> list[str]:
    """Distinct identifiers, ascending: as numbers where all are integers as Python writes them, else as texts."""
    texts = list(ids)
    whole = all(len(text) <= _DIGITS and re.fullmatch("0|-?[1-9][0-9]*", text) for text in texts)
    return sorted(texts, key=int) if whole else sorted(texts)


def owners_of(ids: Sequence[Array | None], others: Iterable[str] = ()) -> tuple[tuple[str, ...], list[Array | None]]:
    """(the distinct identifiers of arrays of texts and others, in order; of each array the positions of its own)."""
    distinct = [None if texts is None else np.unique(texts, return_inverse=True) for texts in ids]
    owners = in_order({*others, *(name for part in distinct if part is not None for name in part[0].tolist())})
    place = {name: at for at, name in enumerate(owners)}

    def positions(names: Array, codes: Array) -> Array:
        return np.array([place[name] for name in names.tolist()], np.int64)[codes]

    return tuple(owners), [None if part is None else positions(*part) for part in distinct]


def canonical_order(owner: Array, labels: Array, X: Array) -> NDArray[np.int64]:
    """[s] the rows by owner, and those of an owner in an order of label and content, whatever their order was.

    Parameters
    ----------
    owner : [s] -1 or more
    labels : [s] or [s, t]
    X : the rows [s, p], dense or CSR
    """
    rows = X if isinstance(X, np.ndarray) else (X[at : at + 1].toarray() for at in range(X.shape[0]))
    digests = [blake2b(label.tobytes() + row.tobytes(), digest_size=16).digest()
               for label, row in zip(labels, rows, strict=True)]  # fmt: skip
    return np.lexsort((np.array(digests), owner))
