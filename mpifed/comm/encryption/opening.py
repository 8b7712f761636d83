"""Who can open a sum of ciphertexts: any client with the key that all share, or only all clients together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channel import Setting
from mpifed.comm.encryption.schemes import Shared, Split
from mpifed.comm.keys import Keyring, derive, seal, unseal
from mpifed.comm.transport import Bytes
from mpifed.core.errors import BrokenProtocol, TooFewClients
from mpifed.core.round import Round

Opened: TypeAlias = dict[int, NDArray[np.int64]]  # the slots of each ciphertext, by number
Note: TypeAlias = Callable[[str, str, str, bytes], None]  # (sender, receiver, what, payload)

Timed: TypeAlias = Callable[[], AbstractContextManager[None]]  # put around cryptography


class Turn(NamedTuple):
    """One opening."""

    context: bytes  # no two have the same
    note: Note
    timed: Timed
    wanted: frozenset[int] | None = None  # numbers of the ciphertexts that this rank is to open; all when absent

    def wants(self, number: int) -> bool:
        """Whether this rank is to open it."""
        return self.wanted is None or number in self.wanted


_LABEL = b"mpifed encrypted sums, version 1, "
_NONCE_BYTES = 12


def bundle(blocks: Mapping[int, bytes]) -> Bytes:
    """Numbered pieces as one message."""
    names = [word for number, block in blocks.items() for word in (number, len(block))]
    header = np.array([len(blocks), *names], dtype="<i8").tobytes()
    return writable(b"".join([header, *blocks.values()]))


def writable(data: bytes) -> Bytes:
    """A copy that MPI takes."""
    return np.frombuffer(bytearray(data), dtype=np.uint8)


def unbundle(message: Bytes) -> dict[int, bytes]:
    """The numbered pieces.

    Raises
    ------
    BrokenProtocol
        when the message is cut short, or not such a message.
    """
    data = memoryview(np.ascontiguousarray(message))  # type: ignore[arg-type]
    count = int(np.frombuffer(data[:8], dtype="<i8")[0]) if len(data) >= 8 else -1
    start = 8 + 16 * count
    if not 8 <= start <= len(data):
        raise BrokenProtocol(f"a message of {len(data)} bytes holds no ciphertexts; it was altered")
    header = np.frombuffer(data[8:start], dtype="<i8").reshape(count, 2)
    lengths = header[:, 1]
    if len(np.unique(header[:, 0])) < count or (lengths < 0).any() or start + int(lengths.sum()) != len(data):
        raise BrokenProtocol(f"a message of {len(data)} bytes does not hold the {count} ciphertexts it names: altered")
    found = {}
    for number, length in header.tolist():
        found[number] = bytes(data[start : start + length])
        start += length
    return found


class Opening(Protocol):
    """Keys, and the use of them."""

    setup_bytes: tuple[int, int]  # (up, down) of the keys

    def prepare(self, keyring: Keyring, note: Note, timed: Timed) -> None:
        """Make keys and bring them to whom they are for. Collective."""

    def able(self, now: Round) -> None:
        """Refuse, with TooFewClients, when a sum cannot be opened. Alike on all ranks."""

    def for_server(self, now: Round) -> tuple[int, str]:
        """(rank, name) of who opens what the server may hear. Alike on all ranks."""

    def open(self, folded: Bytes | None, ranks: set[int], turn: Turn) -> Opened | None:
        """The numbers of the ciphertexts of rank 0's message, on `ranks`. Collective."""

    def traffic(self, blocks: int, told: NDArray[np.int64], now: Round) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] bytes that each client sends, and is told, to open so many ciphertexts.

        `told` [N] says how many of them each client hears; where that is nobody, they are opened for the server.
        """


def _whose(turn: Turn, client: int) -> bytes:
    return _LABEL + turn.context + b" %d" % client


class OneKey:
    """The clients share the secret key, which the first of them makes: any of them can open a sum."""

    def __init__(self, setting: Setting, scheme: Shared, homes: NDArray[np.int64]) -> None:
        self.setting, self.transport, self.scheme, self.homes = setting, setting.transport, scheme, homes
        self.setup_bytes = (0, 0)

    def prepare(self, keyring: Keyring, note: Note, timed: Timed) -> None:
        """One client's rank makes the keys; the secret one travels sealed under the key of the group of clients."""
        maker = int(np.flatnonzero(self.homes >= 0)[0])
        root, rank, scheme = int(self.homes[maker]), self.transport.rank, self.scheme
        public = sealed = None
        if rank == root:
            with timed():
                scheme.make_keys()
                public = writable(scheme.public())
                key = derive(keyring.group, _LABEL + b"secret key")
                sealed = writable(seal(key, bytes(_NONCE_BYTES), scheme.secret(), _LABEL))  # the only message under it
            note(f"client {maker}", "server", "public key of the encryption", public.tobytes())
            note(f"client {maker}", "server", "secret key of the encryption, sealed for the clients", sealed.tobytes())
        public = self.transport.spread(root, public)
        sealed = self.transport.spread(root, sealed)
        if rank != root:
            scheme.use(public.tobytes())
            if len(self.setting.hosted):
                key = derive(keyring.group, _LABEL + b"secret key")
                scheme.trust(unseal(key, bytes(_NONCE_BYTES), sealed.tobytes(), _LABEL))
        others = self.setting.clients - 1
        self.setup_bytes = (len(public) + len(sealed), others * (len(public) + len(sealed)))

    def for_server(self, now: Round) -> tuple[int, str]:
        """The first client who is still there."""
        client = int(np.flatnonzero(now.staying & (self.homes >= 0))[0])
        return int(self.homes[client]), f"client {client}"

    def able(self, now: Round) -> None:
        """Somebody must be there."""
        if not (now.staying & (self.homes >= 0)).any():
            raise TooFewClients(f"round {now.index}: no client is left who could open a sum; let more take part")

    def open(self, folded: Bytes | None, ranks: set[int], turn: Turn) -> Opened | None:
        """By the key."""
        message = self.transport.spread(0, folded)
        if self.transport.rank not in ranks:
            return None
        with turn.timed():
            opener = self.scheme
            return {
                number: opener.open(opener.load(block))
                for number, block in unbundle(message).items()
                if turn.wants(number)
            }

    def traffic(self, blocks: int, told: NDArray[np.int64], now: Round) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sum goes to one client, or to those who hear it."""
        if not told.any():
            told = np.zeros_like(told)
            told[np.flatnonzero(now.staying)[:1]] = blocks
        return np.zeros_like(told), told * self.scheme.nbytes


class AllTogether:
    """Every client has a share of the key: a sum opens with parts of all of them."""

    def __init__(self, setting: Setting, scheme: Split, homes: NDArray[np.int64]) -> None:
        self.setting, self.transport, self.scheme, self.homes = setting, setting.transport, scheme, homes
        self.setup_bytes = (0, 0)
        self._key = b""

    def prepare(self, keyring: Keyring, note: Note, timed: Timed) -> None:
        """The joint key goes from rank to rank, and on each from client to client."""
        clients = np.flatnonzero(self.homes >= 0)
        joint: Bytes | None = None
        for some in np.split(clients, np.flatnonzero(np.diff(self.homes[clients])) + 1):
            root = int(self.homes[some[0]])
            if self.transport.rank == root:
                for client in some.tolist():
                    with timed():
                        key = self.scheme.join(client, None if joint is None else joint.tobytes())
                    joint = writable(key)
                    note(f"client {client}", "server", "public key of the encryption so far", key)
            joint = self.transport.spread(root, joint)
        assert joint is not None
        self.scheme.use(joint.tobytes())
        if len(self.setting.hosted):
            self._key = derive(keyring.group, _LABEL + b"parts of openings")
        size, count = len(joint), self.setting.clients
        self.setup_bytes = (count * size, (2 * count - 1) * size)  # everybody passes it on, and is told it in the end

    def for_server(self, now: Round) -> tuple[int, str]:
        """The server itself, given all parts."""
        return 0, "server"

    def open(self, folded: Bytes | None, ranks: set[int], turn: Turn) -> Opened | None:
        """Every client gives its part of every ciphertext; sealed for the clients, unless rank 0 alone hears."""
        message, sealed = self.transport.spread(0, folded), ranks != {0}
        with turn.timed():
            parts = self._parts(message, sealed, turn)
        gathered = self.transport.gather(parts)
        found = {client: part for some in gathered or [] for client, part in some.items()}
        if sealed:
            found = unbundle(self.transport.spread(0, bundle(found) if gathered is not None else None))
        if self.transport.rank not in ranks:
            return None
        with turn.timed():
            if sealed:
                found = {
                    client: unseal(self._key, part[:_NONCE_BYTES], part[_NONCE_BYTES:], _whose(turn, client))
                    for client, part in found.items()
                }
            return self._fuse(found, turn)

    def _parts(self, message: Bytes, sealed: bool, turn: Turn) -> dict[int, bytes]:
        """What each client of this rank gives."""
        blocks = {number: self.scheme.load(block) for number, block in unbundle(message).items()}
        parts = {}
        for client in self.setting.hosted.tolist():
            own = bundle({number: self.scheme.part(client, block) for number, block in blocks.items()}).tobytes()
            if sealed:
                nonce = os.urandom(_NONCE_BYTES)
                own = nonce + seal(self._key, nonce, own, _whose(turn, client))
            turn.note(f"client {client}", "server", "part of an opening", own)
            parts[client] = own
        return parts

    def _fuse(self, parts: dict[int, bytes], turn: Turn) -> Opened:
        clients = np.flatnonzero(self.homes >= 0).tolist()
        missing = [client for client in clients if client not in parts]
        if missing:
            raise BrokenProtocol(f"the opening of a sum lacks the parts of clients {missing[:8]}; it stays sealed")
        each = [unbundle(np.frombuffer(parts[client], np.uint8)) for client in clients]
        if any(one.keys() != each[0].keys() for one in each):
            raise BrokenProtocol("the clients' parts of an opening are of different ciphertexts; it stays sealed")
        return {number: self.scheme.fuse([one[number] for one in each]) for number in each[0] if turn.wants(number)}

    def able(self, now: Round) -> None:
        """Everybody must be there."""
        if not now.staying.all():
            raise TooFewClients(
                f"round {now.index}: {int(now.staying.sum())} of {self.setting.clients} clients are there to open a "
                'sum; a threshold scheme needs all; let all take part, or set [encryption] scheme = "bfv"'
            )

    def traffic(self, blocks: int, told: NDArray[np.int64], now: Round) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sum goes to everybody, a part comes from everybody, and all parts go to those who hear it."""
        there = now.staying.astype(np.int64)
        up = there * blocks * self.scheme.part_nbytes
        return up, there * blocks * self.scheme.nbytes + told * int(there.sum()) * self.scheme.part_nbytes
