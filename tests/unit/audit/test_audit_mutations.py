"""Defects put into the real channels: the audit finds each, and names it; and it raises no false alarm."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jobs_in_python import checked, fedavg, job_table
from lengths import long_unless

from mpifed.audit import secret_keys
from mpifed.audit.command import audited
from mpifed.audit.exact_checks import exact_checks
from mpifed.audit.outside_uploads import classify
from mpifed.audit.replay import replay_job
from mpifed.audit.report import as_json, as_text
from mpifed.audit.sealed import sealed
from mpifed.audit.uniformity import examine
from mpifed.cli import main
from mpifed.comm import key_streams, keys
from mpifed.comm.key_streams import Pad
from mpifed.comm.masking import channel as masked
from mpifed.comm.masking import share_deposits
from mpifed.comm.masking.channel import Masked
from mpifed.comm.masking.neighbour_graph import MaskGraph
from mpifed.comm.transport import Alone
from mpifed.run.api import run
from mpifed.run.transcript import Transcript

CLIENTS = 20
LEAVING = {"dropout_rate": 0.1, "max_dropouts": 1}


def made(folder: Path, split: str, *asked: str) -> Path:
    """Two classes of a few columns."""
    rest = ["--samples", "120", "--features", "6", "--task", "classification", "--classes", "2", "--split", split]
    done = CliRunner().invoke(main, ["data", "synthetic", *rest, *asked, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def twenty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("twenty") / "data", "rows", "--clients", str(CLIENTS))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("two") / "data", "rows", "--clients", "2")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clients with half of the rows and half of the columns each."""
    return made(tmp_path_factory.mktemp("four") / "data", "grid", "--grid", "2x2")


def table(folder: Path, channel: str = "masked", **changes: Any) -> dict[str, Any]:
    base = {"rounds": 12, "record": {"evaluate_every": 0}, "aggregation": {"security": channel}}
    return job_table(folder, **{"algorithm": fedavg(5)} | base | changes)


@pytest.fixture
def leaks(write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., dict[str, str]]:
    """leaks(folder, **tables): what an audit that ends with code 7, as it must, has found; by name."""

    def leaks(folder: Path, *arguments: str, **changes: Any) -> dict[str, str]:
        job = write_job(tmp_path / "job.toml", table(folder, **changes))
        ended = CliRunner().invoke(main, ["audit", str(job), *arguments])
        assert ended.exit_code == 7, ended.output
        lines = [line.split(maxsplit=2) for line in ended.stdout.splitlines() if line.startswith("  LEAK")]
        return {name: text for _, name, text in lines}

    return leaks


