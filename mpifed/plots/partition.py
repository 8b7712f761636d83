"""How data are divided among clients, as a picture."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpifed.core.errors import DataError
from mpifed.core.record import of_vectors
from mpifed.core.text import shown
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation
from mpifed.plots.style import COLOURS, Floats, Size, plain, size_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mpifed.plots.style import SizeName

Integers = NDArray[np.int64]
Interval: TypeAlias = tuple[int, int]  # [start, stop)
Rectangle: TypeAlias = tuple[int, Interval, Interval]  # client, rows, columns
_FEW = 40  # clients, and classes, that are drawn one by one: as dots and bars
_BINS = 1000  # of more clients, so many neighbours share a bin that these are enough; the same holds for classes
_RECTANGLES = 20_000
_QUANTILES = (0, 0.25, 0.5, 0.75, 1)


class Binned(NamedTuple):
    """Clients in bins of neighbours."""

    each: int  # clients in a bin, but for the last
    sizes: Floats  # [bins] mean number of rows of a client
    of_classes: Floats | None  # [classes or bins of these, bins] mean number of rows; None for real targets
    targets: Floats | None  # [5, bins] quantiles of the first target of a row; None for classes


def partition(data: Federation, size: SizeName = "screen") -> Figure:
    """How many rows each client has, and of which classes or with which targets; or who has which rows and columns.

    Labels are read client by client. In memory are those of one client, or of one bin of neighbours where there are
    more than 1,000 clients; of clients with different columns, the indices of all rows and columns.

    Parameters
    ----------
    data
        A folder that `mpifed data` made.
    size
        As of `mpifed.python.plots.plot`.

    Raises
    ------
    DataError
        A shard is damaged, or the picture of rows and columns has too many pieces.
    """
    from matplotlib import rc_context

    from mpifed.plots.notebook_figure import NotebookFigure

    shape = size_of(size)
    width = shape.width or 7.0
    with rc_context({**shape.style, "axes.grid": False}):
        if len(data.bounds["columns"]) > 2:
            picture = NotebookFigure(figsize=(width, 0.75 * width), layout="constrained")
            _draw_map(picture.subplots(), data, shape, width)
            return picture
        binned = _binned(data)
        tall = 0.16 * min(len(binned.of_classes), _FEW // 2) if binned.of_classes is not None else 0
        heights = [0.9, max(1.6, 0.8 + tall)]
        picture = NotebookFigure(figsize=(width, sum(heights) + 0.6), layout="constrained")
        above, below = picture.subplots(2, 1, sharex=True, height_ratios=heights)
        _draw_sizes(above, data, binned)
        if binned.of_classes is None:
            _draw_targets(below, data, binned, width)
        else:
            _draw_classes(below, data, binned, width)
        below.set_xlim(-0.5, data.clients - 0.5)
        if (names := data.client_names()) and data.clients <= _FEW // 2:
            labels = list(map(_short, names))
            below.set_xticks(range(data.clients), labels, rotation=45, ha="right", rotation_mode="anchor")
        below.set_xlabel("client" if binned.each == 1 else f"client, in bins of {binned.each}")
    return picture


def _binned(data: Federation) -> Binned:
    each = -(-data.clients // _BINS)
    starts = range(0, data.clients, each)
    sizes = np.add.reduceat(data.counts, starts) / np.diff([*starts, data.clients])
    merged = -(-data.classes // _BINS)
    of_classes = np.zeros((-(-data.classes // merged), len(starts))) if data.classes else None
    targets = None if data.classes else np.zeros((len(_QUANTILES), len(starts)))
    for i, start in enumerate(starts):
        clients = range(start, min(start + each, data.clients))
        labels = [shard_of(data, client).y for client in clients]
        if of_classes is not None:
            for y in labels:
                of_classes[:, i] += np.bincount(y // merged, minlength=len(of_classes))
            of_classes[:, i] /= len(clients)
        elif targets is not None:
            first = [of_vectors(y).reshape(len(y), -1)[:, 0] for y in labels]
            targets[:, i] = np.quantile(np.concatenate(first), _QUANTILES) if any(map(len, first)) else np.nan
    return Binned(each, sizes, of_classes, targets)


def _short(name: str, width: int = 16) -> str:
    """A name of data as a label beside an axis."""
    return plain(textwrap.shorten(shown(name), width, placeholder="…"))


def _edges(binned: Binned, clients: int) -> Floats:
    """[bins + 1] borders between the bins, of clients whose centres are whole numbers."""
    return np.minimum(np.arange(len(binned.sizes) + 1) * binned.each, clients) - 0.5


def _draw_sizes(axes: Axes, data: Federation, binned: Binned) -> None:
    edges = _edges(binned, data.clients)
    if data.clients <= _FEW:
        axes.bar(range(data.clients), binned.sizes, width=0.8, color=COLOURS[0])
    else:
        axes.stairs(binned.sizes, edges, fill=True, color=COLOURS[0])
    axes.set(ylabel="rows", xlim=(edges[0], edges[-1]))
    least, most = data.counts.min(), data.counts.max()
    each = f"{least:,} to {most:,}" if least < most else f"{most:,}"
    axes.set_title(f"{data.samples:,} rows of {data.clients:,} clients, {each} each", fontsize="medium", loc="left")


def _draw_classes(axes: Axes, data: Federation, binned: Binned, width: float) -> None:
    """Dots whose area is the number of rows, where there are few; else an image."""
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    assert binned.of_classes is not None
    counts = binned.of_classes
    classes, bins = counts.shape
    names = data.provenance.get("classes") or [str(number) for number in range(data.classes)]
    axes.set(ylim=(classes - 0.5, -0.5), ylabel="class")
    if classes <= _FEW and bins <= _FEW and data.clients <= _FEW:
        room = 72 * min((width - 0.9) / bins, 2.0 * (0.8 + 0.16 * classes) / classes / 2)
        at, who = np.nonzero(counts)
        axes.scatter(who, at, s=(0.95 * room) ** 2 * counts[at, who] / counts.max(), color=COLOURS[0], linewidths=0)
        axes.set_title(f"rows of a class (area of a dot; the largest: {counts.max():,.0f})", fontsize="medium",
                       loc="left")  # fmt: skip
    else:
        image = axes.imshow(  # repeated, so that smoothing mixes no classes; the last bin may stand out to the right
            np.repeat(counts, max(1, 200 // classes), axis=0), cmap="Blues", norm=PowerNorm(0.5, vmin=0),
            aspect="auto", interpolation="auto",
            extent=(-0.5, bins * binned.each - 0.5, classes - 0.5, -0.5),
        )  # fmt: skip
        axes.figure.colorbar(image, ax=axes, label="rows of a class", pad=0.01)
    if len(names) == classes <= _FEW // 2:
        axes.set_yticks(range(classes), list(map(_short, names)))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(min(10, max(1, data.clients)), integer=True))


def _draw_targets(axes: Axes, data: Federation, binned: Binned, width: float) -> None:
    """From the least to the largest target, with quartiles and median."""
    from matplotlib.ticker import MaxNLocator

    assert binned.targets is not None
    edges = _edges(binned, data.clients)
    centres = (edges[:-1] + edges[1:]) / 2
    least, lower, median, upper, most = binned.targets
    thick = min(8.0, 72 * 0.7 * (width - 0.9) / len(centres))
    axes.vlines(centres, least, most, color=COLOURS[5], linewidth=max(0.4, thick / 4), label="least to largest")
    axes.vlines(centres, lower, upper, color=COLOURS[0], linewidth=thick, label="middle half")
    axes.plot(centres, median, "_" if len(centres) <= _FEW else ".", color=COLOURS[4], markersize=max(1, thick),
              label="median")  # fmt: skip
    axes.set_ylabel("target" if data.targets == 1 else f"first of {data.targets} targets")
    axes.xaxis.set_major_locator(MaxNLocator(min(10, max(1, data.clients)), integer=True))
    axes.figure.legend(loc="outside lower center", ncols=3)


# --- rows and columns --------------------------------------------------------------------------------------------


def _draw_map(axes: Axes, data: Federation, size: Size, width: float) -> None:
    """A rectangle, or several, for each client: its rows down, its columns across."""
    from matplotlib.collections import PolyCollection
    from matplotlib.ticker import MaxNLocator

    rows, sorted_rows = _spans(data, "rows", data.samples)
    columns, sorted_columns = _spans(data, "columns", data.features)
    pieces = [
        (client, top, left)
        for client, (of_rows, of_columns) in enumerate(data.holds.tolist())
        for top in rows[of_rows]
        for left in columns[of_columns]
    ]
    if len(pieces) > _RECTANGLES:
        raise DataError(
            f"{data.path}: its clients hold {len(pieces)} rectangles of rows and columns, of which a picture shows "
            f"{_RECTANGLES}"
        )
    corners = [[(l, t), (r, t), (r, b), (l, b)] for _, (t, b), (l, r) in pieces]
    colours = [COLOURS[client % (len(COLOURS) - 1)] for client, *_ in pieces]
    axes.add_collection(PolyCollection(
        corners, facecolors=colours, alpha=0.45, edgecolors="white", linewidths=0.8 if data.clients <= 400 else 0.2
    ))  # fmt: skip
    for client, (top, bottom), (left, right) in _largest(pieces) if data.clients <= 4 * _FEW else ():
        wide = 72 * (width - 0.8) * (right - left) / data.features
        points = min(size.points, wide / (0.7 * len(str(client))), 72 * 0.65 * width * (bottom - top) / data.samples)
        if points >= 4:
            axes.text((left + right) / 2, (top + bottom) / 2, str(client), ha="center", va="center", fontsize=points)
    axes.set(xlim=(0, data.features), ylim=(data.samples, 0))
    axes.set_xlabel("columns, in groups of the clients that have them" if sorted_columns else "column")
    axes.set_ylabel("rows, in groups of the clients that have them" if sorted_rows else "row")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True))
    names = data.names() if data.features <= _FEW // 2 and not sorted_columns else None
    if names:
        axes.set_xticks(np.arange(len(names)) + 0.5, [_short(name, 20) for name in names], rotation=60, ha="right")
    held = int(data.counts @ data.widths)
    missing = f"; {1 - held / data.samples / data.features:.1%} of the cells with nobody (white)"
    axes.set_title(
        f"{data.samples:,} rows x {data.features:,} columns, {data.clients:,} clients"
        + (missing if held < data.samples * data.features else ""),
        fontsize="medium", loc="left",
    )  # fmt: skip


def _largest(pieces: Sequence[Rectangle]) -> Iterator[Rectangle]:
    """The largest piece of each client."""
    largest: dict[int, Rectangle] = {}
    for piece in pieces:
        other = largest.setdefault(piece[0], piece)
        largest[piece[0]] = max(other, piece, key=lambda one: (one[1][1] - one[1][0]) * (one[2][1] - one[2][0]))
    yield from largest.values()


def _spans(data: Federation, axis: str, count: int) -> tuple[list[list[Interval]], bool]:
    """The intervals [start, stop) that each group covers, in the order of the numbers where that needs no more pieces.

    Returns
    -------
    list, bool
        The intervals by group, and whether members are ordered by the groups that have them instead.
    """
    members, bounds = data.members(axis), data.bounds[axis]
    group_of = np.repeat(np.arange(len(bounds) - 1, dtype=np.int32), np.diff(bounds))
    first, last = np.full(count, len(bounds), np.int32), np.full(count, -1, np.int32)
    np.minimum.at(first, members, group_of)
    np.maximum.at(last, members, group_of)
    place = np.empty(count, np.int64)
    place[np.lexsort((last, first))] = np.arange(count)
    plain_spans, grouped = _intervals(members, bounds), _intervals(place[members], bounds)
    if sum(map(len, plain_spans)) <= sum(map(len, grouped)):
        return plain_spans, False
    return grouped, True


def _intervals(places: Integers, bounds: Integers) -> list[list[Interval]]:
    """The intervals of consecutive numbers in each group."""
    intervals = []
    for start, stop in itertools.pairwise(bounds.tolist()):
        at = np.sort(places[start:stop])
        ends = np.flatnonzero(np.diff(at) > 1)
        begin, end = at[[0, *(ends + 1)]], at[[*ends, len(at) - 1]] + 1
        intervals.append(list(zip(begin.tolist(), end.tolist(), strict=True)))
    return intervals
