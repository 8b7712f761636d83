"""A round: its number, who is present, and keyed random numbers.

Every random number is a function of (seed, purpose, round, client) alone, by the counter-based generator Philox
(Salmon, Moraes, Dror, Shaw 2011): seed and purpose are its key, round and client two words of its counter. So
no generator is ever stored, any rank can draw any client's numbers, and no two streams share a number.

What differential privacy rests on must not be known to anybody who can read the job. In a `secure` round such numbers
(noise, and the choice of who or what is in a minibatch) come from a stream cipher under a key of the system's entropy,
which is never stored: no two runs draw the same. It is AES in counter mode, as fast as NumPy's own generators where the
processor has instructions for it.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import ArrayLike, NDArray

from mpifed.core.loops import first_distinct
from mpifed.core.record import Array, Flags, Integers

Words: TypeAlias = NDArray[np.uint64]

SETUP = -1  # the index of the exchanges before round 0
_WORD = 2**64 - 1
_SMALL = 1024  # shards up to this size are drawn for all clients at once
_FEW = 4  # so many times as many rows as are drawn, and few are drawn twice
_SPARE = 16  # numbers, or bytes
_UNIT = 2.0**-53  # of the numbers from 0 to 1 that the upper bits of words make


class _Stream:
    """All random numbers of one (seed, purpose): a generator whose counter is set before each use."""

    def __init__(self, seed: int, purpose: str) -> None:
        word = int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")
        self.philox = Philox(key=np.array([seed & _WORD, word], dtype=np.uint64))
        self.generator = Generator(self.philox)
        self._state: Any = self.philox.state  # with an empty buffer; a dictionary of NumPy's, without a type

    def at(self, counter: tuple[int, int, int, int]) -> Philox:
        """The generator, set to `counter`."""
        self._state["state"]["counter"][:] = counter
        self.philox.state = self._state
        return self.philox


_stream = lru_cache(maxsize=64)(_Stream)  # a new generator costs ten times as much as a new counter


def secret_words(key: bytes, index: int = 0) -> Callable[[int], Words]:
    """A function (count) -> the next random words of a round under a secret key of 16 or 32 bytes.

    They are the key stream of AES in counter mode, the round's number being the upper half of the counter.
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    counter = modes.CTR((index & _WORD).to_bytes(8, "big") + bytes(8))
    stream: Any = Cipher(algorithms.AES(key), counter).encryptor()  # whose types want no buffer of NumPy's

    def words(count: int) -> Words:
        made = np.empty(8 * count + _SPARE, np.uint8)  # the library needs a few bytes beyond its output
        stream.update_into(bytes(8 * count), made)
        return made[: 8 * count].view(np.uint64)

    return words


def uniform(words: Words) -> NDArray[np.float64]:
    """The multiples of 2^-53 from 0 to 1 that the upper bits of random words are, as NumPy's generators have them."""
    numbers: NDArray[np.float64] = (words >> np.uint64(11)) * _UNIT
    return numbers


@lru_cache(maxsize=1)
def _own_words() -> Callable[[int], Words]:
    """This process's secret random words, which are never rewound."""
    return secret_words(os.urandom(16))


# a forked process takes a key of its own; otherwise it would draw the same numbers as its parent
os.register_at_fork(after_in_child=_own_words.cache_clear)


def below(chances: ArrayLike) -> Array:
    """`chances` rounded down to multiples of 2^-53: the probability with which a generator's number is below them."""
    return np.floor(np.multiply(chances, 1 / _UNIT)) * _UNIT


class Leaving(NamedTuple):
    """Who leaves within a round: drawn by key, and so alike in every channel.

    A client takes part in so many halves of exchanges: the first half of an exchange is to answer it, the second to be
    there until its sum is opened and received.
    """

    who: Flags  # [N] takes part in the round
    halves: Integers  # [N]
    most: int  # how many may leave; with more of them, or with all, the round is void
    late: Flags | None = None  # [N] whose answers to the first exchange come when it has ended; nobody's when absent

    @property
    def least(self) -> int:
        """The number of clients who stay to the end of a round that is not void."""
        return max(int(self.who.sum()) - self.most, 1)


class Arrivals(NamedTuple):
    """Whose answers make a round in virtual time, where nobody waits for all."""

    models: Integers  # [m] those that they were sent: the model after so many rounds; ascending
    model: Integers  # [n] by who is present, which of these
    at_s: float  # when the last of these answers has come
    lost: int = 0  # answers that never came since the round before
    late: int = 0  # that came, and were of a model too old


