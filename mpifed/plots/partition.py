"""How data are divided among clients, as a picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpifed.data.block import of_vectors
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation
from mpifed.plots.style import COLOURS, plain, style_of
from mpifed.text import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mpifed.plots.style import SizeName

Integers = NDArray[np.int64]
_FEW = 40  # clients, and classes, that are drawn one by one: as dots and bars
_NAMED = 20  # so many names have room beside an axis


def partition(data: Federation, size: SizeName = "screen") -> Figure:
    """How many rows each client has, and of which classes or with which targets; or how many columns.

    Labels are read client by client.

    Parameters
    ----------
    data
        A folder that `mpifed data` made.
    size
        As of `mpifed.python.plots.plot`.

    Raises
    ------
    DataError
        A shard is damaged.
    """
    from matplotlib.ticker import MaxNLocator

    from mpifed.plots.notebook_figure import NotebookFigure

    with style_of(size) as shape:
        width = shape.width or 7.0
        by_columns = len(data.bounds["columns"]) > 2
        tall = 0.8 + 0.16 * min(data.classes, _NAMED) if data.classes and not by_columns else 0
        picture = NotebookFigure(figsize=(width, 1.5 + max(1.6, tall)), layout="constrained")
        above, below = picture.subplots(2, 1, sharex=True, height_ratios=[0.9, max(1.6, tall)])
        least, most = data.counts.min(), data.counts.max()
        each = f"{least:,} to {most:,}" if least < most else f"{most:,}"
        title = f"{data.samples:,} rows of {data.clients:,} clients, {each} each"
        above.set_title(title, fontsize="medium", loc="left")
        _draw_counts(above, data.counts, "rows")
        if by_columns:
            _draw_counts(below, data.widths, "columns")
        elif data.classes:
            _draw_classes(below, data, width, tall)
        else:
            _draw_targets(below, data, width)
        for axes in (above, below):
            axes.grid(False)
        below.set(xlim=(-0.5, data.clients - 0.5), xlabel="client")
        below.xaxis.set_major_locator(MaxNLocator(min(10, max(1, data.clients)), integer=True))
        if (names := data.client_names()) and data.clients <= _NAMED:
            labels = list(map(_short, names))
            below.set_xticks(range(data.clients), labels, rotation=45, ha="right", rotation_mode="anchor")
    return picture


def _short(name: str) -> str:
    """A name of data as a label beside an axis."""
    return plain(textwrap.shorten(shown(name), 16, placeholder="…"))


def _draw_counts(axes: Axes, counts: Integers, what: str) -> None:
    if len(counts) <= _FEW:
        axes.bar(range(len(counts)), counts, width=0.8, color=COLOURS[0])
    else:
        axes.stairs(counts, np.arange(len(counts) + 1) - 0.5, fill=True, color=COLOURS[0])
    axes.set_ylabel(what)


def _draw_classes(axes: Axes, data: Federation, width: float, tall: float) -> None:
    """Dots whose area is the number of rows, where there are few; else an image."""
    from matplotlib.colors import PowerNorm

    each = (np.bincount(shard_of(data, client).y, minlength=data.classes) for client in range(data.clients))
    counts = np.stack(list(each), axis=1)
    if max(counts.shape) <= _FEW:
        room = 72 * min((width - 0.9) / data.clients, tall / data.classes)
        at, who = np.nonzero(counts)
        axes.scatter(who, at, s=(0.95 * room) ** 2 * counts[at, who] / counts.max(), color=COLOURS[0], linewidths=0)
        axes.set_title(f"rows of a class (area of a dot; the largest: {counts.max():,})", fontsize="medium", loc="left")
    else:
        image = axes.imshow(counts, cmap="Blues", norm=PowerNorm(0.5, vmin=0), aspect="auto", interpolation="nearest")
        axes.figure.colorbar(image, ax=axes, label="rows of a class", pad=0.01)
    axes.set(ylim=(data.classes - 0.5, -0.5), ylabel="class")
    if data.classes <= _NAMED:
        names = data.provenance.get("classes") or map(str, range(data.classes))
        axes.set_yticks(range(data.classes), list(map(_short, names)))


def _draw_targets(axes: Axes, data: Federation, width: float) -> None:
    """From the least to the largest target, with quartiles and median."""
    targets = (of_vectors(shard_of(data, client).y) for client in range(data.clients))
    first = [y.reshape(len(y), -1)[:, 0] for y in targets]
    quantiles = [np.quantile(y, (0, 0.25, 0.5, 0.75, 1)) if len(y) else np.full(5, np.nan) for y in first]
    least, lower, median, upper, most = np.stack(quantiles, axis=1)
    who, thick = np.arange(data.clients), min(8.0, 72 * 0.7 * (width - 0.9) / data.clients)
    axes.vlines(who, least, most, color=COLOURS[5], linewidth=max(0.4, thick / 4), label="least to largest")
    axes.vlines(who, lower, upper, color=COLOURS[0], linewidth=thick, label="middle half")
    axes.plot(who, median, "_", color=COLOURS[4], markersize=max(1, thick), label="median")
    axes.set_ylabel("target" if data.targets == 1 else f"first of {data.targets} targets")
    axes.figure.legend(loc="outside lower center", ncols=3)
