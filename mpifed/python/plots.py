"""`plot`: runs and sweeps in one figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from mpifed.core.errors import UsageError
from mpifed.python.ranks import spoken
from mpifed.python.results import Run
from mpifed.python.sweeps import Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mpifed.plots.curves import Band, Log
    from mpifed.plots.style import SizeName

Drawn: TypeAlias = Union[Run, Sweep, str, "PathLike[str]"]


@spoken()
def plot(
    what: Drawn | Sequence[Drawn] | Mapping[str, Drawn | Sequence[Drawn]],
    y: str | Sequence[str] | None = None,
    x: str | Sequence[str] = "round",
    *,
    band: Band = "range",
    log: Log | None = None,
    size: SizeName = "screen",
    relative_to: float | None = None,
) -> Figure:
    """Columns of histories against others, in a panel for each pair; runs that differ in their seed are one line.

    Parameters
    ----------
    what
        Runs, sweeps, or their folders: one or several. Lines are labelled by what sets them apart. A dict gives labels:
        all runs of an entry are one line, their mean.
    y
        Columns of the history, or "bytes", those of both directions; from top to bottom. By default losses, accuracy
        and certificates, where measured.
    x
        Columns for horizontal axes, such as "round", "elapsed_s", "bytes" or "epsilon"; from left to right.
    band
        Around the mean of several runs: "range", from the least to the largest, standard "deviation", the 95 %
        "interval" of the mean (Student's), or "none".
    log
        Which axes are logarithmic: "x", "y", "both" or "none"; by default vertical ones where values spread.
    size
        "screen", "column" (3.4 inches wide, text of 8 points) or "page" (7 inches).
    relative_to
        The least objective P*, positive: then (P - P*) / P* is drawn in the place of the loss, where it is positive.

    Returns
    -------
    matplotlib.figure.Figure
        To change, to save, and to be the value of a notebook's cell. pyplot knows nothing of it, so there is nothing
        to close.

    Raises
    ------
    UsageError
        No run has such a column, or there are more than 30 lines.
    DataError
        A folder is no run or sweep, or nothing was measured.
    """
    from mpifed.plots.curves import figure

    joined = {str(label): _folders(members) for label, members in what.items()} if isinstance(what, Mapping) else {}
    folders = [] if isinstance(what, Mapping) else _folders(what)
    if not (folders or (joined and all(joined.values()))):
        raise UsageError("plot: nothing to draw; give runs or sweeps, or their folders")
    return figure(folders, joined=joined, x=x, y=y, band=band, log=log, size=size, relative_to=relative_to)


def _folders(what: Drawn | Sequence[Drawn]) -> list[Path]:
    if isinstance(what, (Run, Sweep)):
        return [what.path]
    if isinstance(what, (str, PathLike)):
        return [Path(what)]
    if isinstance(what, (list, tuple)):
        return [folder for member in what for folder in _folders(member)]
    raise UsageError(f"plot: a {type(what).__name__}; expected a run or a sweep, or the folder of one")
