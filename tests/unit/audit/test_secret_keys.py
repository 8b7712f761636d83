"""Secret keys in messages, whole or in part, in any type of number and in text; and with the server."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs_in_python import fedavg, job_table

from mpifed.audit.command import audited
from mpifed.audit.secret_keys import contained, pieces
from mpifed.comm.masking.channel import Masked
from mpifed.run.transcript import Transcript

KEY = bytes(range(100, 132))


@pytest.fixture
def leaks(six: Path, write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., dict[str, str]]:
    """leaks(channel): by name, what an audit of a short job finds."""

    def leaks(channel: str = "masked") -> dict[str, str]:
        tables = {"record": {"evaluate_every": 0}, "aggregation": {"security": channel}}
        job = job_table(six, rounds=1, algorithm=fedavg(5), **tables)
        return {one.name: one.text for one in audited(write_job(tmp_path / "job.toml", job), (), 1).leaks}

    return leaks


def _in_text(data: bytes) -> bytes:
    return b"the key is " + base64.b64encode(b"x" + data)


WRITTEN: dict[str, Callable[[bytes], Any]] = {
    "whole": lambda key: key, "without the first": lambda key: key[1:], "the last half": lambda key: key[16:],
    "nine bytes": lambda key: b"abc" + key[20:29], "hexadecimal": lambda key: key.hex().encode(),
    "capitals": lambda key: key.hex().upper().encode(), "base 64": base64.b64encode, "in a text": _in_text,
    "for addresses": base64.urlsafe_b64encode, "after two": lambda key: base64.b64encode(b"xy" + key),
    "floats": lambda key: np.frombuffer(key, "<f8"), "one number": lambda key: np.frombuffer(key, "<f8")[1],
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_keys_are_seen_in_any_writing(name: str) -> None:
    random = np.random.default_rng(0)
    for key in (KEY, random.bytes(32)):
        written = WRITTEN[name](key)
        data = np.frombuffer(written, np.uint8) if isinstance(written, bytes) else np.asarray(written)
        noise = np.frombuffer(random.bytes(100_001), np.uint8)
        assert contained([key], [("noise", noise), ("greeting", data)]) == ["greeting"]


def test_long_keys_are_seen_by_any_stretch_and_not_by_how_they_are_written() -> None:
    random = np.random.default_rng(0)
    header, keys = random.bytes(500), [random.bytes(100_000) for _ in range(2)]
    secrets = [header + key for key in keys]
    texts = [("header", header), ("some", keys[1][30_001:30_020]), ("hex", secrets[0].hex().encode())]
    assert contained(secrets, [(name, np.frombuffer(text, np.uint8)) for name, text in texts]) == ["some", "hex"]


def test_zeros_are_no_key() -> None:
    assert len(pieces([bytes(32), bytes(10_000)])) == 0


@pytest.mark.parametrize("name", ["without the first", "in a text", "floats"])
def test_a_key_in_a_message(name: str, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = Masked.prepare

    def telling(self: Masked, lines: Any) -> None:
        prepare(self, lines)
        if isinstance(self.recorder, Transcript):
            data = WRITTEN[name](self.keyring._private[4].private_bytes_raw())
            data = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
            self.recorder._add(None, None, "note", "client 4", "server", "greeting", data)

    monkeypatch.setattr(Masked, "prepare", telling)
    assert "greeting of client 4 to server" in leaks()["key-sent"]


def test_half_of_each_key_in_a_message_of_its_own(leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    prepare = Masked.prepare

    def telling(self: Masked, lines: Any) -> None:
        prepare(self, lines)
        if self.recorder is not None:
            key = self.keyring._private[4].private_bytes_raw()
            self.recorder.note(None, None, "client 4", "server", "one", key[:15])
            self.recorder.note(None, None, "client 4", "server", "other", key[15:])

    monkeypatch.setattr(Masked, "prepare", telling)
    found = leaks()["key-sent"]
    assert "one of client 4" in found and "other of client 4" in found


def test_a_part_of_the_key_of_the_encryption(leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    from mpifed.comm.encryption.channel import Encrypted

    prepare = Encrypted.prepare

    def telling(self: Encrypted, lines: Any) -> None:
        prepare(self, lines)
        if self.recorder is not None:
            secret = self.scheme.secret()
            self.recorder.note(None, None, "client 0", "server", "greeting", secret[: len(secret) // 8])

    monkeypatch.setattr(Encrypted, "prepare", telling)
    assert "greeting of client 0" in leaks("encrypted")["key-sent"]


def test_keys_that_the_channel_does_not_name(leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    monkeypatch.setattr(Masked, "secrets", lambda self: iter(()))
    assert "the channel gives 0 secret keys for 6 clients" in leaks()["key-sent"]


def test_keys_that_the_server_is_told_when_a_turn_begins(
    leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Masked.begin

    def telling(self: Masked, *arguments: Any) -> None:
        begin(self, *arguments)
        self.transport.gather([key.private_bytes_raw() for key in self.keyring._private.values()])

    monkeypatch.setattr(Masked, "begin", telling)
    found = leaks()
    assert set(found) == {"key-with-server"} and "messages to the server's rank" in found["key-with-server"]
