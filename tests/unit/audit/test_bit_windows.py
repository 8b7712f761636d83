"""Windows that occur again, bits that are uneven, numbers that are not masked, keys in the midst of messages."""

from __future__ import annotations

import numpy as np
import pytest
from lengths import covering

from mpifed.audit.bit_windows import length, ones, repeats, uneven_bits
from mpifed.audit.masks import Mask, alike, repeated, zeros
from mpifed.audit.secret_keys import contained

KINDS = [np.uint32, np.uint64]


def words(count: int, kind: type, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2 ** (8 * kind().itemsize), count, dtype=kind)


def mask(values: np.ndarray, turn: int = 0, client: int = 0) -> Mask:
    return Mask("up", turn, turn, client, np.arange(len(values)), values)


@covering({"kind": KINDS, "shift": [0, 1, 5], "negative": [False, True]})
def test_one_window_is_found_wherever_it_is(kind: type, shift: int, negative: bool) -> None:
    found = words(10_000, kind)
    size = length(found)
    part = found[700 : 700 + size]
    assert list(repeats(found)) == []
    found[9_000 + shift : 9_000 + shift + size] = -part if negative else part
    assert list(repeats(found)) == [(700, 9_000 + shift, negative)]
    found[9_000 + shift] += kind(1)
    assert list(repeats(found)) == []


@pytest.mark.parametrize("kind", KINDS)
def test_rows_shorter_than_a_window(kind: type) -> None:
    """Each by itself; those of one client follow each other."""
    assert list(repeats(words(1, kind))) == []
    values = [words(1, kind, seed % 5) for seed in range(20)]
    assert repeated([mask(one, turn) for turn, one in enumerate(values)])
    assert not repeated([mask(words(1, kind, seed), seed) for seed in range(20)])


def test_zeros_of_64_bits_and_of_32() -> None:
    """Of 32 bits a single zero may be chance, two together or twice in one place are not."""
    wide, narrow = words(100, np.uint64), words(100, np.uint32)
    assert zeros([mask(wide), mask(narrow)]) == []
    wide[50] = 0
    assert zeros([mask(wide)]) == ["client 0 in up, round 0: 1 of 100 numbers, the 51th first"]
    narrow[50] = 0
    other = words(100, np.uint32, 1)
    assert zeros([mask(narrow), mask(other, 1)]) == []
    other[50] = 0
    assert zeros([mask(narrow), mask(other, 1)]) == ["client 0 in up: its 51th number, 2 times"]
    narrow[51] = 0
    assert zeros([mask(narrow)]) == ["client 0 in up, round 0: 2 of 100 numbers, the 51th first"]


@pytest.mark.parametrize("kind", KINDS)
def test_counts_of_bits(kind: type) -> None:
    found = words(4_000, kind)
    whole = 8 * kind().itemsize
    by_hand = [int((found >> kind(bit) & kind(1)).sum()) for bit in range(whole)]
    assert ones(found)[:whole].tolist() == by_hand
    assert uneven_bits(ones(found), 4_000) == ""
    assert uneven_bits(ones(found >> kind(3)), 4_000).startswith("6 of")  # three bits, and their differences but one
    signs = np.where(found >> kind(whole - 1) > 0, found | kind(3 << (whole - 3)), found & kind(2 ** (whole - 3) - 1))
    assert uneven_bits(ones(signs)[:whole], 4_000) == ""  # each by itself is even
    assert uneven_bits(ones(signs), 4_000) != ""


def test_unknown_plaintexts_that_differ_by_little() -> None:
    """Whatever is between the two; and of uploads under masks of their own no pair is."""
    sealed = [mask(words(200, np.uint64, seed), seed) for seed in range(5)]
    assert alike(sealed) == []
    again = sealed[0].words + np.random.default_rng(9).integers(0, 2**40, 200, dtype=np.uint64)
    found = alike([*sealed, mask(again, 5)])
    assert len(found) == 1 and found[0].startswith("client 0 in up, round 5 has about that of client 0 in up, round 0")


@pytest.mark.parametrize("at", [0, 1, 2, 7, 963, 984])
def test_a_key_at_any_byte(at: int) -> None:
    rng = np.random.default_rng(3)
    keys, text = [rng.bytes(32) for _ in range(50)], bytearray(rng.bytes(1_000))
    texts = [("other", np.frombuffer(rng.bytes(1_000), np.uint8)), ("short", np.zeros(0, np.uint8))]
    assert contained(keys, [*texts, ("text", np.frombuffer(bytes(text), np.uint8))]) == []
    text[at : at + 16] = keys[7][:16]
    assert contained(keys, [*texts, ("text", np.frombuffer(bytes(text), np.uint8))]) == ["text"]
