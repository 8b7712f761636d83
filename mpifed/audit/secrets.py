"""Whether a secret key is where it must not be: in a message, or with the server; and ciphertexts made alike.

Keys are looked for by their first 16 bytes, at every byte of every message of the auditor's own play, whose keys it
has. What a server's rank holds is seen in an agreement on keys between two ranks, of which the first has no clients.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpifed.audit.stage import Stage
from mpifed.comm.channel import Channel, Setting, make_channel
from mpifed.core.holdings import Cells
from mpifed.run.setup import all_exchanges
from mpifed.run.transcript import Message

BYTES = 16  # of a key, that are looked for
_CLIENTS = 3  # with whom the server's rank agrees on keys
_LONG = 128  # bytes of a key from which on it has a header, and pieces of it are looked for
_WAIT_S = 120.0


def pieces(secret: bytes) -> list[bytes]:
    """What to look for of a key."""
    if len(secret) < _LONG:
        return [secret[:BYTES]]
    step = len(secret) // 8
    return [secret[at : at + BYTES] for at in range(step, len(secret) - BYTES, step)]


def contained(secrets: Iterable[bytes], texts: Iterable[tuple[str, NDArray[np.uint8]]]) -> list[str]:
    """The names of texts in which a piece of a secret begins at any byte."""
    known = {piece for secret in secrets for piece in pieces(secret) if len(piece) == BYTES}
    fours = np.array([int.from_bytes(piece[:4], "little") for piece in known], dtype=np.uint32)
    begins = np.zeros(2**16, dtype=bool)
    begins[fours & 0xFFFF] = True
    found = []
    for name, data in texts:
        text = data.tobytes()
        for start in (0, 1):
            pairs = data[start : start + (len(text) - start) // 2 * 2].view("<u2")
            at = np.flatnonzero(begins[pairs[:-1]])  # looked at one by one where the next two bytes fit as well
            at = at[np.isin(pairs[at] | pairs[at + 1].astype(np.uint32) << 16, fours)] * 2 + start
            if any(text[i : i + BYTES] in known for i in at.tolist()):
                found.append(name)
                break
    return found


def sent(stage: Stage) -> list[str]:
    """Messages of the auditor's own play that have a secret key in them."""
    assert stage.federation is not None
    texts = (
        (f"{one.what or one.kind} of {one.sender} to {one.receiver}", one.data.view(np.uint8).ravel())
        for one in stage.transcript.messages
        if one.data.dtype.kind in "iu" and one.data.ndim
    )
    return list(dict.fromkeys(contained(stage.federation.channel.secrets(), texts)))


def encrypted(stage: Stage, messages: Sequence[Message]) -> list[Message]:
    """The uploads that are ciphertexts."""
    private = {one.name for one in all_exchanges(stage.algorithm) if one.private}
    return [one for one in messages if one.kind == "upload" and one.exchange in private]


def made_alike(stage: Stage, uploads: Sequence[Message], messages: Sequence[Message]) -> tuple[int, list[str]]:
    """How many ciphertexts there are, and the pairs of them that were made with the same randomness."""
    from mpifed.comm.encryption.encrypted import randomness
    from mpifed.comm.encryption.schemes import make_scheme

    scheme: Any = make_scheme(stage.job.protection(), stage.algorithm.problem.clients)
    publics = dict.fromkeys(one.data.tobytes() for one in messages if one.what == "public key of the encryption")
    count, found = 0, []
    for public in publics or [b""]:  # one for each part of a run
        if public:
            scheme.use(public)
        before: dict[bytes, str] = {}
        for one in uploads:
            for number, part in enumerate(randomness(scheme, one.data)):
                name = f"the {number + 1}th of {one.sender} in {one.exchange}, turn {one.turn}"
                first = before.setdefault(hashlib.blake2b(part, digest_size=16).digest(), name)
                if first != name:
                    found.append(f"{first}, and {name}")
        count = len(before) + len(found)
    return count, found


# --- what the server holds -------------------------------------------------------------------------------------------


def with_server(stage: Stage) -> list[str]:
    """What a rank without clients holds, or was told, of the clients' keys once all have agreed on them."""
    ranks, protection = _Ranks(), stage.job.protection()._replace(max_dropouts=0)
    channels: list[Channel | None] = [None, None]

    def agree(rank: int) -> None:
        hosted = np.arange(_CLIENTS if rank else 0)
        setting = Setting(ranks.of(rank), hosted, _CLIENTS, Cells.all(_CLIENTS), protection)
        channel = make_channel(setting)
        channel.prepare([])
        channels[rank] = channel

    ranks.run(agree)
    server, clients = channels
    assert server is not None and clients is not None
    found = [f"{count} keys in the server's own memory" for count in [len(list(server.secrets()))] if count]
    heard = [("what the server's rank was told", np.frombuffer(one, np.uint8)) for one in ranks.heard]
    return found + list(dict.fromkeys(contained(clients.secrets(), heard)))


class _Rank:
    """One of two ranks, as threads of this process; see `mpifed.comm.transport.Transport`. Arrays are not added up."""

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
