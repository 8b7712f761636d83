"""A figure of matplotlib that notebooks draw, whether or not pyplot was imported; imported where a figure is made."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from mpifed.plots.style import STYLE


class NotebookFigure(Figure):
    """A figure that is written in its own size, with text that stays text, whatever the settings of matplotlib are."""

    def savefig(self, fname: Any, **options: Any) -> None:  # as matplotlib has it
        """Write it as matplotlib does, with the fonts and edges of this style."""
        with rc_context({key: value for key, value in STYLE.items() if "font" in key or "savefig" in key}):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=120, bbox_inches="tight")
        return image.getvalue()
