"""Pictures of convergence from the result files of runs; `mpifed plot` draws them, without a display.

matplotlib and plotext are imported when they are needed.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError, UsageError
from mpifed.core.tables import Table
from mpifed.files.atomic import aside
from mpifed.files.columns import column_of, labels
from mpifed.files.history import read_history
from mpifed.files.run_folder import job_of, read_run
from mpifed.job.loading import dotted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]

PANELS = labels("vertical")  # from top to bottom
HORIZONTAL = labels("horizontal")
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito
DASHES = ("-", "--", ":", "-.")  # beyond as many lines as there are colours
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BANDS = {"range": " and range", "deviation": " and standard deviation", "none": ""}
CLOCK = ((3600, "h"), (60, "min"), (1, "s"))
BYTES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
STYLE: dict[Any, Any] = {  # keys are literals, in matplotlib's own types
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
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
}


class PlottedRun(NamedTuple):
    """What a picture needs of one run."""

    name: str
    job: Table  # by dotted key, without the seed
    # by column, [measured rounds]; `bytes` is up + down, `excess` max(F_m - limit_m), `relative` the objective's
    history: dict[str, Floats]


class Curve(NamedTuple):
    """One line; `low` and `high` bound its band."""

    x: Floats  # [points]
    y: Floats  # [points]
    low: Floats  # [points]
    high: Floats  # [points]


def convergence(
    run_dirs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    x: Sequence[str] = tuple(HORIZONTAL),
    relative_to: float | None = None,
) -> None:
    """Draws `figure` of the runs to the file `out`, in the format of its suffix (.pdf, .svg, .png)."""
    import matplotlib

    path = Path(out)
    with matplotlib.rc_context(STYLE):
        picture = figure(run_dirs, x, relative_to)
        formats = picture.canvas.get_supported_filetypes()
        if (suffix := path.suffix[1:].lower()) not in formats:
            known = ", ".join(f".{name}" for name in sorted(formats))
            raise UsageError(f"{path}: a figure cannot be drawn as '{path.suffix}'; end its name in one of {known}")
        with aside(path) as temporary:
            picture.savefig(temporary, format=suffix)


def figure(
    run_dirs: Sequence[str | os.PathLike[str]],
    x: Sequence[str] = tuple(HORIZONTAL),
    relative_to: float | None = None,
) -> Figure:
    """Loss and accuracy against rounds, time and bytes; against simulated time and epsilon where runs have them.

    Where a run minimizes something else than the loss, the objective gets a row as well.

    Runs that differ in nothing but their seed are one line, their mean, with a band from their least to their largest
    value. What no run has measured gets no panel.

    Parameters
    ----------
    run_dirs
        Directories of runs.
    x
        Some of `HORIZONTAL`, from left to right.
    relative_to
        The least objective P*, positive: then (P - P*) / P* is drawn in the place of the loss, where it is positive.

    Returns
    -------
    matplotlib.figure.Figure
        With one row of axes for each quantity and one column for each of `x`.

    Raises
    ------
    DataError
        No run has measured anything, or one is not a run.
    """
    runs_read = [_read(Path(run_dir), relative_to) for run_dir in run_dirs]
    groups = _grouped(runs_read)
    left_out = {"train_loss", "objective"} if relative_to is not None else set()
    left_out |= {"objective"} if all(run.job.get("minimize.name", "loss") == "loss" for run in runs_read) else set()
    drawn = {
        (row, column): {label: _curve(runs, column, row) for label, runs in groups.items()}
        for row in PANELS
        for column in x
        if row not in left_out
    }
    # points that a panel needs: certificates of the start and the end alone are no curve
    least = {"kkt_residual": 3, "duality_gap": 3}
    drawn = {
        panel: curves
        for panel, curves in drawn.items()
        if max(len(curve.x) for curve in curves.values()) >= least.get(panel[0], 1)
    }
    if not drawn:
        raise DataError(
            f"{', '.join(map(str, run_dirs))}: nothing was measured; run with [record] evaluate_every = 1 or more"
        )
    rows = [row for row in PANELS if any(row == panel[0] for panel in drawn)]
    columns = [column for column in x if any(column == panel[1] for panel in drawn)]

    from mpifed.notebook_figure import NotebookFigure

    picture = NotebookFigure(figsize=(1 + 3.1 * len(columns), 0.8 + 2.4 * len(rows)), layout="constrained")
    grid = picture.subplots(len(rows), len(columns), sharex="col", sharey="row", squeeze=False)
    for (row, column), curves in drawn.items():
        _draw(axes := grid[rows.index(row), columns.index(column)], curves)
        if row == "excess":
            axes.axhline(0, color="black", linewidth=0.8)
    for row, axes_of_row in zip(rows, grid, strict=True):
        curves_of_row = [curves for panel, curves in drawn.items() if panel[0] == row]
        _finish_vertical(axes_of_row[0], row, [curve.y for curves in curves_of_row for curve in curves.values()])
    for column, axes_of_column in zip(columns, grid.T, strict=True):
        _finish_horizontal(axes_of_column[-1], column)
    picture.align_ylabels()
    handles, labels = axes.get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=min(len(groups), len(columns)))
    return picture


def compared(
    histories: Mapping[str, Sequence[Mapping[str, Floats]]],
    x: str = "round",
    y: str = "test_accuracy",
    band: str = "range",
) -> Figure:
    """A line for each label: the mean over its runs of column `y` against `x`.

    Parameters
    ----------
    histories
        Columns of the runs of each label, by name.
    band
        Around each line: "range", "deviation" (standard, over runs) or "none".

    Raises
    ------
    UsageError
        No run has such a column.
    """
    if band not in BANDS:
        raise UsageError(f"band = {band!r}: expected one of {', '.join(BANDS)}")
    from matplotlib import rc_context

    from mpifed.notebook_figure import NotebookFigure

    groups = {
        label: [PlottedRun(label, {}, dict(one) | {"bytes": one["up_bytes"] + one["down_bytes"]}) for one in runs]
        for label, runs in histories.items()
    }
    curves = {label: _curve(runs, x, y, band) for label, runs in groups.items()}
    if not any(len(curve.x) for curve in curves.values()):
        known = sorted({name for runs in groups.values() for one in runs for name in one.history})
        raise UsageError(f"no run has measured {y} against {x}; columns are {', '.join(known)}")
    with rc_context(STYLE):
        picture = NotebookFigure(figsize=(4.8, 3.4), layout="constrained")
        axes = picture.subplots()
        _draw(axes, {label: curve for label, curve in curves.items() if len(curve.x)}, markers=True)
        if y in PANELS:
            _finish_vertical(axes, y, [curve.y for curve in curves.values()])
        else:
            axes.set_ylabel(y)
        if x in HORIZONTAL:
            _finish_horizontal(axes, x)
        else:
            axes.set_xlabel(x)
        most = max(len(runs) for runs in groups.values())
        title = f"mean{BANDS[band]} of {most} seeds" if most > 1 else None
        names = [str(label).replace("$", r"\$") for label, curve in curves.items() if len(curve.x)]
        rows = math.ceil(len(names) / (columns := _columns(names)))
        picture.set_size_inches(4.8, 3.1 + 0.2 * rows + (0.2 if title else 0))
        picture.legend(
            axes.lines, names, loc="outside upper center", ncols=columns, title=title, fontsize=9,
            title_fontsize=8,
        )  # fmt: skip
    return picture


def _columns(names: Sequence[str], wide: int = 52) -> int:
    """Columns of a legend above a figure of usual width: as many as fit, in rows of alike lengths."""
    most = max(1, min(4, wide // (max(map(len, names)) + 6)))
    return math.ceil(len(names) / math.ceil(len(names) / most))


def terminal(run_dir: str | os.PathLike[str]) -> str:
    """A run's training loss against rounds, as text of 80 columns."""
    import plotext

    run = _read(Path(run_dir))
    curve = _curve([run], "round", "train_loss")
    if not len(curve.x):
        raise DataError(f"{run_dir}: no training loss was measured; run with [record] evaluate_every = 1 or more")
    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plot_size(80, 18)
    plotext.plot(curve.x.tolist(), curve.y.tolist(), marker="braille")
    plotext.yscale("log" if _log_helps(curve.y) else "linear")
    plotext.title(f"{run.name}: {PANELS['train_loss']}")
    plotext.xlabel("round")
    return "\n".join(line.rstrip() for line in plotext.uncolorize(plotext.build()).splitlines())


