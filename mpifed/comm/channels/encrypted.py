"""The encrypted channel: clients encrypt integers, the server adds ciphertexts, and receivers decrypt the sum.

The server has only the public key. A sum for the server is decrypted by a client; a sum for clients is decrypted by
those that receive it, and the server only forwards it. Where last answers are kept, clients encrypt changes, and the
server adds them to one ciphertext of the sum so far: changes are differences of what is in slots, so that each slot has
the sum of N clients' limbs. An addition costs less than a bit of noise budget each time that their number doubles.

Trust: all parties are honest but curious. The clients share a secret key: it protects uploads only from the server; a
client that obtained another's upload could decrypt it, and the client that decrypts a sum for the server learns it too.
A sum for a single client is hidden from the server, not from the other clients. Ciphertexts are not authenticated; what
does not decrypt to a possible sum is refused.
"""

from __future__ import annotations

from functools import cache
from typing import TypeAlias

import numpy as np

from mpifed.comm.channels.base import Channel, ChannelSetting, Plan, refuse_small
from mpifed.comm.channels.bfv import Bfv
from mpifed.comm.channels.keys import Keyring, derive, seal, unseal
from mpifed.comm.channels.packing import Packing
from mpifed.comm.mpi import Bytes
from mpifed.core.errors import BrokenProtocol, TooFewClients
from mpifed.core.exchange import answering, hearing
from mpifed.core.record import Flags, Integers
from mpifed.core.round import Round

Sealed: TypeAlias = dict[int, bytes]  # ciphertexts of an exchange, by number

_LABEL = b"mpifed encrypted sums, version 1, "
_NONCE = bytes(12)  # constant, since the key under which the secret key is sent seals no other message


