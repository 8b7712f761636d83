"""Jobs as tests write them: the optimizers of an algorithm stand beside its other settings, as they do in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpifed.job.job import Job


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


def checked(table: Mapping[str, Any], source: str = "job", **named: Any) -> Job:
    """The job that it describes."""
    return Job.check(as_in_a_file(table), source, **named)
