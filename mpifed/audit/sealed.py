"""Masked or encrypted parts of uploads, whose words should be uniform, and the parts that are sent in the clear.

Where only two clients contribute to a position of a sum for the server, the upload of the second is the sum less that
of the first, and has no further information: only the first client's is tested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from mpifed.audit.messages import plan_of, plays
from mpifed.audit.replay import Replay
from mpifed.audit.uniformity import Sample, excerpt, of_integers, of_residues
from mpifed.comm.exchange_plan import ExchangePlan
from mpifed.comm.message_layout import Place
from mpifed.core.exchange import ToClients
from mpifed.core.holdings import Cells
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import RecordedMessage, client_of

MOST_CLIENTS = 16  # most clients per exchange whose uploads are tested
RUNNING_SUM = "sum so far, sealed"  # the note that gives the server a running sum to keep


class Sealed(NamedTuple):
    """Masked or encrypted parts of a transcript's uploads."""

    samples: list[Sample]
    clear: dict[str, int]  # by field, integers that are sent in the clear by design
    longest: int  # words of the longest upload


def sealed(replay: Replay, messages: tuple[RecordedMessage, ...]) -> Sealed:
    """Samples of upload words that should be uniform; of plain uploads, those that other security settings would seal.

    At most `MOST_CLIENTS` clients per exchange, and of long uploads consecutive words, both drawn by the job's seed.
    """
    rng, longest = np.random.default_rng(replay.job.seed), 0
    cells, plain = replay.cells, replay.transcript.channel == "plain"
    samples: list[Sample] = []
    clear: dict[str, int] = {}
    opener = _ciphertexts(replay) if replay.transcript.channel == "encrypted" else None
    for exchange in all_exchanges(replay.algorithm):
        plan = plan_of(replay, exchange)
        drawn = set(rng.permutation(len(cells.rows.groups))[:MOST_CLIENTS].tolist())
        start = float(rng.random())  # relative position of the tested words of long uploads
        for play in plays(messages, exchange.name):
            present = play.present(len(cells.rows.groups))
            for client, upload in [item for item in play.uploads.items() if item[0] in drawn]:
                if opener is not None and exchange.private:
                    for numbers, modulus in opener(upload):
                        longest = max(longest, len(numbers))
                        about = exchange.name, play.round, client
                        samples.append(of_residues(*about, excerpt(numbers, start), modulus))
                    continue
                at, open_to_all = hidden(plan, cells, client, present, plain)
                longest = max(longest, len(at))
                if len(at):
                    data = upload[0].data[excerpt(at, start)]
                    samples.append(of_integers(exchange.name, play.round, client, data))
                for name, count in open_to_all.items():
                    clear[name] = clear.get(name, 0) + count
        kind = plan.sum.message.dtype
        samples += [
            _running_sum(message, kind)
            for message in messages
            if (message.exchange, message.what) == (exchange.name, RUNNING_SUM)
        ]
    return Sealed(samples, clear, longest)


def _running_sum(message: RecordedMessage, kind: DTypeLike) -> Sample:
    """A sample of a running sum of clients' last uploads, which the server keeps sealed."""
    client, name = client_of(message), f"{message.exchange}, sum so far"
    assert client is not None
    return of_integers(name, message.round, client, message.data.view(kind))


def hidden(
    plan: ExchangePlan, cells: Cells, client: int, present: NDArray[np.bool_], plain: bool = False
) -> tuple[NDArray[np.int64], dict[str, int]]:
    """(masked positions among the numbers of a client's upload, by field the number of unmasked ones).

    `present`: [N] participating clients. `plain`: whether to give the positions that other security settings would
    mask.
    """
    masked, clear = [np.zeros(0, dtype=bool)], dict[str, int]()
    for place in plan.sum.places:
        at = plan.positions(place, client)
        if at is None:
            continue
        positions = np.arange(place.stop)[at]
        alone, doubled = _fillers(place, cells, client, present, positions)
        if not plan.exchange.private:
            alone = np.ones_like(alone)
        elif plain or isinstance(plan.exchange, ToClients):  # masked by a key stream of the client's own
            alone, doubled = np.zeros_like(alone), np.zeros_like(doubled)
        if alone.any():
            clear[place.name] = int(alone.sum())
        masked.append(~alone & ~doubled)
    return np.flatnonzero(np.concatenate(masked)), clear


def _fillers(
    place: Place, cells: Cells, client: int, present: NDArray[np.bool_], positions: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """([m] positions that only this client fills, [m] positions that only an earlier client fills as well)."""
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


def _ciphertexts(replay: Replay) -> Callable[[list[RecordedMessage]], Iterator[tuple[NDArray[np.uint64], int]]]:
    """Function of an upload that gives (numbers of its ciphertexts, modulus) for each modulus."""
    from mpifed.comm.encryption.bfv import Bfv
    from mpifed.comm.encryption.bundles import words

    scheme = Bfv()

    def opened(upload: list[RecordedMessage]) -> Iterator[tuple[NDArray[np.uint64], int]]:
        by_modulus: dict[int, list[NDArray[np.uint64]]] = {}
        for message in upload:
            for numbers, modulus in words(scheme, message.data):
                by_modulus.setdefault(modulus, []).append(numbers)
        for modulus, parts in by_modulus.items():
            yield np.concatenate(parts), modulus

    return opened
