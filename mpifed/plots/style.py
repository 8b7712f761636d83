"""What all figures share: colours, dashes, markers, sizes, and axes with their labels, scales and units.

Figures are drawn in a style of their own, whatever the user's settings of matplotlib are.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mpifed.core.errors import UsageError
from mpifed.files.columns import column_of, labels
from mpifed.files.write import replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

PANELS = labels("vertical")  # from top to bottom
HORIZONTAL = labels("horizontal")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
DASHES: tuple[str | tuple[int, tuple[float, ...]], ...] = (  # as different from each other as seven can be, in print
    "-", (0, (5, 1.6)), (0, (1, 1.2)), (0, (6, 1.4, 1, 1.4)), (0, (9, 3)), (0, (3, 1.2, 1, 1.2, 1, 1.2)), (0, (2.2, 3)),
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*")  # one number has no divisor of the other: 63 pairs
STYLE: dict[Any, Any] = {  # keys are literals, in matplotlib's own types
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.03,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}
_PRINT = {"font.size": 8, "lines.linewidth": 1.1, "lines.markersize": 3, "axes.linewidth": 0.6}
SizeName = Literal["screen", "column", "page"]


class Size(NamedTuple):
    """What a figure is drawn for."""

    width: float  # inches; 0: as wide as its panels need
    height: float  # inches of a panel
    across: int  # panels beside each other, where their axes were not named
    style: dict[str, float]

    @property
    def points(self) -> float:
        """Size of text."""
        return self.style.get("font.size", 10)


SIZES = {"screen": Size(0, 2.4, 9, {}), "column": Size(3.4, 1.75, 1, _PRINT), "page": Size(7.0, 1.75, 3, _PRINT)}


@contextmanager
def style_of(name: str) -> Iterator[Size]:
    """The size of this name, in whose style a figure is drawn within the block."""
    from matplotlib import rc_context, rcdefaults, rcParams

    if name not in SIZES:
        raise UsageError(f"size = {name!r:.40}: expected one of {', '.join(SIZES)}")
    with rc_context():
        rcdefaults()
        rcParams.update(STYLE | SIZES[name].style)
        yield SIZES[name]


def save(picture: Figure, path: Path) -> None:
    """Write a figure in the format of the file's suffix.

    Raises UsageError for a format that cannot be drawn; OSError with the file's name where it cannot be written.
    """
    formats = picture.canvas.get_supported_filetypes()
    if (suffix := path.suffix[1:].lower()) not in formats:
        known = ", ".join(f".{name}" for name in sorted(formats))
        raise UsageError(f"{path}: a figure cannot be drawn as '{path.suffix}'; end its name in one of {known}")
    drawn = io.BytesIO()  # a full disk would leave matplotlib's own writer in a state whose error hides it
    picture.savefig(drawn, format=suffix)
    with replaced(path) as file:
        file.write(drawn.getvalue())


def plain(text: str) -> str:
    """Text in which matplotlib reads no formulas."""
    return text.replace("$", r"\$")


def finish(axes: Axes, which: Literal["x", "y"], name: str, curves: DataFrame) -> None:
    """The label, scale, units and limits of an axis; a vertical one is logarithmic where values spread.

    Parameters
    ----------
    which : the axis
    name : the column that it shows
    curves : the points `x`, `y`, `low`, `high` of all lines, by round
    """
    from matplotlib.ticker import EngFormatter, PercentFormatter

    column, values, later = column_of(name), curves[which], curves[curves.index > curves.index.min()]
    if which == "x":
        axes.locator_params(axis="x", nbins=5)
    elif name == "relative" or (column.unit != "%" and 0 < 10 * values.min() <= values.max()):
        axes.set_yscale("log")
    elif name == "excess":
        axes.set_yscale("symlog", linthresh=0.01)
    elif later["low"].min() < later["high"].max():  # what the start is far from has room
        margin = 0.05 * (later["high"].max() - later["low"].min())
        axes.set_ylim(later["low"].min() - margin, later["high"].max() + margin)
    formatter = {"%": PercentFormatter(1), "B": EngFormatter("B")}.get(column.unit)
    if formatter is not None:
        getattr(axes, f"{which}axis").set_major_formatter(formatter)
    label = f"{column.label} {name.removeprefix(column.name)}" if column.name.endswith("_") else column.label
    axes.set(**{f"{which}label": textwrap.fill(label + " (s)" * (column.unit == "s"), 24)})
