"""Agreeing on keys: vectors of the RFCs, and who knows what in the end."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from mpifed.comm.channel import ChannelSetting
from mpifed.comm.keys import Keyring, agree, derive, seal, unseal
from ranks import on_ranks

from mpifed.core.errors import BrokenProtocol
from mpifed.core.holdings import Cells
from mpifed.testing import Solo


def private(text: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(text))


@pytest.mark.parametrize(
    ("scalar", "point", "product"),
    [  # RFC 7748, section 5.2
        ("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
         "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
         "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"),
        ("4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
         "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
         "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957"),
        # section 6.1, both ways
        ("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
         "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f",
         "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"),
        ("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
         "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a",
         "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"),
    ],
)  # fmt: skip
def test_agreement(scalar: str, point: str, product: str) -> None:
    assert agree(private(scalar), bytes.fromhex(point)).hex() == product


@pytest.mark.parametrize(
    "point",
    [  # of small order, RFC 7748, section 7, and "On the security of Curve25519", https://cr.yp.to/ecdh.html#validate
        bytes(32), b"\1" + bytes(31),
        bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
        bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
        b"short",
    ],
)  # fmt: skip
def test_public_keys_of_small_order_are_refused(point: bytes) -> None:
    with pytest.raises(BrokenProtocol, match="is no client's"):
        agree(X25519PrivateKey.generate(), point)


def test_derived_keys() -> None:
    """RFC 5869, test cases 1 and 3."""
    secret, salt, info = b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA))
    assert derive(secret, info, 42, salt).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    assert derive(secret, b"", 42).hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )


SUNSCREEN = (
    b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
    b"sunscreen would be it."
)


def test_sealed_messages() -> None:
    """RFC 8439, section 2.8.2."""
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    context = bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    sealed = seal(key, nonce, SUNSCREEN, context)
    assert sealed.hex() == (
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b"
        "1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
        "3ff4def08e4b7a9de576d26586cec64b6116" "1ae10b594f09e26a7e902ecbd0600691"
    )  # fmt: skip
    assert unseal(key, nonce, sealed, context) == SUNSCREEN
    changed = bytes([sealed[0] ^ 1]) + sealed[1:]
    for wrong in ((key, nonce, changed, context), (key, nonce, sealed, b""), (key, bytes(12), sealed, context)):
        with pytest.raises(BrokenProtocol, match="does not open"):
            unseal(*wrong)


def rings(hosted: list[list[int]]) -> list[tuple[Keyring, Any]]:
    """Those of ranks that host these clients, with what each rank heard."""
    clients = sum(map(len, hosted))

    def play(comm: Any) -> tuple[Keyring, Any]:
        mine = np.array(hosted[comm.rank], dtype=np.int64)
        ring = Keyring(ChannelSetting(comm, mine, clients, Cells.all(clients)))
        ring.prepare()
        return ring, comm.heard

    return on_ranks(len(hosted), play)


@pytest.mark.parametrize("hosted", [[[0, 1, 2, 3, 4]], [[], [0, 1], [2, 3, 4]], [[3], [0, 4], [], [1, 2]]])
def test_pairs_agree(hosted: list[list[int]]) -> None:
    found = [ring for ring, _ in rings(hosted)]
    home = {client: found[rank] for rank, clients in enumerate(hosted) for client in clients}
    secrets = {(i, j): home[i].pair(i, j) for i in range(5) for j in range(5) if i != j}
    assert all(secrets[i, j] == secrets[j, i] for i, j in secrets)
    assert len(set(secrets.values())) == 10
    assert {len(secret) for secret in secrets.values()} == {32}
    for ring in found:
        np.testing.assert_array_equal(ring.public, found[0].public)


def test_a_server_without_clients_knows_no_secret() -> None:
    (server, heard), (one, _), (other, _) = rings([[], [0, 1], [2, 3, 4]])
    assert one.group == other.group
    assert len(one.group) == 32
    with pytest.raises(BrokenProtocol, match="known only to ranks that host clients"):
        _ = server.group
    with pytest.raises(KeyError):
        server.pair(0, 1)
    seen = b"".join(heard)
    keys = [one.group, *(one.pair(i, j) for i, j in ((0, 1), (0, 2), (1, 4)))]
    keys += [key.private_bytes_raw() for ring in (one, other) for key in ring._private.values()]
    assert not any(key in seen for key in keys)
    assert all(public.tobytes() in seen for public in one.public)  # so that the line above can fail


def test_a_key_of_small_order_among_them() -> None:
    ring = Keyring(ChannelSetting(Solo(), np.arange(3), 3, Cells.all(3)))
    ring.prepare()
    ring.public[2] = 0
    with pytest.raises(BrokenProtocol, match="large order"):
        ring.pair(0, 2)


def test_a_keyring_shows_and_gives_nothing() -> None:
    ring = Keyring(ChannelSetting(Solo(), np.arange(3), 3, Cells.all(3)))
    ring.prepare()
    assert repr(ring) == "Keyring(of 3 of 3 clients)"
    with pytest.raises(TypeError, match="stays on its rank"):
        pickle.dumps(ring)


def test_the_same_key_twice() -> None:
    class Doubling(Solo):
        def gather(self, value: Any) -> Any:
            if isinstance(value, tuple):
                keys = value[1].copy()
                keys[1] = keys[0]
                value = value[0], keys
            return [value]

    ring = Keyring(ChannelSetting(Doubling(), np.arange(3), 3, Cells.all(3)))
    with pytest.raises(BrokenProtocol, match="3 clients, but 2 different public keys"):
        ring.prepare()
