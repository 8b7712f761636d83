"""How data are divided among clients, as a picture."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from mpifed.data.block import of_vectors
from mpifed.data.shards import shard_of
from mpifed.data.store import Federation
from mpifed.plots.style import COLOURS, plain, style_of
from mpifed.text import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mpifed.plots.style import SizeName

_NAMED = 20  # so many names have room beside an axis


def partition(data: Federation, size: SizeName = "screen") -> Figure:
    """How many rows each client has, and of which classes or with which targets; or how many columns.

    Labels are read client by client.

    Parameters
    ----------
    data
        A folder that `mpifed data` made.
    size
        As of `mpifed.plot`.

    Raises
    ------
    DataError
        A shard is damaged.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    from mpifed.plots.notebook_figure import NotebookFigure

    who, each = np.arange(data.clients), (shard_of(data, client).y for client in range(data.clients))
    with style_of(size) as shape:
        tall = max(1.6, 0.8 + 0.16 * min(data.classes or 0, _NAMED))
        picture = NotebookFigure(figsize=(shape.width or 7.0, 1.5 + tall), layout="constrained")
        above, below = picture.subplots(2, 1, sharex=True, height_ratios=[0.9, tall])
        least, most = data.counts.min(), data.counts.max()
        of_client = f"{least:,} to {most:,}" if least < most else f"{most:,}"
        title = f"{data.samples:,} rows of {data.clients:,} clients, {of_client} each"
        above.set_title(title, fontsize="medium", loc="left")
        counted = {above: data.counts}
        if len(data.bounds["columns"]) > 2:
            counted[below] = data.widths
            below.set_ylabel("columns")
        elif data.classes:
            counts = np.stack([np.bincount(y, minlength=data.classes) for y in each], axis=1)
            shades = PowerNorm(0.5, vmin=0)
            image = below.imshow(counts, cmap="Blues", norm=shades, aspect="auto", interpolation="nearest")
            picture.colorbar(image, ax=below, label="rows", pad=0.01)
            below.set_ylabel("class")
            if data.classes <= _NAMED:
                names = data.provenance.get("classes") or map(str, range(data.classes))
                below.set_yticks(range(data.classes), list(map(_short, names)))
        else:  # from the least to the largest target, the middle half, and the median
            first = [of_vectors(y).reshape(len(y), -1)[:, 0] for y in each]
            below.boxplot(first, positions=who, widths=0.7, whis=(0, 100), manage_ticks=False)
            below.set_ylabel("target" if data.targets == 1 else f"first of {data.targets} targets")
        for axes, numbers in counted.items():
            axes.stairs(numbers, np.arange(data.clients + 1) - 0.5, fill=True, color=COLOURS[0])
        for axes in (above, below):
            axes.grid(False)
        above.set_ylabel("rows")
        below.set(xlim=(-0.5, data.clients - 0.5), xlabel="client")
        below.xaxis.set_major_locator(MaxNLocator(min(10, max(1, data.clients)), integer=True))
        if (names := data.client_names()) and data.clients <= _NAMED:
            below.set_xticks(who, list(map(_short, names)), rotation=45, ha="right", rotation_mode="anchor")
    return picture


def _short(name: str) -> str:
    """A name of data as a label beside an axis."""
    return plain(textwrap.shorten(shown(name), 16, placeholder="…"))
