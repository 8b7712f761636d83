"""Secret keys in messages or with the server, and ciphertexts that share randomness.

All windows of eight bytes of every key are searched for, as bytes, in hexadecimal digits and in base 64, at every byte
of every message of the auditor's replay, whose keys are known; a key in any other encoding is not recognized. What the
server's rank holds is examined in an exchange between two ranks, of which the first has no clients.
"""

from __future__ import annotations

import base64
import hashlib
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.bit_windows import KnownWords, distinct_bytes
from mpifed.audit.messages import plan_of
from mpifed.audit.replay import Replay
from mpifed.comm.aggregator import make_channel
from mpifed.comm.channel import Channel, ChannelSetting
from mpifed.comm.transport import Bytes, Transport
from mpifed.core.holdings import Cells
from mpifed.core.record import Array
from mpifed.core.round import Round
from mpifed.run.transcript import RecordedMessage

T = TypeVar("T")

_MOST = 64  # most clients for a whole exchange with the server's rank; beyond, `_CLIENTS` only agree on keys
_CLIENTS = 3
_LONG = 4096  # bytes from which on a key has a header common to all keys, and every eighth window is searched for
_HEADER = 128
_PLACES = 64  # positions of a long key whose text encodings are searched for
_NUMBERS = 2**14  # of all clients together; with more, the exchange is begun but not completed
_WAIT_S = 120.0
_WORD = 8  # bytes of a window that is searched for


def _windows(data: bytes, step: int = 1) -> NDArray[np.uint64]:
    """Words of eight bytes that begin at every `step`-th byte."""
    if len(data) < _WORD:
        return np.zeros(0, np.uint64)
    octets = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), _WORD)[::step]
    return np.ascontiguousarray(octets).view("<u8").ravel()


