"""A user's script on two ranks, of which the second gives something else in each call.

The end of a call is not that of the program here: rank 0 prints what the error is to be. At last both ranks give the
same, in two runs, and print what calls they have compared on the way.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import mpifed as mf
from mpifed.run import agreement

ODD = int(next(os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ))
X = np.arange(180.0).reshape(60, 3) % 7
Y = (X.sum(axis=1) > 8).astype(int)
DATA = mf.FederatedDataset.from_arrays(X, Y, clients=6)
PRIVATE: dict[str, Any] = {"clip": 1.0 + ODD, "delta": 1e-3, "noise_multiplier": 5.0}


def run(momentum: float = 0.0, rounds: int = 1, batch_size: int = 5, **of_run: Any) -> Callable[[], object]:
    algorithm = mf.FedAvg(batch_size=batch_size, client_optimizer=mf.SGD(0.1, momentum=momentum))
    return lambda: mf.run(algorithm, DATA, mf.Softmax(), rounds=rounds, progress="none", **of_run)


def own_source() -> object:
    """A run with a class whose module is not the same on the ranks."""
    folder = Path(f"own-{ODD}")
    folder.mkdir(exist_ok=True)
    text = "import dataclasses, mpifed as mf\n@dataclasses.dataclass(frozen=True)\nclass Own(mf.L1):\n    "
    (folder / "own_gated.py").write_text(f"{text}'''{ODD}'''\n")
    sys.path.insert(0, str(folder))
    return run(regularizer=importlib.import_module("own_gated").Own(0.1))()


def sweep(*labels: str) -> Callable[[], object]:
    methods = {label: mf.FedAvg(batch_size=5, client_optimizer=mf.SGD(0.1)) for label in labels}
    return lambda: mf.sweep(methods, DATA, mf.Softmax(), rounds=1)


PROX = mf.FedProx(batch_size=5, mu=0.1 + ODD, client_optimizer=mf.SGD(0.1))
CASES: list[tuple[str, Callable[[], object]]] = [  # what is said, and the call
    ("run: client_optimizer.momentum: 0.0 on rank 0, 0.5 on rank 1", run(momentum=0.5 * ODD)),
    ("run: rounds: 1 on rank 0, 2 on rank 1", run(rounds=1 + ODD)),
    ("run: seed: 1 on rank 0, 2 on rank 1", run(seed=1 + ODD)),
    (
        "run: privacy.noise_multiplier: 5.0 on rank 0, 0.01 on rank 1",
        run(privacy=mf.Privacy(**PRIVATE | {"clip": 1.0, "noise_multiplier": 0.01 if ODD else 5.0})),
    ),
    ("run: privacy.clip: 1.0 on rank 0, 2.0 on rank 1", run(privacy=mf.Privacy(**PRIVATE))),
    (
        "run: aggregation.security: 'plain' on rank 0, 'masked' on rank 1",
        run(aggregation=mf.Aggregation(security="masked" if ODD else "plain")),
    ),
    ("run: out: 'run-0' on rank 0, 'run-1' on rank 1", run(out=f"run-{ODD}")),
    ("check: algorithm.mu: 0.1 on rank 0, 1.1 on rank 1", lambda: mf.check(PROX, DATA, mf.Softmax(), rounds=1)),
    (r"run: sources.own_gated.py: '\w{64}' on rank 0, '\w{64}' on rank 1", own_source),
    (
        r"FederatedDataset: data.y: 'float64 \[60\], SHA-256 \w{12}' on rank 0, 'float64 \[60\], .* on rank 1",
        lambda: mf.FederatedDataset.from_arrays(X, Y + 0.5 * ODD, clients=6),
    ),
    (
        r"FederatedDataset: data.X: 'float32 \[80, 3\], .* on rank 0, 'float32 \[81, 3\], .* on rank 1",
        lambda: mf.FederatedDataset.from_clients([(X[: 20 + ODD], Y[: 20 + ODD]), (X, Y)]),
    ),
    (
        "FederatedDataset: clients: 5 on rank 0, 6 on rank 1",
        lambda: mf.FederatedDataset.from_arrays(X, Y, clients=5 + ODD),
    ),
    ("sweep: 0, a, seed 1.name: 'sweep' on rank 0, None on rank 1", sweep(*["ab", "ba"][ODD])),
    ("sweep: call: 'sweep' on rank 0, 'run' on rank 1", run() if ODD else sweep("a")),
    (r"job: 1 error\n  algorithm.batch_size = -1: expected a number above 0$", run(batch_size=-1 if ODD else 5)),
]

for said, call in CASES:
    if not ODD:
        print(f"expected: {said}", flush=True)
    try:
        call()
        print(f"{said}: no difference", flush=True)
    except SystemExit as end:
        assert end.code == 2, said
calls: list[str] = []
enter = agreement.enter


def counted(call: str, facts: str) -> list[str]:
    calls.append(call)
    return enter(call, facts)


agreement.enter = counted
run(rounds=3)()
run(rounds=30)()
print(f"rank {ODD}: {', '.join(calls)}", flush=True)
