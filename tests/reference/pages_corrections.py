"""Pages of methods that change local steps by what a client keeps, or by more than one gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
from pages import Page


def at_the_top(page: Page, i: int, at: Any, batch: Any, rho: float) -> Any:
    """The gradient at y + rho g / ||g||."""
    g = page.gradient(i, at, batch)
    return page.gradient(i, at + rho * g / np.linalg.norm(g), batch)


class FedSAM(Page):
    """2206.02618, Algorithm 1."""

    name = "fedsam"

    def direction(self, i: int, at: Any, batch: Any) -> Any:
        return at_the_top(self, i, at, batch, self.settings["rho"])
