"""Networks with several hidden layers under every algorithm of rows and of columns, also on a double of CuPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from both import assert_alike, outcome
from jobs_in_python import checked
from lengths import long_unless
from make_believe import make_believe
from registry import CASES, FEW, NAMES, Case, table

from mpifed.core.exchange import play
from mpifed.core.round import Round
from mpifed.maths.activations import ACTIVATIONS
from mpifed.run.setup import prepare
from mpifed.testing import Alone

pytestmark = pytest.mark.long

DEEP = [case for case in CASES if case.split in ("rows", "columns")]
TOLERANCE = 5e-5  # single precision, see `test_runs`
CHOSEN = [NAMES[CASES.index(case)] for case in DEEP]
SHORT = [number for number, name in enumerate(CHOSEN) if name in FEW]  # one of every algorithm


def job_of(folder: Path, case: Case, number: int, **changes: Any) -> dict[str, Any]:
    """A law's job with another network: each activation in turn, two hidden layers or three, with biases."""
    activation = list(ACTIVATIONS)[number % len(ACTIVATIONS)]
    hidden = [6, 5] if number % 2 else [6, 5, 4]
    network = {"name": "mlp", "bias": True, "hidden": hidden, "activation": activation}
    kept = {key: value for key, value in case.tables.get("model", {}).items() if key in ("l2", "nonconvex_penalty")}
    job = table(folder, case.algorithm, **case.tables | {"model": network | kept})
    job["data"] = {"path": str(folder), **changes}
    if not case.everybody:
        job["participation"] = {"clients_per_round": 8}
    return job


@pytest.mark.parametrize("number", long_unless(lambda number: number in SHORT, range(len(DEEP))))
def test_every_algorithm_trains_them(number: int, skewed: Path, sides: Path) -> None:
    """Every layer moves, alike in blocks of one and of three; a device gives the processor's results."""
    case = DEEP[number]
    folder = skewed if case.split == "rows" else sides
    alone, together = (outcome(checked(job_of(folder, case, number, block=block))) for block in (1, 3))
    np.testing.assert_allclose(alone.model, together.model, atol=TOLERANCE * np.abs(together.model).max())
    at = prepare(checked(job_of(folder, case, number)), Alone())
    everybody = Round(-1, 1, np.ones(at.aggregator.clients, dtype=bool))
    server, _ = play(at.algorithm.setup, at.server, at.clients, everybody, at.aggregator)
    start = at.algorithm.model(server)
    ends = np.cumsum([leaf.size for leaf in (start.first, *start.head)])
    assert len(start.head) in (5, 7) and ends[-1] == len(alone.model)
    flat = np.concatenate([leaf.reshape(-1) for leaf in (start.first, *start.head)])
    assert all((a != b).any() for a, b in zip(np.split(alone.model, ends), np.split(flat, ends), strict=True) if len(a))
    with make_believe():
        on_device = outcome(checked(job_of(folder, case, number, block=3) | {"compute": {"device": "gpu"}}))
    assert on_device.aggregator.device.name == "Make-believe"
    assert_alike(on_device, together, TOLERANCE)
