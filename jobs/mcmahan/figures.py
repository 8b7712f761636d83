"""Rounds to a target accuracy on MNIST, Tables 1 and 2 of McMahan et al. (AISTATS 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import mpifed
from jobs.reproduce import Curve, Plan, curves_of, of_panel, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

ROUNDS, SEEDS = (None, None), (1, 3)  # rounds of the jobs, which stop at the target
TARGETS = {"2nn": 0.97, "cnn": 0.99}
SAYS = {  # the paper's rounds, with images shuffled and with two shards a client
    "2nn": {"E = 1, B = 10": (87, 664), "E = 1, B = all": (1474, 1796)},
    "cnn": {
        "E = 1, B = all": (626, 483), "E = 5, B = all": (179, 1000), "E = 1, B = 50": (65, 600),
        "E = 20, B = all": (234, 672), "E = 1, B = 10": (34, 350), "E = 5, B = 50": (29, 334),
        "E = 20, B = 50": (32, 426), "E = 5, B = 10": (20, 229), "E = 20, B = 10": (18, 173),
    },
}  # fmt: skip


def curves() -> Iterator[Curve]:
    """All of them, the 2NN's first: the CNN's take days on one core."""
    for model in SAYS:
        for split in ("iid", "shards"):
            yield from curves_of(Path(__file__).with_name(f"{model}-{split}.toml"), f"{model}-{split}")


def results(plan: Plan, some: Sequence[Curve]) -> Iterator[tuple[str, Figure | pd.DataFrame]]:
    """The accuracies, the rounds to the targets beside the paper's, and a figure for each model and split."""
    measured = table(plan, some, ["test_accuracy"])
    yield "accuracy", measured
    rows = []
    for (panel, label, seed), run in measured.groupby(["figure", "curve", "seed"]) if len(measured) else ():
        model, split = panel.split("-")
        reached = rounds_to(run["round"].to_numpy(), run["test_accuracy"].to_numpy(), TARGETS[model])
        rows.append((panel, label, seed, TARGETS[model], SAYS[model][label][split == "shards"], reached))
    yield "rounds", pd.DataFrame(rows, columns=["figure", "curve", "seed", "target", "paper", "rounds"])
    for panel in dict.fromkeys(curve.panel for curve in some):
        if lines := of_panel(plan, some, panel):
            model, split = panel.split("-")
            picture = mpifed.plot(lines, y="test_accuracy")
            picture.axes[0].set_xscale("log")
            for label, line in zip(lines, picture.axes[0].lines, strict=False):
                at = SAYS[model][label][split == "shards"]
                picture.axes[0].plot(at, TARGETS[model], "x", color=line.get_color(), markersize=8)
            picture.axes[0].set_title("x: the paper", fontsize="small")
            yield f"accuracy-{panel}", picture


def rounds_to(rounds: NDArray[np.int64], accuracy: NDArray[np.float64], target: float) -> float | None:
    """As the paper counts: on the curve [T] of the best accuracy so far, linear between the rounds measured."""
    best = np.maximum.accumulate(accuracy)
    here = int(np.searchsorted(best, target))  # the first that is not below
    if here == len(best):
        return None
    if here == 0:
        return float(rounds[0])
    return float(np.interp(target, best[here - 1 : here + 1], rounds[here - 1 : here + 1]))
