"""The product's own objects after all rounds, for measures that a test calls itself."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from paper import model_flat

from mpifed.comm.rounds import play
from mpifed.core.record import leaves
from mpifed.job.participation import round_of
from mpifed.run.setup import Ready, prepare
from mpifed.testing import Job, Solo


class Played(NamedTuple):
    """What the product has after all rounds."""

    ready: Ready
    server: Any
    clients: list[Any]  # a record for each block

    @property
    def model(self) -> Any:
        """[d]"""
        return model_flat(self.ready.algorithm.model(self.server))

    def kept(self, field: str) -> Any:
        """[N, d] what the clients keep under this name, or as their whole state."""
        found = np.empty((self.ready.ranks.clients, len(self.model)))
        for block, state in zip(self.ready.ranks.blocks, self.clients, strict=True):
            record = getattr(state, field) if field else state
            found[block.clients] = np.concatenate([leaf.reshape(len(leaf), -1) for _, leaf in leaves(record)], axis=1)
        return found


def played(task: Job) -> Played:
    """All rounds of a job, by the product."""
    ready = prepare(task, Solo())
    server, clients = ready.server, ready.clients
    for index in range(task.rounds):
        now = round_of(task, ready.ranks.clients, index)
        server, clients = play(ready.algorithm.exchanges, server, clients, now, ready.ranks)
    return Played(ready, server, clients)
