"""A figure of Matplotlib that notebooks draw, whether or not pyplot was imported; imported where a figure is made."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from mpifed.plots.style import Settings

_FILES: Settings = {  # of saved figures
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "savefig.dpi": 200,
    "savefig.bbox": None,  # as wide as was asked for
}


class NotebookFigure(Figure):
    """A figure with what notebooks ask a value for."""

    def savefig(self, fname: Any, **options: Any) -> None:  # as matplotlib has it
        """Write the figure in its own size, with text that stays text, whatever the settings of matplotlib are."""
        with rc_context(_FILES):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=120, bbox_inches="tight")
        return image.getvalue()