def _read(run_dir: Path, relative_to: float | None = None) -> PlottedRun:
    job = job_of(run_dir)
    if not job:
        raise DataError(f"{run_dir / 'job.toml'}: cannot be read, or is empty; is {run_dir} a run?")
    job.pop("seed", None)
    history = {name: values.astype(np.float64) for name, values in read_history(run_dir).items()}
    if not history:
        raise DataError(f"{run_dir / 'history.csv'}: the run ended before its first measured round; resume it")
    history["bytes"] = history["up_bytes"] + history["down_bytes"]
    if relative_to is not None:
        if "objective" not in history:
            raise DataError(f"{run_dir / 'history.csv'}: no column objective; draw it without --relative-to")
        above = (history["objective"] - relative_to) / relative_to
        history["relative"] = np.where(above > 0, above, np.nan)
    constraints = {str(m): one for m, one in enumerate(job.get("constraint", []), 1)}
    if constraints:
        lacking = [f"constraint_{m}" for m in constraints if f"constraint_{m}" not in history]
        if lacking:
            raise DataError(f"{run_dir / 'history.csv'}: no column {lacking[0]}, of which job.toml has the limit")
        excess = [history[f"constraint_{m}"] - float(one["limit"]) for m, one in constraints.items()]
        history["excess"] = np.max(excess, axis=0)
        job["constraint"] = constraints
    return PlottedRun(read_run(run_dir).get("name", run_dir.name), dict(dotted(job)), history)


