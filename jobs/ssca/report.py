"""The tables: what each curve measures, and each statement of Section VI beside what we measure, computed from runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jobs.reproduction.results import overall, race, spread
from jobs.reproduction.tables import LEGEND, Claim, claims_table, head, number, percent, rounds_upto, row, seeds_text
from jobs.ssca.results import Curve

AT = (10, 30, 100, 300, 1000)  # rounds of the table
SIMILAR = 0.25  # the largest relative difference of costs that are called similar
NEAR = 0.05  # the largest relative distance of F from U that is called control

Curves = Mapping[str, Curve]


class Search(NamedTuple):
    """What a grid over a baseline's step has given."""

    name: str
    step: tuple[float, float]
    tried: int  # steps of the grid
    cost: float
    edges: Sequence[str]
    held: tuple[float, float] | None  # the best step whose decay is held


def held_name(name: str) -> str:
    return f"{name}-held"


# --- Section VI --------------------------------------------------------------------------------------------------


def claims(curves: Curves, points: Mapping[str, Sequence[Curve]], rounds: int) -> list[Claim]:
    """Every statement of Section VI that the runs there are can judge."""
    at = rounds_upto(AT, rounds)

    def against(where: str, says: str, pairs: Sequence[tuple[str, str]]) -> Iterator[Claim]:
        here = [(curves[a], curves[b]) for a, b in pairs if a in curves and b in curves]
        if not here:
            return
        told, verdicts = zip(*(race(a, b, at) for a, b in here), strict=True)
        lines = [
            f"{a.name} against {b.name}: {text} (at the end {a.cost[:, -1].mean():.3f} against "
            f"{b.cost[:, -1].mean():.3f})"
            for (a, b), text in zip(here, told, strict=True)
        ]
        yield Claim(where, says, "; ".join(lines) if len(lines) == 1 else "<br>".join(lines), overall(verdicts))

    rows, columns = (1, 10, 100), (10, 100, 1000)
    found: list[Claim] = []
    for k in (1, 2, 3, 4):
        sizes = rows if k < 3 else columns
        pairs = [(f"alg{k}-b{sizes[i + 1]}", f"alg{k}-b{sizes[i]}") for i in (0, 1)]
        found += against(f"Fig. {2 + k // 3}", f"Algorithm {k} converges faster with larger batches", pairs)
    faster = "Algorithm {} converges faster than SGD {}at the same batch size"
    held = "Algorithm {} converges faster than SGD whose step's decay is held at alpha = 0.5"
    one = [(f"alg1-b{B}", f"fedsgd-b{B}") for B in rows]
    three = [(f"alg3-b{B}", f"vertical-sgd-b{B}") for B in columns]
    found += against("Fig. 2a, 2c", faster.format(1, "(E = 1) "), one)
    found += against("(not in the paper)", held.format(1), [(a, held_name(b)) for a, b in one])
    two = [("alg1-b10", "fedavg-e2-b5"), ("alg1-b100", "fedavg-e2-b50")]
    says = "Algorithm 1 with B = 10 (100) converges faster than SGD with B = 5 (50), E = 2"
    found += against("Fig. 2a, 2c", says, two)
    found += against("(not in the paper)", "Algorithm 1 against momentum SGD", [("alg1-b100", "momentum-b100")])
    found += against("Fig. 3a, 3c", faster.format(3, ""), three)
    found += against("(not in the paper)", held.format(3), [(a, held_name(b)) for a, b in three])
    found += _alike(curves, at)
    found += _limited(curves)
    for name in points:
        found += _tradeoff(name, points[name])
    return found


def _alike(curves: Curves, at: Sequence[int]) -> Iterator[Claim]:
    says = "at the same computation cost sample-based and feature-based algorithms converge similarly fast"
    pairs = [(f"alg{k}-b{B}", f"alg{k + 2}-b{10 * B}") for k in (1, 2) for B in (1, 10, 100)]
    lines, largest = [], []
    for a, b in pairs:
        if a not in curves or b not in curves:
            continue
        x, y = curves[a], curves[b]
        ratios = [
            float(np.mean(y.cost[:, j]) / np.mean(x.cost[:, i]))
            for t in at
            if (i := x.at(t)) is not None and (j := y.at(t)) is not None
        ]
        lines.append(f"{b} / {a}: {min(ratios):.2f} to {max(ratios):.2f}")
        largest.append(max(max(ratios), 1 / min(ratios)) - 1)
    if lines:
        verdicts = ["yes" if one <= SIMILAR else "no" for one in largest]
        told = "<br>".join([f"ratio of costs over rounds {', '.join(map(str, at))}:", *lines])
        yield Claim("Fig. 2, 3", says, told, overall(verdicts))


