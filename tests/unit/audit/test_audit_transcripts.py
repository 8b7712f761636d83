"""Transcripts with copies in the clear, cut short or damaged: each is found, or refused with code 3."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from jobs_in_python import checked, fedavg, job_table

from mpifed.audit.command import audited
from mpifed.audit.replay import replay_job
from mpifed.comm.masking.channel import Masked
from mpifed.core.errors import DataError
from mpifed.run.transcript import Transcript
from mpifed.testing import Alone
from runs import run


def table(folder: Path, channel: str = "masked", **changes: Any) -> dict[str, Any]:
    base = {"record": {"evaluate_every": 0, "transcript": 3}, "aggregation": {"security": channel}}
    return job_table(folder, **{"algorithm": fedavg(5)} | base | changes)


@pytest.fixture(scope="module")
def recorded(six: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked run."""
    out = tmp_path_factory.mktemp("recorded") / "run"
    run(checked(table(six)), Alone(), out)
    return out


@pytest.fixture
def changed(recorded: Path, tmp_path: Path) -> Callable[[Callable[[Any], None]], Path]:
    """changed(edit): a copy of the run whose transcript, an open HDF5 file, was edited."""

    def changed(edit: Callable[[Any], None]) -> Path:
        shutil.copytree(recorded, tmp_path / "run")
        with h5py.File(tmp_path / "run" / "transcript" / "rank-0000.h5", "r+") as file:
            edit(file)
        return tmp_path / "run"

    return changed


def names(file: Any, kind: str, sender: str = "") -> list[str]:
    return [one for one in sorted(file) if file[one].attrs["kind"] == kind and sender in file[one].attrs["sender"]]


def put(file: Any, name: str, data: Any) -> None:
    about = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, data=data).attrs.update(about)


def remove(file: Any, which: list[str]) -> None:
    for name in which:
        del file[name]


# --- copies in the clear ---------------------------------------------------------------------------------------------


@pytest.fixture
def leaks(write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., dict[str, str]]:
    """leaks(folder, **tables): by name, what an audit finds."""

    def leaks(folder: Path, **changes: Any) -> dict[str, str]:
        found = audited(write_job(tmp_path / "job.toml", table(folder, **changes)), (), 2)
        return {one.name: one.text for one in found.leaks}

    return leaks


