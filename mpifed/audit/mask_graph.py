"""Check that each client shares masks with as many others as it should, in a connected graph.

Streams may all be different and cancel in every sum, and yet let the server decode the sum of a few uploads, if clients
fall into groups that share no masks. The number of partners of a client follows from the job: all clients that fill a
position that not all fill; for positions that all fill, all others up to 20 clients, and beyond that as many as
`mpifed.comm.masking.neighbour_graph.enough` gives. To these come the clients' common stream in a sum for clients, and,
where clients may drop out, a mask of each client's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.key_streams import Part
from mpifed.comm.masking.neighbour_graph import enough
from mpifed.core.exchange import ToClients
from mpifed.job.job import Job

if TYPE_CHECKING:
    from mpifed.audit.streams import Sealing, Streams, Use

Shared: TypeAlias = tuple[tuple[int, int], int]  # a stream, and the sign with which a client adds it
_FEW = 20  # up to so many clients, every pair shares a mask


def neighbours(job: Job, n: int) -> int:
    """Least number of partners of each of n clients for positions that all clients fill."""
    return n - 1 if n <= _FEW else min(n - 1, enough(n, job.participation.max_dropouts))


def missing_streams(streams: Streams, job: Job) -> list[str]:
    """Descriptions of clients with too few streams, and of occurrences with an unconnected graph of partners."""
    uses: dict[int, list[Use]] = defaultdict(list)
    for use in streams.uses:
        uses[use.message].append(use)
    texts = []
    for number, sealing in streams.messages.items():
        if number < streams.cut:
            texts += _missing(sealing, uses[number], job)
    return texts


def _missing(sealing: Sealing, uses: Sequence[Use], job: Job) -> list[str]:
    plan, selected = sealing.plan, np.flatnonzero(sealing.selected)
    m, gone = len(plan.sum.message), len(selected) - len(sealing.clients)
    holders = np.zeros(m, dtype=np.int64)
    for client in selected.tolist():
        for at in plan.own(client):
            holders[at] += 1
    whole = holders == len(selected)
    need = np.where(whole, min(neighbours(job, len(selected)), len(selected) - 1), holders - 1)
    more = isinstance(plan.exchange, ToClients) + (job.participation.max_dropouts > 0)
    partners, texts = _partners(uses), list[str]()
    by: dict[int, list[Use]] = defaultdict(list)
    for use in uses:
        by[use.client].append(use)
    for client in sealing.clients:
        paired, others = np.zeros((2, m), dtype=np.int64)  # streams shared with a partner, and others
        met = set[int]()
        for use in by[client]:
            new = partners[use.key, use.sign] - met - {client}
            met |= {min(new)} if new else set()
            for part in use.parts:
                (paired if new else others)[part] += 1
        # streams of partners that dropped out before their upload count as others
        short = (paired < need - gone) | (paired + others < need + more) | (others < more)
        at = np.flatnonzero(np.isin(np.arange(m), _positions(plan.own(client))) & short)
        if len(at):
            seen, first = int(paired[at[0]] + others[at[0]]), int(at[0])
            texts.append(
                f"client {client} in {sealing.what}: {seen} of {int(need[first]) + more} at {len(at)} numbers, "
                f"{int(paired[first])} of them shared with a partner"
            )
    groups = _components(sealing.clients, uses, partners, np.flatnonzero(whole))
    if whole.any() and len(groups) > 1:
        texts.append(f"{sealing.what}: clients fall into {len(groups)} groups, of {', '.join(map(str, groups))}")
    return texts


def _partners(uses: Sequence[Use]) -> dict[Shared, set[int]]:
    """By stream and sign, the clients that add it with the opposite sign."""
    partners: dict[Shared, set[int]] = defaultdict(set)
    for use in uses:
        partners[use.key, -use.sign].add(use.client)
    return partners


def _components(
    clients: Sequence[int], uses: Sequence[Use], partners: dict[Shared, set[int]], whole: NDArray[np.int64]
) -> list[int]:
    """Sizes of the connected components of clients by shared masks at positions `whole`, which all fill."""
    group = {client: client for client in clients}
    covers: dict[int, bool] = {}  # by the parts of a stream, which most streams have in common

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


def _positions(parts: Sequence[Part]) -> NDArray[np.int64]:
    at = [np.arange(part.start, part.stop) if isinstance(part, slice) else part for part in parts]
    return np.concatenate([np.zeros(0, dtype=np.int64), *at])
