"""Values of single clients in sums that are opened: declared so, of a round with one client, or as it turned out.

The last is what an algorithm does not say: clients may add zeros wherever others have something. It is seen in the
answers themselves, which the auditor has from the plain channel.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.plays import Play, integers, line_of, plays
from mpifed.audit.stage import Stage
from mpifed.core.exchange import Exchange, ToClients
from mpifed.core.record import leaves
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import Message

MOSTLY = 0.5  # of the values of a field that are not zero come from one client alone


def single(stage: Stage, messages: tuple[Message, ...], plain: Stage) -> list[str]:
    """Fields that show one client's own values to who hears the sum.

    Parameters
    ----------
    messages : of the run that is audited
    plain : the same rounds in the plain channel
    """
    found: list[str] = []
    for exchange in {one.name: one for one in all_exchanges(stage.algorithm)}.values():
        to = "clients" if isinstance(exchange, ToClients) else "the server"
        opened = [play for play in plays(messages, exchange.name) if play.opened_for]
        if opened and exchange.private:
            texts = [*_declared(stage, exchange, opened), *_in_fact(stage, exchange, plain)]
            found += [f"{text}, to {to}" for text in texts]
    return found


def _declared(stage: Stage, exchange: Exchange, opened: list[Play]) -> Iterator[str]:
    for name, field in leaves(exchange.fields):
        whole = f"{exchange.name}.{name}".rstrip(".")
        held = stage.cells.along(field)
        if field.sender is not None:
            yield f"{whole}: client {field.sender}'s alone"
        elif held is not None and isinstance(exchange, ToClients) and field.rows is not None:
            continue  # who fills a row alone is the only one to hear it
        elif held is not None:
            most = max(int((held.held_by(_answered(stage, play)) == 1).sum()) for play in opened)
            if most:
                what = "columns" if field.rows is None else "rows"
                change = "how the last answers changed, " if exchange.stale else ""
                yield f"{whole}: {change}{most} of {held.length} {what} of one client each"
        elif any(len(play.uploads) == 1 for play in opened):
            yield f"{whole}: of a round with one client"


def _answered(stage: Stage, play: Play) -> NDArray[np.bool_]:
    """[N]"""
    return np.isin(np.arange(stage.algorithm.problem.clients), list(play.uploads))


def _in_fact(stage: Stage, exchange: Exchange, plain: Stage) -> Iterator[str]:
    """Fields of which most values come from one client alone, although all may add."""
    line = line_of(plain, exchange)
    several = [play for play in plays(plain.transcript.messages, exchange.name) if len(play.uploads) > 1]
    answers = [[integers(line, upload) for upload in play.uploads.values()] for play in several]
    readable = [[one for one in some if one is not None] for some in answers]
    adding = [sum((one != 0).astype(int) for one in some) for some in readable if some]
    for place in line.sum.places:
        if place.field.in_parts or not adding:
            continue
        counts = np.concatenate([np.asarray(one)[place.start : place.stop] for one in adding])
        there, alone = int((counts > 0).sum()), int((counts == 1).sum())
        if alone > MOSTLY * there:
            yield f"{place.name}: {alone} of {there} values that are not zero come from one client alone"