class Encrypted(Channel):
    """Sums of homomorphic ciphertexts."""

    name = "encrypted"
    add = Channel.add_one_by_one

    def __init__(self, setting: ChannelSetting) -> None:
        super().__init__(setting)
        self.scheme = Bfv()
        self.packing = cache(lambda message: Packing(message, self.scheme.slots, self.scheme.capacity))
        self._totals: Sealed = {}  # sums of this rank's ciphertexts in the current exchange

    def prepare(self, plans: list[Plan]) -> None:
        """Agree on keys, and test adding and decrypting as many ciphertexts as the job will. Collective.

        The first client generates the keys of the encryption; others receive the secret one sealed.

        Raises BrokenProtocol when the sum of all clients' largest integers is not decrypted correctly.
        """
        keyring, hosted = Keyring(self.setting, self.keys), self.hosted.tolist()
        keyring.prepare()
        key = derive(keyring.group, _LABEL + b"secret key") if hosted else b""
        made = None
        if 0 in hosted:
            with self.keys.timed():
                public, secret = self.scheme.make_keys()
                made = public, seal(key, _NONCE, secret, _LABEL)
            self.tap(0, "public key of the encryption", made[0])
            self.tap(0, "secret key of the encryption, sealed for the clients", made[1])
        public, sealed = next(filter(None, self.comm.allgather(made)))
        self.scheme.use(public, unseal(key, _NONCE, sealed, _LABEL) if hosted else None)
        nbytes, (up, down) = len(public) + len(sealed), keyring.setup_bytes
        self.keys.costs |= {"up_bytes": up + nbytes, "down_bytes": down + (self.clients - 1) * nbytes}
        self._try()

    def _try(self) -> None:
        """The self-test: the largest integers, positive and negative, and random ones, of all clients."""
        n, hosted, total = self.clients, len(self.hosted), Sealed()
        most = self.scheme.capacity // n
        values = np.random.default_rng(0).integers(-most, most, self.scheme.slots, endpoint=True)
        values[0::4], values[1::4] = most, -most
        with self.keys.timed():
            block = self.scheme.encrypt(values)
            for _ in range(hosted):
                total = self._added(total, {0: block})
        total = self.comm.bcast(self.comm.reduce(total, op=self._added))
        if not hosted:
            return
        try:
            wrong = int((self.scheme.open(total[0]) != n * values).sum())
            error = f"decrypts to other values in {wrong} of {len(values)} slots" * (wrong > 0)
        except BrokenProtocol as failed:
            error = f"does not decrypt: {failed}"
        if error:
            raise BrokenProtocol(
                f"the self-test of the encryption, the sum of {n} clients' largest integers, {error}; set "
                '[aggregation] security = "masked", and report it, with the versions of libraries'
            )

    def begin(self, plan: Plan, now: Round) -> None:
        super().begin(plan, now)
        self._totals = (plan.kept and plan.kept.total) or {}

    def seal(self, plan: Plan, integers: Integers, client: int, now: Round) -> Bytes:
        """The client's ciphertexts, of changes in slots; NumericalError when an integer is out of range."""
        with plan.account.timed():
            packing, change = self.packing(plan.message), plan.change(integers, client)
            slots = packing.pack(integers, client) - packing.pack(integers - change, client)
            return np.frombuffer(b"".join(map(self.scheme.encrypt, slots)), np.uint8)

    def sent(self, plan: Plan, upload: Bytes, client: int) -> Bytes:
        return upload

    def gather(self, plan: Plan, upload: Bytes, client: int) -> None:
        """Add a client's ciphertexts; needs only the public key."""
        numbers, nbytes = np.flatnonzero(self.packing(plan.message).senders[:, client]).tolist(), self.scheme.nbytes
        if len(upload) != nbytes * len(numbers):
            raise BrokenProtocol(
                f"{plan.exchange.name}: client {client} sends {len(upload)} bytes, and {len(numbers)} ciphertexts of "
                f"{nbytes} were expected; they were altered"
            )
        with plan.account.timed():
            sealed = dict(zip(numbers, map(bytes, upload.reshape(-1, nbytes)), strict=True))
            self._totals = self._added(self._totals, sealed)

    def _added(self, x: Sealed, y: Sealed) -> Sealed:
        return x | y | {number: self.scheme.add(x[number], y[number]) for number in x.keys() & y}

    def collect(self, plan: Plan, now: Round) -> bool:
        """Add over ranks, and decrypt the sum for its receivers. Collective.

        Raises TooFewClients when the sum is over fewer clients than the job allows, before anything is decrypted;
        BrokenProtocol when ciphertexts are missing or damaged, or do not decrypt to a sum of integers within the
        bounds.
        """
        refuse_small([(plan.message, now)], self.protection)
        self.comm.Reduce(plan.sum.numbers[-1:])
        plan.reduced[-1] = plan.sum.numbers[-1]  # which rank 0 reads
        receivers, counted = self._receivers(plan, now), self._counted(plan, now)
        if not counted.any():  # nothing was encrypted: the sum of no uploads is 0
            plan.reduced[:-1] = 0
            return True
        sealed = self.comm.bcast(self.comm.reduce(self._totals, op=plan.account.timed()(self._added)))
        if plan.kept is not None and self.comm.rank == 0:
            plan.kept.total = sealed
        packing, hosted, message = self.packing(plan.message), self.hosted, None
        summed = (packing.senders & counted).any(axis=1)
        if receivers[hosted].any():
            with plan.account.timed():
                which = np.flatnonzero(summed & (packing.hearers & receivers)[:, hosted].any(axis=1))
                opened = [self.scheme.open(sealed[number]) for number in which.tolist()]
                message = packing.unpack(np.reshape(opened, (-1, self.scheme.slots)), which, counted)
        if plan.exchange.hear is None:
            if not receivers.any():
                raise TooFewClients(
                    f"round {now.index}: no client is left that could decrypt a sum; let more participate", agreed=True
                )
            if message is not None:
                self.tap(int(np.flatnonzero(receivers)[0]), "opened sum", message)
            message = next((one for one in self.comm.gather(message) or [] if one is not None), None)
        if message is not None:
            plan.reduced[:-1] = message
        return message is not None

    def _counted(self, plan: Plan, now: Round) -> Flags:
        """[N] whose integers are in the sum."""
        return plan.kept.answered if plan.kept is not None else self._flags(answering(plan.exchange, now))

    def _flags(self, clients: Integers) -> Flags:
        """[N] whether each client is one of `clients` [n]."""
        return np.isin(np.arange(self.clients), clients)

    def _receivers(self, plan: Plan, now: Round) -> Flags:
        """[N] who decrypts the sum: those who hear it; where it is for the server, the first client that stays."""
        receivers = self._flags(hearing(plan.exchange, now))
        if plan.exchange.hear is None and not now.void:
            receivers[np.flatnonzero(now.staying)[:1]] = True
        return receivers

    def traffic(self, plan: Plan, now: Round) -> tuple[Integers, Integers]:
        """[n] bytes of ciphertexts of each client who is asked, with the sum that one opens, and of what each opens."""
        packing, receivers = self.packing(plan.message), self._receivers(plan, now)
        asked, summed = now.asked_ids, (packing.senders & self._counted(plan, now)).any(axis=1)
        sent = packing.senders & (now.sending if plan.exchange.answer is not None else False)
        up = sent.sum(axis=0) * self.scheme.nbytes
        if plan.exchange.hear is None:
            up += plan.message.nbytes * receivers
        return up[asked], (packing.hearers[summed] & receivers).sum(axis=0)[asked] * self.scheme.nbytes
