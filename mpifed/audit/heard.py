"""What clients sent, exchange by exchange, as far as it can be read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpifed.audit.attempt import Floats
from mpifed.audit.plays import Decoder, Play, plays
from mpifed.audit.stage import Stage
from mpifed.audit.targets import EACH, SEALED
from mpifed.core.exchange import Exchange
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import Message

HIDDEN = "ciphertexts, which are no numbers without the key"
SHOWN = 16  # rows, in pictures


class Heard:
    """Those of a run, by name, and what clients sent in them."""

    def __init__(self, stage: Stage, messages: tuple[Message, ...]) -> None:
        self._stage, self._messages = stage, messages
        self._known: dict[str, Exchange] = {one.name: one for one in all_exchanges(stage.algorithm)}

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def readable(self, name: str) -> bool:
        """Whether what travels are numbers, be they sealed."""
        return self._stage.transcript.channel != "encrypted" or not self._known[name].private

    def seen(self, name: str) -> str:
        """What the server has."""
        return EACH if self._stage.in_clear(self._known[name]) else SEALED

    def plays(self, name: str) -> list[Play]:
        """Every time it was played."""
        return plays(self._messages, name)

    def answers(self, name: str, leaf: str) -> Iterator[tuple[Play, dict[int, Floats]]]:
        """(play, one field of every client's answer) of each time it was played; what is sealed, as if it were not."""
        stage, exchange = self._stage, self._known[name]
        decoder = Decoder(stage, exchange)
        for play in self.plays(name):
            found = {client: decoder(upload) for client, upload in play.uploads.items()}
            yield (
                play,
                {
                    client: np.asarray(getattr(one, leaf), dtype=np.float64)
                    for client, one in found.items()
                    if one is not None
                },
            )


def pictures(pairs: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """(found, there) for pictures, where rows are of one width."""
    if not pairs or len({len(row) for row, _ in pairs}) > 1:
        return np.zeros((0, 0)), np.zeros((0, 0))
    return np.stack([row for row, _ in pairs[:SHOWN]]), np.stack([one for _, one in pairs[:SHOWN]])
