"""Key streams against their published vectors, and as they are added to integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from lengths import covering
from mpifed.comm.key_streams import Pad, Prf, Stream, Turns, nonce

from mpifed.core.errors import BrokenProtocol

# NIST SP 800-38A, F.5: counter block, plaintext
COUNTER = "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"
PLAIN = (
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
CIPHER = {  # F.5.1 and F.5.5: by key
    "2b7e151628aed2a6abf7158809cf4f3c": (
        "874d6191b620e3261bef6864990db6ce9806f66b7970fdff8617187bb9fffdff"
        "5ae4df3edbd5d35e5b4f09020db03eab1e031dda2fbe03d1792170a0f3009cee"
    ),
    "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4": (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    ),
}


def made(stream: Stream, count: int) -> bytes:
    out = bytearray(count + 16)
    stream.into(memoryview(bytes(count)), memoryview(out))
    return bytes(out[:count])


@pytest.mark.parametrize("key", CIPHER)
def test_counter_mode(key: str) -> None:
    stream = made(Stream(bytes.fromhex(key), bytes.fromhex(COUNTER)), 64)
    assert bytes(a ^ b for a, b in zip(stream, bytes.fromhex(PLAIN), strict=True)).hex() == CIPHER[key]


@pytest.mark.parametrize(
    ("key", "block", "stream"),
    [  # RFC 3686, section 6, test vectors 1 and 2
        ("ae6852f8121067cc4bf7a5765577f39e", "00000030000000000000000000000001", "b7603328dbc2931b410e16c8067e62df"),
        ("7e24067817fae0d743d6ce1f32539163", "006cb6dbc0543b59da48d90b00000001",
         "5105a305128f74de71044be582d7dd87fb3f0cef52cf41dfe4ff2ac48d5ca037"),
    ],
)  # fmt: skip
def test_counter_mode_of_ipsec(key: str, block: str, stream: str) -> None:
    assert made(Stream(bytes.fromhex(key), bytes.fromhex(block)), len(stream) // 2).hex() == stream


def test_nonces_differ_and_leave_room_for_blocks() -> None:
    cases = [(turn, client) for turn in (0, 1, 2**16, 2**47) for client in (0, 1, 2**16 - 1, 2**16, 2**31)]
    found = [nonce(*case) for case in cases]
    assert len(set(found)) == len(cases)
    assert {len(one) for one in found} == {16}
    assert all(one.endswith(bytes(6)) for one in found)  # 2^48 blocks before one could run into another


@covering({"sign": [1, -1], "piece": [128, 2**17], "dtype": ["int32", "int64"]})
def test_added_from_part_to_part(dtype: str, piece: int, sign: int) -> None:
    """As little-endian integers, wrapping around, to the parts alone, wherever pieces end."""
    rng, key = np.random.default_rng(0), bytes(range(16))
    limits = np.iinfo(dtype)
    message = rng.integers(limits.min, limits.max, size=300, dtype=dtype, endpoint=True)
    some = rng.permutation(100)[:40] + 110
    parts: list[Any] = [slice(3, 90), np.array([91, 95, 96, 250, 299]), slice(100, 101), some]
    count, width = 87 + 5 + 1 + 40, message.itemsize
    stream = [int.from_bytes(made(Stream(key), width * count)[width * i :][:width], "little") for i in range(count)]
    at = [*range(3, 90), *parts[1].tolist(), 100, *some.tolist()]
    expected = [int(value) for value in message]
    for place, value in zip(at, stream, strict=True):
        expected[place] = (expected[place] + sign * value - int(limits.min)) % 2 ** (8 * width) + int(limits.min)
    Pad(piece).add([(Stream(key), sign)], message, parts)
    assert message.tolist() == expected


def test_keys_of_messages() -> None:
    """AES-256 of a block each, which counter mode gives too; none is like another."""
    secret = bytes(range(32))
    prf = Prf(secret)
    block = b"message" + b"\0" + (5).to_bytes(8, "big")
    assert prf.key(b"message", 5) == made(Stream(secret, block), 16)
    blocks = [b"message" + bytes([half]) + (5).to_bytes(8, "big") for half in (1, 2)]
    assert prf.long_key(b"message", 5) == b"".join(made(Stream(secret, block), 16) for block in blocks)
    keys = [prf.key(label, turn) for label in (b"message", b"streams") for turn in range(100)]
    keys += [prf.long_key(b"message", turn)[half] for turn in range(100) for half in (slice(16), slice(16, 32))]
    assert len(set(keys)) == 400
    assert Prf(bytes(32)).key(b"message", 5) != prf.key(b"message", 5)


def test_turns_grow() -> None:
    turns = Turns()
    assert [turns.next(), turns.next(), turns.next(10), turns.next()] == [1, 2, 10, 11]
    for turn in (11, 10, 0, -1, 2**48):
        with pytest.raises(BrokenProtocol, match=f"repeated nonce: turn {turn} after turn 11"):
            turns.next(turn)


def test_one_message_a_turn() -> None:
    turns = Turns()
    turns.next()
    turns.use(3)
    turns.use(4)
    with pytest.raises(BrokenProtocol, match="repeated nonce: client 3 would seal a second message in turn 1"):
        turns.use(3)
    turns.next()
    turns.use(3)


def test_nothing_shows_a_key() -> None:
    key = bytes(range(32))
    for thing in (Stream(key[:16]), Prf(key)):
        assert key[:16].hex() not in repr(thing) and repr(key[:16])[2:-1] not in repr(thing)
        assert not hasattr(thing, "__dict__") or not any(key[:16] in repr(v).encode() for v in vars(thing).values())
