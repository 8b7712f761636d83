"""Figures 1 and 2 of the FedPDM-DP paper on MNIST, in its own accounting and in the rigorous one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

import mpifed
from jobs.fedpdm.truth import CLIENTS, truth
from jobs.fedpdm.truth import ROUNDS as PLAYED
from jobs.reproduce import Curve, Plan, curves_of, of_panel, table
from mpifed.testing import participants

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROUNDS, SEEDS = (None, None), (3, 10)  # the jobs' 300
COLUMNS = ("train_loss", "objective", "test_accuracy", "epsilon_if_secret", "epsilon_paper")
CLAIMED = (7.0, 10.0, 20.0, 30.0)
NOT_PRIVATE = "noise of a test, which anybody can compute:\nepsilon is what it would be if the noise were secret"


def curves() -> Iterator[Curve]:
    """All of them."""
    for name in ("paper", "rigorous"):
        yield from curves_of(Path(__file__).with_name(f"{name}.toml"), name)


def results(plan: Plan, some: Sequence[Curve]) -> Iterator[tuple[str, Figure | pd.DataFrame]]:
    """The curves, both figures in each accounting, and what is proved of the paper's noise; of what was run."""
    yield "curves", table(plan, some, COLUMNS)
    for panel in ("paper", "rigorous"):
        lines = of_panel(plan, some, panel)
        drawn = {
            "fig1": {name: line for name, line in lines.items() if name.startswith("FedPDM") and "tuned" not in name},
            "fig2-ab": {name: line for name, line in lines.items() if "without noise" in name},
            "fig2-cd": {name: line for name, line in lines.items() if "epsilon 7" in name},
        }
        for name, shown in drawn.items():
            if shown:
                picture = mpifed.plot(shown, y=["train_loss", "test_accuracy"])
                picture.supxlabel(NOT_PRIVATE, fontsize="x-small")
                yield f"{name}-{panel}", picture
    if played := sorted(of_panel(plan, some, "paper").get("FedPDM, epsilon 7", Path()).glob("*/job.toml")):
        yield "epsilon", proved(played[0])


def proved(job: Path) -> pd.DataFrame:
    """What is proved of the noise that the paper asks for, for the client who takes part most often in its rounds."""
    present = np.zeros((PLAYED, CLIENTS), dtype=bool)
    for t in range(PLAYED):
        present[t, participants(job, t + 1)] = True
    rounds = np.flatnonzero(present[:, present.sum(axis=0).argmax()])
    return pd.DataFrame([truth(claimed, rounds) for claimed in CLAIMED])
