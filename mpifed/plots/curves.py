"""Figures of convergence: columns of histories against others, a line for each setting, a band over its runs."""

from __future__ import annotations

import itertools
import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pandas import DataFrame, Series, concat

from mpifed.core.errors import DataError, UsageError
from mpifed.plots.style import COLOURS, DASHES, HORIZONTAL, MARKERS, PANELS, Size, finish, plain, style_of
from mpifed.results.frames import listed, read
from mpifed.text import nearest

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mpifed.plots.style import SizeName

Band = Literal["range", "deviation", "interval", "none"]
BANDS = {
    "range": " and range", "deviation": " and standard deviation", "interval": " and 95 % interval of the mean",
    "none": "",
}  # fmt: skip
_MOST_LINES = 30
_LEAST_POINTS = {"kkt_residual": 3, "duality_gap": 3}  # certificates of the start and the end alone are no curve
_LETTER = 0.58  # of the size of text, that a letter is wide
_HANDLE = 7  # letters that a line takes in a legend, beside its label

Lines = dict[str, DataFrame]  # by label, the histories of its runs
Panels = dict[tuple[str, str], dict[str, DataFrame]]  # by columns (y, x), the curves by label


def figure(
    folders: Sequence[Path] = (),
    *,
    joined: Mapping[str, Sequence[Path]] | None = None,
    x: str | Sequence[str] | None = None,
    y: str | Sequence[str] | None = None,
    band: Band = "range",
    size: SizeName = "screen",
    relative_to: float | None = None,
) -> Figure:
    """Columns of histories against others, in a panel for each pair; what is left out is a warning.

    Parameters
    ----------
    folders
        Runs, and sweeps, which count as their runs. Those of one setting are one line, named as in comparisons.
    joined
        Folders that are one line each, by its label, whether or not they are among `folders`.
    x, y, band, size, relative_to
        As `mpifed.plot` takes them; without `x`, rounds, seconds, bytes, gradients and epsilon where measured.

    Raises
    ------
    DataError
        Nothing that is asked for was measured.
    UsageError
        A folder is of no run, no run has such a column, or there are more than 30 lines.
    """
    if band not in BANDS:
        raise UsageError(f"band = {band!r:.40}: expected one of {', '.join(BANDS)}")
    lines, repeated = lines_of(folders, joined or {}, relative_to)
    if len(lines) > _MOST_LINES:
        raise UsageError(
            f"{len(lines)} lines; a figure shows {_MOST_LINES}, to be told apart: give fewer runs, single "
            "points, or several as one line with a label"
        )
    x, y = ([names] if isinstance(names, str) else list(dict.fromkeys(names or ())) for names in (x, y))
    measured = {name for history in lines.values() for name in history.select_dtypes("float").dropna(axis=1, how="all")}
    if unknown := [name for name in [*x, *y] if name not in measured]:
        there = f"{nearest(unknown[0], measured)}; columns are {', '.join(sorted(measured))}"
        raise UsageError(f"no run has measured {unknown[0]!r:.40}{there}")
    rows = y or [name for name in PANELS if name not in repeated]
    panels: Panels = {}
    for row, column in itertools.product(rows, x or HORIZONTAL):
        curves = {label: curve(history, column, row, band) for label, history in lines.items()}
        if max(map(len, curves.values())) >= (1 if y else _LEAST_POINTS.get(row, 1)):
            panels[row, column] = curves
    if not panels:
        raise DataError(f"nothing of {', '.join(rows)} was measured{' against ' * bool(x)}{', '.join(x)}; run with "
                        "[record] evaluate_every = 1 or more")  # fmt: skip
    with style_of(size) as shape:
        columns = list(dict.fromkeys(column for _, column in panels))[: len(x) or shape.across]
        panels = {panel: curves for panel, curves in panels.items() if panel[1] in columns}
        return _grid(panels, columns, _title(lines, band), shape)


def lines_of(
    folders: Sequence[Path], joined: Mapping[str, Sequence[Path]] | None = None, optimum: float | None = None
) -> tuple[Lines, set[str]]:
    """The lines that folders of runs and sweeps make, by label, and which columns of them say what others do.

    Warns of what has not been measured, and of runs that did not end well.
    """
    joined = joined or {}
    frames = read(*folders, *(folder for members in joined.values() for folder in members))
    runs, histories = frames.runs, frames.histories
    drawn = runs["folder"].isin(histories["folder"])
    if histories.empty:
        raise DataError(f"{listed(list(runs['run']))}: nothing was measured yet; run it, or go on with --resume")
    missing = [*runs.loc[~drawn, "run"], *frames.waiting]
    said = [f"left out, since nothing was measured yet: {listed(missing)}"] if missing else []
    for end, group in runs[drawn & ~runs["finished"]].groupby("end", sort=False):
        said.append(f"drawn as far as measured, {end}: {listed(list(group['run']))}")
    if optimum is not None:
        if "objective" not in histories:
            raise DataError("no history has a column objective; draw it without --relative-to")
        above = (histories["objective"] - optimum) / optimum
        histories["relative"] = above.where(above > 0)
    within = histories["folder"].map(lambda run: {run.resolve(), run.resolve().parent})
    rest, lines = histories, dict[str, DataFrame]()
    for label, members in joined.items():
        places = {folder.resolve() for folder in members}
        lines[label] = histories[[bool(places & each) for each in within]]
        rest = rest.drop(lines[label].index, errors="ignore")
    lines |= {str(setting): history for setting, history in rest.groupby("setting", sort=False)}
    for label, each in lines.items():  # runs of one job and seed, as of a run beside its sweep, are their mean
        lines[label] = history = each.groupby(["setting", "seed", "round"], as_index=False).mean(numeric_only=True)
        count = _count(history)
        common = history.groupby("round").size() == count
        last = common[common].index.max()
        if not last >= history["round"].max():
            where = f"round {last:g}, the last" if common.any() else "no round, since none is one"
            said.append(f"{label}: drawn up to {where} that all {count} runs have measured")
    for text in said:
        warnings.warn(text, stacklevel=4)
    if optimum is not None:
        return lines, {"train_loss", "objective"}
    minimized = runs.get("job.minimize.name", Series(dtype=object)).fillna("loss")
    return lines, {"objective"} if (minimized == "loss").all() else set()


