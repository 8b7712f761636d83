"""Figures 1 and 2 of the FedPDM-DP paper, in its accounting and in the rigorous one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.fedpdm.names import COMPARED, KINDS, LEVELS, METHODS, TITLES, label
from jobs.fedpdm.results import Curve
from jobs.reproduction.pictures import legend, line, save
from mpifed.plots.style import COLOURS, PANELS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Mapping[str, Curve]
DASHES = ("-", "--", ":", "-.")  # by method: FedProx lies on FedAvg
TUNED = (0, (1, 2))


def draw(out: Path, curves: Curves) -> Iterator[Path]:
    """Writes both figures of both kinds as PNG and PDF; the files."""
    pictures: dict[str, Callable[[], Figure]] = {}
    for kind in KINDS:
        if any(name.startswith(kind) for name in curves):
            pictures[f"fig1-{kind}"] = partial(_levels, kind, curves)
            pictures[f"fig2-{kind}"] = partial(_methods, kind, curves)
    return save(out, pictures)


NOT_PRIVATE = "noise of a test, which anybody can compute: epsilon is what it would be if the noise were secret"


def _levels(kind: str, curves: Curves) -> Figure:
    """Figure 1: training loss and accuracy of FedPDM-DP at each epsilon."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 3.8), layout="constrained")
    picture.suptitle(NOT_PRIVATE, fontsize="small")
    panels = picture.subplots(1, 2)
    for colour, level in zip(COLOURS, LEVELS, strict=False):
        curve = curves.get(label(kind, "fedpdm", level))
        if curve is not None:
            text = "without DP" if level == "none" else f"epsilon = {level}"
            _both(panels, curve, color=colour, label=text)
    _named(panels, "ab")
    return picture


def _methods(kind: str, curves: Curves) -> Figure:
    """Figure 2: all methods, without DP above and at epsilon = 7 below; dotted with tuned steps."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9.5, 6.8), layout="constrained")
    picture.suptitle(NOT_PRIVATE, fontsize="small")
    panels = picture.subplots(2, 2, sharex=True)
    for panel_row, level, letters in zip(panels, COMPARED, ("ab", "cd"), strict=True):
        for colour, dash, method in zip(COLOURS, DASHES, METHODS, strict=False):
            for change, style in (("", dash), ("tuned", TUNED)):
                curve = curves.get(label(kind, method, level, change))
                if curve is not None:
                    text = TITLES[method] + (", tuned" if change else "")
                    _both(panel_row, curve, color=colour, linestyle=style, label=text)
        _named(panel_row, letters)
    return picture


def _both(panels: Sequence[Axes], curve: Curve, **style: object) -> None:
    line(panels[0], curve.rounds, curve.loss, **style)
    line(panels[1], curve.rounds, curve.accuracy, **style)


def _named(panels: Sequence[Axes], letters: str) -> None:
    from matplotlib.ticker import PercentFormatter

    panels[0].set_yscale("log")
    panels[0].set_ylabel(PANELS["train_loss"])
    panels[1].set_ylabel(PANELS["test_accuracy"])
    panels[1].yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    for axes, letter in zip(panels, letters, strict=True):
        axes.set_xlabel("round")
        axes.set_title(f"({letter})", loc="left", fontsize=10)
    legend(panels[0])
