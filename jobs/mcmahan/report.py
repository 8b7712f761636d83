"""The tables of `make reproduce-mcmahan`, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jobs.mcmahan.names import ROWS, SPLITS, Row
from jobs.mcmahan.results import Curve
from jobs.reproduction.tables import Claim, claims_table, head, row

APART = 1.1  # times the rounds of another row, above which it needs more
SAME, NEAR = 1.25, 2.0  # times the paper's rounds, within which a row reproduces, and reproduces in part


class Tried(NamedTuple):
    """One rate of a search."""

    name: str
    rate: float
    rounds: int  # played
    reached: float | None
    best: float  # accuracy; NaN where it failed numerically


def text(curves: Mapping[str, Curve], tried: Sequence[Tried]) -> str:
    """All of them."""
    lines = ["### Rounds to the target", "", *claims_table([claim(curve) for curve in curves.values()]), ""]
    missing = len(ROWS) - len(curves)
    lines += [f"Not run: {missing} of {len(ROWS)} rows, whose jobs are here.", ""] if missing else []
    lines += ["### What the tables say of each other", "", *claims_table(_orders(curves)), ""]
    lines += ["### Cost", "", *_costs(curves)]
    if tried:
        lines += ["", "### Rates tried", "", *_searches(tried)]
    return "\n".join(lines) + "\n"


def claim(curve: Curve) -> Claim:
    """A row of the paper beside ours."""
    found, goal = curve.reached, f"{100 * curve.row.target:.0f} %"
    says = f"{curve.row.title}: {goal} after {curve.row.says} rounds"
    if len(found) == len(curve.runs):
        measured = f"{_span(found)} rounds{_seeds(found)}"
    else:
        measured = f"best {100 * curve.best:.2f} % in {curve.played} rounds"
        measured += f"; {len(found)} of {len(curve.runs)} seeds reach it" if found else ""
    return Claim(curve.row.where, says, measured, verdict(curve))


def verdict(curve: Curve) -> str:
    """yes: within 1.25 times the paper's rounds; in part: within twice; open: not enough rounds played to say."""
    found, says = curve.reached, curve.row.says
    if len(found) < len(curve.runs):
        return "no" if curve.played >= NEAR * says else "open"
    times = sum(found) / len(found) / says
    if times < 1 / SAME:
        return "in fewer"
    return "yes" if times <= SAME else "in part" if times <= NEAR else "no"


def _orders(curves: Mapping[str, Curve]) -> list[Claim]:
    """That two shards need more rounds than IID, and all of a client at once more than batches of ten."""
    pairs = [(one, other, "two shards need more rounds than IID") for one, other in _pairs("split")]
    pairs += [(one, other, "B = all needs more rounds than B = 10") for one, other in _pairs("batch")]
    return [
        _order(curves[one.name], curves[other.name], f"{_shared(one, other)}: {words}")
        for one, other, words in pairs
        if one.name in curves and other.name in curves
    ]


def _pairs(apart: str) -> list[tuple[Row, Row]]:
    """The faster and the slower row, that differ in `apart` alone, where the paper says so."""
    named = {one.name: one for one in ROWS}
    if apart == "split":
        slower = {one: one._replace(split="shards").name for one in ROWS if one.split == "iid"}
    else:
        slower = {one: one._replace(batch=None).name for one in ROWS if one.batch == 10}
    return [(one, named[name]) for one, name in slower.items() if name in named and one.says < named[name].says]


def _order(fast: Curve, slow: Curve, words: str) -> Claim:
    says = f"{words}: {slow.row.says / fast.row.says:.1f} times"
    if not fast.reached:
        return Claim(fast.row.where, says, "neither is known", "open")
    least = sum(fast.reached) / len(fast.reached)
    if slow.reached:
        times = sum(slow.reached) / len(slow.reached) / least
        return Claim(fast.row.where, says, f"{times:.1f} times", "yes" if times > APART else "no")
    if slow.played <= least:
        return Claim(fast.row.where, says, f"the slower one has played {slow.played} rounds", "open")
    return Claim(fast.row.where, says, f"more than {slow.played / least:.1f} times", "yes")


def _shared(one: Row, other: Row) -> str:
    parts = [one.model.upper(), f"E = {one.epochs}"]
    parts += [f"B = {one.batch or 'all'}"] if one.batch == other.batch else []
    return ", ".join([*parts, *([SPLITS[one.split][0]] if one.split == other.split else [])])


def _costs(curves: Mapping[str, Curve]) -> list[str]:
    lines = [*head("job", "rate", "seeds", "rounds", "best accuracy", "seconds a round", "MiB, largest rank")]
    for name, curve in curves.items():
        seconds = sum(run.seconds for run in curve.runs) / len(curve.runs)
        memory = max(run.memory for run in curve.runs) / 2**20
        cells = name, f"{curve.rate:g}", str(len(curve.runs)), str(curve.played), f"{100 * curve.best:.2f} %"
        lines.append(row((*cells, f"{seconds:.2g}", f"{memory:.0f}" if memory else "")))
    return lines


def _searches(tried: Sequence[Tried]) -> list[str]:
    lines = [*head("job", "rate", "rounds played", "rounds to the target", "best accuracy")]
    for one in tried:
        best = "failed numerically" if one.best != one.best else f"{100 * one.best:.2f} %"
        reached = "" if one.reached is None else f"{one.reached:.0f}"
        lines.append(row((one.name, f"{one.rate:g}", str(one.rounds), reached, best)))
    return lines


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def _seeds(found: Sequence[float]) -> str:
    return f" ({len(found)} seeds)" if len(found) > 1 else ""
