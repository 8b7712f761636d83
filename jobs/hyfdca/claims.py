"""Each statement of section 5.2 beside what we measure, computed from runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from jobs.hyfdca.names import DATA_TITLES, OWN, TITLES, Setting, label
from jobs.hyfdca.results import PAILLIER, Curve
from jobs.reproduction.tables import Claim

COMPARED = ("fedavg", "hyfem")  # with whom the paper compares
BY = {
    "rounds": "after the same number of rounds",
    "simulated": "at the same simulated time, encryption as fast as here",
    PAILLIER: "at the same simulated time, encryption at the published times of Paillier",
    "real": "at the same real time on this machine, without encryption",
}
PAPER = {"rounds": "36 of 36", "simulated": "33 of 36", PAILLIER: "33 of 36", "real": ""}

Curves = Mapping[str, Curve]


class Count(NamedTuple):
    """In how many settings HyFDCA is ahead of a rival."""

    loss: int
    accuracy: int
    both: int
    of: int
    lost: tuple[str, ...]  # settings in which its loss is not the lower


def data_of(curves: Curves) -> list[str]:
    """The data sets of which anything was run."""
    return [data for data in DATA_TITLES if any(curve.setting.data == data for curve in curves.values())]


def pairs(curves: Curves, own: str, rival: str) -> Iterator[tuple[Curve, Curve]]:
    """The curves of both in every setting that has both."""
    for curve in curves.values():
        other = curves.get(label(curve.setting, rival))
        if curve.method == own and other is not None:
            yield curve, other


def count(curves: Curves, rival: str, axis: str, own: str = "hyfdca") -> Count:
    """HyFDCA against a rival: each as far as it has come when the first of both has played all its rounds."""
    losses, accuracies, lost = [], [], []
    for one, other in pairs(curves, own, rival):
        end = min(one.time(axis)[-1], other.time(axis)[-1])
        i, j = one.at(axis, end), other.at(axis, end)
        losses.append(bool(one.relative[:, i].mean() < other.relative[:, j].mean()))
        accuracies.append(bool(one.accuracy[:, i].mean() >= other.accuracy[:, j].mean()))
        lost += [] if losses[-1] else [one.setting.name]
    both = sum(a and b for a, b in zip(losses, accuracies, strict=True))
    return Count(sum(losses), sum(accuracies), both, len(losses), tuple(lost))


def claims(curves: Curves) -> list[Claim]:
    """All that the runs there are can judge."""
    return [*_won(curves), *_all_in_all(curves), *_difficulty(curves), *_costs(curves)]


def _won(curves: Curves) -> Iterator[Claim]:
    for axis in ("rounds", "simulated", PAILLIER):
        found = {rival: count(curves, rival, axis) for rival in COMPARED}
        if not all(one.of for one in found.values()):
            continue
        lines = [f"{TITLES[r]}: loss {_of(one.loss, one)}, both {_of(one.both, one)}" for r, one in found.items()]
        whole, part = all(one.both == one.of for one in found.values()), any(one.both for one in found.values())
        says = f"lower loss and higher accuracy {BY[axis]} in {PAPER[axis]}"
        yield Claim("5.2, Fig. 3", says, "<br>".join(lines), _verdict(whole, part))


def _of(some: int, one: Count) -> str:
    return f"{some} of {one.of}"


def _verdict(whole: bool, part: bool) -> str:
    return "yes" if whole else "in part" if part else "no"


def _all_in_all(curves: Curves) -> Iterator[Claim]:
    found = [count(curves, rival, "rounds") for rival in COMPARED]
    if all(one.of for one in found):
        won, of = sum(one.loss for one in found), sum(one.of for one in found)
        says = "superior in 69 of 72 comparisons (here: final loss, each setting against each of two rivals)"
        yield Claim("5.2", says, f"{won} of {of}", _verdict(won >= 69 / 72 * of, won > of / 2))


def _difficulty(curves: Curves) -> Iterator[Claim]:
    """Many clients of whom few take part are hardest."""
    lines, verdicts = [], []
    for data, title in DATA_TITLES.items():
        easy, hard = (curves.get(label(Setting(data, *one), "hyfdca")) for one in (("2x2", 1.0), ("8x8", 0.1)))
        if easy is None or hard is None:
            continue
        a, b = easy.relative[:, -1].mean(), hard.relative[:, -1].mean()
        lines.append(f"{title}: {a:.2g} with 4 clients, all present; {b:.2g} with 64, a tenth present")
        verdicts.append(bool(b > a))
    if lines:
        yield Claim("5.2", "more clients of whom fewer are present are harder", "<br>".join(lines),
                    _verdict(all(verdicts), any(verdicts)))  # fmt: skip


def _costs(curves: Curves) -> Iterator[Claim]:
    """Figure 4."""
    own = [curve for curve in curves.values() if curve.method == "hyfdca"]
    for name, times in (("as fast as here", "kinds"), ("by Paillier's published times", "kinds_published")):
        longer = [
            sum(getattr(one, times).values()) > sum(getattr(other, times).values())
            for rival in COMPARED for one, other in pairs(curves, "hyfdca", rival)
        ]  # fmt: skip
        if longer:
            says = f"a round of HyFDCA takes longer than one of FedAvg or HyFEM; encryption {name}"
            yield Claim("Fig. 4", says, f"{sum(longer)} of {len(longer)}", _verdict(all(longer), any(longer)))
        shares = [getattr(one, times)["encryption"] / sum(getattr(one, times).values()) for one in own]
        if shares:
            most = [max(kinds := getattr(one, times), key=kinds.__getitem__) == "encryption" for one in own]
            says = f"encryption is the dearest part of a round of HyFDCA; {name}"
            share = f"{100 * np.median(shares):.1f} % of the time (median)"
            yield Claim(
                "Fig. 4", says, f"{share}; the dearest in {sum(most)} of {len(most)}", _verdict(all(most), any(most))
            )


class Goal(NamedTuple):
    """How near the optimum a method of ours is to come, with 4 x 4 clients."""

    data: str
    fraction: float
    rounds: int
    relative: float


GOALS = (
    Goal("mnist", 1.0, 300, 1e-6),
    Goal("a9a", 1.0, 100, 1e-4),
    Goal("newsgroups", 1.0, 100, 0.05),
    Goal("a9a", 0.5, 300, 0.05),
)


def nearest(curves: Curves, goal: Goal) -> tuple[str, float] | None:
    """The method of ours that comes nearest, and how near; None where nothing was run."""
    found: dict[str, float] = {}
    for method in OWN:
        curve = curves.get(label(Setting(goal.data, "4x4", goal.fraction), method))
        if curve is not None:
            found[method] = float(curve.relative[:, curve.at("rounds", goal.rounds)].mean())
    best = min(found, key=found.__getitem__, default=None)
    return None if best is None else (best, found[best])
