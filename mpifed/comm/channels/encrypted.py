"""The encrypted channel: clients encrypt integers, the server adds ciphertexts, and receivers decrypt the sum.

The server has only the public key. A sum for the server is decrypted by a client; a sum for clients is decrypted by
those that receive it, and the server only forwards it.

Trust: all parties are honest but curious. The clients share a secret key: it protects uploads only from the server; a
client that obtained another's upload could decrypt it, and the client that decrypts a sum for the server learns it too.
A sum for a single client is hidden from the server, not from the other clients. Ciphertexts are not authenticated; what
does not decrypt to a possible sum is refused.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpifed.comm.channels.base import Channel, ChannelSetting, Plan, refuse_small
from mpifed.comm.channels.bfv import Bfv, Ciphertext
from mpifed.comm.channels.bundles import bundle, unbundle
from mpifed.comm.channels.decryption import DecryptionRequest, Note, Opened, SharedKeyDecryption
from mpifed.comm.channels.keys import Keyring
from mpifed.comm.channels.packing import Packing, Vector, vectors
from mpifed.comm.mpi import Bytes
from mpifed.core.errors import BrokenProtocol
from mpifed.core.exchange import answering, hearing
from mpifed.core.record import Record
from mpifed.core.round import Round

_TRIED = 2  # different ciphertexts in the self-test


class Encrypted(Channel):
    """Sums of homomorphic ciphertexts."""

    name = "encrypted"

    def __init__(self, setting: ChannelSetting, scheme: Bfv | None = None) -> None:
        """`scheme`: with parameters of its own."""
        super().__init__(setting)
        self.scheme = scheme or Bfv()
        self.packing = Packing(self.scheme.slots, self.scheme.capacity, setting.clients)
        self.budget: int | None = None  # bits of noise budget that the self-test left
        self._homes = np.full(setting.clients, -1)  # [N] rank of each client; -1 where no rank hosts it
        self._decryption: SharedKeyDecryption
        self._keyring: Keyring
        self._vectors: dict[str, list[Vector]] = {}
        self._totals: dict[int, Ciphertext] = {}  # sums of this rank's ciphertexts in the current exchange, by number

    @property
    def security(self) -> str:
        """Security level of the encryption, in words."""
        return str(self.scheme.security)

    def prepare(self, plans: list[Plan]) -> None:
        """Generate keys, and test adding and decrypting as many ciphertexts as the job will. Collective.

        Raises BrokenProtocol when the sum of all clients' largest integers is not decrypted correctly.
        """
        gathered = self.comm.gather(self.setting.hosted)
        for rank, clients in enumerate(gathered or []):
            self._homes[clients] = rank
        self._homes = self.comm.bcast(self._homes)
        keyring = Keyring(self.setting)
        keyring.prepare(self.keys.timed)
        self._keyring = keyring
        self._decryption = SharedKeyDecryption(self.setting, self.scheme, self._homes)
        self._decryption.prepare(keyring, self._note(None, None), self.keys.timed)
        up, down = self._decryption.setup_bytes
        self.keys.costs["up_bytes"] = keyring.setup_up_bytes + up
        self.keys.costs["down_bytes"] = keyring.setup_down_bytes + down
        self._try()

    def _try(self) -> None:
        """The self-test: the largest integers, positive and negative, and random ones, of all clients."""
        most, rng = self.packing.each, np.random.default_rng(0)
        values = rng.integers(-most, most, (_TRIED, self.packing.slots), endpoint=True)
        values[:, 0::4], values[:, 1::4] = most, -most
        kinds = np.arange(self.setting.clients) % _TRIED
        mine = kinds[self.setting.hosted]
        total = None
        with self.keys.timed():
            for kind in np.unique(mine).tolist():
                block = self.scheme.encrypt(values[kind])
                more = self.scheme.load(block)
                for _ in range(int((mine == kind).sum())):
                    total = self.scheme.load(block) if total is None else self.scheme.add(total, more)
        folded = self.comm.reduce(bundle({} if total is None else {0: self.scheme.save(total)}), self._fold)
        able = set(self._homes[self._homes >= 0].tolist())
        what = f"the self-test of the encryption, the sum of {self.setting.clients} clients' largest integers"
        try:
            opened = self._decryption.open(folded, able, DecryptionRequest(self.keys.timed))
        except BrokenProtocol as error:
            raise BrokenProtocol(f"{what}, does not decrypt: {error}; {_REMEDY}") from error
        expected = (values * np.bincount(kinds, minlength=_TRIED)[:, None]).sum(axis=0)
        if opened is not None and not np.array_equal(opened[0], expected):
            wrong = int((opened[0] != expected).sum())
            raise BrokenProtocol(f"{what}, decrypts to other values in {wrong} of {len(expected)} slots; {_REMEDY}")
        self.budget = self.scheme.budget

    def vectors(self, plan: Plan) -> list[Vector]:
        """Parts of an exchange's message that are encrypted together; they follow from the job alone."""
        cached = self._vectors.get(plan.exchange.name)
        if cached is None:
            cached = self._vectors[plan.exchange.name] = vectors(plan.message, self.packing)
        return cached

    def begin(self, plan: Plan, now: Round) -> None:
        """Start a new sum; where last answers are kept, the server stores each client's last upload."""
        self._totals = {}
        if plan.kept is not None:
            plan.kept.answered |= answering(plan.exchange, now)
            plan.kept.total = plan.kept.total or {}

    def add(self, plan: Plan, answer: Record, clients: NDArray[np.int64], now: Round) -> None:
        self.add_one_by_one(plan, answer, clients, now)

    def seal(self, plan: Plan, integers: NDArray[np.signedinteger], client: int, now: Round) -> Bytes:
        """The client's ciphertexts as a message; NumericalError when an integer is out of range."""
        plan.change(integers, client)
        with plan.account.timed():
            parts = [vector.pack(integers, client) for vector in self.vectors(plan) if vector.senders[client]]
            return bundle({number: self.scheme.encrypt(slots) for part in parts for number, slots in part})

    def sent(self, plan: Plan, upload: Bytes, client: int) -> Bytes:
        return upload

    def gather(self, plan: Plan, upload: Bytes, client: int) -> None:
        """Add a client's ciphertexts, or store them instead of its last ones; needs only the public key."""
        if plan.kept is not None:
            plan.kept.total[client] = upload
        else:
            self._sum(plan, upload)

    def _sum(self, plan: Plan, upload: Bytes) -> None:
        with plan.account.timed():
            for number, block in unbundle(upload).items():
                more = self.scheme.load(block)
                present = number in self._totals
                self._totals[number] = self.scheme.add(self._totals[number], more) if present else more

    def collect(self, plan: Plan, now: Round) -> bool:
        """Add over ranks, and decrypt the sum for its receivers. Collective.

        Raises TooFewClients when the sum is over fewer clients than the job allows; before anything is decrypted;
        BrokenProtocol when ciphertexts are missing or damaged, or do not decrypt to a sum of integers within the
        bounds.
        """
        refuse_small(plan.message, self.setting.protection, now)
        serves = self.comm.rank == 0
        self.comm.Reduce(plan.sum.numbers[-1:], plan.reduced[-1:] if serves else None)
        answered = answering(plan.exchange, now)
        if plan.kept is not None:
            answered = plan.kept.answered
            for _, upload in sorted(plan.kept.total.items()):
                self._sum(plan, upload)
        if not answered.any():  # nothing was encrypted: the sum of no uploads is 0
            plan.reduced[:-1] = 0
            return True
        self._decryption.able(now)
        with plan.account.timed():
            message = bundle({number: self.scheme.save(total) for number, total in sorted(self._totals.items())})
            self._totals = {}
        if self.recorder is not None:
            self.recorder.passed_on(plan, now, message)
        folded = self.comm.reduce(message, plan.account.timed()(self._fold))
        to_server = plan.exchange.hear is None
        ranks, opener = self._hearing(plan, now)
        if not ranks:
            return False
        note = self._note(plan, now)
        wanted = self._wanted(plan, now, answered) if not to_server else None
        opened = self._decryption.open(folded, ranks, DecryptionRequest(plan.account.timed, wanted))
        if opened is not None:
            with plan.account.timed():
                self._unpack(plan, answered, opened, wanted)
        if not to_server:
            return opened is not None
        if ranks != {0}:
            opened_here = plan.reduced[:-1].copy() if opened is not None else None
            for opened_sum in self.comm.gather(opened_here) or []:
                if opened_sum is not None:
                    plan.reduced[:-1] = opened_sum
        if opened is not None:
            note(opener, "server", "opened sum", plan.reduced[:-1].tobytes())
        return serves

    def _fold(self, message: Bytes, other: Bytes) -> Bytes:
        """The sum of two messages of ciphertexts."""
        totals, blocks = unbundle(message), unbundle(other)
        for number, block in blocks.items():
            if number in totals:
                added = self.scheme.add(self.scheme.load(totals[number]), self.scheme.load(block))
                totals[number] = self.scheme.save(added)
            else:
                totals[number] = block
        return bundle(totals)

    def _hearing(self, plan: Plan, now: Round) -> tuple[set[int], str]:
        """The ranks on which the sum is decrypted, and the name of the party that decrypts it."""
        if plan.exchange.hear is None:
            rank, opener = self._decryption.for_server(now)
            return {rank}, opener
        receiving = hearing(plan.exchange, now) & (self._homes >= 0)
        return set(self._homes[receiving].tolist()), "clients"

    def _wanted(self, plan: Plan, now: Round, answered: NDArray[np.bool_]) -> frozenset[int]:
        """Numbers of the ciphertexts that this rank's clients receive; `answered` [N]: clients in the sum."""
        here = np.zeros_like(answered)
        here[self.setting.hosted] = hearing(plan.exchange, now)[self.setting.hosted]
        ranges = [v.numbers for v in self.vectors(plan) if (v.hearers & here).any() and (v.senders & answered).any()]
        return frozenset(number for numbers in ranges for number in numbers)

    def _unpack(self, plan: Plan, answered: NDArray[np.bool_], opened: Opened, wanted: frozenset[int] | None) -> None:
        """Write the decrypted sum into `plan.reduced`; `answered` [N]: clients in the sum."""
        message, counted = np.zeros_like(plan.reduced[:-1]), answered & (self._homes >= 0)
        for vector in self.vectors(plan):
            answers = int((vector.senders & counted).sum())
            if not answers or (wanted is not None and not wanted.issuperset(vector.numbers)):
                continue
            missing = [number for number in vector.numbers if number not in opened]
            if missing:
                raise BrokenProtocol(f"{plan.exchange.name}: ciphertexts {missing} of the sum are missing; refused")
            vector.unpack({number: opened.pop(number) for number in vector.numbers}, answers, message)
        if opened:
            raise BrokenProtocol(
                f"{plan.exchange.name}: ciphertexts {list(opened)} are of no client in the sum; refused"
            )
        plan.reduced[:-1] = message

    def traffic(self, plan: Plan, now: Round) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[N] bytes of each client's ciphertexts and partial decryptions, and of what it receives."""
        uploading, receiving = answering(plan.exchange, now), hearing(plan.exchange, now)
        counted = uploading if plan.kept is None else uploading | plan.kept.answered
        up, received, blocks = np.zeros((3, self.setting.clients), dtype=np.int64)
        for vector in self.vectors(plan):
            size = len(vector.numbers)
            up += size * (vector.senders & uploading)
            if (vector.senders & counted).any():
                blocks += size
                received += size * (vector.hearers & receiving)
        up *= int(self.scheme.nbytes)
        to_clients = plan.exchange.hear is not None
        if now.void or (to_clients and not receiving.any()):
            return up, np.zeros_like(up)
        more, down = self._decryption.traffic(int(blocks[0]), received, now)
        if not to_clients:
            more[np.flatnonzero(now.staying)[:1]] += plan.message.nbytes
        return up + more, down

    def _note(self, plan: Plan | None, now: Round | None) -> Note:
        recorder = self.recorder
        if recorder is None:
            return _unnoted
        return lambda sender, receiver, what, payload: recorder.note(plan, now, sender, receiver, what, payload)


def _unnoted(sender: str, receiver: str, what: str, payload: bytes) -> None:
    pass


_REMEDY = 'set [aggregation] security = "masked", and report it, with the versions of libraries'
