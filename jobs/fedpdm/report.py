"""The tables of `make reproduce-fedpdm`, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jobs.fedpdm.claims import AT, Curves, claims
from jobs.fedpdm.truth import Truth
from jobs.reproduction.results import place, spread
from jobs.reproduction.tables import LEGEND, claims_table, head, number, percent, row, seeds_text, settings_text


class Search(NamedTuple):
    """What a grid over a method's step has given."""

    name: str
    settings: Mapping[str, Any]
    tried: int
    loss: float
    edges: Sequence[str]


class Clip(NamedTuple):
    """One run of the search for the clip."""

    name: str  # of the job
    clip: float
    loss: float
    objective: float
    accuracy: float


def text(
    curves: Curves,
    failed: Sequence[str],
    searches: Sequence[Search],
    clips: Sequence[Clip],
    truths: Sequence[Truth],
    rounds: int,
) -> str:
    """All of them; `failed`: the curves of which no run has come to the end."""
    lines = ["# FedPDM-DP on MNIST: what the paper says, and what we measure", ""]
    counts = {curve.seeds for curve in curves.values()} or {0}
    lines.append(f"{rounds} rounds, {seeds_text(counts)} a curve, one seed in searches; the paper: 300 rounds.")
    if rounds < 300 or min(counts) < 10:
        lines.append("**Reduced**: `make reproduce-fedpdm FULL=1` plays 300 rounds with 10 seeds.")
    lines += ["", "## Claims of Section V", "", *claims_table(claims(curves, truths, rounds)), "", LEGEND]
    lines += ["", "## What is proved of the noise that the paper asks for", "", *_truths(truths)]
    lines += ["", "## Measured", "", "Mean +- standard deviation over seeds, at the end.", "", *_measured(curves)]
    lines += ["", f"Failed numerically: {', '.join(failed)}."] if failed else []
    lines += ["", "## The clip", "", *_clips(clips)]
    lines += ["", "## Tuned steps, by the least training loss", "", *_searches(searches)]
    return "\n".join(lines) + "\n"


def _truths(truths: Sequence[Truth]) -> Iterator[str]:
    yield from head("claimed", "epsilon of one upload", "noise / (19)", "lambda public", "lambda hidden", "q^2, public",
                    "q^2, hidden")  # fmt: skip
    for one in truths:
        proved = [f"{epsilon:,.0f}" for epsilon in one[3:]]
        yield row((f"{one.claimed:g}", f"{one.one_round:.1f}", f"{one.multiplier:.3f}", *proved))


def _measured(curves: Curves) -> Iterator[str]:
    yield from head("curve", "seeds", "training loss", "F, (24)", "accuracy", f"accuracy at {AT[0]}", "zeros",
                    "epsilon, if secret", "by (20)")  # fmt: skip
    for name, curve in curves.items():
        early = place(curve.rounds, AT[0])
        loss, objective, accuracy = (spread(one[:, -1]) for one in (curve.loss, curve.objective, curve.accuracy))
        peak = "" if early is None else f"{100 * curve.accuracy[:, early].mean():.1f} %"
        cells = [number(loss, ".4f"), number(objective, ".3f"), percent(accuracy), peak]
        cells += [f"{100 * curve.zeros.mean():.1f} %", _most(curve.epsilon), _most(curve.paper)]
        yield row((name, str(curve.seeds), *cells))


def _most(epsilon: Any) -> str:
    """Of any seed."""
    last = epsilon[:, -1]
    return "" if np.isnan(last).any() else f"{last.max():.3g}"


def _clips(clips: Sequence[Clip]) -> Iterator[str]:
    """The mean over the methods comes last: it chooses."""
    yield from head("job", "clip", "training loss", "F, (24)", "accuracy")
    for one in clips:
        yield row((one.name, f"{one.clip:g}", f"{one.loss:.4f}", f"{one.objective:.3f}", f"{100 * one.accuracy:.1f} %"))


def _searches(searches: Sequence[Search]) -> Iterator[str]:
    yield from head("job", "tried", "settings", "training loss", "at the edge of the grid")
    for one in searches:
        cells = (settings_text(one.settings), f"{one.loss:.4f}", "; ".join(one.edges) or "no")
        yield row((one.name, str(one.tried), *cells))
