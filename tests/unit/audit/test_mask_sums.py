"""Masks that look right, each by itself, and cancel where they should not, or hide less than they should."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mpifed.cli import main
from mpifed.comm.masking.masked import Masked
from mpifed.core.exchange import ToClients

LEAVING = {"dropout_rate": 0.1, "max_dropouts": 1}
CELLS = {
    "algorithm": {"name": "hyfdca", "rule": "damped", "primal": "sealed"},
    "objective": {"name": "hinge", "penalty": 0.01},
}  # fmt: skip


def made(folder: Path, *split: str) -> Path:
    """Two classes of a few columns."""
    rest = ["--samples", "60", "--features", "6", "--task", "classification", "--classes", "2", "--split", *split]
    done = CliRunner().invoke(main, ["data", "synthetic", *rest, "--out", str(folder)])
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("six") / "data", "rows", "--clients", "6")


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each row has three holders."""
    return made(tmp_path_factory.mktemp("cells") / "data", "grid", "--grid", "2x3")


@pytest.fixture
def audit(write_job: Callable[..., Path], tmp_path: Path) -> Callable[..., tuple[dict[str, str], str]]:
    """audit(folder, **tables): what was found, by name, and the verdict on masks."""

    def audit(folder: Path, *arguments: str, **changes: Any) -> tuple[dict[str, str], str]:
        base: dict[str, Any] = {
            "name": "mutated", "rounds": 4, "data": {"path": str(folder)}, "objective": {"name": "softmax"},
            "algorithm": {"name": "fedavg", "batch": 5, "step": [0.1]}, "record": {"every": 0},
            "sum": {"channel": "masked"},
        }  # fmt: skip
        job = write_job(tmp_path / "job.toml", base | changes)
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
        for other, sign, parts in turn.plan.partners(client):
            self.pad.add([(self._between(client, other), sign)], message, parts)
        if own and self._dropouts is not None:
            self.pad.add([(self._dropouts.own(client), 1)], message, turn.plan.common.own(client))
        if isinstance(turn.line.exchange, ToClients) and sealing(client):
            self.pad.add([(self._sealing(client), 1)], message, turn.plan.common.own(client))

    def hear(self: Masked, turn: Any) -> bool:
        reduced = self._target(turn.line, turn.line.reduced)
        for client in filter(sealing, range(self.setting.clients)):
            self.pad.add([(self._sealing(client), -1)], reduced, turn.plan.common.own(client))
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
