from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpifed.comm.channels.packing import Packing
from mpifed.comm.sums import Arithmetic, Message
from mpifed.core.errors import BrokenProtocol
from mpifed.core.exchange import Exchange, Field
from mpifed.core.holdings import Holdings


def message_of(fields: Any, clients: int) -> Message:
    exchange: Any = Exchange("e", fields, ask=lambda *_: None, answer=None)  # which nobody plays
    return Message(exchange, clients, Arithmetic("float64"))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([(2.0**-20, 2.0), (2.0**-50, 2.0**20)]) | st.tuples(st.just(1.0), st.floats(2.0**30, 2.0**50)),
    st.sampled_from([(8192, 2**57), (16384, 2**47), (31, 2**62 + 2**32)]),
    st.sampled_from([1, 2, 16, 1000, 5000]), st.booleans(), st.integers(0, 99),
)  # fmt: skip
def test_sums_come_back_exactly(
    form: tuple[float, float], scheme: tuple[int, int], clients: int, parts: bool, seed: int
) -> None:
    """One and two limbs of the grid, one and two in slots; no slot's sum is beyond the capacity, of extremes either."""
    rng, sides = np.random.default_rng(seed), np.arange(clients) % 2
    held = Holdings(40, sides, (slice(0, 20), slice(20, 40))) if parts else None
    message = message_of(Field((40,), *form, held=held), clients)
    packing, most = Packing(message, *scheme), np.repeat(message.places[0].form.largest, 40)
    slots, expected = np.zeros(packing.at.shape, object), np.zeros(len(most), object)
    for client in range(min(clients, 2)):  # all of a side send the same
        integers = np.where(
            rng.random(len(most)) < 0.5, rng.choice([-1, 1], len(most)) * most, rng.integers(-most, most)
        )
        if parts:
            integers.reshape(-1, 2, 20)[:, 1 - client] = 0
        count = int((sides == client).sum())
        slots[packing.senders[:, client]] += count * packing.pack(integers, client).astype(object)
        expected += count * integers.astype(object)
    assert max(map(abs, slots.ravel())) <= scheme[1]
    which, everybody = np.arange(len(slots)), np.ones(clients, bool)
    assert np.array_equal(packing.unpack(slots.astype(np.int64), which, everybody), expected)
    slots[-1, -1] += clients * packing.most[packing.at[-1, -1]] + abs(slots[-1, -1]) + 1
    with pytest.raises(BrokenProtocol, match="e: what was decrypted is no sum"):
        packing.unpack(slots.astype(np.int64), which, everybody)
