"""A user's script on two ranks, of which the second gives something else in each call.

The end of a call is not that of the program here. At last both give the same, in two runs, and print what calls the
ranks have compared on the way.
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
METHOD = mf.FedAvg(batch_size=5, client_optimizer=mf.SGD(0.1))
PRIVATE: dict[str, Any] = {"clip": 1.0, "delta": 1e-3, "noise_multiplier": 5.0}


def run(rounds: int = 1, model: Any = None, **others: Any) -> Callable[[], object]:
    """A run with other settings of FedAvg, and of the run itself by `of_run`."""
    of_run = others.pop("of_run", {})
    sgd = mf.SGD(0.1, momentum=others.pop("momentum", 0.0))
    algorithm = mf.FedAvg(**{"batch_size": 5, "client_optimizer": sgd, **others})
    return lambda: mf.run(algorithm, DATA, model or mf.Softmax(), rounds=rounds, progress="none", **of_run)


def own_source() -> object:
    """A run with a class whose module is not the same on the ranks."""
    folder = Path(f"own-{ODD}")
    folder.mkdir(exist_ok=True)
    text = "import dataclasses, mpifed as mf\n@dataclasses.dataclass(frozen=True)\nclass Own(mf.L1):\n    "
    (folder / "own_gated.py").write_text(f"{text}'''{ODD}'''\n")
    sys.path.insert(0, str(folder))
    return run(of_run={"regularizer": importlib.import_module("own_gated").Own(0.1)})()


def sweep(*labels: str) -> Callable[[], object]:
    methods = {label: mf.FedAvg(batch_size=5, client_optimizer=mf.SGD(0.1)) for label in labels}
    return lambda: mf.sweep(methods, DATA, mf.Softmax(), rounds=1)


CASES: dict[str, Callable[[], object]] = {
    "batch size": run(batch_size=5 + ODD),
    "steps": run(local_steps=1 + ODD),
    "momentum": run(momentum=0.5 * ODD),
    "l2": run(model=mf.Softmax(l2=0.1 * ODD)),
    "rounds": run(rounds=1 + ODD),
    "participation": run(of_run={"participation": mf.Participation(clients_per_round=5 + ODD)}),
    "clip": run(of_run={"privacy": mf.Privacy(**{**PRIVATE, "clip": 1.0 + ODD})}),
    "noise": run(of_run={"privacy": mf.Privacy(**{**PRIVATE, "noise_multiplier": 0.01 if ODD else 5.0})}),
    "seed": run(of_run={"seed": 1 + ODD}),
    "security": run(of_run={"aggregation": mf.Aggregation(security="masked" if ODD else "plain")}),
    "out": run(of_run={"out": f"run-{ODD}"}),
    "mu": lambda: mf.check(
        mf.FedProx(batch_size=5, mu=0.1 + ODD, client_optimizer=mf.SGD(0.1)), DATA, mf.Softmax(), rounds=1
    ),
    "own source": own_source,
    "labels": sweep(*["ab", "ba"][ODD]),
    "targets": lambda: mf.FederatedDataset.from_arrays(X, Y + 0.5 * ODD, clients=6),
    "shape": lambda: mf.FederatedDataset.from_clients([(X[: 20 + ODD], Y[: 20 + ODD]), (X, Y)]),
    "clients": lambda: mf.FederatedDataset.from_arrays(X, Y, clients=5 + ODD),
    "call": run() if ODD else sweep("a"),
    "an error of one": run(batch_size=500 if ODD else 5, local_steps=-1 if ODD else 1),
}

for name, call in CASES.items():
    try:
        call()
        print(f"{name}: no difference", flush=True)
    except SystemExit as end:
        assert end.code == 2, name
calls: list[str] = []
enter = agreement.enter


def counted(call: str, facts: str) -> list[str]:
    calls.append(call)
    return enter(call, facts)


agreement.enter = counted
run(rounds=3)()
run(rounds=30)()
print(f"rank {ODD}: {', '.join(calls)}", flush=True)
