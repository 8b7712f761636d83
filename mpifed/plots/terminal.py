"""PlottedLines as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from mpifed.core.errors import DataError
from mpifed.plots.lines import PlottedLines, curve
from mpifed.plots.style import PANELS, log_helps


def terminal(read: PlottedLines) -> Iterator[str]:
    """The training loss against rounds, in 80 columns, of each line."""
    import plotext

    for line in read.lines:
        shown = curve(line.runs, "round", "train_loss")
        if not len(shown.x):
            where = line.runs[0].folder
            raise DataError(f"{where}: no training loss was measured; run with [record] evaluate_every = 1 or more")
        plotext.clear_figure()
        plotext.theme("clear")
        plotext.plot_size(80, 18)
        plotext.plot(shown.x.tolist(), shown.y.tolist(), marker="braille")
        plotext.yscale("log" if log_helps(shown.y) else "linear")
        plotext.title(f"{line.label}: {PANELS['train_loss']}")
        plotext.xlabel("round")
        yield "\n".join(text.rstrip() for text in plotext.uncolorize(plotext.build()).splitlines())
