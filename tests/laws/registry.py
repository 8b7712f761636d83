"""The jobs with which the laws try every algorithm of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from jobs_in_python import as_in_a_file
from methods import METHODS, named


class Case(NamedTuple):
    """One way to run an algorithm."""

    name: str
    hyper: dict[str, Any]
    tables: dict[str, Any]  # of the job, beside [algorithm]

    @property
    def algorithm(self) -> dict[str, Any]:
        """[algorithm]"""
        return {"name": named(self.name), **self.hyper}

    @property
    def split(self) -> str:
        """What its data are: rows, or columns, of ten classes; halves (rows), or cells, of two."""
        return METHODS[self.name].data

    @property
    def everybody(self) -> bool:
        """Whether it needs all clients in every round, or says otherwise than by [participation] who takes part."""
        away = "availability" in self.tables.get("simulated_network", {})
        return METHODS[self.name].everybody(self.hyper) or "asynchrony" in self.tables or away

    @property
    def drawn(self) -> bool:
        """Whether the seed makes a difference to more than how well a largest eigenvalue is known."""
        return METHODS[self.name].drawn(self.hyper)


CASES = [Case(name, *case) for name, method in METHODS.items() for case in method.cases]
NAMES = [f"{name}-{number}" for name, method in METHODS.items() for number in range(len(method.cases))]
FEW = [f"{name}-{method.short}" for name, method in METHODS.items()]  # one of every method


def table(folder: Path, algorithm: dict[str, Any], /, **changes: Any) -> dict[str, Any]:
    """A small job, as a TOML table."""
    base: dict[str, Any] = {
        "name": "law",
        "rounds": 4,
        "data": {"path": str(folder), "block": 1},  # every rank has clients
        "model": {"name": "mlp", "bias": False, "hidden": 6, "l2": 1e-3},
        "algorithm": algorithm,
        "record": {"evaluate_every": 2, "checkpoint_every": 0},
    }
    found = as_in_a_file(base | changes)
    return found | {"aggregation": {"security": "plain"} | found.get("aggregation", {})}
