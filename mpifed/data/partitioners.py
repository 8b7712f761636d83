"""Rows divided among clients by their labels and sizes: pure functions of labels, options and a seed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from zlib import crc32

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.core.nearest import nearest
from mpifed.core.record import Array
from mpifed.data.memory import check_memory

DRAWS = 1000  # partitions that are tried for one whose smallest client is large enough
SKEWS = ("dirichlet", "lognormal", "power")
# other names: of NIID-Bench (Q. Li, Y. Diao, Q. Chen, B. He, ICDE 2022), with its parameter beta, which is 0.5 there,
# and of Flower's datasets; "iid-diff-quantity" is a skew of sizes
ALIASES = {
    "homo": "iid",
    "noniid-labeldir": "dirichlet:0.5",
    "noniid-labeldir:(.*)": r"dirichlet:\1",
    "noniid-#label:?(.*)": r"random-classes:\1",
    "pathological:(.*)": r"classes:\1",
}
KINDS = ("iid", "dirichlet", "classes", "random-classes", "shards")


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
    name, parameter, skew = _parse(how, skew)
    if name != "iid" and not np.issubdtype(y.dtype, np.integer):
        raise UsageError(
            f"--partition {how}: the labels are real targets, or several of a row, not classes; use --partition iid"
        )
    if name == "shards":
        return _runs(y, clients, how, int(parameter), skew, stream(seed, "rows"))
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
    if skew is None:
        return np.full(clients, 1.0)
    name, _, text = str(skew).rpartition(":")
    parameter = _positive(text)
    if (name or "dirichlet") not in SKEWS or np.isnan(parameter):
        known = ", ".join(f"{known}:A" for known in SKEWS)
        raise UsageError(f"--skew {str(skew)[:40]}: expected A, or one of {known}, with a number A above 0")
    if name == "lognormal":
        sizes = np.exp(parameter * (normal := rng.standard_normal(clients)) - parameter * normal.max())
    elif name == "power":
        sizes = rng.permutation(np.arange(1.0, clients + 1) ** -parameter)
    else:
        sizes = rng.dirichlet(np.full(clients, parameter))
    drawn: NDArray[np.float64] = sizes + np.finfo(float).tiny
    return drawn


def _runs(
    y: Array, clients: int, how: str, each: int, skew: str | float | None, rng: Generator
) -> list[NDArray[np.int64]]:
    """N ascending arrays [s_n]: of each client `each` runs of the rows in the order of their classes y [s]."""
    if skew is not None:
        raise UsageError(f"--partition {how} --skew {skew}: runs are of equal size; leave out --skew")
    if each * clients > len(y):
        raise UsageError(
            f"--partition {how}: {clients} clients with {each} runs of {len(y)} rows; every run needs a row: give K "
            f"from 1 to {len(y) // clients}"
        )
    runs = np.array_split(np.argsort(y, kind="stable"), each * clients)
    holders = rng.permutation(each * clients).reshape(clients, each)
    return [np.sort(np.concatenate([runs[i] for i in numbers])) for numbers in holders]


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
    check_memory(
        24 * classes * clients, f"--partition {how}: {classes} classes by {clients} groups",
        "give fewer clients, or --task regression if the labels are not classes",
    )  # fmt: skip
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


def _parse(how: str, skew: str | float | None) -> tuple[str, float, str | float | None]:
    """(name, parameter, skew of sizes) of a partition, by mpifed's own names."""
    name = how
    if sizes := re.fullmatch("iid-diff-quantity(:.+)?", how):
        if skew is not None:
            raise UsageError(f"--partition {how[:40]} --skew {skew}: both are about sizes; give one of them")
        name, skew = "iid", (sizes[1] or ":0.5")[1:]
    for pattern, own in ALIASES.items():
        name = re.sub(f"^{pattern}$", own, name)
    name, _, text = name.partition(":")
    whole = re.fullmatch("0*[1-9][0-9]{0,17}", text)
    parameter = _positive(text) if name == "dirichlet" else float(whole[0]) if whole else np.nan
    if name == "iid" and not text:
        return name, 0.0, skew
    if name in KINDS[1:] and parameter == parameter:
        return name, parameter, skew
    meant = "" if name in KINDS else nearest(name, KINDS)
    raise UsageError(
        f"--partition {how[:40]}: no partition{meant}; expected iid, dirichlet:A with A > 0, classes:K, "
        "random-classes:K or shards:K with K = 1, 2, ..., or a name of NIID-Bench: homo, noniid-labeldir:A, "
        "noniid-#labelK, iid-diff-quantity:A"
    )


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
