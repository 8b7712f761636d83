"""Keys and streams: published vectors, and who knows what in the end."""

from __future__ import annotations

import hmac
import pickle
import struct
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from masking import on_ranks

from mpifed.comm.channels.base import ChannelSetting
from mpifed.comm.channels.keys import (
    PIECE_BYTES,
    PROTOCOL,
    Keyring,
    Pad,
    Stream,
    Turns,
    agree,
    derive,
    nonce,
    seal,
    unseal,
)
from mpifed.comm.costs import Account
from mpifed.core.errors import BrokenProtocol

ASKED = bytes.fromhex  # what the tables have


def made(stream: Stream, count: int) -> bytes:
    out = bytearray(count + 16)
    stream.into(memoryview(bytes(count)), memoryview(out))
    return bytes(out[:count])


def test_derived_keys_sealed_messages_and_streams() -> None:
    """RFC 5869, test case 3; RFC 8439, section 2.8.2; NIST SP 800-38A, F.5.1; RFC 3686, section 6, test vector 1."""
    assert derive(b"\x0b" * 22, b"").hex().startswith("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879e")
    pseudorandom = hmac.digest(bytes(32), b"secret", "sha256")
    assert derive(b"secret", b"info") == hmac.digest(pseudorandom, b"info\x01", "sha256")
    key, once, context = bytes(range(0x80, 0xA0)), ASKED("070000004041424344454647"), ASKED("50515253c0c1c2c3c4c5c6c7")
    sealed = seal(key, once, b"Ladies and Gentl", context)
    assert sealed.hex().startswith("d31a8d34648e60db7b86afbc53ef7ec2") and len(sealed) == 32
    assert unseal(key, once, sealed, context) == b"Ladies and Gentl"
    for wrong in ((sealed[:-1] + b"\0", context), (sealed, b"")):
        with pytest.raises(BrokenProtocol, match="does not open"):
            unseal(key, once, *wrong)
    counter = made(Stream(ASKED("2b7e151628aed2a6abf7158809cf4f3c"), ASKED("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")), 16)
    plain = ASKED("6bc1bee22e409f96e93d7e117393172a")
    assert bytes(a ^ b for a, b in zip(counter, plain, strict=True)).hex() == "874d6191b620e3261bef6864990db6ce"
    stream = Stream(ASKED("ae6852f8121067cc4bf7a5765577f39e"), ASKED("00000030000000000000000000000001"))
    assert made(stream, 16).hex() == "b7603328dbc2931b410e16c8067e62df"


@pytest.mark.parametrize("sign", [1, -1])
def test_added_wherever_pieces_end(sign: int) -> None:
    """As little-endian integers, wrapping around, to these entries alone."""
    rng, limits = np.random.default_rng(0), np.iinfo("i8")
    size = PIECE_BYTES // 8 + 90
    message = rng.integers(limits.min, limits.max, size + 99, endpoint=True)
    for at in (slice(3, size), rng.permutation(size + 99)[: size - 3]):
        stream = np.frombuffer(made(Stream(bytes(16)), (size - 3) * 8), "<i8")
        expected = message.copy()
        expected[at] += sign * stream
        Pad().add([(Stream(bytes(16)), sign)], message, at)
        np.testing.assert_array_equal(message, expected)


def test_no_nonce_comes_again() -> None:
    cases = [(turn, client) for turn in (0, 1, 2**16, 2**47) for client in (0, 1, 2**16 - 1, 2**16, 2**31)]
    found = {nonce(*case) for case in cases}
    assert len(found) == len(cases) and all(len(one) == 16 and one.endswith(bytes(6)) for one in found)
    turns = Turns()
    assert [turns.next(), turns.next(), turns.next()] == [1, 2, 3]
    turns.use(2)
    with pytest.raises(BrokenProtocol, match="repeated nonce: client 2 would seal a second message in turn 3"):
        turns.use(2)
    with pytest.raises(struct.error):
        nonce(2**48)


@pytest.mark.parametrize("hosted", [[[0, 1, 2, 3, 4]], [[], [0, 1], [2, 3, 4]], [[3], [0, 4], [], [1, 2]]])
def test_pairs_agree_and_a_server_without_clients_knows_no_secret(hosted: list[list[int]]) -> None:
    def play(comm: Any) -> tuple[Keyring, Any]:
        ring = Keyring(ChannelSetting(comm, np.array(hosted[comm.rank], dtype=np.int64), 5), Account())
        ring.prepare()
        ring.introduce(np.arange(5))
        return ring, b"".join(getattr(comm, "heard", []))

    rings = on_ranks(len(hosted), play)
    home = {client: ring for (ring, _), clients in zip(rings, hosted, strict=True) for client in clients}
    keys = {(i, j, at): home[i].key(i, j, b"message", *at) for i in range(5) for j in range(5) if i != j
            for at in ((1,), (2,), (1, (1, 2)))}  # fmt: skip
    assert all(keys[i, j, at] == keys[j, i, at] for i, j, at in keys)
    assert len(set(keys.values())) == 3 * 10 and {len(key) for key in keys.values()} == {16, 32}
    secrets = [home[0].group, home[1].group, *(home[i].pair(i, j) for i, j in ((0, 1), (1, 4)))]
    assert secrets[0] == secrets[1] and len(set(secrets)) == 3
    server, heard = rings[0]
    assert not any(secret in heard for secret in secrets) and all(key in heard for key in server.public.values())
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(home[0])
    if not hosted[0]:
        with pytest.raises(BrokenProtocol, match="known only to ranks that host clients"):
            _ = server.group
        with pytest.raises(KeyError):
            server.key(0, 1, b"message", 1)


def test_no_two_clients_share_a_key_and_secrets_name_both(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring(ChannelSetting(on_ranks(1, lambda comm: comm)[0], np.arange(3), 3), Account())
    ring.introduce(np.arange(2))
    agreed = agree(ring._private[0], ring.public[1])
    assert ring.pair(0, 1) == derive(agreed, PROTOCOL + b", pair" + ring.public[0] + ring.public[1])
    monkeypatch.setattr(X25519PrivateKey, "generate", lambda: ring._private[0])
    with pytest.raises(BrokenProtocol, match="3 clients have 2 different public keys"):
        ring.introduce(np.arange(3))


@pytest.mark.parametrize(
    "point",
    [  # RFC 7748, section 7, and "On the security of Curve25519", https://cr.yp.to/ecdh.html#validate
        "00" * 32, "01" + "00" * 31, "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157", "ec" + "ff" * 30 + "7f", "05",
    ],
)  # fmt: skip
def test_public_keys_of_small_order_are_refused(point: str) -> None:
    with pytest.raises(BrokenProtocol, match="is no client's"):
        agree(X25519PrivateKey.generate(), ASKED(point))
