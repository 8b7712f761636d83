"""The base of algorithms for data split by rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpifed.core.algorithm import Algorithm

if TYPE_CHECKING:
    from mpifed.core.exchange import Measure


class Rows(Algorithm):
    """The base of algorithms for data split by rows: measures losses, constraints and certificates.

    Its `check` may begin with `check_rows(self.problem, batch_size)`.
    """

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Training loss, objective and constraints; the certificate."""
        from mpifed.algorithms.measures import measures_of_rows  # which no round needs

        return measures_of_rows(self)
