"""Rows divided among clients by their labels and sizes: pure functions of labels, options and a seed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from zlib import crc32

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.core.record import Array

DRAWS = 1000  # partitions that are tried for one whose smallest client is large enough
# names of NIID-Bench (Q. Li, Y. Diao, Q. Chen, B. He, ICDE 2022), whose parameter beta is 0.5 there
ALIASES = {
    "homo": "iid",
    "noniid-labeldir": "dirichlet:0.5",
    "noniid-labeldir:(.*)": r"dirichlet:\1",
    "noniid-#label:?(.*)": r"random-classes:\1",
}
KINDS = ("iid", "dirichlet", "classes", "random-classes", "shards")
_FORMS = r"iid|dirichlet:.+|(classes|random-classes|shards):0*[1-9]\d{0,17}"


def stream(seed: int, purpose: str, *index: int) -> Generator:
    """The random generator of (seed, purpose, index)."""
    return np.random.default_rng([seed, crc32(purpose.encode()), *index])


def deal(
    y: Array, clients: int, how: str, skew: str | float | None = None, seed: int = 0, min_samples: int = 1
) -> list[NDArray[np.int64]]:
    """N ascending arrays [s_n] of row indices, none of them empty: a partition of the rows.

    The parameters are those of `mpifed.data.partition.by_grid`, with its errors.
    """
    if not 1 <= clients <= len(y):
        raise UsageError(f"{clients} clients for {len(y)} rows: every client needs one; give 1 to {len(y)} clients")
    if not 1 <= min_samples <= len(y) // clients:
        raise UsageError(
            f"--min-samples {min_samples}: {clients} clients share {len(y)} rows; give 1 to {len(y) // clients}, or "
            "fewer clients"
        )
    name, parameter = parsed(how)
    if name != "iid" and not np.issubdtype(y.dtype, np.integer):
        raise UsageError(
            f"--partition {how}: the labels are real targets, or several of a row, not classes; use --partition iid"
        )
    if name == "shards":
        if skew is not None or parameter * clients > len(y):
            raise UsageError(
                f"--partition {how}: {clients} clients with {parameter:g} runs, of equal size, of {len(y)} rows; every "
                f"run needs a row: give K from 1 to {len(y) // clients}, and no --skew"
            )
        runs = np.array_split(np.argsort(y, kind="stable"), int(parameter) * clients)
        holders = stream(seed, "rows").permutation(len(runs)).reshape(clients, -1)
        return [np.sort(np.concatenate([runs[i] for i in numbers])) for numbers in holders]
    smallest, owner = 0, np.empty(len(y), dtype=np.int64)
    for attempt in range(DRAWS):
        rng = stream(seed, "rows", *([attempt] if attempt else []))
        kind, shares = _shares(y, how, name, parameter, _sizes(clients, skew, rng), rng)
        for rows, share in zip(by_kind(kind, len(shares)), shares, strict=True):
            ends = np.rint(np.cumsum(share)[:-1] / share.sum() * len(rows))
            owner[rng.permutation(rows)] = np.searchsorted(ends, np.arange(len(rows)), side="right")
        least = int(np.bincount(owner, minlength=clients).min())
        if min_samples == 1 or least >= min_samples:
            break
        smallest = max(smallest, least)
    else:
        raise UsageError(
            f"--min-samples {min_samples}: of {DRAWS} partitions by {how}, none had so many rows for each of {clients} "
            f"clients, the best {smallest} for its smallest; lower it, or give fewer clients or a larger parameter"
        )
    counts = _leave_nobody_out(owner, clients)
    return np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])


def _sizes(clients: int, skew: str | float | None, rng: Generator) -> NDArray[np.float64]:
    """[N] sizes of the clients, up to a factor."""
    name, _, text = "equal:1".rpartition(":") if skew is None else str(skew).rpartition(":")
    A = _positive(text)
    draws: dict[str, Callable[[], Array]] = {
        "equal": lambda: np.full(clients, 1.0),
        "lognormal": lambda: A * rng.standard_normal(clients),
        "power": lambda: rng.permutation(np.arange(1.0, clients + 1) ** -A),
        "dirichlet": lambda: rng.dirichlet(np.full(clients, A)),
    }
    if (name or "dirichlet") not in draws or np.isnan(A):
        raise UsageError(
            f"--skew {str(skew)[:40]}: expected A, or one of dirichlet:A, lognormal:A, power:A, with a number A above 0"
        )
    sizes = draws[name or "dirichlet"]()
    if name == "lognormal":
        sizes = np.exp(sizes - sizes.max())
    drawn: NDArray[np.float64] = sizes + np.finfo(float).tiny
    return drawn


def by_kind(kind: Array, kinds: int) -> Iterator[Array]:
    """The ascending rows of each kind in kind [s], from 0 to kinds - 1."""
    order, ends = np.argsort(kind, kind="stable"), np.cumsum(np.bincount(kind, minlength=kinds))
    for start, stop in zip([0, *ends.tolist()], ends.tolist(), strict=False):
        yield order[start:stop]


def _shares(y: Array, how: str, name: str, parameter: float, sizes: Array, rng: Generator) -> tuple[Array, Array]:
    """(kind [s] of each row, share [kinds, N] of each kind for each client, up to a factor)."""
    clients = len(sizes)
    if name == "iid":
        return np.zeros(len(y), dtype=np.int64), sizes[None]
    classes = int(y.max()) + 1
    if name == "dirichlet":
        return y, (rng.dirichlet(np.full(clients, parameter), size=classes) + np.finfo(float).tiny) * sizes
    each = int(parameter)
    least = -(-classes // clients) if name == "classes" else 1
    if not least <= each <= classes:
        raise UsageError(
            f"--partition {how}: {clients} clients with {each} of {classes} classes each; every class needs a holder "
            f"and a client has at most {classes}: give K from {least} to {classes}"
        )
    holders = np.zeros((classes, clients))
    if name == "random-classes":  # client i has class i modulo the number of classes, and others at random
        if clients < classes:
            raise UsageError(
                f"--partition {how}: {clients} clients for {classes} classes, each of which needs one for certain; "
                f"give {classes} clients or more, or --partition classes:K"
            )
        order = rng.random((clients, classes))
        order[np.arange(clients), np.arange(clients) % classes] = -1
        holders[np.argsort(order, axis=1)[:, :each], np.arange(clients)[:, None]] = 1
        return y, holders * sizes
    # clients in random order take the next K classes of a random cycle, so that all classes have equally many clients
    circle = np.arange(clients * each).reshape(clients, each) % classes
    holders[rng.permutation(classes)[circle], rng.permutation(clients)[:, None]] = 1
    return y, holders * sizes


def parsed(how: str) -> tuple[str, float]:
    """(name, parameter) of a partition, by mpifed's own names."""
    text = how
    for pattern, own in ALIASES.items():
        text = re.sub(f"^{pattern}$", own, text)
    name, _, parameter = text.partition(":")
    if not re.fullmatch(_FORMS, text) or (parameter and np.isnan(_positive(parameter))):
        raise UsageError(
            f"--partition {how[:40]}: no partition{'' if name in KINDS else nearest(name, KINDS)}; expected iid, "
            "dirichlet:A with A > 0, classes:K, random-classes:K or shards:K with K = 1, 2, ..., or NIID-Bench's "
            "homo, noniid-labeldir:A, noniid-#labelK"
        )
    return name, _positive(parameter)


def _positive(text: str) -> float:
    """A number above 0; NaN for anything else."""
    try:
        return number if 0 < (number := float(text)) < np.inf else np.nan
    except ValueError:
        return np.nan


def _leave_nobody_out(owner: Array, clients: int) -> NDArray[np.int64]:
    """Give each client without rows a row of the largest client, in `owner` [s]; returns the sizes [N]."""
    counts = np.bincount(owner, minlength=clients)
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return counts
    rows, first = np.argsort(owner, kind="stable"), np.cumsum(counts) - counts
    for client in empty:
        giver = counts.argmax()
        owner[rows[first[giver]]] = client
        first[giver] += 1
        counts[giver] -= 1
        counts[client] = 1
    return counts
