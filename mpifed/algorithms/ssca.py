"""Mini-batch SSCA for data of either split, see `mpifed.algorithms.ssca_server`."""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.algorithms.ssca_horizontal import SSCAHorizontal
from mpifed.algorithms.ssca_server import SSCABase
from mpifed.algorithms.ssca_vertical import SSCAVertical


@dataclass(frozen=True)
class SSCA(SSCABase):
    """Algorithms 1 to 4; `SSCABase` has the hyper-parameters."""

    @classmethod
    def for_split(cls, split: str) -> type[SSCABase]:
        """The class for data split by rows or by columns; one derived from this is for either."""
        if cls is not SSCA:
            return cls
        return SSCAVertical if split == "columns" else SSCAHorizontal
