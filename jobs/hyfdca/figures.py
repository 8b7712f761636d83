"""Figures 3 and 4 of the HyFDCA paper, and figure 1 of its supplement: against rounds and against time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jobs.hyfdca.names import DATA_TITLES, FRACTIONS, GRIDS, METHODS, OWN, TITLES, Setting, label
from jobs.hyfdca.results import AXES, Curve
from jobs.reproduction.pictures import save
from mpifed.job.time_model import KINDS
from mpifed.plots.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Mapping[str, Curve]
SHOWN = (*METHODS, *OWN[1:])  # by colour and dash
DASHES = ("-", "--", ":", "-.")
UNITS = {"rounds": "round", "simulated": "simulated seconds", "real": "seconds here"}
MEASURES = {"loss": "(P - P*) / P*", "accuracy": "accuracy"}
LEAST = 1e-10  # of what is drawn, whatever it is


def draw(out: Path, curves: Curves) -> Iterator[Path]:
    """Writes the figures of all data sets that were run as PNG and PDF; the files."""
    pictures: dict[str, Callable[[], Figure]] = {}
    here = {curve.setting.data for curve in curves.values()}
    for data in (one for one in DATA_TITLES if one in here):
        for axis in AXES:
            pictures[f"fig3-{data}-{axis}"] = partial(_convergence, data, axis, curves)
        pictures[f"fig4-{data}"] = partial(_costs, data, curves)
    return save(out, pictures)


def _convergence(data: str, axis: str, curves: Curves) -> Figure:
    """Figure 3: clients by fractions of them, as far as they were run; loss and accuracy side by side."""
    from matplotlib.figure import Figure

    here = [curve.setting for curve in curves.values() if curve.setting.data == data]
    grids = [grid for grid in GRIDS if any(one.grid == grid for one in here)]
    fractions = [fraction for fraction in FRACTIONS if any(one.fraction == fraction for one in here)]
    picture = Figure(figsize=(1 + 5 * len(fractions), 1.5 + 2.5 * len(grids)), layout="constrained")
    panels = picture.subplots(len(grids), 2 * len(fractions), squeeze=False)
    for across, grid in zip(panels, grids, strict=True):
        for pair, fraction in zip(across.reshape(-1, 2), fractions, strict=True):
            setting = Setting(data, grid, fraction)
            for axes, measure in zip(pair, MEASURES, strict=True):
                axes.set_title(f"{setting.clients} clients, {setting.present} a round: {MEASURES[measure]}", fontsize=8)
                some = [(n, curves[key]) for n, one in enumerate(SHOWN) if (key := label(setting, one)) in curves]
                for number, curve in some:
                    _line(axes, curve, measure, axis, number)
                if axis != "rounds" and some:
                    axes.set_xscale("log")
    for axes in panels[-1]:
        axes.set_xlabel(UNITS[axis])
    every = (zip(*axes.get_legend_handles_labels(), strict=True) for axes in panels.flat)
    named = {name: handle for one in every for handle, name in one}
    picture.legend(list(named.values()), list(named), loc="outside lower center", ncols=5, fontsize=8)
    picture.suptitle(DATA_TITLES[data])
    return picture


def _line(axes: Axes, curve: Curve, measure: str, axis: str, number: int) -> None:
    values = (curve.relative if measure == "loss" else curve.accuracy).mean(axis=0)
    at = curve.time(axis)
    first = 0 if axis == "rounds" else 1  # the axis of time is logarithmic
    colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS)]
    if measure == "loss":
        values = np.maximum(values, LEAST)
        axes.set_yscale("log")
    axes.plot(at[first:], values[first:], label=TITLES[curve.method], linewidth=1.2, color=colour, linestyle=dashes)


def _costs(data: str, curves: Curves) -> Figure:
    """Figure 4: the mean time of a round by kind, over all settings; with encryption as here, and as published."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 3.8), layout="constrained")
    panels = picture.subplots(1, 2)
    titles = ("encryption as fast as here", "encryption at published times")
    for axes, times, title in zip(panels, ("kinds", "kinds_published"), titles, strict=True):
        for place, method in enumerate(METHODS):
            some = [getattr(c, times) for c in curves.values() if c.setting.data == data and c.method == method]
            bottom = 0.0
            for colour, kind in zip(COLOURS, KINDS, strict=False):
                height = float(np.mean([one[kind] for one in some])) if some else 0.0
                axes.bar(place, height, bottom=bottom, color=colour, label=kind if place == 0 else None)
                bottom += height
        axes.set_xticks(range(len(METHODS)), [TITLES[method].replace(" / ", " /\n") for method in METHODS], fontsize=8)
        axes.set_title(title, fontsize=9)
    panels[0].set_ylabel("seconds a round")
    panels[0].legend(fontsize=8)
    picture.suptitle(DATA_TITLES[data])
    return picture
