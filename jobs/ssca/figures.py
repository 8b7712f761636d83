"""Figures 2, 3 and 4 of the long SSCA paper on MNIST."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

import mpifed
from jobs.reproduce import Curve, Plan, curves_of, of_panel, table
from mpifed.results.frames import read

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS, SEEDS = (200, 1000), (3, 10)  # reduced, full
PANELS = {"rows": "fig2", "rows-limit": "fig2", "columns": "fig3", "columns-limit": "fig3"}
TRADEOFFS = {"rows-tradeoff": 1, "columns-tradeoff": 3, "rows-limit-tradeoff": 2, "columns-limit-tradeoff": 4}
LIMIT = 0.13


def curves() -> Iterator[Curve]:
    """All of them."""
    for name in (*PANELS, *TRADEOFFS):
        yield from curves_of(Path(__file__).with_name(f"{name}.toml"), name)


def results(plan: Plan, some: Sequence[Curve]) -> Iterator[tuple[str, Figure | pd.DataFrame]]:
    """The curves, a figure for each half of Figures 2 and 3, and Figure 4; of what was run."""
    yield "curves", table(plan, some, ["train_loss", "test_accuracy", "objective", "kkt_residual"])
    for panel, name in PANELS.items():
        if lines := of_panel(plan, some, panel):
            picture = mpifed.plot(lines, y=["train_loss", "test_accuracy"])
            if panel.endswith("limit"):
                picture.axes[0].axhline(LIMIT, color="black", linewidth=0.8, linestyle=":")
            yield f"{name}-{panel}", picture
    sweeps = {name: folder for name in TRADEOFFS for folder in of_panel(plan, some, name).values()}
    if sweeps:
        yield "fig4", tradeoffs({name: read(folder).runs for name, folder in sweeps.items()})


def tradeoffs(sweeps: dict[str, pd.DataFrame]) -> Figure:
    """||w||^2 against the training loss, over lambda (left) and over U (right)."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 3.6), layout="constrained")
    panels = picture.subplots(1, 2)
    for name, runs in sweeps.items():
        limited = "limit" in name
        swept = pd.Series([next(iter(one.values())) for one in runs["swept"]])
        norm = runs["objective"] if limited else (runs["objective"] - runs["train_loss"]) / swept
        axes = panels[int(limited)]
        axes.plot(runs["train_loss"], norm, "o-", label=f"Algorithm {TRADEOFFS[name]}")
        for x, y, value in zip(runs["train_loss"], norm, swept, strict=True):
            axes.annotate(f"{value:g}", (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    for axes, title in zip(panels, ("over lambda", "over the limit U"), strict=True):
        axes.set(title=title, xlabel="training loss", ylabel=r"$\|w\|^2$")
        if axes.lines:
            axes.legend()
    return picture
