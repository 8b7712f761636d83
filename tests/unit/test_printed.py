"""What commands print, word by word, in printed.txt; keys, numbers and codes are asserted where they are made.

`PRINTED=write pytest tests/unit/test_printed.py -n 0` writes it anew: read what has changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs_in_python import fedavg, job_table

SNAPSHOTS = Path(__file__).parent / "printed.txt"
HEAD = "=== "
CELLS = (
    'algorithm={name = "hyfdca", rule = "damped", primal = "clear"}', "client_optimizer={}",
    'model={name = "hinge", l2 = 5e-3}',
)  # fmt: skip
ABSENT = (*CELLS, "participation.clients_per_round=4")
SEALED = (*ABSENT, "algorithm.primal=sealed")
CHANGES: dict[str, tuple[str, ...]] = {
    "FedAvg": (), "shared": ("server.dedicated=false",), "some": ("participation.clients_per_round=3",),
    "leaving": ("participation.max_dropouts=2", "participation.dropout_rate=0.1", "aggregation.min_clients=4"),
    "least squares": ('model={name = "least-squares"}', "algorithm.batch_size=1"),
    "columns": (
        'algorithm={name = "ssca", batch_size = 20, rho = [0.9, 0.3], gamma = [0.9, 0.35], label_holder = 1}',
        "client_optimizer={}",
        'aggregation.allow=["slopes", "gradients", "all-losses", "certificate-slopes", "certificate-gradients"]',
    ),
    "cells": CELLS, "absent": (*ABSENT, "aggregation.min_clients=1"), "sealed": (*SEALED, "aggregation.min_clients=1"),
    "two": (*SEALED, "rounds=40"), "two, but for one": (*SEALED, "rounds=40", 'aggregation.allow=["primal"]'),
}  # fmt: skip
CHECKS = [  # data, ranks, channel, changes
    *(("digits", ranks, channel, "FedAvg") for ranks in (1, 4) for channel in ("plain", "masked", "encrypted")),
    *(("digits", 4, channel, "shared") for channel in ("masked", "encrypted")),
    ("digits", 4, "masked", "some"), ("digits", 4, "masked", "leaving"), ("many", 4, "masked", "least squares"),
    *(("sides", 4, channel, "columns") for channel in ("plain", "masked", "encrypted")),
    *(("patches", 4, channel, "cells") for channel in ("plain", "masked", "encrypted")),
    *(("patches", 4, channel, "absent") for channel in ("masked", "encrypted")),
    *(("patches", 4, "masked", changes) for changes in ("sealed", "two", "two, but for one")),
]  # fmt: skip
CHECK = "check {0} ({3}), {2}, ranks {1}"
WORDS = (
    "explain fedavg.batch_size", "explain aggregation.security", "explain constraint", "explain schedule",
    "explain client_optimizer.learning_rate", "explain PowerDecay", "explain sweep", "explain kkt_residual",
    "explain exit codes", "new",
)  # fmt: skip


def compared(name: str, text: str) -> None:
    """The snapshot of this name is this text."""
    parts = SNAPSHOTS.read_text(encoding="utf-8").split(HEAD)[1:] if SNAPSHOTS.exists() else []
    known = dict(part.split("\n", 1) for part in parts)
    text = text.strip() + "\n\n"
    if os.environ.get("PRINTED") == "write":
        known[name] = text
        SNAPSHOTS.write_text("".join(f"{HEAD}{key}\n{known[key]}" for key in sorted(known)), encoding="utf-8")
    assert known.get(name) == text


@pytest.fixture(scope="session")
def many(shared_path: Path, make_data: Callable[..., Path]) -> Path:
    """300 clients, of whom a graph of masks is enough."""
    words = "synthetic --samples 600 --features 3 --split rows --clients 300"
    return make_data(shared_path / "many", *words.split())


@pytest.mark.parametrize(("data", "ranks", "channel", "changes"), CHECKS)
def test_who_learns_what(
    data: str, ranks: int, channel: str, changes: str, tmp_path: Path, request: pytest.FixtureRequest,
    launch: Callable[..., Any], write_job: Callable[..., Path],
) -> None:  # fmt: skip
    job = job_table(request.getfixturevalue(data), rounds=2, algorithm=fedavg(20))
    given = [word for change in CHANGES[changes] for word in ("--set", change)]
    path, sums = write_job(tmp_path / "job.toml", job), ("--set", f"aggregation.security={channel}")
    ended = launch(None, "check", path, "--ranks", ranks, *given, *sums)
    assert ended.code == 0, ended.text
    parts = re.findall(r"^(?:Who learns|Warning)(?:.*\n)(?: .*\n)*", ended.out, re.MULTILINE)
    compared(CHECK.format(data, ranks, channel, changes), "".join(parts))


@pytest.mark.parametrize("words", WORDS)
def test_words(words: str, launch: Callable[..., Any]) -> None:
    ended = launch(None, *words.split(maxsplit=1))
    assert ended.code == 0, ended.text
    compared(words, ended.out)


def test_every_snapshot_has_a_case() -> None:
    names = re.findall(f"^{HEAD}(.*)$", SNAPSHOTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert names == sorted([*WORDS, *(CHECK.format(*case) for case in CHECKS)])
