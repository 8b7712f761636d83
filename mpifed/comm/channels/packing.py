"""Packing the integers of a message into the slots of ciphertexts, and unpacking their sum.

A slot holds sums up to a capacity. Where the sum of N clients' largest integers does not fit, an integer x is split
into two limbs: a balanced remainder r between -2^(w-1) and 2^(w-1) - 1, and (x - r) / 2^w. They are added without
carries, and which integers are split follows from a field's grid and the number of clients alone: so the sum is exact,
as in every channel.
"""

from __future__ import annotations

import numpy as np

from mpifed.comm.sums import Message, Unit
from mpifed.core.errors import BrokenProtocol, NumericalError
from mpifed.core.record import Flags, Integers


class Packing:
    """What stands in which ciphertexts of an exchange, who sends these, and who may open their sum.

    Either every client sends all entries, with zeros at those of others, or entries of single clients or groups of
    clients are encrypted separately: whichever takes fewer ciphertexts, counting all uploads and the sum.
    """

    def __init__(self, message: Message, slots: int, capacity: int) -> None:
        """`slots` of a ciphertext; `capacity`: the largest sum in a slot, in absolute value."""
        self.name, self.size, each = message.exchange.name, message.size, capacity // message.clients
        parts = [np.repeat(place.form.largest, place.field.size) for place in message.places]
        # [m + 1] the largest integer of one client, in absolute value; the last one fills unused slots
        largest = np.concatenate([*parts, np.zeros(1, np.int64)])
        self.width, self.split = each.bit_length(), np.flatnonzero(largest > each)
        self._half = 2 ** (self.width - 1)
        high = (largest[self.split] + self._half) >> self.width  # they fit, up to 2^31 clients
        self.most = np.append(np.where(largest > each, self._half, largest), high)  # [m + 1 + split] of each limb
        everything = [part for unit in message.units for part in unit.at]
        ways = [[Unit(np.ones(message.clients, bool), everything, False)], message.units]
        if any(unit.to_holders for unit in message.units):  # others may not receive these
            del ways[0]
        units = min(ways, key=lambda way: sum(len(self._laid(unit, slots)) * (1 + unit.who.sum()) for unit in way))
        laid = [self._laid(unit, slots) for unit in units]
        hearers = [unit.who | (not unit.to_holders) | (message.exchange.hear is None) for unit in units]
        counts = list(map(len, laid))
        self.at = np.concatenate(laid)  # [k, slots] the limb in each slot of each ciphertext
        self.senders = np.repeat([unit.who for unit in units], counts, axis=0)  # [k, N]
        self.hearers = np.repeat(hearers, counts, axis=0)  # [k, N] who may open the sum

    def _laid(self, unit: Unit, slots: int) -> Integers:
        """[k, slots] the limbs of a unit."""
        low = np.concatenate([np.zeros(0, np.int64), *(np.r_[at] for at in unit.at)])
        limbs = np.append(low, self.size + 1 + np.flatnonzero(np.isin(self.split, low)))
        unused = -len(limbs) % slots
        return np.pad(limbs, (0, unused), constant_values=self.size).reshape(-1, slots)

    def pack(self, integers: Integers, client: int) -> Integers:
        """[j, slots] what is in the client's ciphertexts, of its integers [m]; NumericalError if one is too large."""
        low, at = np.append(integers, 0), self.at[self.senders[:, client]]
        high = (low[self.split] + self._half) >> self.width
        low[self.split] -= high << self.width
        slots: Integers = np.append(low, high)[at]
        if (np.abs(slots) > self.most[at]).any():
            raise NumericalError(f"{self.name}: client {client} sends an integer beyond its bound; it is not encrypted")
        return slots

    def unpack(self, opened: Integers, which: Integers, counted: Flags) -> Integers:
        """[m] the sum in the ciphertexts `which` [j], and zeros elsewhere; BrokenProtocol where it cannot be that sum.

        Parameters
        ----------
        opened : [j, slots] what they decrypt to
        counted : [N] whose integers are in the sum
        """
        at, answers = self.at[which], (self.senders[which] & counted).sum(axis=1)
        if (np.abs(opened) > answers[:, None] * self.most[at]).any():
            raise BrokenProtocol(
                f"{self.name}: what was decrypted is no sum of integers within the bounds: ciphertexts were altered, "
                "or have other keys"
            )
        limbs: Integers = np.zeros_like(self.most)
        limbs[at] = opened
        limbs[self.split] += limbs[self.size + 1 :] << self.width
        return limbs[: self.size]
