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

from mpifed.core.errors import DataError
from mpifed.core.record import Array, Integers

_GAPS = "nan|None|<NA>|NaT"  # as texts
EXACT = 2**53  # from here on integers fall together as floats
_INTEGER = "0|-?[1-9][0-9]{0,17}"  # as Python writes it; such identifiers are ordered as numbers


def plain(text: str) -> str:
    """A name, identifier or category as it counts: in Unicode's form NFC, without blanks around."""
    return normalize("NFC", text).strip()


def text_of(value: object) -> str:
    """An identifier or category as a text: a whole number as an integer, since a gap makes floats of a column."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() and abs(value) < EXACT else str(value)


def identifiers(values: object, what: str, gaps: bool = False) -> Array:
    """[s] whose each row is, as texts: integers, whole floats, texts or categories; where there may be `gaps`, "".

    Raises DataError for gaps otherwise, with their number, and for other numbers.
    """
    ids = np.asarray(values, None if hasattr(values, "dtype") else object)
    if ids.ndim != 1:
        raise DataError(f"{what}: an array {ids.shape}; expected an identifier for each row")
    given = ids.tolist() if ids.dtype.kind in "fO" else ids.astype(str).tolist()
    texts = list(map(text_of, given))
    # a gap makes floats of integers
    name = {text: re.sub(rf"^(-?[0-9]+)\.0$|^({_GAPS})$", r"\1", plain(text)) for text in {*texts}}
    if not gaps and (count := sum(not name[text] for text in texts)):
        raise DataError(f"{what}: {count} rows have no value; drop them, or name one")
    if wrong := [value for value in given if isinstance(value, float) and (value % 1 > 0 or abs(value) >= EXACT)]:
        raise DataError(
            f"{what}: {ids.dtype}, such as {wrong[0]}; expected integers or texts, and as floats below 2^53"
        )
    if strange := [text for text in name.values() if not text.isprintable()]:
        raise DataError(f"{what}: {strange[0][:80]!r} has a control character; rename it")
    return np.array([name[text] for text in texts], str)


def distinct_names(values: Iterable[object], what: str) -> list[str]:
    """What clients are called, as `identifiers` has it; DataError where two are called the same."""
    names: list[str] = identifiers(list(values), what).tolist()
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise DataError(f"{what}: {count} clients are called {name!r:.80}; give each a name of its own")
    return names


def owners_of(ids: Sequence[Array | None], others: Iterable[str] = ()) -> tuple[tuple[str, ...], list[Array | None]]:
    """(the distinct identifiers of arrays of texts and others, in order; of each array the positions of its own).

    Ascending: as numbers where all are integers, else as texts.
    """
    owners = sorted({*others}.union(*(names.tolist() for names in ids if names is not None)))
    if all(re.fullmatch(_INTEGER, name) for name in owners):
        owners.sort(key=int)
    place = {name: at for at, name in enumerate(owners)}
    positions = [names if names is None else np.array([place[name] for name in names.tolist()], int) for names in ids]
    return tuple(owners), positions


def canonical_order(owner: Array, labels: Array, X: Array) -> Integers:
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