def _grouped(runs: Iterable[PlottedRun]) -> dict[str, list[PlottedRun]]:
    """Runs alike but for the seed, by label: the name, and what sets them apart from others of that name."""
    groups: dict[str, list[PlottedRun]] = {}
    for run in runs:
        groups.setdefault(json.dumps([run.name, run.job], sort_keys=True, default=str), []).append(run)
    labelled = {}
    for alike in groups.values():
        name, job, _ = alike[0]
        others = [group[0].job for group in groups.values() if group[0].name == name]
        apart = [key for key in job if any(other.get(key) != job[key] for other in others)]
        label = ", ".join([name, *(f"{key.rpartition('.')[2]} = {job[key]}" for key in apart)])
        seeds = f" (mean and range of {len(alike)} seeds)" if len(alike) > 1 else ""
        labelled[(label + seeds).replace("$", r"\$")] = alike  # else matplotlib reads formulas
    return labelled


def _curve(runs: Sequence[PlottedRun], x: str, y: str, band: str = "range") -> Curve:
    """The mean and band of `y` at the rounds that all `runs` have measured, against the mean of `x`."""
    rounds = functools.reduce(np.intersect1d, [run.history["round"] for run in runs])
    at = [np.isin(run.history["round"], rounds) for run in runs]
    if not all({x, y} <= run.history.keys() for run in runs):
        return Curve(*np.empty((4, 0)))
    xs, ys = (np.stack([run.history[name][here] for run, here in zip(runs, at, strict=True)]) for name in (x, y))
    finite = np.isfinite(xs).all(axis=0) & np.isfinite(ys).all(axis=0)
    xs, ys = xs[:, finite], ys[:, finite]
    middle = ys.mean(axis=0)
    spread = ys.std(axis=0, ddof=1) if band == "deviation" and len(ys) > 1 else np.zeros_like(middle)
    low, high = (ys.min(axis=0), ys.max(axis=0)) if band == "range" else (middle - spread, middle + spread)
    return Curve(xs.mean(axis=0), middle, low, high)


def _draw(axes: Axes, curves: Mapping[str, Curve], markers: bool = False) -> None:
    for index, (label, curve) in enumerate(curves.items()):
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index // len(COLOURS) % len(DASHES)]
        own = DASHES[index % len(DASHES)] if markers else dash  # told apart in print without colours, too
        (line,) = axes.plot(curve.x, curve.y, color=colour, linestyle=own, label=label)
        if markers:
            line.set(marker=MARKERS[index % len(MARKERS)], markevery=max(1, len(curve.x) // 8), markersize=4)
        if np.any(curve.low < curve.high):
            axes.fill_between(curve.x, curve.low, curve.high, color=colour, alpha=0.2, linewidth=0)


def _finish_vertical(axes: Axes, quantity: str, values: Sequence[Floats]) -> None:
    """The label, scale and ticks of a row of panels that show `values`, through its first."""
    from matplotlib.ticker import LogLocator, NullLocator, PercentFormatter

    axes.set_ylabel(PANELS[quantity])
    shown = np.concatenate(values)
    if quantity == "excess":
        axes.set_yscale("symlog", linthresh=0.01)
    elif column_of(quantity).unit == "%":
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    elif quantity == "relative":
        axes.set_yscale("log")
    elif _log_helps(shown):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if shown.max() < 300 * shown.min() else (1,)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())


def _finish_horizontal(axes: Axes, quantity: str) -> None:
    """The label and ticks of a column of panels, through its last."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(HORIZONTAL[quantity])
    units, ticks = {"B": (BYTES, 4), "s": (CLOCK, 5)}.get(column_of(quantity).unit, ((), 0))
    if units:
        _, most = axes.get_xlim()
        size, unit = next((size, unit) for size, unit in units if most >= 2 * size or size == 1)
        at = [tick for tick in MaxNLocator(ticks).tick_values(0, most / size) if tick * size <= most]
        axes.set_xticks([tick * size for tick in at], [f"{tick:g} {unit}" for tick in at])


def _log_helps(values: Floats) -> bool:
    """Whether values are positive and spread over at least a factor of ten."""
    return len(values) > 0 and bool(0 < 10 * values.min() <= values.max())
