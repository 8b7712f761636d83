"""Figures of convergence, from the result files of runs."""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from mpifed.core.errors import DataError, UsageError
from mpifed.core.nearest import nearest
from mpifed.plots.lines import Band, Curve, Folder, Line, PlottedLines, band_text, curve, read_lines
from mpifed.plots.style import COLOURS, DASHES, HORIZONTAL, MARKERS, PANELS, Size, finish, plain, size_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mpifed.plots.style import SizeName

Log = Literal["x", "y", "both", "none"]
LOGS = ("x", "y", "both", "none")
MOST_LINES = 30
_LEAST_POINTS = {"kkt_residual": 3, "duality_gap": 3}  # certificates of the start and the end alone are no curve
_HANDLE = 4.2  # sizes of text that a line takes in a legend, beside its label
_LETTER = 0.58  # of the size of text, that a letter is wide


def figure(
    folders: Sequence[Folder] = (),
    *,
    joined: Mapping[str, Sequence[Folder]] | None = None,
    x: str | Sequence[str] | None = None,
    y: str | Sequence[str] | None = None,
    band: Band = "range",
    log: Log | None = None,
    size: SizeName = "screen",
    relative_to: float | None = None,
) -> Figure:
    """`draw` of what `read_lines` reads, with notes as warnings of the caller's caller."""
    read = read_lines(folders, joined, relative_to)
    for note in read.notes:
        warnings.warn(note, stacklevel=3)
    return draw(read, x=x, y=y, band=band, log=log, size=size)


def draw(
    read: PlottedLines,
    *,
    x: str | Sequence[str] | None = None,
    y: str | Sequence[str] | None = None,
    band: Band = "range",
    log: Log | None = None,
    size: SizeName = "screen",
) -> Figure:
    """Columns of histories against others, in a panel for each pair.

    Parameters
    ----------
    x, y, band, log, size
        As `mpifed.python.plots.plot` takes them; without `x`, rounds, seconds, bytes and epsilon where measured.

    Raises
    ------
    DataError
        No run has measured what is asked for.
    UsageError
        No run has such a column, or there are more than 30 lines.
    """
    from matplotlib import rc_context

    if log not in (None, *LOGS):
        raise UsageError(f"log = {log!r:.40}: expected one of {', '.join(LOGS)}")
    if len(read.lines) > MOST_LINES:
        raise UsageError(
            f"{len(read.lines)} lines; a figure shows {MOST_LINES}, so that they can be told apart: give fewer runs, "
            "single points of the sweep, or several as one line with a label"
        )
    x, y = ([names] if isinstance(names, str) else list(names or ()) for names in (x, y))
    _check_columns(read, [*x, *y])
    shape, panels = size_of(size), _panels(read.lines, x, y, band, bool(_is_log(log, "x")))
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*panels, strict=True))
    columns = columns if x else columns[: shape.across]
    with rc_context(shape.style):
        return _grid({panel: panels[panel] for panel in panels if panel[1] in columns}, rows, columns, read.lines,
                     band_text(read.lines, band), log, shape)  # fmt: skip


def _check_columns(read: PlottedLines, names: Sequence[str]) -> None:
    known = read.columns()
    if unknown := [name for name in names if name not in known]:
        meant = nearest(unknown[0], known)
        raise UsageError(f"no run has measured {unknown[0]!r:.40}{meant}; columns are {', '.join(known)}")


def _panels(
    lines: Sequence[Line], x: Sequence[str], y: Sequence[str], band: Band, positive: bool
) -> dict[tuple[str, str], list[Curve]]:
    """The curves of each panel, by its columns (y, x), where at least one line has any.

    `positive`: only points whose x is, as a logarithmic axis needs.
    """
    relative = any("relative" in line.runs[0].history for line in lines)
    of_loss = all(line.runs[0].settings.get("minimize.name", "loss") == "loss" for line in lines)
    left_out = ({"train_loss", "objective"} if relative else set()) | ({"objective"} if of_loss else set())
    rows = list(y) if y else [name for name in PANELS if name not in left_out]
    panels = {
        (row, column): [_part(curve(line.runs, column, row, band), positive) for line in lines]
        for row in dict.fromkeys(rows)
        for column in dict.fromkeys(x or HORIZONTAL)
    }
    least = {} if y else _LEAST_POINTS
    panels = {
        panel: curves
        for panel, curves in panels.items()
        if max(len(curve.x) for curve in curves) >= least.get(panel[0], 1)
    }
    if not panels:
        what = f" of {', '.join(y)}" if y else ""
        against = f" against {', '.join(x)}" if x else ""
        raise DataError(
            f"{', '.join(str(run.folder) for run in lines[0].runs[:3])}: nothing{what} was measured{against}; run with "
            "[record] evaluate_every = 1 or more"
        )
    return panels


