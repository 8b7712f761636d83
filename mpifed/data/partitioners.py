"""Rows divided among clients by their labels and sizes: pure functions of labels, options and a seed."""

from __future__ import annotations

import re
from zlib import crc32

import numpy as np
from numpy.random import Generator

from mpifed.core.errors import UsageError
from mpifed.core.record import Array, Integers

_FORMS = r"iid|dirichlet:.+|(classes|shards):0*[1-9]\d{0,17}"


def stream(seed: int, purpose: str, *index: int) -> Generator:
    """The random generator of (seed, purpose, index)."""
    return np.random.default_rng([seed, crc32(purpose.encode()), *index])


def deal(y: Array, clients: int, how: str, skew: str | float | None = None, seed: int = 0) -> list[Integers]:
    """N ascending arrays [s_n] of row indices, none of them empty: a partition of the rows.

    The parameters are those of `mpifed.data.partition.by_grid`, with its errors.
    """
    if not 1 <= clients <= len(y):
        raise UsageError(f"{clients} clients for {len(y)} rows: every client needs one; give 1 to {len(y)} clients")
    name, _, text = how.partition(":")
    if not re.fullmatch(_FORMS, how) or (text and not _positive(text)):
        raise UsageError(
            f"--partition {how[:40]}: no partition; expected iid, dirichlet:A with A > 0, classes:K or shards:K with "
            "K = 1, 2, ..."
        )
    if name != "iid" and not np.issubdtype(y.dtype, np.integer):
        raise UsageError(
            f"--partition {how}: the labels are real targets, or several of a row, not classes; use --partition iid"
        )
    rng, parameter = stream(seed, "rows"), _positive(text)
    if name == "shards":
        if skew is not None or parameter * clients > len(y):
            raise UsageError(
                f"--partition {how}: {clients} clients with {parameter:g} runs, of equal size, of {len(y)} rows; every "
                f"run needs a row: give K from 1 to {len(y) // clients}, and no --skew"
            )
        runs = np.array_split(np.argsort(y, kind="stable"), int(parameter) * clients)
        holders = rng.permutation(len(runs)).reshape(clients, -1)
        return [np.sort(np.concatenate([runs[i] for i in numbers])) for numbers in holders]
    sizes = _sizes(clients, skew, rng)
    kind, shares = np.zeros(len(y), np.int64), sizes[None]  # [kinds, N] of each kind, for each client, up to a factor
    if name != "iid":
        kind, classes = y, int(y.max()) + 1
        if name == "dirichlet":
            shares = (rng.dirichlet(np.full(clients, parameter), size=classes) + np.finfo(float).tiny) * sizes
        else:
            shares = _holders(how, int(parameter), classes, clients, rng) * sizes
    owner = np.empty(len(y), dtype=np.int64)
    for rows, share in zip(by_kind(kind, len(shares)), shares, strict=True):
        ends = np.rint(np.cumsum(share)[:-1] / share.sum() * len(rows))
        owner[rng.permutation(rows)] = np.searchsorted(ends, np.arange(len(rows)), side="right")
    counts = np.bincount(owner, minlength=clients)
    rows, first = np.argsort(owner, kind="stable"), np.cumsum(counts) - counts
    for client in np.flatnonzero(counts == 0):  # gets a row of the largest one
        giver = counts.argmax()
        owner[rows[first[giver]]] = client
        first[giver] += 1
        counts[[giver, client]] += (-1, 1)
    return by_kind(owner, clients)


def _sizes(clients: int, skew: str | float | None, rng: Generator) -> Array:
    """[N] sizes of the clients, up to a factor."""
    if skew is None:
        return np.full(clients, 1.0)
    name, _, text = str(skew).rpartition(":")
    if name not in ("", "dirichlet", "power") or not (A := _positive(text)):
        raise UsageError(f"--skew {str(skew)[:40]}: expected A, dirichlet:A or power:A, with a number A above 0")
    power = name == "power"
    sizes = rng.permutation(np.arange(1.0, clients + 1) ** -A) if power else rng.dirichlet(np.full(clients, A))
    drawn: Array = sizes + np.finfo(float).tiny
    return drawn


def by_kind(kind: Array, kinds: int) -> list[Array]:
    """The ascending rows of each kind in kind [s], from 0 to kinds - 1."""
    return np.split(np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind, minlength=kinds))[:-1])


def _holders(how: str, each: int, classes: int, clients: int, rng: Generator) -> Array:
    """[classes, N] 1 where a client holds rows of a class: K of `each` client, and all equally often."""
    least = -(-classes // clients)
    if not least <= each <= classes:
        raise UsageError(
            f"--partition {how}: {clients} clients with {each} of {classes} classes each; every class needs a holder "
            f"and a client has at most {classes}: give K from {least} to {classes}"
        )
    holders = np.zeros((classes, clients))
    # clients in random order take the next K classes of a random cycle, so that all classes have equally many clients
    circle = np.arange(clients * each).reshape(clients, each) % classes
    holders[rng.permutation(classes)[circle], rng.permutation(clients)[:, None]] = 1
    return holders


def _positive(text: str) -> float:
    """A number above 0; 0 for anything else."""
    try:
        return number if 0 < (number := float(text)) < np.inf else 0.0
    except ValueError:
        return 0.0