def _texts(secret: bytes) -> list[bytes]:
    """Hexadecimal digits, and base 64 for every alignment within a longer message."""
    coded = [coder(secret[at:]) for at in range(3) for coder in (base64.b64encode, base64.urlsafe_b64encode)]
    whole = [code[: (len(secret) - at // 2) // 3 * 4] for at, code in enumerate(coded)]
    return [secret.hex().encode(), secret.hex().upper().encode(), *whole]


def pieces(secrets: Iterable[bytes]) -> NDArray[np.uint64]:
    """Words of eight bytes of keys to search for, ascending: with several distinct bytes and few zeros, unlike small
    numbers; of long keys, only words that no two keys share, since shared words are part of the format."""
    short, long = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for secret in dict.fromkeys(secrets):
        if len(secret) < _LONG:
            short += [_windows(text) for text in (secret, *_texts(secret))]
            continue
        places = np.linspace(_HEADER, len(secret) - 48, _PLACES).astype(int).tolist()
        coded = [_windows(text) for at in places for text in _texts(secret[at : at + 48])]
        long.append(np.unique(np.concatenate([_windows(secret[_HEADER:], _WORD), *coded])))
    words, times = np.unique(np.concatenate(long), return_counts=True)
    candidates: NDArray[np.uint64] = np.unique(np.concatenate([*short, words[times == 1]]))
    zeros = (candidates.view(np.uint8).reshape(-1, _WORD) == 0).sum(axis=1)
    different: NDArray[np.bool_] = (distinct_bytes(candidates) > 3) & (zeros <= 2)
    return candidates[different]


def contained(secrets: Iterable[bytes], texts: Iterable[tuple[str, Array]]) -> list[str]:
    """Names of texts that contain a piece of a secret at any byte."""
    words = KnownWords(pieces(secrets))
    octets = ((name, np.frombuffer(data.tobytes(), np.uint8)) for name, data in texts)
    return [name for name, text in octets if any(True for _ in words.positions(text))]


def messages_with_keys(replay: Replay) -> list[str]:
    """Messages of the auditor's replay that contain a secret key; and a note if keys are missing from the search."""
    secrets = list(replay.aggregator.channel.secrets())
    messages = replay.transcript.messages
    texts = (
        (f"{message.what or message.kind} of {message.sender} to {message.receiver}", message.data)
        for message in messages
    )
    clients, keys = replay.algorithm.problem.clients, len({secret for secret in secrets if len(secret) >= 2 * _WORD})
    few = [f"not searched for: the channel gives {keys} secret keys for {clients} clients"] * (keys < clients)
    return [*few, *dict.fromkeys(contained(secrets, texts))]


def shared_randomness(
    replay: Replay, uploads: Sequence[RecordedMessage], messages: Sequence[RecordedMessage]
) -> tuple[int, list[str]]:
    """(number of ciphertexts, descriptions of pairs with the same or nearly the same randomness)."""
    from mpifed.comm.encryption.bfv import Bfv
    from mpifed.comm.encryption.bundles import randomness

    scheme = Bfv()
    publics = dict.fromkeys(
        message.data.tobytes() for message in messages if message.what == "public key of the encryption"
    )
    count, pairs = 0, []
    for public in publics or [b""]:  # one for each part of a resumed run
        if public:
            scheme.use(public)
        before: dict[bytes, str] = {}
        count = 0
        for upload in uploads:
            for number, parts in enumerate(randomness(scheme, upload.data)):
                name = f"the {number + 1}th of {upload.sender} in {upload.exchange}, turn {upload.turn}"
                marks = [hashlib.blake2b(part, digest_size=16).digest() for part in parts]
                firsts = [before.setdefault(mark, name) for mark in marks]
                pairs += [f"{first}, and {name}" for first in firsts if first != name][:1]
                count += 1
    return count, pairs


# --- keys with the server --------------------------------------------------------------------------------------------


def keys_with_server(replay: Replay) -> list[str]:
    """Clients' keys that a rank without clients holds, or has received, after an exchange in which all participate."""
    ranks, protection, count = _TwoRanks(), replay.job.protection(), replay.algorithm.problem.clients
    played = (*replay.algorithm.setup, *replay.exchanges)
    turns = [
        plan_of(replay, exchange) for exchange in played if exchange.private and not getattr(exchange, "stale", False)
    ]
    turns = sorted(turns, key=lambda plan: plan.sum.nbytes)[:1]
    if count > _MOST:
        count, protection, turns = _CLIENTS, protection._replace(max_dropouts=0), []
    cells = replay.cells if turns else Cells.all(count)
    channels: list[Channel | None] = [None, None]

    def turn(rank: int) -> None:
        hosted = np.arange(count if rank else 0)
        channel = make_channel(ChannelSetting(ranks.of(rank), hosted, count, cells, protection))
        plans = [plan_of(replay, plan.exchange) for plan in turns]
        channel.prepare(plans)
        now = Round(0, replay.job.seed, np.ones(count, dtype=bool))
        for plan in plans:
            channel.begin(plan, now)
            if count * len(plan.sum.message) > _NUMBERS:
                continue
            for client in hosted.tolist():
                channel.gather(plan, channel.seal(plan, np.zeros_like(plan.sum.message[:-1]), client, now), client)
            channel.collect(plan, now)
        channels[rank] = channel

    ranks.run(turn)
    server, clients = channels
    assert server is not None and clients is not None
    leaks = [f"{count} keys in the server's own memory" for count in [len(list(server.secrets()))] if count]
    received = [("messages to the server's rank", np.frombuffer(data, np.uint8)) for data in ranks.received]
    return leaks + list(dict.fromkeys(contained(clients.secrets(), received)))


class _ThreadRank:
    """A rank that is a thread of this process; see `mpifed.comm.transport.Transport`."""

    size = 2

    def __init__(self, ranks: _TwoRanks, rank: int) -> None:
        self.rank, self._ranks = rank, ranks

    def share(self, value: T) -> T:
        return self._ranks.meet(self.rank, value)[0]

    def gather(self, value: T) -> list[T] | None:
        values = self._ranks.meet(self.rank, value)
        return values if self.rank == 0 else None

    def spread(self, root: int, message: Bytes) -> Bytes:
        messages: list[Bytes] = self._ranks.meet(self.rank, message)
        copied: Bytes = messages[root].copy()
        return copied

    def fold(self, message: Bytes, add: Callable[[Bytes, Bytes], Bytes]) -> Bytes | None:
        messages = self._ranks.meet(self.rank, message)
        return None if self.rank else add(*messages)

    def reduce(self, message: Array, total: Array | None) -> None:
        messages = self._ranks.meet(self.rank, message.copy())
        if total is not None:
            total[:] = messages[0] + messages[1]

    def reduce_all(self, message: Array, total: Array) -> None:
        self.reduce(message, total)

    def agree(self, error: BaseException | None = None) -> None:
        for reported in self._ranks.meet(self.rank, error):
            if reported is not None:
                raise reported

    def broadcast(self, message: Array) -> None:
        message[:] = self._ranks.meet(self.rank, message.copy())[0]


class _TwoRanks:
    """Two ranks, as threads that exchange values; records what the first receives from the second."""

    def __init__(self) -> None:
        self._barrier, self._values = threading.Barrier(2), list[object]([None, None])
        self.received: list[bytes] = []

    def of(self, rank: int) -> Transport:
        return cast("Transport", _ThreadRank(self, rank))  # channels use no other methods

    def meet(self, rank: int, value: T) -> list[T]:
        """Values of both ranks, on both."""
        self._values[rank] = value
        self._barrier.wait(_WAIT_S)
        values = cast("list[T]", list(self._values))  # both ranks take the same step
        self._barrier.wait(_WAIT_S)
        if rank == 0:
            value = values[1]
            self.received.append(value.tobytes() if isinstance(value, np.ndarray) else pickle.dumps(value))
        return values

    def run(self, task: Callable[[int], None]) -> None:
        """Run a function on both ranks; an error on either rank ends both."""
        errors: list[BaseException] = []

        def guarded(rank: int) -> None:
            try:
                task(rank)
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=guarded, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