def _grid(
    panels: Mapping[tuple[str, str], Sequence[Curve]],
    rows: Sequence[str],
    columns: Sequence[str],
    lines: Sequence[Line],
    title: str,
    log: Log | None,
    size: Size,
) -> Figure:
    from mpifed.plots.notebook_figure import NotebookFigure

    drawn = [number for number in range(len(lines)) if any(len(curves[number].x) for curves in panels.values())]
    width = size.width or (1 + 3.1 * len(columns) if len(columns) > 1 else 4.8)
    labels = [textwrap.fill(lines[number].label, _letters(width, size)) for number in drawn]
    across, legend_lines = _legend_shape(labels, width, size)
    below = 0.021 * size.points * (legend_lines + bool(title) + 2)  # inches: legend, and label of the last row
    panel = size.height * (1.2 if len(columns) == 1 and size.width > 4 else 1)
    picture = NotebookFigure(figsize=(width, below + panel * len(rows)), layout="constrained")
    grid = picture.subplots(len(rows), len(columns), sharex="col", sharey="row", squeeze=False)
    for (row, column), curves in panels.items():
        axes = grid[rows.index(row), columns.index(column)]
        for number, line in enumerate(lines):
            _draw_line(axes, curves[number], number, line.label)
        if row == "excess":
            axes.axhline(0, color="black", linewidth=0.8)
    for i, row in enumerate(rows):
        values = [curve.y for (name, _), curves in panels.items() if name == row for curve in curves]
        finish(grid[i, 0], "y", row, np.concatenate(values), _is_log(log, "y"), panel - 0.3)
    for j, column in enumerate(columns):
        values = [curve.x for (_, name), curves in panels.items() if name == column for curve in curves]
        finish(grid[-1, j], "x", column, np.concatenate(values), _is_log(log, "x"), width / len(columns) - 0.5)
        for i in range(len(rows)):
            if (rows[i], column) not in panels:
                grid[i, j].set_visible(False)
    picture.align_ylabels()
    last = next(iter(panels))
    picture.legend(
        [grid[rows.index(last[0]), columns.index(last[1])].lines[number] for number in drawn],
        list(map(plain, labels)), loc="outside upper center", ncols=across, title=title or None,
        fontsize=size.points if size.width else 9, title_fontsize=8, handlelength=3.2, columnspacing=1.4,
    )  # fmt: skip
    return picture


def _part(whole: Curve, positive: bool) -> Curve:
    return Curve(*(values[whole.x > 0] for values in whole)) if positive else whole


def _is_log(log: Log | None, axis: Literal["x", "y"]) -> bool | None:
    return None if log is None else log in (axis, "both")


def _draw_line(axes: Axes, curve: Curve, number: int, label: str) -> None:
    colour, points = COLOURS[number % len(COLOURS)], len(curve.x)
    dash = DASHES[(number + number // len(COLOURS)) % len(DASHES)]
    # sparse, and not where those of other lines are; of few points, all
    every = None if points <= 10 else (0.02 + 0.013 * (number % 7), 0.16)
    axes.plot(
        curve.x, curve.y, color=colour, linestyle=dash, label=plain(label), marker=MARKERS[number % len(MARKERS)],
        markevery=every,
    )  # fmt: skip
    if np.any(curve.low < curve.high):
        axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)


def _letters(width: float, size: Size) -> int:
    """How many letters of a label fit beside its line into a legend of this width, in inches."""
    return int(72 * width / size.points / _LETTER - _HANDLE / _LETTER) - 2


def _legend_shape(labels: Sequence[str], width: float, size: Size) -> tuple[int, int]:
    """(columns of a legend above a figure of this width, lines of its text): as few rows as fit, of alike lengths."""
    widths = [max(map(len, label.split("\n"))) * _LETTER + _HANDLE for label in labels]
    heights = [label.count("\n") + 1 for label in labels]
    for most in range(min(6, len(labels)), 1, -1):
        across = math.ceil(len(labels) / math.ceil(len(labels) / most))
        parts = np.array_split(np.arange(len(labels)), across)  # as matplotlib divides them
        if sum(max(widths[i] for i in part) + 1.4 for part in parts) * size.points <= 72 * width:
            return across, max(sum(heights[i] for i in part) for part in parts)
    return 1, sum(heights)
