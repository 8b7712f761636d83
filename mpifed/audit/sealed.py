"""What of an upload is sealed, as numbers that should look uniform; and what travels in the clear beside it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.plays import exact_sum, plays
from mpifed.audit.stage import Stage
from mpifed.audit.uniform import Sample, of_integers, of_residues
from mpifed.comm.channel import Line
from mpifed.comm.sums import Place
from mpifed.core.exchange import ToClients
from mpifed.core.holdings import Cells
from mpifed.run.setup import all_exchanges, cells_of
from mpifed.run.transcript import Message
from mpifed.shards import store

MOST_CLIENTS = 16  # whose uploads are tested, in every exchange


class Sealed(NamedTuple):
    """The uploads of a transcript."""

    samples: list[Sample]
    clear: dict[str, int]  # integers of fields that travel in the clear, by design, by field


def sealed(stage: Stage, messages: tuple[Message, ...]) -> Sealed:
    """What should be uniform in the uploads; of the plain channel, everything, although it seals nothing."""
    cells = cells_of(store.open_federation(stage.job.data.path))
    samples: list[Sample] = []
    clear: dict[str, int] = {}
    opener = _ciphertexts(stage) if stage.transcript.channel == "encrypted" else None
    for exchange in all_exchanges(stage.algorithm):
        line = Line(exchange, partial(exact_sum, stage.job, exchange, len(cells.rows.groups)), cells)
        for play in plays(messages, exchange.name):
            present = np.isin(np.arange(len(cells.rows.groups)), list(play.uploads))
            for client, upload in list(play.uploads.items())[:MOST_CLIENTS]:
                if opener is not None:
                    samples += [of_residues(exchange.name, play.round, client, *one) for one in opener(upload)]
                    continue
                at = _hidden(line, cells, client, present, stage.transcript.channel == "plain", clear)
                if len(at):
                    samples.append(of_integers(exchange.name, play.round, client, upload[0].data[at]))
    return Sealed(samples, clear)


def _hidden(
    line: Line, cells: Cells, client: int, present: NDArray[np.bool_], plain: bool, clear: dict[str, int]
) -> NDArray[np.int64]:
    """The positions of what a client sends, in its message, that a mask should hide."""
    found = [np.zeros(0, dtype=np.int64)]
    for place in line.sum.places:
        at = line.positions(place, client)
        if at is None:
            continue
        positions = np.arange(place.stop)[at]
        if plain or isinstance(line.exchange, ToClients) or _of_several(place, cells, client, present):
            found.append(positions)
        elif len(positions):
            clear[place.name] = clear.get(place.name, 0) + len(positions)
    return np.concatenate(found)


def _of_several(place: Place, cells: Cells, client: int, present: NDArray[np.bool_]) -> bool:
    """Whether others add to the same places."""
    if place.field.sender is not None:
        return False
    held = cells.along(place.field)
    if held is None:
        return int(present.sum()) > 1
    return int((held.groups[present] == held.groups[client]).sum()) > 1


def _ciphertexts(stage: Stage) -> Any:
    """What takes an upload apart into the numbers that its ciphertexts consist of, and what they are modulo."""
    from mpifed.comm.encryption.encrypted import words
    from mpifed.comm.encryption.schemes import make_scheme

    scheme = make_scheme(stage.job.protection(), stage.algorithm.problem.clients)

    def opened(upload: list[Message]) -> Iterator[tuple[NDArray[np.uint64], int]]:
        found: dict[int, list[NDArray[np.uint64]]] = {}
        for message in upload:
            for numbers, modulus in words(scheme, message.data):
                found.setdefault(modulus, []).append(numbers)
        for modulus, parts in found.items():
            yield np.concatenate(parts), modulus

    return opened
