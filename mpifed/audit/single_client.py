"""Values of single clients in decoded sums: by declaration, in a round with a single client, or in fact.

The last is not declared by the algorithm: clients may add zeros wherever another client has values. It shows in the
uploads themselves, which are known from the auditor's plain replay.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpifed.audit.messages import Play, integers, plan_of, plays
from mpifed.audit.replay import Replay
from mpifed.core.exchange import Exchange, ToClients, fields_of
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import RecordedMessage

MOSTLY = 0.5  # least fraction of the nonzero values of a field that come from a single client


def single_client_fields(replay: Replay, messages: tuple[RecordedMessage, ...], plain: Replay) -> list[str]:
    """Fields whose decoded sums show values of single clients; `plain`: the same rounds with plain security."""
    descriptions: list[str] = []
    for exchange in all_exchanges(replay.algorithm):
        to = "clients" if isinstance(exchange, ToClients) else "the server"
        opened = [play for play in plays(messages, exchange.name) if play.opened_for]
        if opened and exchange.private:
            texts = [*_declared(replay, exchange, opened), *_in_fact(replay, exchange, plain)]
            descriptions += [f"{text}, to {to}" for text in texts]
    return descriptions


def _declared(replay: Replay, exchange: Exchange, opened: list[Play]) -> Iterator[str]:
    for name, field in fields_of(exchange).items():
        whole = f"{exchange.name}.{name}".rstrip(".")
        held = replay.cells.along(field)
        if field.sender is not None:
            yield f"{whole}: sent by client {field.sender} alone"
        elif held is not None and isinstance(exchange, ToClients) and field.rows is not None:
            continue  # a client that fills a row alone is the only receiver
        elif held is not None:
            most = max(int((held.held_by(play.present(len(held.groups))) == 1).sum()) for play in opened)
            if most:
                what = "columns" if field.rows is None else "rows"
                change = "changes of the last uploads, " if exchange.stale else ""
                yield f"{whole}: {change}{most} of {held.length} {what} of single clients"
        elif any(len(play.uploads) == 1 for play in opened):
            yield f"{whole}: in a round with a single client"


def _in_fact(replay: Replay, exchange: Exchange, plain: Replay) -> Iterator[str]:
    """Fields of which most values come from single clients, although all clients may contribute."""
    plan = plan_of(plain, exchange)
    shared = [play for play in plays(plain.transcript.messages, exchange.name) if len(play.uploads) > 1]
    decoded = [[integers(plan, upload) for upload in play.uploads.values()] for play in shared]
    readable = [[upload for upload in uploads if upload is not None] for uploads in decoded]
    contributors = [sum((upload != 0).astype(int) for upload in uploads) for uploads in readable if uploads]  # [m] each
    for place in plan.sum.places:
        if place.field.in_parts or not contributors:
            continue
        counts = np.concatenate([np.asarray(clients)[place.start : place.stop] for clients in contributors])
        there, alone = int((counts > 0).sum()), int((counts == 1).sum())
        if alone > MOSTLY * there:
            yield f"{place.name}: {alone} of {there} nonzero values come from single clients"
