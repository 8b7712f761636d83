"""Whether a secret key is where it must not be: in a message, or with the server; and ciphertexts made alike.

Of every key all windows of eight bytes are looked for, as they are, in hexadecimal digits and in base 64, at every byte
of every message of the auditor's own play, whose keys it has; a key in any other guise is not seen. What a server's
rank holds is seen where two ranks agree on keys and play a turn, of which the first has no clients.
"""

from __future__ import annotations

import base64
import hashlib
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.beside import windows
from mpifed.audit.plays import line_of
from mpifed.audit.stage import Stage
from mpifed.comm.channel import Channel, Setting, make_channel
from mpifed.core.holdings import Cells
from mpifed.core.round import Round
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import Message

_MOST = 64  # clients with whom the server's rank plays a turn; with more, some only agree on keys
_CLIENTS = 3  # these
_LONG = 4096  # bytes of a key from which on it has a header, which others share, and every eighth window is looked for
_HEADER = 128
_PLACES = 64  # of a long key that are looked for as text
_NUMBERS = 2**14  # of all clients together; where there are more, the turn only begins
_WAIT_S = 120.0
_WORD = 8  # bytes that are looked for
_TABLE = 2**20  # by how many of their low bits words are looked up first


def _windows(data: bytes, step: int = 1) -> NDArray[np.uint64]:
    """Words of eight bytes that begin at so many of its bytes."""
    if len(data) < _WORD:
        return np.zeros(0, np.uint64)
    octets = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), _WORD)[::step]
    return np.ascontiguousarray(octets).view("<u8").ravel()


