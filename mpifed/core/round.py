"""A round: its number, who is present, and keyed random numbers.

Every random number is a function of (seed, purpose, round, client) alone, by the counter-based generator Philox
(Salmon, Moraes, Dror, Shaw 2011): seed and purpose are its key, round and client two words of its counter. So
no generator is ever stored, any rank can draw any client's numbers, and no two streams share a number.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

SETUP = -1  # the index of what is played before round 0
_WORD = 2**64 - 1
_SMALL = 1024  # shards up to this size are drawn for all clients at once


@lru_cache(maxsize=256)
def _purpose_word(purpose: str) -> int:
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


class Round(NamedTuple):
    """What is common to all ranks in one round."""

    index: int  # type: ignore[assignment]  # 0, 1, ...; SETUP before them
    seed: int
    present: NDArray[np.bool_]  # [N] who takes part

    def rng(self, purpose: str, client: int = -1) -> Generator:
        """The generator of (seed, purpose, this round, client); client -1 is everybody's."""
        return Generator(self._philox(purpose, client))

    def _philox(self, purpose: str, client: int) -> Philox:
        key = np.array([self.seed & _WORD, _purpose_word(purpose)], dtype=np.uint64)
        # the first word counts the numbers of the stream
        counter = np.array([0, client & _WORD, self.index & _WORD, 0], dtype=np.uint64)
        return Philox(key=key, counter=counter)

    def draw(
        self, purpose: str, clients: NDArray[np.int64], sizes: NDArray[np.int64], count: int
    ) -> NDArray[np.int64]:
        """Rows for each client: `count` of its `sizes[i]`, uniformly, without replacement.

        A `count` above the size gives whole permutations of the shard one after the other, then a draw without
        replacement for the rest: so E epochs are E permutations.

        Returns
        -------
        [n, count] positions in each client's shard, a function of (seed, purpose, round, client, size, count).
        """
        rows = np.empty((len(clients), count), dtype=np.int64)
        small = sizes <= _SMALL
        if small.any():
            self._draw_small(purpose, clients, sizes, np.flatnonzero(small), rows)
        if not small.all():
            self._draw_large(purpose, clients, sizes, np.flatnonzero(~small), rows)
        return rows

    def _draw_small(
        self,
        purpose: str,
        clients: NDArray[np.int64],
        sizes: NDArray[np.int64],
        which: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        """By sorting random keys, all neighbouring clients of one size in one call.

        Key k of pass j of client c is number c * stride + k of the stream of (purpose, size, j); the low bits of
        a key are its row, so that sorting the keys sorts the rows, with ties broken alike everywhere.
        """
        count = rows.shape[1]
        breaks = (np.diff(clients[which]) != 1) | (np.diff(sizes[which]) != 0)
        for run in np.split(which, np.flatnonzero(breaks) + 1):
            size = int(sizes[run[0]])
            stride = -(-size // 4) * 4  # Philox makes numbers by fours
            low = np.uint64(2 ** max(size - 1, 1).bit_length() - 1)
            for number, start in enumerate(range(0, count, size)):
                philox = self._philox(f"{purpose}/{size}/{number}", -1)
                philox.advance(int(clients[run[0]]) * (stride // 4))
                keys = philox.random_raw(len(run) * stride).reshape(len(run), stride)[:, :size]
                keys &= ~low
                keys |= np.arange(size, dtype=np.uint64)
                keys.sort(axis=1)
                keys &= low
                rows[run, start : start + size] = keys[:, : min(size, count - start)]

    def _draw_large(
        self,
        purpose: str,
        clients: NDArray[np.int64],
        sizes: NDArray[np.int64],
        which: NDArray[np.int64],
        rows: NDArray[np.int64],
    ) -> None:
        """By NumPy's own sampling, client by client, with one generator set to each client's counter."""
        count = rows.shape[1]
        philox = self._philox(purpose, int(clients[which[0]]))
        generator = Generator(philox)
        state: Any = philox.state if len(which) > 1 else None
        for number, (i, client, size) in enumerate(
            zip(which.tolist(), clients[which].tolist(), sizes[which].tolist(), strict=True)
        ):
            if number:  # a new counter costs a tenth of a new generator
                state["state"]["counter"][1] = client & _WORD
                philox.state = state
            for start in range(0, count, size):
                some = min(size, count - start)
                # in random order, since several steps may share one draw
                rows[i, start : start + some] = generator.choice(size, some, replace=False)
