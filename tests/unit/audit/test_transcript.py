"""Transcripts: what is in them, how they are kept, and what never is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from jobs_in_python import checked, fedavg, job_table
from records import flat

from mpifed.audit.messages import complete, decoded, filled, plan_of, plays
from mpifed.audit.replay import replay_job
from mpifed.core.errors import DataError
from mpifed.core.record import leaves, map_leaves
from mpifed.core.round import SETUP, Round
from mpifed.run.transcript import Recorded, Transcript, is_recorded, read, together
from mpifed.testing import Alone, Job
from runs import run


class Question(NamedTuple):
    w: Any  # [3]
    step: Any  # []


class Exchange(NamedTuple):
    name: str
    hearer: int | None = None


class Line(NamedTuple):
    exchange: Any


def now(index: int) -> Round:
    return Round(index, 1, np.ones(2, dtype=bool))


def recorded(transcript: Transcript, rounds: int = 3) -> Transcript:
    """So many rounds of one exchange with two clients, as an aggregator records them."""
    line: Any = Line(Exchange("up"))
    transcript.note(None, None, "client 0", "server", "public key", b"\x01\x02")
    for index in range(rounds):
        transcript.question(line, now(index), Question(np.arange(3.0) + index, np.float64(0.5)))
        for client in range(2):
            transcript.upload(line, now(index), client, np.array([index, client], dtype=np.int64))
        transcript.passed_on(line, now(index), np.array([2 * index, 1], dtype=np.int64))
        transcript.opened(line, now(index), Question(np.zeros(3), np.float64(1.0)))
    return transcript


def same(one: Recorded, other: Recorded) -> bool:
    pairs = zip(one.messages, other.messages, strict=True)
    alike = all(a[:-1] == b[:-1] and a.data.dtype == b.data.dtype and np.array_equal(a.data, b.data) for a, b in pairs)
    return alike and one[1:] == other[1:]


def test_written_and_read_again(tmp_path: Path) -> None:
    made = recorded(Transcript(2, tmp_path / "transcript"))
    made.channel = "masked"
    assert not is_recorded(tmp_path)
    made.close()
    assert [path.name for path in (tmp_path / "transcript").iterdir()] == ["rank-0000.h5"]
    assert is_recorded(tmp_path)
    found = read(tmp_path)
    assert same(found, together([made]))
    assert (found.rounds, found.channel, found.left_out) == (2, "masked", 0)
    assert {one.round for one in found.messages} == {SETUP, 0, 1}
    assert [one.kind for one in found.messages if one.round == 0] == [
        "question", "question", "upload", "upload", "passed-on", "opened", "opened"
    ]  # fmt: skip
    assert [(one.sender, one.receiver) for one in found.messages if one.kind == "upload"][:2] == [
        ("client 0", "server"), ("client 1", "server")
    ]  # fmt: skip


def test_a_transcript_keeps_what_was_sent_and_not_what_becomes_of_it() -> None:
    made, line, sent = Transcript(1), Line(Exchange("up")), np.array([1, 2])
    made.upload(line, now(0), 0, sent)  # type: ignore[arg-type]
    sent[:] = 7
    assert made.messages[0].data.tolist() == [1, 2]


def test_what_is_beyond_the_limit_is_counted(tmp_path: Path) -> None:
    whole = recorded(Transcript(3))
    assert whole.nbytes == 2 + 3 * (32 + 2 * 16 + 16 + 32)
    part = recorded(Transcript(3, tmp_path / "transcript", limit_bytes=200))
    assert part.nbytes <= 200
    assert part.left_out == len(whole.messages) - len(part.messages) > 0
    assert part.left_out_bytes == whole.nbytes - part.nbytes
    part.close()
    found = read(tmp_path)
    assert (found.left_out, found.left_out_bytes) == (part.left_out, part.left_out_bytes)


def test_measuring_is_recorded_as_often_as_rounds_are() -> None:
    made, line = Transcript(2), Line(Exchange("losses"))
    for _ in range(5):
        made.question(line, now(SETUP), np.zeros(2))  # type: ignore[arg-type]
        made.upload(line, now(SETUP), 0, np.zeros(1))  # type: ignore[arg-type]
    assert [(one.kind, one.turn) for one in made.messages] == [
        ("question", 0), ("upload", 0), ("question", 1), ("upload", 1)
    ]  # fmt: skip


def test_bytes_and_parts(tmp_path: Path) -> None:
    made, line = Transcript(1, tmp_path / "transcript"), Line(Exchange("up"))
    made.upload(line, now(0), 0, [b"abc", (np.arange(2), b"d")])  # type: ignore[arg-type]
    made.close()
    assert [(one.what, one.data.tolist()) for one in read(tmp_path).messages] == [
        ("0", [97, 98, 99]), ("1/0", [0, 1]), ("1/1", [100])
    ]  # fmt: skip


def test_no_transcript_and_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no transcript.*record.transcript=12"):
        read(tmp_path)
    (tmp_path / "transcript").mkdir()
    (tmp_path / "transcript" / "rank-0000.h5").write_bytes(b"not HDF5")
    with pytest.raises(DataError, match="no readable transcript"):
        read(tmp_path)


def test_ranks_are_put_together(tmp_path: Path) -> None:
    """Two ranks see the same questions and other uploads; every turn is one play again."""
    for rank in range(2):
        made, line = Transcript(2, tmp_path / "transcript", rank), Line(Exchange("up"))
        for index in range(2):
            made.question(line, now(index), np.array([float(index)]))  # type: ignore[arg-type]
            made.upload(line, now(index), rank, np.array([10 * index + rank]))  # type: ignore[arg-type]
        made.close()
    found = plays(read(tmp_path).messages, "up")
    assert [play.round for play in found] == [0, 1]
    assert [{c: parts[0].data.tolist() for c, parts in play.uploads.items()} for play in found] == [
        {0: [0], 1: [1]}, {0: [10], 1: [11]}
    ]  # fmt: skip


# --- of a real run ---------------------------------------------------------------------------------------------------


def job(folder: Path, **changes: Any) -> Job:
    base = {"rounds": 4, "algorithm": fedavg(4, 0.2), "record": {"evaluate_every": 2, "transcript": 2}}
    return checked(job_table(folder, **base | changes))


def test_a_run_writes_what_its_sums_are_made_of(digits: Path, tmp_path: Path) -> None:
    """Two rounds of four: the uploads, decoded, add up to the sum that was opened."""
    task = job(digits)
    run(task, Alone(), tmp_path / "run")
    found, alone = read(tmp_path / "run"), replay_job(task, 2)
    assert found.channel == "plain"
    assert {one.round for one in found.messages} == {SETUP, 0, 1}
    (exchange,) = alone.exchanges
    plan = plan_of(alone, exchange)
    for play in plays(found.messages, "changes"):
        assert sorted(play.uploads) == list(range(8))
        answers = [decoded(plan, upload) for upload in play.uploads.values()]
        assert complete(exchange.fields, play.opened)
        total = filled(exchange.fields, play.opened)
        added = map_leaves(lambda *all_: np.sum(np.stack(all_).astype(np.float64), axis=0), *answers)
        np.testing.assert_allclose(flat(total), flat(added), rtol=1e-6, atol=1e-9)
    mine = [one for one in alone.transcript.messages if one.exchange == "changes"]
    theirs = [one for one in found.messages if one.exchange == "changes"]
    assert all(np.array_equal(a.data, b.data) for a, b in zip(mine, theirs, strict=True))


def test_a_resumed_run_keeps_and_continues_its_transcript(digits: Path, tmp_path: Path) -> None:
    for rounds in (1, 2, 3):  # of which two are recorded: the third part has nothing to add
        task = job(
            digits, rounds=rounds, aggregation={"security": "masked"}, record={"evaluate_every": 0, "transcript": 2}
        )
        run(task, Alone(), tmp_path, resume=rounds > 1)
    files = sorted(path.name for path in (tmp_path / "transcript").iterdir())
    assert files == ["rank-0000-part-1.h5", "rank-0000.h5"]
    found = read(tmp_path)
    assert [(play.round, play.turn, len(play.uploads)) for play in plays(found.messages, "changes")] == [
        (0, 0, 8), (1, 1, 8)
    ]  # fmt: skip
    assert sum(one.what == "public key" for one in found.messages) == 2 * 8


def test_a_transcript_of_another_form(tmp_path: Path) -> None:
    """Of uploads with zeros in others' places, for instance."""
    made = recorded(Transcript(2, tmp_path / "transcript"))
    made.close()
    with h5py.File(tmp_path / "transcript" / "rank-0000.h5", "a") as file:
        file.attrs["form"] = 1
    with pytest.raises(DataError, match="by another version of mpifed; record the run again"):
        read(tmp_path)


