"""A row for each method: what it does, keeps and sends, by playing it; what goes with it, by asking it."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
from contract import cell

from mpifed import SGD, FederatedDataset, Logistic, run
from mpifed.algorithms import ALGORITHMS
from mpifed.algorithms.local_method import LocalMethod
from mpifed.core.errors import UsageError
from mpifed.testing import rounds

_ROWS, _FEATURES = 24, 1000
# [privacy], by what gets the noise
_PRIVATE = {
    "gradients": {},
    "clients": {"level": "client", "trust": "distributed"},
}
_ABSENT = {"participation": {"clients_per_round": 2}}
_TABLES: dict[str, dict[str, Any]] = {
    "absent clients": _ABSENT,
    "`[regularizer]`": {"regularizer": {"name": "l1", "weight": 0.01}},
    "`[compression]`": {"compression": {"name": "top-k", "fraction": 0.5}},
    "client momentum": {"client_optimizer": {"learning_rate": 0.1, "momentum": 0.5}},
    "`[server_optimizer]`": {"server_optimizer": {"name": "adam"}},
    "`[asynchrony]`": {
        "asynchrony": {"buffer": 1, "concurrency": 2},
        "simulated_network": {"delay_s": 1.0},
    },
}


def method_rows() -> Iterator[str]:
    """The table of methods with local steps."""
    data = FederatedDataset.from_arrays(
        np.random.default_rng(0).standard_normal((4 * _ROWS, _FEATURES)).astype("f4"),
        np.arange(4 * _ROWS) % 2,
        clients=4,
    )
    known = {name: ALGORITHMS[name] for name in ALGORITHMS if issubclass(ALGORITHMS[name], LocalMethod)}
    sent = {name: _sent(kind, data) for name, kind in known.items()}
    of_fedavg = np.array(sent["fedavg"])
    rows = [_row(name, kind, data.path, sent[name] / of_fedavg) for name, kind in known.items()]
    head = ["method", "what it does", "a client keeps", "up", "down", "noise on", "not with", "paper"]
    yield "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows))


def _keys(kind: type[LocalMethod]) -> dict[str, Any]:
    """Keys beside those that all have; two local steps, where no coin ends them."""
    keys = {field.name: 0.5 for field in fields(kind) if field.default is MISSING and field.kw_only}
    return keys if "p" in keys else {"local_steps": 2, **keys}


def _sent(kind: type[LocalMethod], data: FederatedDataset) -> list[int]:
    """Bytes up and down in a round."""
    method = kind(batch_size=5, client_optimizer=SGD(0.01), **_keys(kind))
    summary = run(method, data, Logistic(bias=False), rounds=1, progress="none").summary
    return [summary["up_bytes"], summary["down_bytes"]]


def _row(name: str, kind: type[LocalMethod], path: str, sent: Any) -> list[str]:
    """Its cells; states and messages in models of d parameters."""
    job = {
        "name": name, "rounds": 1, "data": {"path": path}, "model": {"name": "logistic", "bias": False},
        "algorithm": {"name": name, "batch_size": 5, **_keys(kind)},
        "client_optimizer": {"learning_rate": 0.01}, "record": {"evaluate_every": 0, "checkpoint_every": 0},
    }  # fmt: skip
    *_, last = rounds(job)
    kept = sum(values.size for values in last.clients[0].values()) / _FEATURES
    noise = {"delta": 1e-5, "clip": 1.0, "noise_multiplier": 1.0}
    private = [what for what, settings in _PRIVATE.items() if _goes(job, privacy=noise | settings)]
    without = [what for what, tables in _TABLES.items() if not _goes(job, **tables)]
    text = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    _, _, about = (sys.modules[kind.__module__].__doc__ or "").partition("\n\n")
    own = re.search(rf"{name}:\s(.*)", about, re.DOTALL | re.IGNORECASE)  # else the file's first paper
    paper = re.search(r"arXiv:(\d{4}\.\d{5})", own[1] if own else about)
    up, down = (f"{models:.3g}" for models in sent)
    link = f"[{paper[1]}](https://arxiv.org/abs/{paper[1]})" if paper else ""
    state = f"{kept:.3g}" if kept else ""
    return [f"`{name}`", cell(text), state, up, down, ", ".join(private) or "no", ", ".join(without), link]


def _goes(job: dict[str, Any], **tables: Any) -> bool:
    """Whether a job with other tables is not refused."""
    try:
        next(rounds(job | tables))
    except UsageError:
        return False
    return True
