"""Natural clients: rows that say whose they are, by an identifier.

Clients are numbered in the order of their sorted identifiers, and a client's rows are in an order of their content, so
that a shuffled file gives the same shards. Rows are compared by 128 bits that are computed from their bytes: rows of
equal content may stand in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.core.record import Array

GAPS = ("nan", "None", "<NA>", "NaT")  # as texts
WHOLE = r"^(-?[0-9]+)\.0$"  # an integer in a file, where another one is missing
_DIGITS = 18  # of identifiers that are ordered as numbers
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_BLOCK = 2**15  # numbers that are mixed at a time, in the cache


class NaturalClients(NamedTuple):
    """Whose each row is."""

    ids: tuple[str, ...]  # [I] sorted, each of at least one training row
    owner: NDArray[np.int64]  # [s] index into `ids` of each training row
    test_owner: NDArray[np.int64] | None = None  # [t] of each test row; -1 for one whose owner has no training rows
    untrained: tuple[str, ...] = ()  # identifiers without training rows, sorted: they are no clients

    def of_rows(self, keep: NDArray[np.bool_], test: NDArray[np.bool_] | None = None) -> NaturalClients:
        """Those of the training rows where `keep` [s] is True; the rows where `test` [s] is True are for testing."""
        present = np.unique(self.owner[keep])
        number = np.full(len(self.ids), -1)
        number[present] = np.arange(len(present))
        owners = None if self.test_owner is None else number[self.test_owner]
        if self.test_owner is not None and owners is not None:
            owners[self.test_owner < 0] = -1
        ids = tuple(self.ids[at] for at in present.tolist())
        owners = owners if test is None else number[self.owner[test]]
        return NaturalClients(ids, number[self.owner[keep]], owners, self.untrained)


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
    of_rows, of_labels = np.concatenate(list(map(_digests, chunks))), _digests(labels.reshape(len(labels), -1))
    first, second = _mixed(of_rows + _GOLDEN * of_labels).T
    bits = np.uint64(64 - int(owner.max(initial=0) + 1).bit_length())
    # one key of owner and digest sorts faster than three; where it is tied, all of them decide
    key = (owner + 1).astype(np.uint64) << bits | first >> np.uint64(64 - bits)
    order = np.argsort(key)
    key = key[order]
    tied = np.concatenate([[False], key[1:] == key[:-1], [False]])
    at = np.flatnonzero(tied[1:] | tied[:-1])
    rows = order[at]
    order[at] = rows[np.lexsort((second[rows], first[rows], key[at]))]
    return order


def _digests(values: Array) -> NDArray[np.uint64]:
    """[b, 2] two numbers of 64 bits for each row of `values` [b, p], of its bytes: a hash, not a cryptographic one."""
    content = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)
    if absent := -content.shape[1] % 4:
        content = np.pad(content, ((0, 0), (0, absent)))
    words = content.view("<u4")
    width = words.shape[1]
    salts, weights = _mixed(np.arange(1, 2 * width + 1, dtype=np.uint64) * _GOLDEN).reshape(2, width)
    weights = np.stack([np.ones(width, np.uint64), weights | np.uint64(1)], axis=1)
    digests, size = np.empty((len(words), 2), np.uint64), max(1, _BLOCK // width)
    for start in range(0, len(words), size):
        digests[start : start + size] = _mixed(words[start : start + size] + salts) @ weights
    return digests


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The numbers [...] after the last step of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers ^= numbers >> np.uint64(shift)
        numbers *= np.uint64(factor)
    numbers ^= numbers >> np.uint64(31)
    return numbers


def join_small(clients: NaturalClients, min_rows: int | None) -> NDArray[np.int64]:
    """[I] the client of each identifier.

    Parameters
    ----------
    clients : whose each row is
    min_rows : clients with fewer training rows are joined, in order, until they have so many; what is left over joins
        the last client made so, or else the smallest one

    Raises
    ------
    UsageError : when there are fewer rows than that.
    """
    joined = np.arange(len(clients.ids))
    if min_rows is None:
        return joined
    counts = np.bincount(clients.owner, minlength=len(joined))
    if counts.sum() < min_rows:
        raise UsageError(f"--min-rows {min_rows}: there are {counts.sum()} training rows; lower it")
    open_members, rows, last = list[int](), 0, -1
    for client in np.flatnonzero(counts < min_rows).tolist():
        open_members.append(client)
        rows += int(counts[client])
        if rows >= min_rows:
            joined[open_members], last, open_members, rows = open_members[0], open_members[0], [], 0
    if open_members:
        large = np.flatnonzero(counts >= min_rows)
        joined[open_members] = last if last >= 0 else large[np.argmin(counts[large])]
    return np.unique(joined, return_inverse=True)[1].astype(np.int64)