def _limited(curves: Curves) -> Iterator[Claim]:
    """Whether the limit is met at the end."""
    for k, where in ((2, "Fig. 2b"), (4, "Fig. 3b")):
        lines, verdicts = [], []
        for curve in (one for name, one in curves.items() if name.startswith(f"alg{k}-") and one.limit is not None):
            last = curve.excess()[:, -1]
            met, end = int(np.sum(last <= 0)), spread(last)
            residual = float(np.mean(curve.residual))
            lines.append(
                f"{curve.name}: F - U = {end.mean:+.4f} +- {end.deviation:.4f}, met in {met} of {curve.seeds} runs, "
                f"KKT residual {residual:.2g}"
            )
            verdicts.append("yes" if met == curve.seeds else "no" if not met else "in part")
        if lines:
            says = f"Algorithm {k} tends to a KKT point of the problem with F(w) <= U = 0.13"
            yield Claim(f"{where}, Theorem", says, "<br>".join(lines), overall(verdicts))


def _tradeoff(name: str, points: Sequence[Curve]) -> Iterator[Claim]:
    if len(points) < 2:
        return
    limited = points[0].limit is not None
    order = sorted(points, key=lambda one: one.limit if one.limit is not None else one.penalty)
    cost, norm = (np.array([float(getattr(one, key)[0, -1]) for one in order]) for key in ("cost", "norm"))
    told = "; ".join(
        f"{'U' if limited else 'lambda'} = {one.limit if limited else one.penalty:g}: F = {f:.3f}, ||w||^2 = {n:.0f}, "
        f"accuracy {one.accuracy[0, -1]:.1%}"
        for one, f, n in zip(order, cost, norm, strict=True)
    )
    bent = np.all(np.diff(cost) > 0) and np.all(np.diff(norm) < 0)
    says = f"{name}: a tradeoff between sparsity (||w||^2) and training cost"
    yield Claim("Fig. 4", says, told, "yes" if bent else "no")
    if limited:
        limits = np.array([one.limit for one in order], dtype=float)
        far = np.abs(cost - limits) / limits
        accuracy = np.array([one.accuracy[0, -1] for one in order])
        steered = np.all(np.diff(accuracy) < 0)
        verdict = "yes" if steered and far.max() <= NEAR else "in part" if steered else "no"
        says = f"{name}: an explicit limit on the cost controls the test accuracy"
        told = f"F ends {(cost / limits - 1).min():+.1%} to {(cost / limits - 1).max():+.1%} from U; "
        yield Claim("Fig. 4b", says, told + f"accuracy {'falls' if steered else 'does not fall'} as U grows", verdict)


# --- text --------------------------------------------------------------------------------------------------------


def text(curves: Curves, points: Mapping[str, Sequence[Curve]], searches: Sequence[Search], rounds: int) -> str:
    """All tables as Markdown."""
    lines = ["# SSCA on MNIST: what the paper says, and what we measure", ""]
    counts = {curve.seeds for curve in curves.values()} or {0}
    lines.append(
        f"{rounds} rounds, {seeds_text(counts)} a curve, Figure 4 and the grids of SGD's step one seed each; "
        "the paper: 1000 rounds and 100 runs."
    )
    if rounds < 1000 or min(counts) < 10:
        lines.append("**Reduced**: `make reproduce-ssca FULL=1` plays 1000 rounds with 10 seeds.")
    lines += ["", "## Claims of Section VI", "", *claims_table(claims(curves, points, rounds)), "", LEGEND]
    lines += ["", "## Measured", "", "Mean +- standard deviation over seeds.", ""]
    lines += _measured(curves, rounds_upto(AT, rounds))
    lines += ["", "## Steps of the SGD baselines, a / t^alpha, by the least training cost", ""]
    lines += head("job", "tried", "a, alpha", "cost", "at the edge of the grid", "alpha held at 0.5")
    for one in searches:
        cells = (_step(one.step), f"{one.cost:.4f}", "; ".join(one.edges) or "no", _step(one.held))
        lines.append(row((one.name, str(one.tried), *cells)))
    lines += ["", "A decay of 0 is the least there is: that edge cannot be widened."]
    return "\n".join(lines) + "\n"


def _measured(curves: Curves, rounds: Sequence[int]) -> Iterator[str]:
    yield from head("curve", "seeds", "round", "cost F", "accuracy", "F - U", "||w||^2")
    for name, curve in curves.items():
        for t in rounds:
            if (i := curve.at(t)) is None:
                continue
            excess = "" if curve.limit is None else number(spread(curve.excess()[:, i]), "+.4f")
            cells = [number(spread(curve.cost[:, i]), ".4f"), percent(spread(curve.accuracy[:, i]))]
            yield row((name, str(curve.seeds), str(t), *cells, excess, number(spread(curve.norm[:, i]), ".1f")))


def _step(step: tuple[float, float] | None) -> str:
    return "" if step is None else f"{step[0]:g}, {step[1]:g}"
