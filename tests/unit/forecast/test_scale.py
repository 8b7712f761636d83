"""The predicted scaling of a job: the cost model against a simulation of messages, and what the text says."""

from __future__ import annotations

import heapq
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jobs_in_python import fedavg, job_table

from mpifed.cli import main
from mpifed.forecast import rehearsal, scale
from mpifed.forecast.collectives import Machine, broadcast_time, sum_time

LONE = Machine(1, latency_s=3e-6, bytes_per_s=2e9, call_s=0.0, added_bytes_per_s=4e9)


def simulated_tree(nodes: int, nbytes: int, machine: Machine) -> float:
    """Seconds to add up one message of each node: the two that are ready first go together."""
    ready = [0.0] * nodes
    heapq.heapify(ready)
    send, add = machine.latency_s + nbytes / machine.bytes_per_s, nbytes / machine.added_bytes_per_s
    while len(ready) > 1:
        first, second = heapq.heappop(ready), heapq.heappop(ready)
        heapq.heappush(ready, max(first, second) + send + add)
    return ready[0]


@pytest.mark.parametrize("nodes", [2, 4, 8, 64, 1024])
def test_short_sums_take_a_tree(nodes: int) -> None:
    found = sum_time(LONE, nodes, 8, everywhere=False).total
    copied = 8 / LONE.copied_bytes_per_s
    assert found - copied == pytest.approx(simulated_tree(nodes, 8, LONE), rel=1e-6)


def test_long_sums_cross_the_network_twice_on_any_number_of_nodes() -> None:
    nbytes = 10**9
    few, many = (sum_time(LONE, nodes, nbytes, everywhere=True).bandwidth for nodes in (64, 4096))
    twice = 2 * nbytes / LONE.bytes_per_s + nbytes / LONE.added_bytes_per_s + nbytes / LONE.copied_bytes_per_s
    assert few < many <= twice
    assert many == pytest.approx(twice, rel=1e-3)
    assert many < simulated_tree(4096, nbytes, LONE)


@pytest.mark.parametrize("nbytes", [8, 10**5, 10**8])
def test_more_ranks_never_take_less(nbytes: int) -> None:
    machine = Machine(16)
    for act in (lambda p: sum_time(machine, p, nbytes, True).total, lambda p: broadcast_time(machine, p, nbytes).total):
        times = [act(p) for p in (1, 2, 16, 32, 1024, 10**5)]
        assert times[0] == 0
        assert times == sorted(times)


def test_ranks_of_a_node_spare_the_network() -> None:
    apart, near = Machine(1, latency_s=1e-4), Machine(8, latency_s=1e-4)
    assert near.nodes(64) == 8
    assert sum_time(near, 64, 8 * 10**4, False).total < sum_time(apart, 64, 8 * 10**4, False).total


@pytest.fixture(autouse=True)
def short_rehearsals(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time here is compared with another one that was measured."""
    monkeypatch.setattr(scale, "_BUDGET_S", 0.01)


@pytest.fixture
def job(digits: Path, write_job: Callable[..., Path], tmp_path: Path) -> Path:
    tables = {"model": {"name": "mlp", "bias": False, "hidden": 5}, "record": {"evaluate_every": 0}}
    return write_job(tmp_path / "job.toml", job_table(digits, name="t", rounds=7, algorithm=fedavg(20), **tables))


def shown(job: Path, *more: str) -> str:
    found = CliRunner().invoke(main, ["scale", str(job), "--predict", *more])
    assert found.exit_code == 0, found.output
    return found.output


def test_strong(job: Path) -> None:
    found = json.loads(shown(job, "--ranks", "1,2,8,100000", "--ranks-per-node", "4", "--latency", "1e-3", "--json"))
    rows: Any = found["scaling"]
    assert [row["ranks"] for row in rows] == [1, 2, 8, 100_000]
    assert [row["nodes"] for row in rows] == [1, 1, 2, 25_000]
    assert [row["ranks_with_clients"] for row in rows] == [1, 2, 8, 8]  # there are 8 clients
    assert rows[0]["efficiency"] == rows[0]["speed_up"] == 1
    assert rows[0]["broadcast_s"] == rows[0]["sum_s"] == 0
    for row in rows:
        parts = sum(row[key] for key in ("arithmetic_s", "broadcast_s", "sum_s", "server_s"))
        assert row["round_s"] == pytest.approx(parts)
        assert row["efficiency"] == pytest.approx(rows[0]["round_s"] / row["round_s"] / row["ranks"])
    assert rows[-1]["sum_s"] >= 15e-3  # log2 of 25,000 nodes, a millisecond each
    assert found["stops_because"] is not None
    text = shown(job, "--ranks", "1,100000")
    assert "PREDICTED" in text
    assert "left out" in text
    assert "share a core are not predicted" in text


def test_weak(job: Path) -> None:
    found = json.loads(shown(job, "--ranks", "2,16", "--weak", "--ranks-per-node", "2", "--json"))
    assert (found["kind"], [row["clients"] for row in found["scaling"]]) == ("weak", [16, 128])
    first, second = found["scaling"]
    assert first["arithmetic_s"] == second["arithmetic_s"]
    assert 1 >= first["efficiency"] >= second["efficiency"]


def test_ranks_of_a_node_slow_each_other_down_in_proportion() -> None:
    work = scale.Work(0.0, 1.0, 0.0, (), slowed=1.3, together=4)
    assert [work.slowed_by(ranks) for ranks in (1, 2, 4, 64)] == pytest.approx([1, 1.1, 1.3, 1.3])
    assert scale.Work(0.0, 1.0, 0.0, ()).slowed_by(8) == 1


def test_rehearsals_read_other_rows_each_time(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    played = rehearsal.play

    def play(exchanges: Any, server: Any, clients: Any, now: Any, summation: Any) -> Any:
        seen.append(now.index)
        return played(exchanges, server, clients, now, summation)

    monkeypatch.setattr(rehearsal, "play", play)
    shown(job, "--ranks", "1")
    assert len({index for index in seen if index >= 0}) > 4  # two rehearsals begin with a round each


@pytest.mark.parametrize("given", ["", "1,x", "0", "1,,2"])
def test_wrong_numbers(job: Path, given: str) -> None:
    found = CliRunner().invoke(main, ["scale", str(job), "--predict", "--ranks", given or ","])
    assert found.exit_code == 2
    assert "expected positive numbers" in found.output


def test_a_run_is_not_predicted(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["scale", str(tmp_path), "--predict", "--ranks", "1"])
    assert found.exit_code == 2
    assert "give the path of a job file" in found.output


def test_nothing_is_launched_or_written(job: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    slow, fast = (
        json.loads(shown(job, "--ranks", "1,64", "--latency", latency, "--ranks-per-node", "4", "--json"))
        for latency in ("1e-3", "1e-6")
    )
    assert [row["ranks"] for row in slow["scaling"]] == [1, 64]
    assert slow["scaling"][1]["broadcast_s"] > 10 * fast["scaling"][1]["broadcast_s"] > 0
    assert sorted(tmp_path.iterdir()) == before
