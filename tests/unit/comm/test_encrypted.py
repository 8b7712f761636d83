from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from masking import Case, check_alike, placed, play, vector

from mpifed.comm.channels.base import ChannelSetting, Protection
from mpifed.comm.channels.bfv import Bfv
from mpifed.comm.channels.encrypted import Encrypted
from mpifed.core.errors import BrokenProtocol
from mpifed.core.exchange import Field
from mpifed.core.holdings import Holdings
from mpifed.core.round import Round
from mpifed.testing import Solo

ENCRYPTED = Protection("encrypted", min_clients=1)
SOME = Round(3, 1, np.array([1, 1, 0, 1, 1], bool))


@pytest.mark.parametrize("to_clients", [False, True])
@pytest.mark.parametrize("absent", [False, True])
def test_the_sum_is_the_plain_channels(to_clients: bool, absent: bool) -> None:
    """Of one limb and two, of columns that some hold, of one client's own; kept sums have a test of their own."""
    wide = vector(5, 9, [[], [0, 4], [1, 2, 3]], to_clients=to_clients, protection=ENCRYPTED)
    wide = wide._replace(answer=wide.answer * 2.0**33, fields=Field((9,), 2.0**-20, 2.0**40))
    for case in (wide, placed(to_clients)._replace(protection=ENCRYPTED)):
        check_alike(case._replace(now=SOME if absent else None))


def test_a_server_without_clients_is_given_no_secret_and_no_sum_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys, made = Bfv.make_keys, list[tuple[bytes, bytes]]()
    monkeypatch.setattr(Bfv, "make_keys", lambda scheme: made.append(make_keys(scheme)) or made[-1])  # type: ignore
    server, client, _ = play(vector(to_clients=True, protection=ENCRYPTED))
    assert client.opened and not server.opened and len(server.channel.comm.heard) > 3
    for hidden in (made[0][1][1000:1064], client.reduced[:2].tobytes()):
        assert not any(hidden in message for message in server.channel.comm.heard)


def encrypted(*slots: int) -> Callable[[Any, Bfv], Any]:
    return lambda upload, scheme: np.frombuffer(scheme.encrypt(np.array(slots)), np.uint8)


def put(values: Callable[[Any], Any], start: int, stop: int) -> Callable[[Any, Bfv], Any]:
    return lambda upload, scheme: np.concatenate([upload[:start], values(upload[start:stop]), upload[stop:]])


NO_SUM = "up: what was decrypted is no sum"
ALTERED: dict[str, tuple[Callable[[Any, Bfv], Any], str]] = {
    "cut": (put(lambda part: part[:0], 262157, 262257), "client 2 sends 262157 bytes, and 1 ciphertexts of 262257"),
    "two": (lambda upload, scheme: np.tile(upload, 2), "client 2 sends 524514 bytes"),
    "frame": (put(np.invert, 0, 5), "does not load.*altered"),
    "coefficients": (put(lambda part: part ^ 1, 5000, 5001), "noise budget left.*altered.*nothing was opened"),
    "coefficients too large": (put(lambda part: part | 255, 5000, 5008), "does not load.*altered"),
    "transparent": (put(np.zeros_like, 131184, 262257), "altered"),
    "more than it may": (encrypted(51), NO_SUM),
    "an unused slot": (encrypted(0, 0, 0, 1), NO_SUM),
}


@pytest.mark.parametrize("name", ALTERED)
def test_what_was_altered_on_its_way_is_not_opened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (alter, said), seal = ALTERED[name], Encrypted.seal

    def sealed(channel: Encrypted, plan: Any, integers: Any, client: int, now: Round) -> Any:
        upload = seal(channel, plan, integers, client, now)
        return alter(upload, channel.scheme) if client == 2 else upload

    monkeypatch.setattr(Encrypted, "seal", sealed)
    with pytest.raises(BrokenProtocol, match=said):
        play(Case([list(range(5))], np.zeros((5, 3)), Field((3,), 1.0, 10.0), protection=ENCRYPTED))


@pytest.mark.parametrize(
    ("bits", "room", "clients", "said"),
    [((60, 60), 1, 2, "does not decrypt"), ((40, 36, 60), 1, 2, ""), ((40, 36, 60), 1, 5000, "does not decrypt"),
     ((60, 60, 32), 2, 2, r"decrypts to other values in \d+ of 8192 slots")],
)  # fmt: skip
def test_the_self_test(bits: tuple[int, ...], room: int, clients: int, said: str) -> None:
    """It finds parameters of which a few additions are exact, and many are not; and sums that wrap."""
    scheme = Bfv(bits)
    scheme.capacity *= room
    channel = Encrypted(ChannelSetting(Solo(), np.arange(clients), clients), scheme)
    error = f"self-test of the encryption.* {said}"
    with pytest.raises(BrokenProtocol, match=error) if said else nullcontext():
        channel.prepare([])


def test_bytes_are_those_of_ciphertexts() -> None:
    """Of 9000 values, two; where many columns are held by few, of their own; and of an opened sum, to the server."""
    block, sides = Bfv().nbytes, np.array([0, 0, 0, 1, 1])
    many, few = (Holdings(2 * n, sides, (slice(0, n), slice(n, 2 * n))) for n in (10000, 20))
    for field, to_clients, up, down in [
        (Field((9000,)), False, 8 * block + 8 * 9000, 2 * block), (Field((9000,)), True, 8 * block, 8 * block),
        (Field((20000,), held=many), False, 8 * block + 8 * 20000, 4 * block),
        (Field((40,), held=few), False, 4 * block + 8 * 40, block),
        (Field((40,), held=few, to_holders=True), True, 4 * block, 4 * block),
        (Field((20000,), held=many, to_holders=True), True, 8 * block, 8 * block),
    ]:  # fmt: skip
        case = Case([list(range(5))], None, field, to_clients, ENCRYPTED)
        channel = case.channel(Solo())
        traffic = channel.traffic(case.plan(channel), SOME)
        assert [int(part.sum()) for part in traffic] == [up, down]
