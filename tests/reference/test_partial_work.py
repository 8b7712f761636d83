"""Clients who do a part of their local work: who they are, and how much they do.

Stragglers are those of FedProx's experiments (arXiv:1812.06127, Section 5.2), a drawn number of passes FedNova's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import local_job, rows_of

from mpifed.job.participation import round_of
from mpifed.testing import Job, minibatches, participants

SLOW = {"participation": {"clients_per_round": 6, "stragglers": 0.5}}
DROPPED = {"participation": {"clients_per_round": 6, "stragglers": 0.5, "drop_stragglers": True}}


def job(folder: Path, name: str, more: dict[str, Any], tables: dict[str, Any]) -> Job:
    optimizer = {} if name == "ssca" else {"client_optimizer": {"learning_rate": 0.3}}
    own = {"name": name, "batch_size": 4, **optimizer, **more}
    return local_job(folder, own, data={"path": str(folder), "block": 5}, **tables)


def passes(task: Job, t: int, sizes: Any) -> dict[int, float]:
    """By client who uploads in a round, how many passes it does."""
    return {i: sum(map(len, minibatches(task, t, i))) / sizes[i] for i in participants(task, t).tolist()}


def test_who_they_are_and_how_much_they_do(digits: Path) -> None:
    sizes = [len(y) for _, y in rows_of(digits)]
    tasks = [job(digits, name, {"local_epochs": 6}, SLOW) for name in ("fedavg", "scaffold")]
    dropped, drawn = job(digits, "fedavg", {"local_epochs": 6}, DROPPED), []
    for t in range(1, 25):
        one, other = (passes(task, t, sizes) for task in tasks)
        assert one == other and len(one) == 6
        slow = {i for i, count in one.items() if count < 6}
        assert len(slow) == 3 and set(participants(dropped, t).tolist()) == one.keys() - slow
        drawn += [one[i] for i in slow]
    assert set(drawn) == {1, 2, 3, 4, 5} and 2.5 < np.mean(drawn) < 3.5
    least = job(digits, "fednova", {"local_epochs": 5, "local_least": 2}, {})
    assert {count for t in range(1, 20) for count in passes(least, t, sizes).values()} == {2, 3, 4, 5}
    assert round_of(least, len(sizes), 0).slow is None


@pytest.mark.parametrize("work", ["local_epochs", "local_steps"])
def test_what_time_allows(digits: Path, work: str) -> None:
    """29 steps of .01 s, of 29 times .01 s exactly; passes are done whole; and nobody does nothing."""
    sizes = [len(y) for _, y in rows_of(digits)]
    speeds = [100.0, 99.9, 5.0, 2000.0] * len(sizes)
    late = {"simulated_network": {"deadline_s": 0.29, "speeds": speeds[: len(sizes)]}}
    done = [minibatches(job(digits, "fedavg", {work: 40}, late), 1, i) for i in range(len(sizes))]
    in_time = [29, 28, 1, 580] * len(sizes)
    for i, (steps, size) in enumerate(zip(done, sizes, strict=True)):
        of_one = -(-size // 4) if work == "local_epochs" else 1
        assert len(steps) == of_one * min(max(in_time[i] // of_one, 1), 40)
    few = job(digits, "fedavg", {"local_steps": 40}, {"simulated_network": {"deadline_s": 1.0, "speeds": [3.0, 7.0]}})
    rounds = [[len(minibatches(few, t, i)) for i in range(len(sizes))] for t in (1, 2)]
    assert rounds[0] == rounds[1] and set(rounds[0]) == {3, 7}
