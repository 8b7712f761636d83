"""Local methods in virtual time: a round is a full buffer of answers, which may be of different models.

J. Nguyen et al.: "Federated Learning with Buffered Asynchronous Aggregation" (AISTATS 2022, arXiv:2106.06639). Who
answers when, and from which model, `mpifed.job.arrivals` draws by the job's seed; the server keeps what it has sent in
as many rounds as an answer may miss.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from mpifed.core.exchange import Exchange, Method, OwnRecord
from mpifed.core.lazy import Lazy
from mpifed.core.record import Record, map_leaves

if TYPE_CHECKING:
    from mpifed.core.record import Array
    from mpifed.core.round import Round
    from mpifed.data.block import Block
    from mpifed.maths.problem import Weighted


def all_out(sent: OwnRecord, versions: int) -> OwnRecord:
    """A record of what was sent in so many rounds, that of round t at t mod `versions`; before round 0 all are alike.

    A field for each, so that a new one copies none of the others.
    """
    fields = namedtuple("fields", [f"version_{k}" for k in range(versions)])  # type: ignore[misc]  # of no fixed length
    return fields(*[sent] * versions)


def in_virtual_time(method: Method, fields: OwnRecord) -> Exchange:
    """The exchange of a local method, with these fields, in which each client answers what it was sent."""
    versions = method.problem.versions

    def ask(server: OwnRecord, now: Round) -> OwnRecord:
        """What the clients of this buffer were sent, leaves [models, ...], the oldest first."""
        assert now.arrivals is not None
        sent = [server.out[version % versions] for version in now.arrivals.models.tolist()]
        stacked: OwnRecord = map_leaves(lambda *some: np.stack(some), *sent)
        return stacked

    def answer(own: OwnRecord, sent: OwnRecord, block: Block, now: Round) -> tuple[OwnRecord, Weighted | Lazy]:
        """The answers to each of these, of clients who keep nothing."""
        assert now.arrivals is not None
        model = now.arrivals.model[np.searchsorted(now.ids, block.clients)]

        def answers(k: int, few: Block) -> Weighted | Lazy:
            upload: Weighted | Lazy = method.answer(own, map_leaves(itemgetter(k), sent), few, now)[1]
            return upload

        def parts() -> Iterator[tuple[Array, Record]]:
            for k in np.unique(model).tolist():
                who = np.flatnonzero(model == k)
                upload = answers(k, block.only(who))
                for positions, part in upload.parts() if isinstance(upload, Lazy) else [(slice(None), upload)]:
                    yield who[positions], part

        return own, answers(int(model[0]), block) if (model == model[0]).all() else Lazy(parts)

    def absorb(server: OwnRecord, total: Weighted, now: Round) -> OwnRecord:
        """What the method makes of the sum; and the new model goes out."""
        after = method.receive(server, total, now)
        place = server.out._fields[(now.index + 1) % versions]
        return after._replace(out=server.out._replace(**{place: method.ask(after, now)}))

    return Exchange("changes", fields, ask, answer, absorb)
