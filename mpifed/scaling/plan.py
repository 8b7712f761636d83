"""The points of a scaling study: which runs it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True)
class Point:
    """One number of ranks of one series."""

    kind: str  # strong or weak
    ranks: int
    clients: int | None = None  # of synthetic data; None: the job's own data
    size: int | None = None  # of the model: None: the job's own

    @property
    def series(self) -> Point:
        """What this point shares with the others of its line."""
        clients = self.clients
        if self.kind == WEAK and clients is not None:
            clients //= self.ranks
        return replace(self, ranks=0, clients=clients)

    @property
    def name(self) -> str:
        """Of its folder."""
        parts = [self.kind, f"r{self.ranks:04d}"]
        parts += [f"c{self.clients}"] if self.clients is not None else []
        parts += [f"m{self.size}"] if self.size is not None else []
        return "-".join(parts)

    @property
    def label(self) -> str:
        """Of its line."""
        one = self.series
        parts = [] if one.clients is None else [f"{one.clients} clients" + " a rank" * (one.kind == WEAK)]
        parts += [] if one.size is None else [f"model size {one.size}"]
        return ", ".join(parts) or "the job"

    def table(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def plan(
    kinds: Sequence[str], ranks: Sequence[int], clients: Sequence[int], sizes: Sequence[int], own: int
) -> list[Point]:
    """All points.

    Parameters
    ----------
    clients : of the whole federation in a strong study, of each rank in a weak one; none: the job's own
    sizes : of the model; none: the job's own
    own : clients of the job's own data
    """
    found = []
    for size in sizes or [None]:  # type: ignore[list-item]
        if STRONG in kinds:
            found += [Point(STRONG, p, n, size) for n in clients or [None] for p in ranks]  # type: ignore[list-item]
        if WEAK in kinds:
            each = clients or [max(1, own // max(ranks))]
            found += [Point(WEAK, p, n * p, size) for n in each for p in ranks]
    return found
