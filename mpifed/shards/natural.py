"""Natural clients: rows that say whose they are, by an identifier.

Clients are numbered in the order of their sorted identifiers, and a client's rows are in an order of their content, so
that a shuffled file gives the same shards. Rows are compared by BLAKE2b of their bytes: rows of equal content may stand
in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.core.record import Array

_DIGITS = 18  # of identifiers that are ordered as numbers


class NaturalClients(NamedTuple):
    """Whose each row is."""

    ids: tuple[str, ...]  # [I] sorted, each of at least one training row
    owner: NDArray[np.int64]  # [s] index into `ids` of each training row
    test_owner: NDArray[np.int64] | None = None  # [t] of each test row; -1 for one whose owner has no training rows
    untrained: tuple[str, ...] = ()  # identifiers of those owners, sorted

    def of_rows(self, keep: NDArray[np.bool_], test: NDArray[np.bool_] | None = None) -> NaturalClients:
        """Those of the training rows where `keep` [s] is True; the rows where `test` [s] is True are for testing."""
        present = np.unique(self.owner[keep])
        number = np.full(len(self.ids), -1)
        number[present] = np.arange(len(present))
        owners = None if self.test_owner is None else number[self.test_owner]
        if self.test_owner is not None and owners is not None:
            owners[self.test_owner < 0] = -1
        ids = tuple(self.ids[at] for at in present.tolist())
        return NaturalClients(ids, number[self.owner[keep]], owners if test is None else number[self.owner[test]])


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
    present = set(np.unique(codes).tolist())
    number = {name: code for code, name in enumerate(names)}
    ids = in_order(names[code] for code in present)
    rank = np.full(len(names), -1)
    rank[[number[name] for name in ids]] = np.arange(len(ids))
    if test_codes is None:
        return NaturalClients(tuple(ids), rank[codes])
    untrained = in_order(names[code] for code in set(np.unique(test_codes).tolist()) - present)
    return NaturalClients(tuple(ids), rank[codes], rank[test_codes], tuple(untrained))


def canonical_order(owner: Array, labels: Array, chunks: Iterable[Array]) -> NDArray[np.int64]:
    """[s] the rows by owner, and those of an owner by label and content, whatever their order was.

    Parameters
    ----------
    owner : [s]
    labels : [s] or [s, t]
    chunks : the rows [b, p] of numbers, in order
    """
    digests = np.frombuffer(b"".join(_digests(chunks)), ">u8").reshape(-1, 2)
    of_labels = labels.reshape(len(labels), -1).T
    return np.lexsort((digests[:, 1], digests[:, 0], *of_labels, owner))


def _digests(chunks: Iterable[Array]) -> Iterable[bytes]:
    for X in chunks:
        rows = np.ascontiguousarray(X).view(np.uint8).reshape(-1).data
        size = X.shape[1] * X.itemsize
        for start in range(0, len(rows), size):
            yield blake2b(rows[start : start + size], digest_size=16).digest()


def grouped(clients: NaturalClients, group: int | None, min_rows: int | None) -> NDArray[np.int64]:
    """[I] the client of each identifier.

    Parameters
    ----------
    clients : whose each row is
    group : identifiers per client, in their order; the last client may have fewer. None: one
    min_rows : clients with fewer training rows are joined, in order, until they have so many; what is left over joins
        the last client made so, or else the smallest one

    Raises
    ------
    UsageError : when there are fewer rows than that.
    """
    client_of = np.arange(len(clients.ids)) // (group or 1)
    if min_rows is None:
        return client_of
    counts = np.bincount(client_of[clients.owner], minlength=int(client_of[-1]) + 1)
    if counts.sum() < min_rows:
        raise UsageError(f"--min-rows {min_rows}: there are {counts.sum()} training rows; lower it")
    joined, open_members, rows, last = np.arange(len(counts)), list[int](), 0, -1
    for client in np.flatnonzero(counts < min_rows).tolist():
        open_members.append(client)
        rows += int(counts[client])
        if rows >= min_rows:
            joined[open_members], last, open_members, rows = open_members[0], open_members[0], [], 0
    if open_members:
        large = np.flatnonzero(counts >= min_rows)
        joined[open_members] = last if last >= 0 else large[np.argmin(counts[large])]
    return np.unique(joined, return_inverse=True)[1][client_of].astype(np.int64)
