"""FedAvg and its channel, in which something is altered on its way if $MPIFED_TEST_TROUBLE says what; named in jobs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from own_algorithms import Troubled

CLIENT, ROUND = 6, 2  # whose message, and in which round
HOLDER = 1  # whose share; not all are needed, and the first ones are taken
UNDO = ExitStack()  # closed, it puts back what importing this has replaced: a test's process has other tests as well


@dataclass(frozen=True)
class Tampered(Troubled):
    """Values that are no client's come from `Troubled`; the rest happens on the way."""

    at_client: int = CLIENT
    at_round: int = ROUND


def flipped(message: bytes, at: int | None = None) -> bytes:
    """With one bit changed."""
    altered = bytearray(message)
    altered[len(altered) // 2 if at is None else at] ^= 1
    return bytes(altered)


def instead(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a method by `change(the one before, self, *arguments)`, until `UNDO` is closed; keywords are passed on.

    What is changed does as before wherever no trouble is asked for: ranks that stand keep it.
    """
    before = getattr(owner, name)

    def changed(self: Any, *arguments: Any, **named: Any) -> Any:
        return change(partial(before, **named), self, *arguments)

    UNDO.callback(setattr, owner, name, before)
    setattr(owner, name, changed)


def happens(trouble: str, turn: int = 3 * ROUND) -> bool:
    """Whether this is to happen in a turn of the round; a measurement of two exchanges, or less, is before each."""
    return os.environ.get("MPIFED_TEST_TROUBLE") == trouble and turn >= 3 * ROUND


def tamper_with_masks() -> None:
    from mpifed.comm.channels.dropouts import Deposit, Dropouts
    from mpifed.comm.channels.keys import Keyring, Turns

    def reveal(before: Any, self: Any, holder: int, *arguments: Any) -> Any:
        giver, number, share = before(self, holder, *arguments)
        changed = holder == HOLDER and happens("share", self.turn.number)
        return giver, number, flipped(share, 0) if changed else share

    def deposit(before: Any, self: Any, client: int, *arguments: Any) -> Any:
        found: Deposit = before(self, client, *arguments)
        if client == CLIENT and happens("sealed share", self.turn.number):
            return found._replace(shares=[flipped(share) for share in found.shares])
        return found

    def introduce(before: Any, self: Any, *arguments: Any) -> Any:
        """A client comes with another one's key: as all ranks are told of it by rank 0."""
        if not happens("public key"):
            return before(self, *arguments)
        allgather = self.comm.allgather

        def altered(value: Any) -> Any:
            self.comm.allgather = allgather
            found = allgather(value)
            first, *_, last = [min(found[-1]), *found[-1]]
            found[-1][last] = found[-1][first] if first != last else bytes(32)
            return found

        self.comm.allgather = altered
        return before(self, *arguments)

    def all_shares(before: Any, self: Any, *arguments: Any) -> Any:
        found = before(self, *arguments)
        missing = happens("missing shares", self.turn.number)
        return [(giver, *rest) for giver, *rest in found if giver != CLIENT or rest[0] > 3 or not missing]

    def next_turn(before: Any, self: Any, *arguments: Any) -> Any:
        return self.now if happens("repeated nonce", self.now + 1) else before(self, *arguments)

    instead(Dropouts, "_reveal_all", all_shares)
    instead(Turns, "next", next_turn)
    instead(Dropouts, "reveal", reveal)
    instead(Dropouts, "deposit", deposit)
    instead(Keyring, "introduce", introduce)


def tamper_with_ciphertexts() -> None:
    from mpifed.comm.channels.encrypted import Encrypted

    def seal(before: Any, self: Any, line: Any, integers: Any, client: int, now: Any) -> Any:
        here = client == CLIENT and now.index == ROUND
        if happens("integers") and here:
            integers = integers.copy()
            integers[0] = 2 ** (8 * integers.itemsize - 3)
        upload = before(self, line, integers, client, now)
        if happens("ciphertext") and here:
            return np.frombuffer(bytearray(flipped(upload.tobytes(), len(upload) * 3 // 4)), np.uint8)
        if happens("half a ciphertext") and here:
            return upload[: len(upload) // 2].copy()
        return upload

    instead(Encrypted, "seal", seal)


tamper_with_masks()
tamper_with_ciphertexts()
