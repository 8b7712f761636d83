"""`compare` and `plot`: sweeps and runs in tables and in figures, with what `mpifed compare` and `mpifed plot` say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from mpifed.core.errors import UsageError
from mpifed.python.ranks import spoken

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mpifed.plots.curves import Band, Log
    from mpifed.plots.style import SizeName
    from mpifed.results.compare import Comparison

Drawn: TypeAlias = Union[str, "PathLike[str]"]  # a run or a sweep, or its folder


@spoken()
def compare(
    *results: Drawn | Sequence[Drawn],
    by: str | Sequence[str] = (),
    against: str | None = None,
    to: str | Sequence[str] = (),
) -> Comparison:
    """What `mpifed compare` says of sweeps and runs: means over seeds, paired differences, what targets take.

    The folders are read, on every rank that calls it. Runs that differ in their seed alone are one row, named by what
    sets it apart.

    Parameters
    ----------
    results
        Sweeps, runs, or their folders.
    by
        Columns to compare in pairs over equal seeds; by default the test accuracy, or else the objective, where at
        least two rows share three seeds.
    against
        The row to compare the others with, or the folder of one of its runs; by default the best.
    to
        Targets, as "test_accuracy>=0.95" or "train_loss<=0.1".

    Returns
    -------
    Comparison
        Printed, the tables; `frame`, their numbers, a row for each label and column; `runs`, a row for each run.

    Raises
    ------
    UsageError
        when there is no such column, label or target, or objectives that differ are to be compared.
    """
    from mpifed.results.compare import compare as compared

    columns, targets = ([text] if isinstance(text, str) else list(text) for text in (by, to))
    return compared(*_folders("compare", results), by=columns, against=against, to=targets)


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

    entries = what if isinstance(what, Mapping) else {"": what}
    lines = {str(label): _folders("plot", members) for label, members in (entries or {"": ()}).items()}
    folders = [] if isinstance(what, Mapping) else lines.pop("")
    return figure(folders, joined=lines, x=x, y=y, band=band, log=log, size=size, relative_to=relative_to)


def _folders(call: str, results: object) -> list[Path]:
    if isinstance(results, (str, PathLike)):
        return [Path(results)]
    if not isinstance(results, (list, tuple)):
        raise UsageError(f"{call}: a {type(results).__name__}; expected a run or a sweep, or the folder of one")
    if not results:
        raise UsageError(f"{call}: no run; give runs or sweeps, or their folders")
    return [folder for each in results for folder in _folders(call, each)]
