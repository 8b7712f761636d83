"""Figures 2, 3 and 4 of the long SSCA paper, in the style of `mpifed.plots.style`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jobs.reproduction.pictures import legend, line, save
from jobs.ssca.results import Curve
from mpifed.plots.style import COLOURS, PANELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = {"alg": "-", "fedsgd": "--", "fedavg": ":", "vertical": "--", "momentum": "-."}
SIZES = {"fig2": (1, 10, 100, 5, 50), "fig3": (10, 100, 1000)}  # batches, by colour
LEFT = {"fig2": ("alg1", "fedsgd", "fedavg", "momentum"), "fig3": ("alg3", "vertical")}
RIGHT = {"fig2": ("alg2",), "fig3": ("alg4",)}


def draw(out: Path, curves: Mapping[str, Curve], points: Mapping[str, Sequence[Curve]]) -> Iterator[Path]:
    """Writes fig2, fig3 and fig4 as PNG and PDF; the files."""
    pictures: dict[str, Callable[[], Figure]] = {name: partial(_convergence, name, curves) for name in SIZES}
    return save(out, {**pictures, "fig4": partial(_tradeoffs, points)})


def _convergence(name: str, curves: Mapping[str, Curve]) -> Figure:
    """Panels (a) to (d): cost and accuracy, without and with the limit."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    picture = Figure(figsize=(9.5, 6.6), layout="constrained")
    panels = picture.subplots(2, 2, sharex=True, sharey="row")
    for column, kinds in enumerate((LEFT[name], RIGHT[name])):
        some = [one for one in curves.values() if one.name.startswith(kinds) and not one.name.endswith("-held")]
        for curve in some:
            _line(panels[0, column], curve, curve.cost, SIZES[name])
            _line(panels[1, column], curve, curve.accuracy, SIZES[name])
        limits = {one.limit for one in some if one.limit is not None}
        for limit in limits:
            panels[0, column].axhline(limit, color="black", linewidth=0.8, linestyle=":", label=f"U = {limit:g}")
        panels[1, column].set_xlabel("round")
        legend(panels[0, column])
    panels[0, 0].set_ylabel(PANELS["train_loss"])
    panels[0, 0].set_ylim(0, 1)
    panels[1, 0].set_ylabel(PANELS["test_accuracy"])
    panels[1, 0].set_ylim(0.6, 1)
    panels[1, 0].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes, letter in zip(panels.flat, "abcd", strict=True):
        axes.set_title(f"({letter})", loc="left", fontsize=10)
    return picture


def _line(axes: Axes, curve: Curve, values: np.ndarray, sizes: Sequence[int]) -> None:
    batch = int(curve.name.partition("-b")[2].partition("-")[0])
    kind = next(kind for kind in DASHES if curve.name.startswith(kind))
    colour = COLOURS[-1] if kind == "momentum" else COLOURS[sizes.index(batch)]
    line(axes, curve.rounds, values, color=colour, linestyle=DASHES[kind], label=_label(curve.name, batch))


def _label(name: str, batch: int) -> str:
    if name.startswith("alg"):
        return f"Algorithm {name[3]}, B = {batch}"
    if name.startswith("momentum"):
        return f"momentum SGD, B = {batch}"
    return f"SGD, B = {batch}" + (", E = 2" if name.startswith("fedavg") else "")


def _tradeoffs(points: Mapping[str, Sequence[Curve]]) -> Figure:
    """||w||^2 against the cost, over lambda and over U; the accuracy against U."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    picture = Figure(figsize=(11, 3.6), layout="constrained")
    panels = picture.subplots(1, 3)
    for index, (name, some) in enumerate(points.items()):
        if not some:
            continue
        limited = some[0].limit is not None
        cost, norm, accuracy = ([getattr(one, key)[0, -1] for one in some] for key in ("cost", "norm", "accuracy"))
        axes, style = panels[int(limited)], {"color": COLOURS[index], "marker": "o", "label": f"Algorithm {name[3]}"}
        axes.plot(cost, norm, **style)
        for one, x, y in zip(some, cost, norm, strict=True):
            text = f"{one.limit:g}" if limited else f"{one.penalty:.0e}"
            axes.annotate(text, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
        if limited:
            panels[2].plot([one.limit for one in some], accuracy, **style)
    for axes, title in zip(panels, ("(a) over lambda", "(b) over U", "accuracy over U"), strict=True):
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("training loss")
        axes.set_ylabel(r"$\|w\|^2$")
        legend(axes)
    panels[2].set_xlabel("U")
    panels[2].set_ylabel(PANELS["test_accuracy"])
    panels[2].yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    return picture
