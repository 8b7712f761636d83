"""A figure of Matplotlib that notebooks draw, whether or not pyplot was imported; imported where a figure is made."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure with what notebooks ask a value for."""

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=120, bbox_inches="tight")
        return image.getvalue()
