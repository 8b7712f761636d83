"""A figure of Matplotlib that notebooks draw, whether or not pyplot was imported; imported where a figure is made."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text

from mpifed.plots.style import Settings

_FILES: Settings = {  # of saved figures
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "savefig.dpi": 200,
    "savefig.bbox": None,  # as wide as was asked for
}


_LINE, _PAD = 1.3, 16  # sizes of text that a line of a title takes; points around it


class NotebookFigure(Figure):
    """A figure with what notebooks ask a value for, whose title stands above its legend."""

    def suptitle(self, t: str, **options: Any) -> Text:  # as matplotlib has it
        """Give the figure a title; a legend above the panels moves down, for which matplotlib leaves no room."""
        title, engine = super().suptitle(t, **options), self.get_layout_engine()
        if self.legends and isinstance(engine, ConstrainedLayoutEngine):
            text, inches = title.get_text(), 72 * float(self.get_figheight())
            room = _LINE * float(title.get_fontsize()) * (1 + text.count("\n")) / inches if text else 0.0
            engine.set(rect=(0, 0, 1, 1 - room - (_PAD / inches if text else 0)))
            for legend in self.legends:
                legend.set_bbox_to_anchor((0, 0, 1, 1 - room), self.transFigure)
        return title

    def savefig(self, fname: Any, **options: Any) -> None:  # as matplotlib has it
        """Write the figure in its own size, with text that stays text, whatever the settings of matplotlib are."""
        with rc_context(_FILES):
            super().savefig(fname, **options)

    def _repr_png_(self) -> bytes:
        image = io.BytesIO()
        self.savefig(image, format="png", dpi=120, bbox_inches="tight")
        return image.getvalue()