def _texts(secret: bytes) -> list[bytes]:
    """As hexadecimal digits, and in base 64 wherever in a longer message it begins."""
    coded = [coder(secret[at:]) for at in range(3) for coder in (base64.b64encode, base64.urlsafe_b64encode)]
    whole = [code[: (len(secret) - at // 2) // 3 * 4] for at, code in enumerate(coded)]
    return [secret.hex().encode(), secret.hex().upper().encode(), *whole]


def pieces(secrets: Iterable[bytes]) -> NDArray[np.uint64]:
    """What to look for of keys, ascending: words of eight bytes, some of them different and few of them zero, as they
    are in small numbers; of long keys, none that two of them have in common, for that is how keys are written."""
    short, long = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    for secret in dict.fromkeys(secrets):
        if len(secret) < _LONG:
            short += [_windows(text) for text in (secret, *_texts(secret))]
            continue
        places = np.linspace(_HEADER, len(secret) - 48, _PLACES).astype(int).tolist()
        coded = [_windows(text) for at in places for text in _texts(secret[at : at + 48])]
        long.append(np.unique(np.concatenate([_windows(secret[_HEADER:], _WORD), *coded])))
    words, times = np.unique(np.concatenate(long), return_counts=True)
    found: NDArray[np.uint64] = np.unique(np.concatenate([*short, words[times == 1]]))
    octets = np.sort(found.view(np.uint8).reshape(-1, _WORD), axis=1)
    different: NDArray[np.bool_] = (np.diff(octets, axis=1) != 0).sum(axis=1) > 2
    different &= (octets == 0).sum(axis=1) <= 2
    return found[different]


def contained(secrets: Iterable[bytes], texts: Iterable[tuple[str, NDArray[Any]]]) -> list[str]:
    """The names of texts in which a piece of a secret begins at any byte."""
    words = pieces(secrets)
    begins = np.zeros(_TABLE, dtype=bool)
    begins[(words % _TABLE).astype(np.int64)] = True

    def known(some: NDArray[np.uint64]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = begins[(some & np.uint64(_TABLE - 1)).astype(np.int64)]
        found[found] = np.isin(some[found], words)
        return found

    octets = ((name, np.frombuffer(data.tobytes(), np.uint8)) for name, data in texts)
    return [name for name, text in octets if any(True for _ in windows(text, known))]


def sent(stage: Stage) -> list[str]:
    """Messages of the auditor's own play that have a secret key in them; and whether the keys are there to look for."""
    assert stage.aggregator is not None
    secrets = list(stage.aggregator.channel.secrets())
    every = stage.transcript.messages
    texts = ((f"{one.what or one.kind} of {one.sender} to {one.receiver}", one.data) for one in every)
    clients, keys = stage.algorithm.problem.clients, len({one for one in secrets if len(one) >= 2 * _WORD})
    few = [f"not looked for: the channel names {keys} keys of its {clients} clients"] * (keys < clients)
    return [*few, *dict.fromkeys(contained(secrets, texts))]


def encrypted(stage: Stage, messages: Sequence[Message]) -> list[Message]:
    """The uploads that are ciphertexts."""
    private = {one.name for one in all_exchanges(stage.algorithm) if one.private}
    return [one for one in messages if one.kind == "upload" and one.exchange in private]


def made_alike(stage: Stage, uploads: Sequence[Message], messages: Sequence[Message]) -> tuple[int, list[str]]:
    """How many ciphertexts there are, and the pairs of them that were made with the same randomness, or much alike."""
    from mpifed.comm.encryption.encrypted import randomness
    from mpifed.comm.encryption.schemes import make_scheme

    scheme: Any = make_scheme(stage.job.protection(), stage.algorithm.problem.clients)
    publics = dict.fromkeys(one.data.tobytes() for one in messages if one.what == "public key of the encryption")
    count, found = 0, []
    for public in publics or [b""]:  # one for each part of a run
        if public:
            scheme.use(public)
        before: dict[bytes, str] = {}
        count = 0
        for one in uploads:
            for number, parts in enumerate(randomness(scheme, one.data)):
                name = f"the {number + 1}th of {one.sender} in {one.exchange}, turn {one.turn}"
                marks = [hashlib.blake2b(part, digest_size=16).digest() for part in parts]
                firsts = [before.setdefault(mark, name) for mark in marks]
                found += [f"{first}, and {name}" for first in firsts if first != name][:1]
                count += 1
    return count, found


# --- what the server holds -------------------------------------------------------------------------------------------


def with_server(stage: Stage) -> list[str]:
    """What a rank without clients holds, or was told, of the clients' keys after a turn in which all answer."""
    ranks, protection, count = _Ranks(), stage.job.protection(), stage.algorithm.problem.clients
    played = (*stage.algorithm.setup, *stage.exchanges)
    turns = [line_of(stage, one) for one in played if one.private and not getattr(one, "stale", False)]
    turns = sorted(turns, key=lambda line: line.sum.nbytes)[:1]
    if count > _MOST:
        count, protection, turns = _CLIENTS, protection._replace(max_dropouts=0), []
    cells = stage.cells if turns else Cells.all(count)
    channels: list[Channel | None] = [None, None]

    def turn(rank: int) -> None:
        hosted = np.arange(count if rank else 0)
        channel = make_channel(Setting(ranks.of(rank), hosted, count, cells, protection))
        lines = [line_of(stage, line.exchange) for line in turns]
        channel.prepare(lines)
        now = Round(0, stage.job.seed, np.ones(count, dtype=bool))
        for line in lines:
            channel.begin(line, now)
            if count * len(line.sum.message) > _NUMBERS:
                continue
            for client in hosted.tolist():
                channel.gather(line, channel.seal(line, np.zeros_like(line.sum.message[:-1]), client, now), client)
            channel.collect(line, now)
        channels[rank] = channel

    ranks.run(turn)
    server, clients = channels
    assert server is not None and clients is not None
    found = [f"{count} keys in the server's own memory" for count in [len(list(server.secrets()))] if count]
    heard = [("what the server's rank was sent", np.frombuffer(one, np.uint8)) for one in ranks.heard]
    return found + list(dict.fromkeys(contained(clients.secrets(), heard)))


class _Rank:
    """One of two ranks, as threads of this process; see `mpifed.comm.transport.Transport`."""

    size = 2

    def __init__(self, ranks: _Ranks, rank: int) -> None:
        self.rank, self._ranks = rank, ranks

    def share(self, value: Any) -> Any:
        return self._ranks.meet(self.rank, value)[0]

    def gather(self, value: Any) -> list[Any] | None:
        found = self._ranks.meet(self.rank, value)
        return found if self.rank == 0 else None

    def spread(self, root: int, message: Any) -> Any:
        return self._ranks.meet(self.rank, message)[root].copy()

    def fold(self, message: Any, add: Callable[[Any, Any], Any]) -> Any:
        found = self._ranks.meet(self.rank, message)
        return None if self.rank else add(*found)

    def reduce(self, message: NDArray[Any], total: NDArray[Any] | None) -> None:
        found = self._ranks.meet(self.rank, message.copy())
        if total is not None:
            total[:] = found[0] + found[1]

    def reduce_all(self, message: NDArray[Any], total: NDArray[Any]) -> None:
        self.reduce(message, total)

    def agree(self, error: BaseException | None = None) -> None:
        for one in self._ranks.meet(self.rank, error):
            if one is not None:
                raise one

    def broadcast(self, message: NDArray[Any]) -> None:
        message[:] = self._ranks.meet(self.rank, message.copy())[0]


class _Ranks:
    """Two threads that exchange values, and what the first of them was given by the second."""

    def __init__(self) -> None:
        self._barrier, self._values = threading.Barrier(2), [None, None]
        self.heard: list[bytes] = []

    def of(self, rank: int) -> Any:
        """The transport of one of them."""
        return _Rank(self, rank)

    def meet(self, rank: int, value: Any) -> list[Any]:
        """What both have, on both."""
        self._values[rank] = value
        self._barrier.wait(_WAIT_S)
        found = list(self._values)
        self._barrier.wait(_WAIT_S)
        if rank == 0:
            self.heard.append(_as_bytes(found[1]))
        return found

    def run(self, work: Callable[[int], None]) -> None:
        """Both of them; the error of one ends the other."""
        errors: list[BaseException] = []

        def guarded(rank: int) -> None:
            try:
                work(rank)
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


def _as_bytes(value: Any) -> bytes:
    return value.tobytes() if isinstance(value, np.ndarray) else pickle.dumps(value)