@pytest.mark.parametrize("what", ["debug", "public key", "deposit and sealed shares"])
def test_a_copy_in_a_note(what: str, six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    """At an odd byte, of a new kind or under the name of another."""
    seal = Masked.seal

    def telling(self: Masked, line: Any, integers: Any, client: int, now: Any) -> Any:
        if self.recorder is not None:
            self.recorder.note(line, now, f"client {client}", "server", what, b"xyz" + integers[-4:].tobytes())
        return seal(self, line, integers, client, now)

    monkeypatch.setattr(Masked, "seal", telling)
    found = leaks(six)
    assert f"{what} of client 0 in changes, round 0: 3 64-bit words" in found["plain-copy"]
    assert ("unknown-message" in found) == (what != "deposit and sealed shares")


def test_a_second_part_of_uploads(six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    seal, upload, last = Masked.seal, Transcript.upload, dict[int, Any]()

    def sealed(self: Masked, line: Any, integers: Any, client: int, now: Any) -> Any:
        last[client] = integers.copy()
        return seal(self, line, integers, client, now)

    def both(self: Transcript, line: Any, now: Any, client: int, sent: Any) -> None:
        plain = last.pop(client, None)
        upload(self, line, now, client, sent if plain is None else (sent, plain))

    monkeypatch.setattr(Masked, "seal", sealed)
    monkeypatch.setattr(Transcript, "upload", both)
    found = leaks(six)
    assert "client 0 in changes, turn 0, sends 2 messages, expected a single one" in found["unknown-message"]
    assert "1 of client 0 in changes, round 0: 12 64-bit words" in found["plain-copy"]


def test_single_uploads_are_opened(six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    from mpifed.comm.encryption.bundles import unbundle
    from mpifed.comm.encryption.channel import Encrypted

    seal = Encrypted.seal

    def opened(self: Encrypted, line: Any, integers: Any, client: int, now: Any) -> Any:
        upload = seal(self, line, integers, client, now)
        for block in unbundle(upload).values() if self.recorder is not None else ():
            numbers = self.scheme.open(self.scheme.load(block)).tobytes()
            self.recorder.note(line, now, "client 0", "server", "opened sum", numbers)
        return upload

    monkeypatch.setattr(Encrypted, "seal", opened)
    assert {"plain-copy", "unknown-message"} <= leaks(six, channel="encrypted").keys()


def test_a_plain_piece_in_a_bundle(six: Path, leaks: Callable[..., dict[str, str]], monkeypatch: Any) -> None:
    pytest.importorskip("seal", reason="encryption needs the extra `encrypted`")
    from mpifed.comm.encryption.bundles import bundle, unbundle
    from mpifed.comm.encryption.channel import Encrypted

    seal, add = Encrypted.seal, Encrypted._sum

    def more(self: Encrypted, line: Any, integers: Any, client: int, now: Any) -> Any:
        blocks = unbundle(seal(self, line, integers, client, now))
        return bundle(blocks | {99: np.asarray(integers).tobytes()})

    def without(self: Encrypted, line: Any, upload: Any) -> None:
        blocks = unbundle(upload)
        add(self, line, bundle({number: block for number, block in blocks.items() if number != 99}))

    monkeypatch.setattr(Encrypted, "seal", more)
    monkeypatch.setattr(Encrypted, "_sum", without)
    found = leaks(six, channel="encrypted")
    assert "sends ciphertexts [0, 99], expected [0]" in found["unknown-message"]
    assert "plain-copy" in found


def test_an_appended_copy_in_a_recorded_run(six: Path, changed: Callable[..., Path]) -> None:
    job = checked(table(six))
    alone = replay_job(
        job.model_copy(update={"aggregation": job.aggregation.model_copy(update={"security": "plain"})}), 3
    )
    plain = next(one.data for one in alone.transcript.messages if one.kind == "upload" and one.sender == "client 2")

    def append(file: Any) -> None:
        name = names(file, "upload", "client 2")[0]
        put(file, name, np.append(file[name][()], plain))

    found = {one.name: one.text for one in audited(changed(append), (), None).leaks}
    assert "sends 208 bytes of type int64, expected 104 of int64" in found["unknown-message"]
    assert "upload of client 2 in changes, round 0: 12 64-bit words" in found["plain-copy"]


# --- not whole, or of another run ------------------------------------------------------------------------------------


def test_rounds_that_are_missing_are_told(changed: Callable[..., Path]) -> None:
    def shorten(file: Any) -> None:
        remove(file, [name for name in file if file[name].attrs["round"] == 2])

    found = audited(changed(shorten), (), None)
    assert found.leaks == []
    assert found.exact.text.startswith("masks: 6 of 6 clients, 2 of 3 rounds, ")


def _set(key: str, value: Any, kind: str = "") -> Callable[[Any], None]:
    """An attribute of the first message of a kind, or of the file."""

    def edit(file: Any) -> None:
        (file[names(file, kind)[0]] if kind else file).attrs[key] = value

    return edit


def _data(make: Callable[[Any], Any], kind: str = "upload") -> Callable[[Any], None]:
    """Other data in the first message of a kind."""

    def edit(file: Any) -> None:
        name = names(file, kind)[0]
        put(file, name, make(file[name][()]))

    return edit


def _huge(file: Any) -> None:
    name = names(file, "upload")[0]
    about = dict(file[name].attrs)
    del file[name]
    file.create_dataset(name, shape=(10**12,), dtype="i8", chunks=(1024,)).attrs.update(about)


DAMAGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "empty": (lambda file: remove(file, list(file)), "no uploads of clients"),
    "no uploads": (lambda file: remove(file, names(file, "upload")), "no uploads of clients"),
    "no questions": (lambda file: remove(file, names(file, "question")), "the broadcast of changes .* is missing"),
    "one client less": (
        lambda file: remove(file, names(file, "upload", "client 4")), "uploads of clients 4 to changes are missing"
    ),
    "channel": (_set("channel", "plain"), 'security "plain", those of the job "masked"'),
    "channel number": (_set("channel", 7), "7.* where text is expected"),
    "form array": (_set("form", np.array([2, 2])), "where an integer is expected"),
    "no rounds": (_set("rounds", 0), "0 rounds"),
    "rank": (_set("rank", 7), "part 0 of rank 7"),
    "left out": (_set("left_out", "z"), "'z' where an integer is expected"),
    "sender": (_set("sender", "client 99", "upload"), "clients 0 to 5"),
    "receiver": (_set("receiver", "client 999", "opened"), "clients 0 to 5"),
    "exchange": (_set("exchange", "zzz", "upload"), "no exchange of the job; it has .*changes"),
    "kind": (_set("kind", "zzz", "upload"), "kind 'zzz'"),
    "round array": (_set("round", np.arange(3), "upload"), "where an integer is expected"),
    "late round": (_set("round", 77, "upload"), "the job has rounds 0 to 2"),
    "early round": (_set("round", -7, "upload"), "round -7"),
    "turn": (_set("turn", "x", "upload"), "'x' where an integer is expected"),
    "floats": (_data(lambda old: old.astype(float)), "upload of type float64"),
    "two axes": (_data(lambda old: old[:, None]), "expected integers in a row"),
    "one number": (_data(lambda old: old[0]), "expected integers in a row"),
    "text": (_data(lambda old: "hello"), "is of type object"),
    "complex": (_data(lambda old: old.astype(complex)), "is of type complex128"),
    "truth": (_data(lambda old: old > 0), "upload of type bool"),
    "null": (_data(lambda old: h5py.Empty("i8")), "is not a dataset"),
    "compound": (_data(lambda old: np.zeros(3, dtype=[("a", "i4"), ("b", "f8")])), "is of type"),
    "huge": (_huge, "claims 8000000000000 bytes"),
    "group": (lambda file: file.create_group("00000000x"), "no readable transcript"),
    "shape of a question": (_data(lambda old: np.zeros((2, 2)), "question"), r"has shape \(2, 2\) .* expected shape"),
    "shape of a sum": (_data(lambda old: np.zeros((2, 2)), "opened"), r"has shape \(2, 2\) .* expected shape"),
    "not finite": (_data(lambda old: np.full_like(old, np.nan), "opened"), "numbers that are not finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_transcript_is_refused(name: str, changed: Callable[..., Path]) -> None:
    edit, text = DAMAGES[name]
    with pytest.raises(DataError, match=text):
        audited(changed(edit), (), None)


@pytest.mark.parametrize("make", [lambda old: old[:3], lambda old: old[:0], lambda old: np.zeros(107, np.uint8)])
def test_uploads_of_another_size_are_found(make: Any, changed: Callable[..., Path]) -> None:
    """Of all clients, so that nothing else is left to look at."""

    def shorten(file: Any) -> None:
        for name in names(file, "upload"):
            put(file, name, make(file[name][()]))

    found = audited(changed(shorten), (), None)
    assert [one.name for one in found.leaks] == ["unknown-message"]
    assert found.exact.clients == found.exact.words == 0