def curve(history: DataFrame, x: str, y: str, band: Band = "range") -> DataFrame:
    """The mean of column `y` and its band at the rounds that all runs have measured, against the mean of column `x`.

    Returns
    -------
    DataFrame
        `x`, `y`, `low`, `high` of each point. The band is from the least to the largest value, or the standard
        deviation or Student's 95 % interval about the mean; of a single run, and with "none", it is the line.
    """
    from scipy.special import stdtrit

    if not {x, y} <= set(history):
        return DataFrame(columns=["x", "y", "low", "high"], dtype=float)
    finite = history[np.isfinite(history[x]) & np.isfinite(history[y])].groupby("round")
    count = _count(history)
    points = finite[y].agg(["mean", "std", "min", "max"])[finite.size() == count]
    across = finite[x].mean()[points.index]
    if band == "range":
        low, high = points["min"], points["max"]
    else:
        factor = {"deviation": 1.0, "interval": stdtrit(count - 1, 0.975) / math.sqrt(count), "none": 0.0}[band]
        spread = (points["std"] * factor).fillna(0.0)
        low, high = points["mean"] - spread, points["mean"] + spread
    return DataFrame({"x": across, "y": points["mean"], "low": low, "high": high}, dtype=float)


def _count(history: DataFrame) -> int:
    """How many runs it is of."""
    return int(history.groupby(["setting", "seed"]).ngroups)


def _title(lines: Lines, band: Band) -> str:
    """What lines and bands are, as "mean and range of 5 seeds"; empty where every line is a single run."""
    counts = sorted(map(_count, lines.values()))
    if counts[-1] == 1:
        return ""
    alike = all(history["setting"].nunique() == 1 for history in lines.values())
    how_many = f"{counts[0]}" if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"
    return f"mean{BANDS[band]} of {how_many} {'seeds' if alike else 'runs'}"


def _grid(panels: Panels, columns: Sequence[str], title: str, size: Size) -> Figure:
    from mpifed.plots.notebook_figure import NotebookFigure

    rows = list(dict.fromkeys(row for row, _ in panels))
    width = size.width or max(4.8, 1 + 3.1 * len(columns))
    labels = [label for label in next(iter(panels.values())) if any(len(curves[label]) for curves in panels.values())]
    letters = int(72 * width / size.points / _LETTER)
    names = [textwrap.wrap(plain(label), letters - _HANDLE) for label in labels]
    across = max(1, min(len(labels), 6, letters // (_HANDLE + max(len(line) for name in names for line in name))))
    legend_lines = math.ceil(sum(map(len, names)) / across) + bool(title) + 2
    height = 0.021 * size.points * legend_lines + size.height * len(rows)
    picture = NotebookFigure(figsize=(width, height), layout="constrained")
    grid = picture.subplots(len(rows), len(columns), sharex="col", sharey="row", squeeze=False)
    for axes in grid.flat:
        axes.set_visible(False)
    for (row, column), curves in panels.items():
        axes = grid[rows.index(row), columns.index(column)]
        axes.set_visible(True)
        for number, label in enumerate(labels):
            _draw_line(axes, curves[label], number, label)
        if row == "excess":
            axes.axhline(0, color="black", linewidth=0.8)
    for i, row in enumerate(rows):
        shown = concat([points for panel, curves in panels.items() if panel[0] == row for points in curves.values()])
        finish(grid[i, 0], "y", row, shown)
    for j, column in enumerate(columns):
        shown = concat([points for panel, curves in panels.items() if panel[1] == column for points in curves.values()])
        finish(grid[-1, j], "x", column, shown)
    picture.align_ylabels()
    picture.legend(
        next(axes for axes in grid.flat if axes.lines).lines[: len(labels)], ["\n".join(name) for name in names],
        loc="outside upper center", ncols=across, title=title or None, fontsize=min(9, size.points), title_fontsize=8,
        handlelength=3.2, columnspacing=1.4,
    )  # fmt: skip
    return picture


def _draw_line(axes: Axes, points: DataFrame, number: int, label: str) -> None:
    colour = COLOURS[number % len(COLOURS)]
    # sparse, and not where those of other lines are; of few points, all
    every = None if len(points) <= 10 else (0.02 + 0.013 * (number % 7), 0.16)
    axes.plot(
        points["x"], points["y"], color=colour, linestyle=DASHES[(number + number // len(COLOURS)) % len(DASHES)],
        label=plain(label), marker=MARKERS[number % len(MARKERS)], markevery=every,
    )  # fmt: skip
    axes.fill_between(points["x"], points["low"], points["high"], color=colour, alpha=0.2, linewidth=0)
