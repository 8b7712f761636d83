"""Algorithms of a user, named in jobs as "own_reveals:...": the example's, which says what answers reveal; and others
that say nothing, or say it wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jobs.examples.own_algorithm import ServerMomentum
from mpifed import FedAvg
from mpifed.algorithms.algorithm import Algorithm
from mpifed.algorithms.reveals import MeanGradient, Received


@dataclass(frozen=True)
class Raw(ServerMomentum):
    """The same, which declares nothing."""

    reveals = Algorithm.reveals


@dataclass(frozen=True)
class Said(ServerMomentum):
    """The same, which says it wrong."""

    says: str = "no kind"

    def reveals(self, received: Received) -> Iterator[Any]:
        for one in super().reveals(received):
            found = received.answer.values if self.says == "an attribute that there is not" else one.gradient
            if self.says == "another shape":
                found = MeanGradient(received.question, found._replace(first=found.first.T))
            yield found


class Cubed(FedAvg):
    """FedAvg but for what clients send: of that FedAvg says what it no longer is."""

    def upload(self, own: Any, sent: Any, change: Any, local: Any) -> Any:
        return change**3
