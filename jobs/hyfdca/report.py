"""The tables of `make reproduce-hyfdca`, as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from jobs.hyfdca.claims import BY, COMPARED, GOALS, Curves, claims, count, data_of, nearest
from jobs.hyfdca.names import DATA_TITLES, METHODS, OWN, QUICK, RIVALS, ROUNDS, TITLES, Setting, label, settings
from jobs.hyfdca.results import Curve
from jobs.reproduction.tables import claims_table, head, row, seeds_text, settings_text
from mpifed.job.time_model import KINDS

COUNTED = ("hyfdca", "hyfdca-accelerated", "bundle")
STEADY = 0.01  # how far P of the model that is returned may be above the least that was measured
SWINGS = "A star: P goes up and down, and was lower by more than 1 % at an earlier round; the number says little."
SINGLE = "One seed a curve: nothing here is an interval."


class Search(NamedTuple):
    """What a sweep has given for one method in one setting."""

    name: str
    tried: int
    front: int  # settings that no other beats
    settings: Mapping[str, Any]
    grade: float
    edges: Sequence[str]


def text(
    curves: Curves, missing: Sequence[str], optima: Mapping[str, float], searches: Sequence[Search], rounds: int
) -> str:
    """All of them; `missing`: the curves that were asked for and of which no run has come to the end."""
    lines = ["# HyFDCA: what the paper says, and what we measure", ""]
    counts = {curve.seeds for curve in curves.values()} or {0}
    here = len({curve.setting for curve in curves.values()})
    lines.append(
        f"{rounds} rounds, {seeds_text(counts)} a curve, {here} of {len(list(settings()))} settings run so far."
    )
    lines += [SINGLE] if max(counts) == 1 else []
    lines += [f"**Reduced**: `make reproduce-hyfdca` plays {ROUNDS} rounds."] if rounds < ROUNDS else []
    lines += ["", "## Claims of section 5.2", "", *claims_table(claims(curves))]
    lines += ["", "## Against each rival, setting by setting", "", *_counts(curves)]
    lines += ["", "## How near the optimum our rules come, 4 x 4 clients", "", *_goals(curves)]
    lines += ["", "## How far P of the last model is above the least P measured in its run", "", *_excess(curves)]
    lines += ["", "## All rules and rivals, 4 x 4 clients, all of them in every round", "", *_everybody(curves)]
    lines += ["", f"## (P - P*) / P* after {rounds} rounds, and accuracy", "", SWINGS, "", *_measured(curves)]
    lines += ["", "## Seconds of a round over the network, by kind", "", *_costs(curves)]
    lines += ["", "## P*", "", *(f"- {DATA_TITLES[data]}: {best:.12g}" for data, best in optima.items())]
    if searches:
        lines += ["", "## Hyper-parameters by Grey Relational Analysis", "", *_searches(searches)]
    if missing:
        lines += ["", "## Not run yet, or failed", "", ", ".join(missing)]
    return "\n".join(lines) + "\n"


def _counts(curves: Curves) -> Iterator[str]:
    """Methods of ours that need all clients are counted where all take part, and in two ways alone."""
    yield from head("method", "against", "compared", "loss", "accuracy", "both", "loss not lower in")
    for own in COUNTED:
        for rival in RIVALS:
            for axis, how in BY.items():
                found = count(curves, rival, axis, own)
                if found.of and (own == "hyfdca" or axis in ("rounds", "simulated")):
                    cells = (f"{one} of {found.of}" for one in found[:3])
                    yield row((TITLES[own], TITLES[rival], how, *cells, ", ".join(found.lost)))


def _goals(curves: Curves) -> Iterator[str]:
    yield from head("data", "present", "rounds", "wanted", "reached", "by")
    for goal in GOALS:
        found = nearest(curves, goal)
        reached = ("not run", "") if found is None else (f"{found[1]:.2g}", TITLES[found[0]])
        yield row((DATA_TITLES[goal.data], f"{goal.fraction:g}", str(goal.rounds), f"{goal.relative:g}", *reached))


def _excess(curves: Curves) -> Iterator[str]:
    """By method, over all settings: of rivals the last w, of ours the model that they return."""
    yield from head("method", "settings", "median", "largest", "in", "within 1 % in")
    for method in (*OWN, *RIVALS):
        found = {curve.setting.name: float(curve.excess.max()) for curve in curves.values() if curve.method == method}
        if found:
            worst = max(found, key=found.__getitem__)
            numbers = (f"{100 * one:.2g} %" for one in (median(found.values()), found[worst]))
            yield row((TITLES[method], str(len(found)), *numbers, worst, f"{sum(e <= STEADY for e in found.values())}"))


def _everybody(curves: Curves) -> Iterator[str]:
    """At a third of the rounds and at the end."""
    here = data_of(curves)
    yield from head("method", *(DATA_TITLES[data] for data in here))
    for method in (*OWN, *RIVALS):
        found = [curves.get(label(Setting(data, "4x4", 1.0), method)) for data in here]
        if any(found):
            yield row((TITLES[method], *(_both(one) for one in found)))


def _both(curve: Curve | None) -> str:
    if curve is None:
        return ""
    last = int(curve.rounds[-1])
    early = curve.at("rounds", last / 3)
    loss = curve.relative.mean(axis=0)
    accuracy = 100 * curve.accuracy[:, -1].mean()
    return f"{loss[early]:.2g} at {curve.rounds[early]}, {loss[-1]:.2g} at {last}; {accuracy:.1f} %"


def _measured(curves: Curves) -> Iterator[str]:
    yield from head("data", "clients", "a round", *(TITLES[method] for method in METHODS))
    for setting in (*settings(), *QUICK):
        found = [curves.get(label(setting, method)) for method in METHODS]
        if any(found):
            cells = (DATA_TITLES[setting.data], str(setting.clients), str(setting.present))
            yield row((*cells, *(_end(one) for one in found)))


def _end(curve: Curve | None) -> str:
    if curve is None:
        return "not run"
    star = "*" if curve.method in OWN and curve.excess.max() > STEADY else ""
    return f"{curve.relative[:, -1].mean():.3g}{star}; {100 * curve.accuracy[:, -1].mean():.1f} %"


def _costs(curves: Curves) -> Iterator[str]:
    """Of 4 x 4 clients, all present."""
    yield from head("data", "method", *KINDS, "together", "with published times", "here, s")
    for data in DATA_TITLES:
        for method in ("hyfdca", *COMPARED):
            curve = curves.get(label(Setting(data, "4x4", 1.0), method))
            if curve is not None:
                kinds = [curve.kinds[kind] for kind in KINDS]
                real = curve.elapsed[:, -1].mean() / curve.rounds[-1]
                sums = (sum(kinds), sum(curve.kinds_published.values()), real)
                yield row((DATA_TITLES[data], TITLES[method], *(f"{one:.3g}" for one in (*kinds, *sums))))


def _searches(searches: Sequence[Search]) -> Iterator[str]:
    yield from head("setting and method", "tried", "not beaten", "chosen", "grade", "at the edge of the grid")
    for one in searches:
        edges = ", ".join(edge.partition(" = ")[0].removeprefix("algorithm.") for edge in one.edges)
        cells = (str(one.tried), str(one.front), settings_text(one.settings), f"{one.grade:.3f}", edges or "no")
        yield row((one.name, *cells))
