"""What all figures share: colours, dashes, markers, sizes, and axes with their labels, scales and units."""

from __future__ import annotations

import io
import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import UsageError
from mpifed.files.columns import column_of, labels
from mpifed.files.write import replaced

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

PANELS = labels("vertical")  # from top to bottom
HORIZONTAL = labels("horizontal")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
Dash: TypeAlias = str | tuple[int, tuple[float, ...]]
DASHES: tuple[Dash, ...] = (  # as different from each other as seven can be: print without colours tells by them
    "-", (0, (5, 1.6)), (0, (1, 1.2)), (0, (6, 1.4, 1, 1.4)), (0, (9, 3)), (0, (3, 1.2, 1, 1.2, 1, 1.2)), (0, (2.2, 3)),
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", "*")  # one number has no divisor of the other: 63 pairs
Units: TypeAlias = tuple[tuple[int, str], ...]
_UNITS: dict[str, Units] = {
    "s": ((3600, "h"), (60, "min"), (1, "s")),
    "B": ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")),
}
Settings: TypeAlias = dict[Any, Any]  # keys are literals, in matplotlib's own types
STYLE: Settings = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.xmargin": 0.03,
    "figure.constrained_layout.w_pad": 0.08,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "text.usetex": False,  # whatever the user's matplotlibrc says: labels are no TeX
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}
SizeName = Literal["screen", "column", "page"]
_PRINT = {
    "font.size": 8, "lines.linewidth": 1.1, "lines.markersize": 3, "axes.linewidth": 0.6, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "figure.constrained_layout.w_pad": 0.03, "figure.constrained_layout.h_pad": 0.03,
}  # fmt: skip


class Size(NamedTuple):
    """What a figure is drawn for."""

    width: float  # inches; 0: as wide as its panels need
    height: float  # inches of a panel
    across: int  # panels beside each other, where their axes were not named
    style: Settings  # of matplotlib

    @property
    def points(self) -> float:
        """Size of text."""
        return float(self.style["font.size"])


SIZES: dict[str, Size] = {
    "screen": Size(0, 2.4, 9, STYLE | {"lines.markersize": 4}),
    "column": Size(3.4, 1.75, 1, STYLE | _PRINT),
    "page": Size(7.0, 1.75, 3, STYLE | _PRINT),
}


def size_of(name: str) -> Size:
    if name not in SIZES:
        raise UsageError(f"size = {name!r:.40}: expected one of {', '.join(SIZES)}")
    return SIZES[name]


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


def label_of(name: str) -> str:
    """What an axis of a column is called."""
    column = column_of(name)
    return f"{column.label} {name.removeprefix(column.name)}" if column.name.endswith("_") else column.label


def finish(axes: Axes, which: Literal["x", "y"], name: str, values: Floats, log: bool | None, inches: float) -> None:
    """The label, scale and ticks of an axis.

    Parameters
    ----------
    which : the axis
    name : the column that it shows
    values : all that are shown, finite
    log : whether it is logarithmic; None: as the values ask for
    inches : its length
    """
    from matplotlib.ticker import PercentFormatter

    unit, axis = column_of(name).unit, axes.xaxis if which == "x" else axes.yaxis
    positive = values[values > 0]
    helps = which == "y" and (name == "relative" or (unit != "%" and log_helps(values)))
    logarithmic = bool(len(positive)) and (helps if log is None else log)
    if name == "excess" and which == "y" and log is not False:
        axes.set_yscale("symlog", linthresh=0.01)
    elif logarithmic:
        axes.set(**{f"{which}scale": "log"})
        _log_ticks(axis, positive, unit == "%")
    elif unit == "%":
        axis.set_major_formatter(PercentFormatter(1))
    if unit in _UNITS and len(positive):
        _unit_ticks(axis, _UNITS[unit], positive, logarithmic, max(2, round(1.6 * inches)))
    letters = int(72 * inches / (0.53 * float(axis.label.get_fontsize())))
    axes.set(**{f"{which}label": textwrap.fill(label_of(name), max(12, letters))})


def _log_ticks(axis: Axis, positive: Floats, percent: bool) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter

    ratio = positive.max() / positive.min()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if ratio < 300 else (1,)) if ratio > 4 else MaxNLocator(4))
    axis.set_major_formatter(PercentFormatter(1) if percent else "{x:g}")
    axis.set_minor_locator(NullLocator())


def _unit_ticks(axis: Axis, units: Units, positive: Floats, logarithmic: bool, ticks: int) -> None:
    """Ticks in the largest unit that suits the values; of a linear axis from 0 on."""
    from matplotlib.ticker import MaxNLocator

    _, most = axis.get_view_interval()
    size, unit = next((size, unit) for size, unit in units if most >= 2 * size or size == 1)
    if logarithmic:
        least, most = positive.min() / 1.1, positive.max() * 1.1
        at = axis.get_major_locator().tick_values(least / size, most / size)
    else:
        least, at = 0, MaxNLocator(ticks).tick_values(0, most / size)
    at = [tick for tick in at if least <= tick * size <= most]
    at = at[:: max(1, math.ceil(len(at) / ticks))] if logarithmic else at
    axis.set_ticks([tick * size for tick in at], [f"{tick:g} {unit}" for tick in at])


def log_helps(values: Floats) -> bool:
    """Whether values are positive and spread over at least a factor of ten."""
    return len(values) > 0 and bool(0 < 10 * values.min() <= values.max())
