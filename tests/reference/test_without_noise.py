"""Private algorithms with no noise and nothing clipped are their plain selves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lengths import covering
from loops import Played, local_job, played

from mpifed.core.record import leaves

STEP = {"initial": 0.4, "exponent": 0.3}
PLAIN: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg", "client_optimizer": {"learning_rate": STEP}},
    "fedprox": {"name": "fedprox", "client_optimizer": {"learning_rate": STEP}, "mu": 0.3},
    "scaffold": {"name": "scaffold", "client_optimizer": {"learning_rate": STEP}},
    "fedpdm": {"name": "fedpdm", "client_optimizer": {"learning_rate": STEP}, "rho": 2.0},
}
every_algorithm = pytest.mark.parametrize("algorithm", PLAIN.values(), ids=PLAIN)


def settings(**changes: Any) -> dict[str, Any]:
    return {"delta": 1e-5, "clip": 1e6, "noise_multiplier": 0.0, "noise": "test", "public_preparation": True, **changes}


def run(folder: Path, algorithm: dict[str, Any], privacy: dict[str, Any] | None, steps: int) -> Played:
    """In double precision, as gradients are clipped, summed exactly."""
    tables: dict[str, Any] = {"aggregation": {"arithmetic": "exact"}, "compute": {"dtype": "float64"}}
    tables |= {"participation": {"clients_per_round": 3}} | ({} if privacy is None else {"privacy": privacy})
    return played(local_job(folder, {"batch_size": 4, "local_steps": steps, **algorithm}, **tables))


def bits(found: Played) -> list[Any]:
    return [np.asarray(leaf).tobytes() for state in (found.server, found.clients) for _, leaf in leaves(state)]


def alike(one: Played, other: Played) -> bool:
    """But for roundings: clipped gradients are summed before they are multiplied by the step, others after."""
    pairs = zip((one.server, one.clients), (other.server, other.clients), strict=True)
    both = [(a, b) for x, y in pairs for (_, a), (_, b) in zip(leaves(x), leaves(y), strict=True)]
    return all(np.allclose(a, b, rtol=1e-12, atol=1e-10) for a, b in both)


@pytest.mark.parametrize("steps", [1, 3])
def test_local_steps_of_clipped_gradients(skewed: Path, steps: int) -> None:
    for name in ("fedavg", "fedprox"):
        plain = run(skewed, PLAIN[name], None, steps)
        assert alike(run(skewed, PLAIN[name], settings(noise="paper"), steps), plain)


@covering({"algorithm": PLAIN.values(), "steps": [1, 3], "model": ["local", "central", "distributed"]}, 1)
def test_clients(classes: Path, algorithm: dict[str, Any], steps: int, model: str) -> None:
    """At level "client" all count alike: so shards are equal, and the bits are the same."""
    plain = run(classes, algorithm, None, steps)
    assert bits(run(classes, algorithm, settings(level="client", trust=model), steps)) == bits(plain)
    assert bits(run(classes, algorithm, settings(level="client", trust=model, clip=0.01), steps)) != bits(plain)
