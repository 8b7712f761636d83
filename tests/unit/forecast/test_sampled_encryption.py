"""A rehearsal's stand-in for an encryption: right sums, and the time of work that was not done."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from mpifed.forecast.sampled_encryption import SampledEncryption

NAP_S = 0.02


class Slow:
    """A scheme whose every ciphertext takes a while, by a clock of its own."""

    slots, nbytes, name = 4, 100, "slow"

    def __init__(self) -> None:
        self.encrypted = self.opened = 0
        self.now_s = 0.0

    def encrypt(self, values: Any) -> bytes:
        self.encrypted += 1
        self.now_s += NAP_S
        return b"sealed"

    def load(self, block: bytes) -> str:
        assert block == b"sealed"  # its own, and never one of the sampled encryption's
        return "loaded"

    def add(self, total: str, more: str) -> str:
        assert total == more == "loaded"
        return total

    def save(self, total: str) -> bytes:
        return b"sealed"

    def open(self, total: str) -> None:
        assert total == "loaded"
        self.opened += 1


def test_sums_are_right_and_ciphertexts_as_long_as_real_ones() -> None:
    one = SampledEncryption(Slow())
    blocks = [one.encrypt(np.array(values)) for values in ([1, 2, 3, 4], [10, 20], [-5, 0, 7])]
    assert [len(block) for block in blocks] == [100] * 3
    total = one.load(blocks[0])
    for block in blocks[1:]:
        total = one.add(total, one.load(block))
    assert one.open(one.load(one.save(total))).tolist() == [6, 22, 10, 4]
    assert one.open(one.load(blocks[0])).tolist() == [1, 2, 3, 4]  # what was added to is a copy
    assert (one.slots, one.name) == (4, "slow")


def test_what_is_not_done_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(time, "perf_counter", lambda: slow.now_s)
    one = SampledEncryption(slow)
    for _ in range(100):
        one.encrypt(np.arange(4))
    assert slow.encrypted == 1
    assert one.skipped_s == pytest.approx(99 * NAP_S)


def test_quick_work_is_done_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow()
    monkeypatch.setattr(time, "perf_counter", lambda: slow.now_s)
    one = SampledEncryption(slow)
    block = one.encrypt(np.arange(4))
    for _ in range(10):
        one.open(one.load(block))
    assert slow.opened == 4
