"""Masks that look right, each by itself, and cancel where they should not, or hide less than they should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from jobs_in_python import fedavg, job_table

from mpifed.cli import main
from mpifed.comm import key_streams
from mpifed.comm.key_streams import Pad, Stream
from mpifed.comm.masking.channel import Masked
from mpifed.comm.masking.dropout_recovery import Dropouts
from mpifed.comm.masking.neighbour_graph import MaskGraph
from mpifed.core.exchange import ToClients
from mpifed.run.transcript import Transcript

LEAVING = {"dropout_rate": 0.1, "max_dropouts": 1}
CELLS = {
    "algorithm": {"name": "hyfdca", "rule": "damped", "primal": "sealed"},
    "model": {"name": "hinge", "bias": False, "l2": 0.01},
}  # fmt: skip
KEPT = {
    "algorithm": {"name": "hyfdca", "rule": "paper", "inner": 3, "primal": "clear"},
    "model": {"name": "hinge", "bias": False, "l2": 0.01},
    "participation": {"clients_per_round": 4}, "audit": {"accept": ["in-the-clear", "moved-row"]},
}  # fmt: skip


def made(folder: Path, *split: str) -> Path:
    """Two classes of a few columns."""
    rest = ["--samples", "60", "--features", "6", "--task", "classification", "--classes", "2", "--split", *split]
    done = CliRunner().invoke(main, ["data", "synthetic", *rest, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each row has three holders."""
    return made(tmp_path_factory.mktemp("cells") / "data", "grid", "--grid", "2x3")


@pytest.fixture
def audit(write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., tuple[dict[str, str], str]]:
    """audit(folder, **tables): what was found, by name, and the verdict on masks."""

    def audit(folder: Path, *arguments: str, **changes: Any) -> tuple[dict[str, str], str]:
        base = {"rounds": 4, "record": {"evaluate_every": 0}, "aggregation": {"security": "masked"}}
        job = write_job(tmp_path / "job.toml", job_table(folder, **{"algorithm": fedavg(5)} | base | changes))
        ended = CliRunner().invoke(main, ["audit", str(job), *arguments])
        assert ended.exit_code in (0, 7), ended.output
        lines = [line.split(maxsplit=2) for line in ended.stdout.splitlines() if line.startswith("  LEAK")]
        verdict = [line for line in ended.stdout.splitlines() if "masks: " in line]
        assert (ended.exit_code == 7) == bool(lines)
        return {name: text for _, name, text in lines}, " ".join(verdict)

    return audit


Audit = Callable[..., tuple[dict[str, str], str]]


def masked_by(monkeypatch: pytest.MonkeyPatch, sealing: Callable[[int], bool], own: bool = True) -> None:
    """Channels add the clients' own stream for the clients whom `sealing` names alone."""

    def mask(self: Masked, turn: Any, message: Any, client: int) -> None:
        self._turns.use(client)
        for other, sign, parts in turn.graph.partners(client):
            self.pad.add([(self._between(client, other), sign)], message, parts)
        if own and self._dropouts is not None:
            self.pad.add([(self._dropouts.own(client), 1)], message, turn.graph.common.own(client))
        if isinstance(turn.plan.exchange, ToClients) and sealing(client):
            self.pad.add([(self._sealing(client), 1)], message, turn.graph.common.own(client))

    def hear(self: Masked, turn: Any) -> bool:
        reduced = self._target(turn.plan, turn.plan.reduced)
        for client in filter(sealing, range(self.setting.clients)):
            self.pad.add([(self._sealing(client), -1)], reduced, turn.graph.common.own(client))
        return True

    monkeypatch.setattr(Masked, "_mask", mask)
    monkeypatch.setattr(Masked, "_hear", hear)


