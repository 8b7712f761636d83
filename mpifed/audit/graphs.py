"""Whether each client masks with as many others as it should, and all of them hang together.

Streams may all be different, cancel in every sum, and yet let the server add up the answers of a few: where the clients
fall into groups that share no masks. How many partners a client must have follows from the job alone: all who fill a
place that not everybody fills, and of a place that everybody fills all others up to 20 clients, and beyond so many as
`mpifed.comm.masking.graph.enough` says. To these come the stream of the clients in a sum that they hear, and, where
clients may leave, a mask of each client's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.masking.graph import enough
from mpifed.core.exchange import ToClients
from mpifed.run.config import Job

if TYPE_CHECKING:
    from mpifed.audit.streams import Sealing, Streams, Use

_FEW = 20  # clients, up to whom every pair shares a mask


def neighbours(job: Job, n: int) -> int:
    """How many others each of n clients must mask what everybody fills with."""
    chosen = job.masking.neighbours
    if chosen is None:
        return n - 1 if n <= _FEW else min(n - 1, enough(n, job.participation.max_dropouts))
    return min(n - 1, 2 * -(-chosen // 2))


def missing(streams: Streams, job: Job) -> list[str]:
    """Which clients add fewer streams than they should, or to which play no chain of partners leads from the others."""
    uses: dict[int, list[Use]] = defaultdict(list)
    for use in streams.uses:
        uses[use.message].append(use)
    found = []
    for number, sealing in streams.messages.items():
        if number < streams.cut:
            found += _missing(sealing, uses[number], job)
    return found


def _missing(sealing: Sealing, uses: Sequence[Use], job: Job) -> list[str]:
    line, asked = sealing.line, np.flatnonzero(sealing.asked)
    m, gone = len(line.sum.message), len(asked) - len(sealing.clients)
    holders = np.zeros(m, dtype=np.int64)
    for client in asked.tolist():
        for at in line.own(client):
            holders[at] += 1
    whole = holders == len(asked)
    need = np.where(whole, min(neighbours(job, len(asked)), len(asked) - 1), holders - 1)
    more = isinstance(line.exchange, ToClients) + (job.participation.max_dropouts > 0)
    partners, found = _partners(uses), list[str]()
    by: dict[int, list[Use]] = defaultdict(list)
    for use in uses:
        by[use.client].append(use)
    for client in sealing.clients:
        paired, others = np.zeros((2, m), dtype=np.int64)  # streams that a partner takes away, and other ones
        met = set[int]()
        for use in by[client]:
            new = partners[use.key, use.sign] - met - {client}
            met |= {min(new)} if new else set()
            for part in use.parts:
                (paired if new else others)[part] += 1
        # those of partners who left before they answered are other ones
        short = (paired < need - gone) | (paired + others < need + more) | (others < more)
        at = np.flatnonzero(np.isin(np.arange(m), _positions(line.own(client))) & short)
        if len(at):
            seen, first = int(paired[at[0]] + others[at[0]]), int(at[0])
            found.append(
                f"client {client} in {sealing.what}: {seen} of {int(need[first]) + more} at {len(at)} numbers, "
                f"{int(paired[first])} of them a partner's as well"
            )
    groups = _components(sealing.clients, uses, partners, np.flatnonzero(whole))
    if whole.any() and len(groups) > 1:
        found.append(f"{sealing.what}: clients fall into {len(groups)} groups, of {', '.join(map(str, groups))}")
    return found


def _partners(uses: Sequence[Use]) -> dict[tuple[Any, int], set[int]]:
    """By stream and sign, who adds it with the other sign."""
    found: dict[tuple[Any, int], set[int]] = defaultdict(set)
    for use in uses:
        found[use.key, -use.sign].add(use.client)
    return found


def _components(
    clients: Sequence[int], uses: Sequence[Use], partners: dict[tuple[Any, int], set[int]], whole: NDArray[np.int64]
) -> list[int]:
    """How many clients there are in each group that masks what everybody fills, `whole`, among itself."""
    group = {client: client for client in clients}
    covers: dict[int, bool] = {}  # by the parts of a stream, which most of them have in common

    def first(client: int) -> int:
        while group[client] != client:
            client = group[client]
        return client

    for use in uses:
        if use.client not in group:
            continue
        if id(use.parts) not in covers:
            covers[id(use.parts)] = bool(np.isin(whole, _positions(use.parts)).all())
        for other in partners[use.key, use.sign] & group.keys() if covers[id(use.parts)] else ():
            group[first(use.client)] = first(other)
    sizes = defaultdict[int, int](int)
    for client in clients:
        sizes[first(client)] += 1
    return sorted(sizes.values())


def _positions(parts: Sequence[Any]) -> NDArray[np.int64]:
    at = [np.arange(part.start, part.stop) if isinstance(part, slice) else part for part in parts]
    return np.concatenate([np.zeros(0, dtype=np.int64), *at])