class Round(NamedTuple):
    """What all ranks share of a round, or of an exchange in it."""

    index: int  # type: ignore[assignment]  # 0, 1, ...; SETUP before them
    seed: int  # of the job
    present: Flags  # [N] who takes part; in an exchange, who answers
    secure: bool = False  # whether `secret` numbers come from the system's entropy
    leaving: Leaving | None = None  # nobody when absent
    number: int = 0  # of the exchange
    rejoining: Flags | None = None  # [N] who is present after a round without it; nobody when absent
    slow: Flags | None = None  # [N] whose time is too short for all local work; nobody when absent
    drawn: Integers | None = None  # [n] the numbers of who is present, ascending, where they are known
    arrivals: Arrivals | None = None  # of a round in virtual time

    @property
    def ids(self) -> Integers:
        """[n] the numbers of who is present, ascending."""
        return np.flatnonzero(self.present) if self.drawn is None else self.drawn

    def began(self, clients: Integers) -> Integers:
        """[n] after how many rounds the model was sent to which these clients answer."""
        if self.arrivals is None:
            return np.full(len(clients), self.index)
        came = self.arrivals
        return came.models[came.model[np.searchsorted(self.ids, clients)]]

    def only(self, present: Flags) -> Round:
        """The same with others present."""
        return self._replace(present=present, drawn=np.flatnonzero(present))

    @property
    def back(self) -> Flags:
        """[N] who is present after a round without it."""
        return np.zeros_like(self.present) if self.rejoining is None else self.rejoining

    def at(self, number: int) -> Round:
        """The same in the exchange of that number."""
        if self.leaving is None:
            return self
        return self.only(self.leaving.who & (self.leaving.halves > 2 * number))._replace(number=number)

    @property
    def asked(self) -> Flags:
        """[N] clients to whom this exchange's question is sent."""
        return self._beyond(2 * self.number - 1)

    @property
    def asked_ids(self) -> Integers:
        """[n] these clients' numbers, ascending."""
        return self.ids if self.leaving is None else np.flatnonzero(self.asked)

    @property
    def staying(self) -> Flags:
        """[N] clients who stay until the sum of this exchange is opened, and receive it."""
        return self._beyond(2 * self.number + 1)

    @property
    def sending(self) -> Flags:
        """[N] clients who send an answer, though it may come too late."""
        late = None if self.leaving is None else self.leaving.late
        return self.present if late is None else self.present | late

    def _beyond(self, half: int) -> Flags:
        return self.present if self.leaving is None else self.leaving.who & (self.leaving.halves > half)

    @property
    def void(self) -> bool:
        """Whether too many have left for the sum of this exchange to be opened."""
        return self.leaving is not None and int(self.staying.sum()) < self.leaving.least

    @property
    def fewest(self) -> int:
        """The least number of clients' answers in a sum that is opened."""
        return len(self.ids) if self.leaving is None else self.leaving.least

    def rng(self, purpose: str, client: int = -1) -> Generator:
        """NumPy's generator of (seed, purpose, this round, client); client -1 stands for all.

        The same arguments give the same numbers again.
        """
        return Generator(_Stream(self.seed, purpose).at(self._counter(client)))

    def _counter(self, client: int = -1, turn: int = 0) -> tuple[int, int, int, int]:
        """The counter's words; the first counts the numbers of the stream."""
        return 0, client & _WORD, self.index & _WORD, turn

    def words(self, purpose: str, client: int) -> Callable[[int], Words]:
        """A function (count) -> secret random words of a client; in secure rounds from this process's key stream."""
        if self.secure:
            return _own_words()
        return _stream(self.seed, purpose).at(self._counter(client)).random_raw

    def words_of_clients(self, purpose: str, clients: Integers, turn: int = 0, secret: bool = False) -> Integers:
        """[n] a random word of each of `clients` [n], ascending; in each turn another one."""
        keyed = None if secret and self.secure else purpose
        return self._numbers(keyed, clients, 1, [turn])[:, 0, 0].view(np.int64)

    def normals(
        self, purpose: str, clients: Integers, shape: tuple[int, ...], dtype: str = "float32"
    ) -> NDArray[np.floating]:
        """[n, *shape] standard normal numbers, secret, for each of `clients` [n]; client -1 is the server."""
        if self.secure:
            from scipy.special import ndtri

            levels = uniform(_own_words()(len(clients) * math.prod(shape))) + _UNIT / 2
            return ndtri(levels).astype(dtype).reshape(len(clients), *shape)  # type: ignore[no-any-return]
        normals, stream = np.empty((len(clients), *shape), dtype=dtype), _stream(self.seed, purpose)
        for out, client in zip(normals, clients.tolist(), strict=True):
            stream.at(self._counter(client))
            stream.generator.standard_normal(out=out, dtype=out.dtype)
        return normals

    def draw(
        self,
        purpose: str,
        clients: Integers,
        sizes: Integers,
        count: int,
        secret: bool = False,
    ) -> Integers:
        """Rows for each client: `count` of its `sizes[i]`, uniformly, without replacement, in random order.

        A `count` above the size gives whole permutations of the shard one after the other, then a draw without
        replacement for the rest: so E epochs are E permutations.

        Parameters
        ----------
        clients : [n] ascending
        secret : whether, in a secure round, they must be unknown to others

        Returns
        -------
        [n, count] positions in each client's shard, a function of (seed, purpose, round, client, size, count): the
        same call gives the same rows again.
        """
        keyed = None if secret and self.secure else purpose
        rows, few = np.empty((len(clients), count), dtype=np.int64), sizes >= _FEW * count
        if few.any():
            rows[few] = self._by_rejection(keyed, clients[few], sizes[few], count)
        for size in set(sizes[~few].tolist()):
            who = np.flatnonzero(sizes == size)
            if keyed is None or size <= _SMALL:
                rows[who] = self._by_sorting(keyed, clients[who], size, count)
                continue
            stream = _stream(self.seed, keyed)  # NumPy's own sampling: few calls, which matter most if caches are cold
            for i in who.tolist():
                stream.at(self._counter(int(clients[i])))
                for start in range(0, count, size):
                    part = rows[i, start : start + size]
                    part[:] = stream.generator.choice(size, len(part), replace=False)
        return rows

    def _by_rejection(self, purpose: str | None, clients: Integers, sizes: Integers, count: int) -> Integers:
        """[n, count] rows drawn with replacement, without repetitions."""
        rows = np.empty((len(clients), count), dtype=np.int64)
        width = count + count // 2 + _SPARE  # of 1.15 times as many, a quarter has been drawn before at most
        width += -width % 4  # Philox makes numbers by fours
        words, turn = self._numbers(purpose, clients, width)[:, 0], 0
        while (first_distinct(words, sizes, rows) < count).any():  # hardly ever
            turn += 1
            words = np.hstack([words, self._numbers(purpose, clients, width, [turn])[:, 0]])
        return rows

    def _by_sorting(self, purpose: str | None, clients: Integers, size: int, count: int) -> Integers:
        """[n, count] of one permutation after the other, by sorting random keys whose low bits are the rows."""
        keys = self._numbers(purpose, clients, size, range(-(-count // size)))
        if purpose is None:  # secret: any number of rows
            return keys.argsort(axis=2).reshape(len(clients), -1)[:, :count]
        low = np.uint64(2 ** max(size - 1, 1).bit_length() - 1)
        keys &= ~low
        keys |= np.arange(size, dtype=np.uint64)
        keys.sort(axis=2)
        keys &= low
        return keys.view(np.int64).reshape(len(clients), -1)[:, :count]

    def _numbers(self, purpose: str | None, clients: Integers, width: int, turns: Sequence[int] = range(1)) -> Words:
        """[n, turns, width] random words; client c's begin at c * stride of the stream of (purpose, stride, turn).

        So neighbours come in one call; it costs a tenth of a generator for each client. Without a purpose they are
        secret, and no call gives them again.
        """
        if purpose is None:
            return _own_words()(len(clients) * len(turns) * width).reshape(-1, len(turns), width)
        blocks = -(-width // 4)  # Philox makes numbers by fours
        stream = _stream(self.seed, f"{purpose}/{blocks}")
        numbers = np.empty((len(clients), len(turns), 4 * blocks), np.uint64)
        others = np.flatnonzero(clients[1:] != clients[:-1] + 1) + 1 if len(clients) > 1 else clients[:0]
        runs = list(pairwise([0, *others.tolist(), len(clients)])) if len(clients) else []  # of neighbours
        for turn, into in zip(turns, numbers.swapaxes(0, 1), strict=True):
            philox, done = stream.at(self._counter(turn=turn)), 0
            for start, stop in runs:
                first = int(clients[start])
                if first > done:  # a call takes its time
                    philox.advance((first - done) * blocks)
                into[start:stop] = philox.random_raw((stop - start) * 4 * blocks).reshape(stop - start, -1)
                done = first + stop - start
        return numbers[..., :width]
