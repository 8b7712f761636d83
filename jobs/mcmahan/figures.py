"""Test accuracy by rounds, and where the paper reaches its target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jobs.mcmahan.names import TARGETS
from jobs.mcmahan.results import Curve
from jobs.reproduction.pictures import legend, save
from mpifed.plots.style import COLOURS, PANELS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 0.8  # accuracy, below which nothing is drawn


def draw(out: Path, curves: Mapping[str, Curve]) -> Iterator[Path]:
    """Writes the figure as PNG and PDF; the files."""
    return save(out, {"accuracy": partial(_accuracy, list(curves.values()))} if curves else {})


def _accuracy(curves: Sequence[Curve]) -> Figure:
    """A panel for each model: the best accuracy so far by rounds; crosses are the paper's."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    models = [model for model in TARGETS if any(curve.row.model == model for curve in curves)]
    picture = Figure(figsize=(5 * len(models), 3.8), layout="constrained")
    panels = picture.subplots(1, len(models), squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        some = [curve for curve in curves if curve.row.model == model]
        for i, curve in enumerate(some):
            colour = COLOURS[i % len(COLOURS)]
            title = curve.row.title.partition(", ")[2]
            for j, run in enumerate(curve.runs):
                best = np.maximum.accumulate(run.accuracy)
                axes.plot(run.rounds[1:], best[1:], color=colour, linewidth=1, label=None if j else title)
            axes.plot(curve.row.says, TARGETS[model], "x", color=colour, markersize=8)
        axes.axhline(TARGETS[model], color="black", linewidth=0.6, linestyle=":")
        axes.set(xscale="log", xlabel="round", ylabel=PANELS["test_accuracy"], ylim=(LEAST, 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.set_title(f"{model.upper()}; x: the paper", loc="left", fontsize=10)
        legend(axes)
    return picture