# --- masks -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """None for keys among so many messages, which takes the longest: it is that of the tests of six clients."""
    monkeypatch.setattr(secret_keys, "contained", lambda secrets, texts: [])


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("client", long_unless(lambda client: client in (0, 7, CLIENTS - 1), range(CLIENTS)))
def test_one_client_has_no_mask(
    client: int, twenty: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever it is; nobody masks with it, so that sums are right."""
    partners = MaskGraph.partners

    def others(graph: MaskGraph, one: int) -> Any:
        return [partner for partner in partners(graph, one) if client not in (one, partner.client)]

    monkeypatch.setattr(MaskGraph, "partners", others)
    found = leaks(twenty, "--rounds", "3")
    assert f": client {client} in changes, round 0: 13 of 13 numbers" in found["no-mask"]
    assert "repeated-mask" not in found and "shared-stream" not in found


@pytest.mark.parametrize("period", long_unless(lambda period: period in (2, 5, 8), range(2, 9)))
def test_nonces_with_a_period(
    period: int, six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked, "nonce", lambda turn, client=0: key_streams.nonce(turn % period, client))
    found = leaks(six)
    assert set(found) >= {"repeated-mask", "shared-stream"}
    again = r"client (\d) in changes, round (\d+) has that of client (\d) in changes, round (\d+)"
    pairs = re.findall(again, found["repeated-mask"])
    assert len(pairs) == 3
    assert all(one == other and (int(later) - int(first)) % period == 0 for one, later, other, first in pairs)
    # of other clients in every round no mask is the same, and only the streams are
    found = leaks(six, participation={"clients_per_round": 4}, seed=period)
    assert "shared-stream" in found


def test_one_nonce_for_two_exchanges(
    six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a measurement, which are played one after the other."""
    monkeypatch.setattr(masked, "nonce", lambda turn, client=0: key_streams.nonce(turn // 2, client))
    found = leaks(six, "--rounds", "2", record={"evaluate_every": 1})
    one = found["shared-stream"].split("the same stream masks ")[1]
    assert len(set(re.findall(r"in ([\w-]+), ", one))) == 2


@pytest.mark.parametrize("numbers", [1, 4])
def test_the_end_of_messages_is_not_masked(
    numbers: int, six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = Masked._mask

    def shorter(self: Masked, turn: Any, message: Any, client: int) -> None:
        end = message[-numbers:].copy()
        mask(self, turn, message, client)
        message[-numbers:] = end

    monkeypatch.setattr(Masked, "_mask", shorter)
    assert f"round 0: {numbers} of 13 numbers, the {14 - numbers}th first" in leaks(six)["no-mask"]


@pytest.mark.parametrize("kept", [0x00FF_FFFF_FFFF_FFFF, 0xFFFF_FFFF, 0x7FFF_FFFF_FFFF_FFFF, 0xFFFF_FFFF_FFFF_FF00])
def test_some_bits_are_not_masked(
    kept: int, six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where sums of such streams fill the high bits with signs."""

    class Narrow(Pad):
        def _add(self, masks: Any, some: Any) -> None:
            for stream, sign in masks:
                made = np.zeros(len(some) + 2, some.dtype)
                stream.into(memoryview(bytes(some.nbytes)), memoryview(made).cast("B"))  # type: ignore[arg-type]
                some += sign * (made[: len(some)] & np.uint64(kept).astype(some.dtype))

    monkeypatch.setattr(Pad, "_add", Narrow._add)
    assert "uneven-mask" in leaks(six)


def test_two_pairs_share_a_stream(
    six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no two masks alike."""
    between = Masked._between

    def shared(self: Masked, i: int, j: int) -> Any:
        return between(self, *((0, 1) if {i, j} == {2, 4} else (i, j)))

    monkeypatch.setattr(Masked, "_between", shared)
    found = leaks(six)
    text = " and ".join(f"client {client} in changes, round 0" for client in (0, 1, 2, 4))
    assert set(found) == {"shared-stream"} and f"the same stream masks {text};" in found["shared-stream"]


def test_a_stream_that_is_used_again_from_its_middle_on(
    six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each turn begins two blocks after the one before, so that streams overlap."""
    monkeypatch.setattr(masked, "nonce", lambda turn, client=0: (2 * turn).to_bytes(16, "big"))
    found = leaks(six)["repeated-mask"]
    again = r"client (\d) in changes, round (\d+) has that of client \1 in changes, round (\d+), (\d+) numbers (\w+)"
    shifts = re.findall(again, found)
    assert shifts
    for _, round, before, numbers, where in shifts:
        later = int(round) - int(before)
        assert (int(numbers), where) == (4 * abs(later), "earlier" if later > 0 else "later")


def test_a_seed_for_all_own_masks(six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    """Where clients may leave, each adds one of its own: here the same one."""
    monkeypatch.setattr(share_deposits.os, "urandom", lambda size: bytes(range(size)))
    found = leaks(six, "--rounds", "3", participation=LEAVING)
    assert "shared-stream" in found


def test_all_of_a_run_can_be_played_again(six: Path, tmp_path: Path) -> None:
    """What is measured between rounds too; of another run's transcript nothing but the same questions would do."""
    task = checked(table(six, rounds=4, record={"evaluate_every": 1, "transcript": 4}))
    run(task, Alone(), tmp_path / "run")
    found = audited(tmp_path / "run", (), None)
    assert found.leaks == []
    assert found.exact.words == found.exact.of_words > 6 * 4 * 13
    assert found.exact.outside_rounds > 6 * 4


def test_keys_that_come_again_after_a_restart(six: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of four rounds, resumed after two: its transcript goes on."""
    out = {name: tmp_path / name for name in ("new", "old")}

    def both(folder: Path) -> Any:
        for rounds in (2, 4):
            task = checked(table(six, rounds=rounds, record={"evaluate_every": 0, "transcript": 12}))
            run(task, Alone(), folder, resume=rounds == 4)
        return audited(folder, (), None)

    found = both(out["new"])
    assert found.leaks == [] and (found.exact.clients, found.exact.rounds) == (6, 4)
    assert found.exact.words == found.exact.of_words == 6 * 4 * 13
    prepare, numbers = keys.Keyring.prepare, itertools.count(1)

    class Weak:
        @staticmethod
        def generate() -> X25519PrivateKey:
            return X25519PrivateKey.from_private_bytes(hashlib.sha256(bytes([next(numbers)])).digest())

    def again(self: Any, *arguments: Any) -> None:
        nonlocal numbers
        numbers = itertools.count(1)
        prepare(self, *arguments)

    monkeypatch.setattr(keys, "X25519PrivateKey", Weak)
    monkeypatch.setattr(keys.Keyring, "prepare", again)
    found = both(out["old"])
    assert [one.name for one in found.leaks] == ["repeated-mask"]
    again = r"client (\d) in changes, round [23] has that of client \1 in changes, round [01]"
    assert re.search(again, found.leaks[0].text)


def test_a_mask_that_is_used_again_under_secret_noise(
    six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plaintexts are not known: the difference of two uploads tells, however far they are apart."""
    monkeypatch.setattr(masked, "nonce", lambda turn, client=0: key_streams.nonce(turn % 5, client))
    private = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 1.0, "noise": "secure", "trust": "local"}
    monkeypatch.setattr("mpifed.audit.streams.Streams.shared", lambda self: [])
    found = leaks(six, privacy=private)
    assert "has about that of" in found["repeated-mask"]


# --- ciphertexts and keys --------------------------------------------------------------------------------------------


def test_ciphertexts_with_one_randomness(six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    from mpifed.comm.encryption.bfv import Bfv

    encrypt = Bfv.encrypt

    def alike(self: Any, values: Any) -> bytes:
        if not hasattr(self, "zero"):
            self.zero = encrypt(self, np.zeros(8, dtype=np.int64))
        block = self.load(self.zero)
        self._evaluator.add_plain_inplace(block, self._encoder.encode(values))
        return bytes(block.to_string())

    monkeypatch.setattr(Bfv, "encrypt", alike)
    found = leaks(six, "--rounds", "2", channel="encrypted")
    assert "the 1th of client 0 in changes, turn 0, and the 1th of client 1" in found["same-randomness"]


def _with(scheme: Any, block: bytes, change: Callable[[Any, int], Any]) -> bytes:
    """A ciphertext of BFV with other coefficients modulo each prime."""
    numbers = np.frombuffer(block[-8 * scheme._data :], "<u8").reshape(2, len(scheme._moduli), -1).copy()
    for i, modulus in enumerate(scheme._moduli):
        numbers[:, i] = change(numbers[:, i].astype(object), modulus) % modulus
    return bytes(block[: -8 * scheme._data]) + numbers.tobytes()


@pytest.mark.parametrize("how", ["one coefficient", "small errors", "multiples", "negatives"])
def test_ciphertexts_that_are_made_much_alike(
    how: str, two: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From one encryption of zero, in which next to nothing is changed."""
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    from mpifed.comm.encryption.bfv import Bfv

    encrypt, random = Bfv.encrypt, np.random.default_rng(0)

    def alike(self: Any, values: Any) -> bytes:
        if not hasattr(self, "zero"):
            self.zero, self.number = encrypt(self, np.zeros(8, dtype=np.int64)), 0
        self.number += 1
        added = random.integers(-20, 20, (2, 8192)) if how == "small errors" else np.zeros((2, 8192), dtype=int)
        if how == "one coefficient":
            added[1, random.integers(8192)] = 1
        factor = {"multiples": self.number, "negatives": -self.number}.get(how, 1)
        block = self.load(_with(self, self.zero, lambda numbers, modulus: numbers * factor + added))
        self._evaluator.add_plain_inplace(block, self._encoder.encode(values))
        return bytes(block.to_string())

    monkeypatch.setattr(Bfv, "encrypt", alike)
    found = leaks(two, "--rounds", "2", channel="encrypted")
    assert "the 1th of client 0 in changes, turn 0, and the 1th of client 1" in found["same-randomness"]


@pytest.mark.parametrize("before", [0, 3])
def test_a_key_is_sent_along(before: int, six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    """At any byte of a message."""
    prepare = Masked.prepare

    def telling(self: Masked, lines: Any) -> None:
        prepare(self, lines)
        if self.recorder is not None:
            key = self.keyring._private[4].private_bytes_raw()
            self.recorder.note(None, None, "client 4", "server", "greeting", bytes(before) + key)

    monkeypatch.setattr(Masked, "prepare", telling)
    found = leaks(six, "--rounds", "1")
    assert set(found) == {"key-sent", "unknown-message"} and "greeting of client 4 to server" in found["key-sent"]


def test_the_key_of_the_encryption_is_sent_along(
    six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    from mpifed.comm.encryption.channel import Encrypted

    prepare = Encrypted.prepare

    def telling(self: Encrypted, lines: Any) -> None:
        prepare(self, lines)
        if self.recorder is not None:
            self.recorder.note(None, None, "client 0", "server", "greeting", b"x" + self.scheme.secret())

    monkeypatch.setattr(Encrypted, "prepare", telling)
    found = leaks(six, "--rounds", "1", channel="encrypted")
    assert set(found) == {"key-sent", "unknown-message"}


def test_streams_beyond_the_most_are_counted(
    six: Path, write_job: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mpifed.audit.streams.MOST", 60)  # two rounds of 6 clients with 5 others each
    found = audited(write_job(tmp_path / "job.toml", table(six)), (), None)
    assert found.leaks == [] and "60 of 360 streams of the auditor's replay" in found.exact.text


def test_the_server_is_given_the_groups_key(
    six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare = keys.Keyring.prepare

    def all_ranks(self: Any, *arguments: Any) -> None:
        prepare(self, *arguments)
        self._group = next((one for one in self.transport.gather(self._group) or [] if one), self._group)

    monkeypatch.setattr(keys.Keyring, "prepare", all_ranks)
    found = leaks(six, "--rounds", "1")
    assert "1 keys in the server's own memory" in found["key-with-server"]
    assert "messages to the server's rank" in found["key-with-server"]


def test_the_server_hosts_the_key_of_the_encryption(
    six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: Any
) -> None:
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    from mpifed.comm.encryption.bundles import writable
    from mpifed.comm.encryption.decryption import SharedKeyDecryption

    prepare = SharedKeyDecryption.prepare

    def all_ranks(self: Any, *arguments: Any) -> None:
        prepare(self, *arguments)
        last = self.transport.size - 1
        secret = self.transport.spread(last, writable(self.scheme.secret()) if self.scheme.opens else None)
        self.scheme.trust(secret.tobytes())

    monkeypatch.setattr(SharedKeyDecryption, "prepare", all_ranks)
    found = leaks(six, "--rounds", "1", channel="encrypted")
    assert set(found) == {"key-with-server"}


# --- no false alarm --------------------------------------------------------------------------------------------------

PAPER = {"name": "hyfdca", "rule": "paper", "inner": 40, "primal": "clear"}
HINGE = {"name": "hinge", "bias": False, "l2": 0.01}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "masked": ("six", {"record": {"evaluate_every": 1}}),
    "some": ("six", {"participation": {"clients_per_round": 4}}),
    "leaving": ("six", {"participation": LEAVING}),
    "two": ("two", {"record": {"evaluate_every": 1}}),
    "cells": ("four", {"algorithm": {"name": "hyfdca", "rule": "damped"}, "model": HINGE}),
    "sealed": ("four", {"algorithm": {"name": "hyfdca", "primal": "sealed"}, "model": HINGE}),
    "kept": ("patches", {"algorithm": PAPER, "model": HINGE, "participation": {"clients_per_round": 4}}),
    "encrypted": ("six", {"aggregation": {"security": "encrypted"}}),
}


@pytest.mark.parametrize(
    "seeds", [range(1), pytest.param(range(1, 30), marks=pytest.mark.long)], ids=["one", "many"]
)  # fmt: skip
@pytest.mark.parametrize("name", JOBS)
def test_no_false_alarm(name: str, seeds: range, request: pytest.FixtureRequest) -> None:
    """9 runs, and 261 more."""
    if name == "encrypted":
        pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    folder, changes = JOBS[name]
    for seed in seeds:
        job = checked(table(request.getfixturevalue(folder), **({"seed": seed, "rounds": 3} | changes)))
        plain = job.model_copy(update={"aggregation": job.aggregation.model_copy(update={"security": "plain"})})
        replay, other = replay_job(job, 3), replay_job(plain, 3)
        found = exact_checks(replay, classify(replay, tuple(replay.transcript.messages)), other, same_run=True)
        assert found.leaks == {}, (seed, found.leaks)
        assert found.words == found.of_words > 0
        assert examine(sealed(replay, tuple(replay.transcript.messages)).samples).uniform is not False, seed


@pytest.mark.usefixtures("no_search")
def test_the_verdict_says_what_was_looked_at(twenty: Path, write_job: Callable[..., Path], tmp_path: Path) -> None:
    found = audited(write_job(tmp_path / "job.toml", table(twenty)), (), None)
    text = "masks: 20 of 20 clients, 12 rounds, 3,120 of 3,120 words, 4,560 of 4,560 streams of the auditor's replay: "
    text += "no zero, no repeat, all cancel, no shared stream, no stream missing, all bits uniform, "
    text += "no key in a message as bytes, hex or base64, no key with the server, no copy in the clear, "
    text += "no unknown message"
    assert text in as_text(found)
    assert as_json(found)["exact"]["text"].startswith(text)
    assert (as_json(found)["exact"]["words"], as_json(found)["missed"]["client"]) == (3120, 1 - 16 / 20)
    assert "a client is skipped with probability 20%" in as_text(found)


@pytest.mark.usefixtures("no_search")
def test_fewer_rounds_where_more_do_not_fit(
    twenty: Path, write_job: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of those is left out, and what is not covered is said."""
    small = partial(Transcript, limit_bytes=20_000)
    monkeypatch.setattr("mpifed.audit.replay.Transcript", small)
    found = audited(write_job(tmp_path / "job.toml", table(twenty, record={"evaluate_every": 1})), (), None)
    assert found.left_out == 0 and 1 < found.exact.rounds == found.rounds < 12
    assert found.exact.words == found.exact.of_words
    assert f"only {found.rounds} of 12 rounds were recorded" in as_text(found)
