"""What clients hand over so that others may leave: defects put into it, and the audit finds each."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from jobs_in_python import fedavg, job_table

from mpifed.cli import main
from mpifed.comm.masking import dropout_recovery, share_deposits
from mpifed.comm.masking.dropout_recovery import Dropouts
from mpifed.comm.masking.share_deposits import Deposit, TurnSecrets

Found = Callable[[], dict[str, str]]


@pytest.fixture
def found(six: Path, write_job: Callable[..., Path], tmp_path: Path) -> Found:
    """What an audit of a job from which one client may leave has found, by name."""

    def found() -> dict[str, str]:
        leaving = {"dropout_rate": 0.1, "max_dropouts": 1}
        tables = {"record": {"evaluate_every": 0}, "aggregation": {"security": "masked"}, "participation": leaving}
        job = job_table(six, algorithm=fedavg(5), **tables)
        ended = CliRunner().invoke(main, ["audit", str(write_job(tmp_path / "job.toml", job))])
        assert ended.exit_code in (0, 7), ended.output
        clean = "all bits uniform, no shares of both secrets of a client, no key in a message"
        assert ended.exit_code or clean in ended.stdout
        lines = [line.split(maxsplit=2) for line in ended.stdout.splitlines() if line.startswith("  LEAK")]
        return {name: text for _, name, text in lines}

    return found


def test_nothing_where_all_is_well(found: Found) -> None:
    assert found() == {}


def test_keys_of_messages_that_are_deposited_in_the_clear(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    deposit = TurnSecrets.deposit

    def clear(self: TurnSecrets, client: int, near: list[int], partners: list[int], least: int) -> Deposit:
        keys = b"".join(self.message_key(client, other) for other in partners)
        return deposit(self, client, near, partners, least)._replace(keys=keys)

    def opened(deposit: Deposit, *rest: Any) -> list[bytes]:
        return [deposit.keys[start : start + 16] for start in range(0, len(deposit.keys), 16)]

    monkeypatch.setattr(TurnSecrets, "deposit", clear)
    monkeypatch.setattr(dropout_recovery, "open_keys", opened)
    leaks = found()
    assert set(leaks) == {"key-sent"}
    assert "deposit and sealed shares of client 0 to server: the key of the message with client" in leaks["key-sent"]


@pytest.mark.parametrize("half", [slice(0, 8), slice(8, 16), slice(0, 16)])
def test_a_seed_is_deposited_in_the_clear(half: slice, found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one half of it, wherever it begins."""
    deposit, seeds = TurnSecrets.deposit, dict[int, bytes]()

    def kept(self: TurnSecrets, client: int, *rest: Any) -> Deposit:
        made = deposit(self, client, *rest)
        seeds[client] = self.seeds[client][half]
        return made

    payload = Deposit.payload.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(TurnSecrets, "deposit", kept)
    monkeypatch.setattr(Deposit, "payload", property(lambda self: payload(self) + b"x" + seeds[self.client]))
    leaks = found()
    assert set(leaks) == {"key-sent"} and "the seed of client 0 in changes, round 0" in leaks["key-sent"]


def test_shares_of_both_secrets(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under whatever name."""
    reveal = Dropouts._reveal

    def both(self: Dropouts, turn: Any, recorder: Any) -> Any:
        given = reveal(self, turn, recorder)
        if turn.now.present[1] and recorder is not None:  # not in the play of two ranks
            self.turn_secrets._revealed.clear()
            number = int(np.searchsorted(turn.graph.near[1], 0)) + 1
            with suppress(KeyError):  # nobody hosts client 0 here
                other = self.turn_secrets.reveal(0, 1, number, False)
                recorder.note(turn.plan, turn.now, "client 0", "server", "greeting", other.share)
        return given

    monkeypatch.setattr(Dropouts, "_reveal", both)
    leaks = found()
    assert set(leaks) == {"opened-more", "unknown-message"}
    assert "client 1 in changes, round 0: shares of its seed and of its key were sent" in leaks["opened-more"]


@pytest.mark.parametrize("least", [1, 3])
def test_fewer_shares_tell_a_secret(least: int, found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five neighbours one may leave, so that it takes four."""
    monkeypatch.setattr(dropout_recovery, "threshold", lambda neighbours, most: least)
    assert "client 0 in changes, round 0: fewer than 4 shares determine its seed" in found()["opened-more"]


def test_all_shares_travel_under_one_key(found: Found, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_deposits.TurnSecrets, "_between", lambda self, *clients: (bytes(32), bytes(12)))
    assert "encrypt shares under the key of clients [0, 1] in changes, round 0, turn 1" in found()["opened-more"]
