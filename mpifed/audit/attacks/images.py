"""Images of recovered rows beside the true rows."""

from __future__ import annotations

from math import isqrt
from pathlib import Path

from mpifed.core.errors import UsageError
from mpifed.core.record import Array
from mpifed.files.write import replaced

ACROSS = 10  # pairs per line


def save_pairs(path: Path, originals: Array, recovered: Array) -> None:
    """Write a PNG with each original above the recovered row; none if rows are no square images.

    `originals` and `recovered`: [m, p], m > 0, in the same order. Raises UsageError where matplotlib is not installed.
    """
    width = isqrt(originals.shape[1])
    if width < 2 or width * width != originals.shape[1]:
        return
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(f"{path}: images need matplotlib; install it with `pip install 'mpifed[plot]'`") from None
    across, rows = min(ACROSS, len(originals)), -(-len(originals) // ACROSS)
    figure = Figure(figsize=(across * 1.1, rows * 2.4), dpi=120, layout="constrained")
    axes = figure.subplots(2 * rows, across, squeeze=False)
    for ax in axes.flat:
        ax.set_axis_off()
    low, high = float(originals.min()), float(originals.max())
    for i, pair in enumerate(zip(originals, recovered, strict=True)):
        for j, pixels in enumerate(pair):
            axes[2 * (i // across) + j, i % across].imshow(
                pixels.reshape(width, width), cmap="gray", vmin=low, vmax=high
            )
    for k in range(2 * rows):
        what, left = ("recovered" if k % 2 else "original"), axes[k, 0]
        left.text(-0.06, 0.5, what, rotation=90, va="center", ha="right", fontsize=8, transform=left.transAxes)
    with replaced(path) as file:
        FigureCanvasAgg(figure).print_png(file)  # type: ignore[no-untyped-call]
