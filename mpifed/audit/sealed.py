"""What of an upload is sealed, as numbers that should look uniform; and what travels in the clear beside it.

Where two clients alone add to a place of a sum for the server, what the second of them sends is the sum less what the
first one sends, and so tells nothing new: only the first one's is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.plays import line_of, plays
from mpifed.audit.stage import Stage
from mpifed.audit.uniform import Sample, of_integers, of_residues, some_of
from mpifed.comm.line import Line
from mpifed.comm.places import Place
from mpifed.core.exchange import ToClients
from mpifed.core.holdings import Cells
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import Message, client_of

MOST_CLIENTS = 16  # whose uploads are tested, in every exchange
KEPT = "sum so far, sealed"  # the note by which the server is handed what it keeps


class Sealed(NamedTuple):
    """The uploads of a transcript."""

    samples: list[Sample]
    clear: dict[str, int]  # integers of fields that travel in the clear, by design, by field
    longest: int  # words of an upload, at most


def sealed(stage: Stage, messages: tuple[Message, ...]) -> Sealed:
    """What should be uniform in the uploads; of the plain channel what the others seal, although it seals nothing.

    Of each exchange so many clients are looked at, and of their long uploads so many words in a row, drawn by the seed.
    """
    rng, longest = np.random.default_rng(stage.job.seed), 0
    cells, plain = stage.cells, stage.transcript.channel == "plain"
    samples: list[Sample] = []
    clear: dict[str, int] = {}
    opener = _ciphertexts(stage) if stage.transcript.channel == "encrypted" else None
    for exchange in {one.name: one for one in all_exchanges(stage.algorithm)}.values():
        line = line_of(stage, exchange)
        drawn = set(rng.permutation(len(cells.rows.groups))[:MOST_CLIENTS].tolist())
        start = float(rng.random())  # of what is looked at of long uploads
        for play in plays(messages, exchange.name):
            present = np.isin(np.arange(len(cells.rows.groups)), list(play.uploads))
            for client, upload in [item for item in play.uploads.items() if item[0] in drawn]:
                if opener is not None and exchange.private:
                    for numbers, modulus in opener(upload):
                        longest = max(longest, len(numbers))
                        about = exchange.name, play.round, client
                        samples.append(of_residues(*about, some_of(numbers, start), modulus))
                    continue
                at, open_to_all = hidden(line, cells, client, present, plain)
                longest = max(longest, len(at))
                if len(at):
                    data = upload[0].data[some_of(at, start)]
                    samples.append(of_integers(exchange.name, play.round, client, data))
                for name, count in open_to_all.items():
                    clear[name] = clear.get(name, 0) + count
        kind = line.sum.message.dtype
        samples += [_kept(one, kind) for one in messages if (one.exchange, one.what) == (exchange.name, KEPT)]
    return Sealed(samples, clear, longest)


def _kept(message: Message, kind: np.dtype[Any]) -> Sample:
    """What the server keeps of clients' last answers, sealed by one of them."""
    client, name = client_of(message), f"{message.exchange}, sum so far"
    assert client is not None
    return of_integers(name, message.round, client, message.data.view(kind))


def hidden(
    line: Line, cells: Cells, client: int, present: NDArray[np.bool_], plain: bool = False
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """The positions, among the numbers that a client sends, of those that a mask hides; and by field, how many not.

    Parameters
    ----------
    present : [N] who answers
    plain : whether to give the positions of all that another channel would carry
    """
    found, clear = [np.zeros(0, dtype=bool)], dict[str, int]()
    for place in line.sum.places:
        at = line.positions(place, client)
        if at is None:
            continue
        positions = np.arange(place.stop)[at]
        alone, doubled = _fillers(place, cells, client, present, positions)
        if not line.exchange.private:
            alone = np.ones_like(alone)
        elif plain or isinstance(line.exchange, ToClients):  # these are under a key stream of the client's own
            alone, doubled = np.zeros_like(alone), np.zeros_like(doubled)
        if alone.any():
            clear[place.name] = int(alone.sum())
        found.append(~alone & ~doubled)
    return np.flatnonzero(np.concatenate(found)), clear


def _fillers(
    place: Place, cells: Cells, client: int, present: NDArray[np.bool_], positions: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of each of the client's positions [m]: whether nobody else fills it, and whether one before it does alone."""
    held, before = cells.along(place.field), present & (np.arange(len(present)) < client)
    if held is None:
        alone = place.field.sender is not None or int(present.sum()) == 1
        doubled = place.field.sender is None and (int(present.sum()), int(before.sum())) == (2, 1)
        return np.full(len(positions), alone), np.full(len(positions), doubled)
    axis = int(place.field.axis or 0)
    numbers = np.arange(held.length).reshape(-1, *[1] * (len(place.field.shape) - axis - 1))
    along = np.broadcast_to(numbers, (place.form.limbs, *place.field.shape)).ravel()[positions - place.start]
    count, earlier = held.held_by(present)[along], held.held_by(before)[along]
    return count == 1, (count == 2) & (earlier == 1)


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
