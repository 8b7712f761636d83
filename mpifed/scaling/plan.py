"""The points of a scaling study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from mpifed.core.tables import Table

STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True)
class ScalingPoint:
    """One point of a series: a number of ranks and a problem."""

    kind: str  # strong or weak
    ranks: int
    clients: int | None = None  # of synthetic data; None: the job's own data
    size: int | None = None  # of the model; None: the job's own

    @property
    def series(self) -> ScalingPoint:
        """The settings that this point shares with the others of its series."""
        clients = self.clients
        if self.kind == WEAK and clients is not None:
            clients //= self.ranks
        return replace(self, ranks=0, clients=clients)

    @property
    def name(self) -> str:
        """The name of its folder."""
        parts = [self.kind, f"r{self.ranks:04d}"]
        parts += [f"c{self.clients}"] if self.clients is not None else []
        parts += [f"m{self.size}"] if self.size is not None else []
        return "-".join(parts)

    @property
    def label(self) -> str:
        """The label of its series."""
        series = self.series
        parts = [] if series.clients is None else [f"{series.clients} clients" + " a rank" * (series.kind == WEAK)]
        parts += [] if series.size is None else [f"model size {series.size}"]
        return ", ".join(parts) or "the job"

    def table(self) -> Table:
        return asdict(self)


def plan(
    kinds: Sequence[str], ranks: Sequence[int], clients: Sequence[int], sizes: Sequence[int], own_clients: int
) -> list[ScalingPoint]:
    """All points of a study.

    Parameters
    ----------
    clients
        Numbers of clients, in all (strong) or per rank (weak); empty: the job's own.
    sizes
        Sizes of the model; empty: the job's own.
    own_clients
        Number of clients in the job's own data.
    """
    points = []
    for size in sizes or [None]:  # type: ignore[list-item]
        if STRONG in kinds:
            points += [ScalingPoint(STRONG, p, n, size) for n in clients or [None] for p in ranks]  # type: ignore[list-item]
        if WEAK in kinds:
            each = clients or [max(1, own_clients // max(ranks))]
            points += [ScalingPoint(WEAK, p, n * p, size) for n in each for p in ranks]
    return points