@pytest.mark.parametrize("clients", [(), (0,)], ids=["nobody", "one"])
def test_the_server_can_add_up_what_only_clients_should_hear(
    clients: tuple[int, ...], cells: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs' masks cancel, and the clients' own stream is missing, or hides the sums of one client's rows alone."""
    masked_by(monkeypatch, lambda client: client in clients)
    found, _ = audit(cells, **CELLS)
    assert "all clients together in " in found["no-mask"]
    assert "repeated-mask" not in found and "mask-left" not in found


def test_one_mask_that_nobody_takes_away(six: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    mask = Masked._mask

    def more(self: Masked, turn: Any, message: Any, client: int) -> None:
        mask(self, turn, message, client)
        message[3] += client == 2

    monkeypatch.setattr(Masked, "_mask", more)
    found, _ = audit(six)
    assert "all clients together in changes, round 0: 1 of 13 numbers" in found["mask-left"]


def test_masks_that_are_left_in_sums_for_clients_are_looked_at(cells: Path, audit: Audit) -> None:
    found, verdict = audit(cells, **CELLS)
    assert found == {} and "no repeat, all cancel, no shared stream" in verdict


# --- words that come again -------------------------------------------------------------------------------------------

PRIVATE = {"delta": 1e-5, "clip": 0.5, "noise_multiplier": 1.0, "noise": "secure", "trust": "local"}


def test_one_number_with_the_same_mask_in_every_round(six: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """No window of 128 bits comes again."""

    class Constant:
        def __init__(self, key: bytes, turn: int) -> None:
            self.key, self.stream = key, Stream(key)
            self.stream.begin(key_streams.nonce(turn))

        def into(self, zeros: Any, out: Any) -> int:
            count = self.stream.into(zeros, out)
            out[96:104] = self.key[:8]
            return count

    def between(self: Masked, i: int, j: int) -> Any:
        return Constant(self.keyring.prf(i, j).key(b"streams", 0), self._turns.now)

    monkeypatch.setattr(Masked, "_between", between)
    found, _ = audit(six)
    assert set(found) == {"repeated-mask"}
    assert "client 0 in changes: its 13th number at several times" in found["repeated-mask"]


def test_the_negative_of_a_mask_under_secret_noise(six: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads are what there is to look at: their sum has small numbers."""

    class Negative:
        def __init__(self, stream: Stream) -> None:
            self.stream = stream

        def into(self, zeros: Any, out: Any) -> int:
            count = self.stream.into(zeros, out)
            out[:count] = (-np.frombuffer(bytes(out[:count]), np.int64)).tobytes()
            return count

    def between(self: Masked, i: int, j: int) -> Any:
        made = Stream(self.keyring.prf(i, j).key(b"streams", 0))
        made.begin(key_streams.nonce((self._turns.now + 1) // 2))
        return made if self._turns.now % 2 else Negative(made)

    monkeypatch.setattr(Masked, "_between", between)
    monkeypatch.setattr("mpifed.audit.streams.Streams.shared", lambda self: [])
    found, verdict = audit(six, rounds=12, privacy=PRIVATE)
    assert "has about the negative of that of" in found["repeated-mask"]
    assert "zeros: not checked" in verdict and "bits: checked in streams only" in verdict


def test_streams_that_are_not_seen_are_not_said_to_be_right(
    six: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    pad, mask = Pad(), Masked._mask

    def elsewhere(self: Masked, turn: Any, message: Any, client: int) -> None:
        watched, self.pad = self.pad, pad
        mask(self, turn, message, client)
        self.pad = watched

    monkeypatch.setattr(Masked, "_mask", elsewhere)
    found, verdict = audit(six)
    assert "streams: none recorded" in verdict
    assert "client 0 in changes, round 0: 0 of 5 at 13 numbers" in found["few-streams"]


# --- who masks with whom ---------------------------------------------------------------------------------------------


def test_clients_who_mask_in_two_groups(six: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may add up three answers."""
    partners = MaskGraph.partners

    def near(graph: MaskGraph, one: int) -> Any:
        return [partner for partner in partners(graph, one) if partner.client // 3 == one // 3]

    monkeypatch.setattr(MaskGraph, "partners", near)
    found, _ = audit(six)
    assert set(found) == {"few-streams"}
    assert "client 0 in changes, round 0: 2 of 5 at 13 numbers" in found["few-streams"]


def test_fewer_neighbours_than_the_job_has(six: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Masked, "neighbours", lambda self, n: 2)
    found, _ = audit(six)
    assert set(found) == {"few-streams"}


def test_no_masks_of_clients_own(six: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose keys are opened late, because they seemed to have left, shows its answer."""
    masked_by(monkeypatch, lambda client: True, own=False)
    add = Dropouts._unmask

    def pairs_alone(self: Dropouts, turn: Any, reduced: Any, openings: Any) -> None:
        before = self._pad
        self._pad = type("Pad", (), {"add": lambda _, some, *rest: len(rest[1]) and taken(before, some, *rest)})()
        add(self, turn, reduced, openings)
        self._pad = before

    def taken(pad: Any, masks: Any, reduced: Any, parts: Any) -> None:
        if not getattr(masks[0][0], "own", False):
            pad.add(masks, reduced, parts)

    monkeypatch.setattr("mpifed.comm.masking.dropout_recovery.Stream", lambda key: _named(key))
    monkeypatch.setattr("mpifed.comm.masking.dropout_recovery.open_seed", lambda *opened: b"own")
    monkeypatch.setattr(Dropouts, "_unmask", pairs_alone)
    found, _ = audit(six, participation=LEAVING)
    assert "client 0 in changes, round 0: 5 of 6 at 13 numbers" in found["few-streams"]


def _named(key: bytes) -> Any:
    """A stream, or what stands for an own mask that was never added."""
    return type("Own", (), {"own": True})() if key == b"own" else Stream(key)


# --- sums so far -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["all", "one", "short"])
def test_sums_so_far_that_the_server_keeps_unsealed(
    part: str, cells: Path, audit: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too few for any test of how random they look."""
    note, keeping, masks = Transcript.note, Masked._storing, list[Any]()

    def kept(self: Masked, unit: int, turn: int) -> Any:
        masks.append(np.zeros(60, np.int64))
        Pad().add([(keeping(self, unit, turn), 1)], masks[-1], [slice(0, 60)])
        return keeping(self, unit, turn)

    def told(self: Transcript, line: Any, now: Any, sender: str, receiver: str, what: str, payload: bytes) -> None:
        if what == "sum so far, sealed" and sender == "client 0":
            plain = (np.frombuffer(payload, np.int64) - masks[-1][: len(payload) // 8]).tobytes()
            payload = {"all": plain, "one": plain[:8] + payload[8:], "short": payload[:-8]}[part]
        note(self, line, now, sender, receiver, what, payload)

    monkeypatch.setattr(Masked, "_storing", kept)
    monkeypatch.setattr(Transcript, "note", told)
    found, _ = audit(cells, rounds=2, **KEPT)
    assert "sum so far" in found["no-mask"]


def test_sums_so_far_are_sealed(cells: Path, audit: Audit) -> None:
    assert audit(cells, **KEPT)[0] == {}