def test_recording_changes_no_bit(digits: Path, tmp_path: Path) -> None:
    for channel in ("plain", "masked"):
        for number, rounds in enumerate((0, 2)):
            task = job(digits, aggregation={"security": channel}, record={"evaluate_every": 0, "transcript": rounds})
            run(task, Alone(), tmp_path / f"{channel}-{number}")
    models = [(tmp_path / f"{c}-{n}" / "model.h5") for c in ("plain", "masked") for n in (0, 1)]
    from mpifed.files.model_file import model_sha256, read_model

    assert len({model_sha256(read_model(path)) for path in models}) == 1
    assert not is_recorded(tmp_path / "plain-0")


HINGE = {"model": {"name": "hinge", "bias": False, "l2": 1e-2}}
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    "rows": ("digits", {}),
    "some": ("digits", {"participation": {"clients_per_round": 5}}),
    "leaving": ("digits", {"participation": {"dropout_rate": 0.05, "max_dropouts": 2}}),
    "columns": ("sides", {"algorithm": {"name": "ssca", "batch_size": 5, "rho": [0.9, 0.3], "gamma": [0.9, 0.35]}}),
    "cells": ("patches", {"algorithm": {"name": "hyfdca", "rule": "damped"}, **HINGE}),
    "kept": (
        "patches",
        {
            "algorithm": {"name": "hyfdca", "rule": "paper", "inner": 9, "primal": "clear"},
            "participation": {"clients_per_round": 4},
            **HINGE,
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("channel", ["plain", "masked"])
@pytest.mark.parametrize("name", COUNTED)
def test_uploads_are_as_long_as_they_are_counted(name: str, channel: str, request: pytest.FixtureRequest) -> None:
    """Numbers, and what the masked channel sends beside them: shares, and sums so far. Keys belong to no exchange."""
    folder, changes = COUNTED[name]
    allow = {"allow": ["gradients", "all-losses", "certificate-gradients"]} if name == "columns" else {}
    sums = {"security": channel} | (allow if channel == "masked" else {})
    task = job(request.getfixturevalue(folder), aggregation=sums, **changes)
    replay = replay_job(task, 3)
    counted = replay.aggregator.accounts({})
    sent = Counter[str]()
    for one in replay.transcript.messages:
        if one.kind in ("upload", "note"):
            sent[one.exchange or "keys"] += one.data.nbytes
    played = {one.name for one in (*replay.algorithm.setup, *replay.exchanges)} & sent.keys()  # without measures
    assert played
    assert {one: sent[one] for one in played} == {one: counted[one]["up_bytes"] for one in played}
    if channel == "masked":  # beside public keys, the group's key goes from one client to each other one, sealed
        others = replay.algorithm.problem.clients - 1
        assert counted["keys"]["up_bytes"] == sent["keys"] + others * (32 + 16)


@pytest.mark.parametrize("dropouts", [0, 2])
def test_no_secret_key_is_in_it(digits: Path, monkeypatch: pytest.MonkeyPatch, dropouts: int) -> None:
    """Every private key of X25519, and all that is derived from what two of them agree on, is looked for."""
    from mpifed.comm import keys

    secrets: list[bytes] = []
    monkeypatch.setattr(keys, "derive", _noted(keys.derive, secrets))
    generate = X25519PrivateKey.generate

    class Noted:
        @staticmethod
        def generate() -> X25519PrivateKey:
            made = generate()
            secrets.append(made.private_bytes_raw())
            return made

        from_private_bytes = staticmethod(X25519PrivateKey.from_private_bytes)

    monkeypatch.setattr(keys, "X25519PrivateKey", Noted)
    leaving = {"participation": {"dropout_rate": 0.05, "max_dropouts": dropouts}} if dropouts else {}
    found = replay_job(job(digits, aggregation={"security": "masked"}, **leaving), 2)
    whole = b"|".join(one.data.tobytes() for one in found.transcript.messages)
    assert len(secrets) >= 8
    assert any(one.what == "public key" for one in found.transcript.messages)
    for secret in secrets:
        assert secret not in whole and secret[:16] not in whole


def _noted(function: Any, into: list[bytes]) -> Any:
    def noted(*arguments: Any, **named: Any) -> Any:
        found = function(*arguments, **named)
        into.append(bytes(found))
        return found

    return noted


def test_the_leaves_of_a_question_are_named(digits: Path) -> None:
    found = replay_job(job(digits), 1)
    (play,) = plays(found.transcript.messages, "changes")
    question = found.exchanges[0].ask(found.round_starts[0].server, found.round_starts[0].now)
    assert set(play.question) == {name for name, _ in leaves(question)} == {"model.first", "step"}
