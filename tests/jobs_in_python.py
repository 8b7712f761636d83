"""Jobs as tests write them: the optimizers of an algorithm stand beside its other settings, as they do in Python."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mpifed.testing import Job

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SOFTMAX = {"name": "softmax", "bias": False}


def fedavg(batch_size: int = 4, learning_rate: Any = 0.1, **more: Any) -> dict[str, Any]:
    """[algorithm] of FedAvg."""
    return {"name": "fedavg", "batch_size": batch_size, "client_optimizer": {"learning_rate": learning_rate}, **more}


def job_table(folder: Any = "somewhere", /, **changes: Any) -> dict[str, Any]:
    """A short job of FedAvg on a softmax regression, but for these keys and tables."""
    base = {"name": "job", "rounds": 3, "data": {"path": str(folder)}, "model": dict(SOFTMAX), "algorithm": fedavg()}
    return base | changes


def as_in_a_file(table: Mapping[str, Any]) -> dict[str, Any]:
    """The same with [client_optimizer] and [server_optimizer] as tables of their own."""
    job = dict(table)
    if isinstance(algorithm := job.get("algorithm"), Mapping):
        kept = dict(algorithm)
        for name in ("client_optimizer", "server_optimizer"):
            if name in kept:
                job.setdefault(name, kept.pop(name))
        job["algorithm"] = kept
    return job


def in_text(toml: str) -> dict[str, Any]:
    """The tables of a file's text."""
    return tomllib.loads(toml)


def checked(table: Mapping[str, Any], source: str = "job", **named: Any) -> Job:
    """The job that it describes."""
    return Job.check(as_in_a_file(table), source, **named)
