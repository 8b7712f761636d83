"""Each statement of Section V beside what we measure, computed from runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from jobs.fedpdm.names import COMPARED, KINDS, LEVELS, METHODS, RIVALS, TITLES, label
from jobs.fedpdm.results import Curve
from jobs.fedpdm.truth import Truth
from jobs.reproduction.results import compare, order, overall, place, race
from jobs.reproduction.tables import Claim, rounds_upto

AT = (30, 90, 180)  # rounds at which curves are compared, and the last
MEASURES = ("loss", "accuracy")
OUTSIDE = "(not in the paper)"

Curves = Mapping[str, Curve]


def claims(curves: Curves, truths: Sequence[Truth], rounds: int) -> list[Claim]:
    """All that the runs there are can judge."""
    at = rounds_upto(AT, rounds)
    found: list[Claim] = []
    for kind in KINDS:
        found += [*_improving(curves, kind), *_more_privacy(curves, kind, at)]
        for level in COMPARED:
            found += _rivals(curves, kind, level, at)
        found += [*_gap(curves, kind), *_penalty(curves, kind), *_sparse(curves, kind), *_inner(curves, kind, at)]
    return found + list(_promised(truths))


def _improving(curves: Curves, kind: str) -> Iterator[Claim]:
    names = [label(kind, "fedpdm", level) for level in (*LEVELS, "7")]
    here = [curves[name] for name in names if name in curves]
    for measure, does in (("loss", "training loss decreases"), ("accuracy", "testing accuracy increases")):
        lines, verdicts = [], []
        for curve in here:
            start = place(curve.rounds, AT[0])
            if start is None or start == len(curve.rounds) - 1:
                continue
            values = curve.loss if measure == "loss" else curve.accuracy
            means = values.mean(axis=0)
            first, last = _text(measure, means[start]), _text(measure, means[-1])
            lines.append(f"{curve.name}: {first} at {AT[0]}, {last} at the end")
            change = order(curve.by(measure).cost[:, -1], curve.by(measure).cost[:, start])
            verdicts.append("yes" if change < 0 else "no")
        if lines:
            yield Claim("Fig. 1", f"{kind}: the {does} with the rounds", "<br>".join(lines), overall(verdicts))


def _more_privacy(curves: Curves, kind: str, at: Sequence[int]) -> Iterator[Claim]:
    pairs = [(label(kind, "fedpdm", a), label(kind, "fedpdm", b)) for a, b in pairwise(LEVELS)]
    says = f"{kind}: better learning and faster convergence for a larger epsilon"
    yield from _against(curves, "Fig. 1", says, pairs, at)


def _rivals(curves: Curves, kind: str, level: str, at: Sequence[int]) -> Iterator[Claim]:
    where = "Fig. 2a, 2b" if level == "none" else "Fig. 2c, 2d"
    text = "without DP" if level == "none" else f"at epsilon = {level}"
    versions = (
        (where, "outperforms the others, all with the paper's steps", "", ""),
        (OUTSIDE, "outperforms the others with their step divided by rho", "", "by-rho"),
        (OUTSIDE, "outperforms the others with tuned steps", "", "tuned"),
        (OUTSIDE, "with rho and decay tuned outperforms the others with tuned steps", "tuned", "tuned"),
        (OUTSIDE, "outperforms the others, all with 5 local steps", "q5", "q5"),
    )
    for place_, does, own, other in versions:
        pairs = [(label(kind, "fedpdm", level, own), label(kind, rival, level, other)) for rival in RIVALS]
        yield from _against(curves, place_, f"{kind}: FedPDM {text} {does}", pairs, at, at_the_end=True)


def _inner(curves: Curves, kind: str, at: Sequence[int]) -> Iterator[Claim]:
    for level in COMPARED:
        plain = label(kind, "fedpdm", level)
        text = "without DP" if level == "none" else f"at epsilon = {level}"
        pairs = [(f"{plain}-{change}", plain) for change in ("q5", "rule")]
        yield from _against(curves, "Section III", f"{kind}: more local steps help FedPDM {text}", pairs, at)


def _against(
    curves: Curves,
    where: str,
    says: str,
    pairs: Sequence[tuple[str, str]],
    at: Sequence[int],
    at_the_end: bool = False,
) -> Iterator[Claim]:
    """One statement that some curves are ahead of others, in loss and accuracy; all the way, or at the end."""
    here = [(curves[a], curves[b]) for a, b in pairs if a in curves and b in curves]
    lines, verdicts = [], []
    for a, b in here:
        for measure in MEASURES:
            told, verdict = race(a.by(measure), b.by(measure), at)
            ends = [_text(measure, float(one.last(measure).mean())) for one in (a, b)]
            lines.append(f"{a.name} against {b.name}, {measure}: {told} (at the end {ends[0]} against {ends[1]})")
            if at_the_end:
                verdict = "yes" if compare(a.by(measure), b.by(measure), at[-1]) == -1 else "no"
            verdicts.append(verdict)
    if lines:
        yield Claim(where, says, "<br>".join(lines), overall(verdicts))


def _gap(curves: Curves, kind: str) -> Iterator[Claim]:
    """How much the noise of epsilon = 7 costs, by method."""
    pairs = {
        method: (curves[none], curves[private])
        for method in METHODS
        if (none := label(kind, method, "none")) in curves and (private := label(kind, method, "7")) in curves
    }
    if "fedpdm" not in pairs or len(pairs) == 1:
        return
    lines, verdicts = [], []
    for measure in MEASURES:
        sign = 1 if measure == "loss" else -1
        gaps = {
            method: sign * (b.last(measure)[: len(a.loss)] - a.last(measure)[: len(b.loss)])
            for method, (a, b) in pairs.items()
        }
        told = ", ".join(f"{TITLES[method]} {_text(measure, float(gap.mean()))}" for method, gap in gaps.items())
        lines.append(f"{measure}: {told}")
        verdicts += ["yes" if order(gaps["fedpdm"], gap) < 0 else "no" for one, gap in gaps.items() if one != "fedpdm"]
    says = f"{kind}: the gap between no DP and epsilon = 7 is much smaller for FedPDM than for the others"
    yield Claim("Fig. 2", says, "<br>".join(lines), overall(verdicts))


def _penalty(curves: Curves, kind: str) -> Iterator[Claim]:
    """Whether l1 makes the gap small."""
    names = [label(kind, "fedpdm", level, change) for change in ("", "no-l1") for level in COMPARED]
    if not set(names) <= set(curves):
        return
    with_, without = ([curves[name] for name in some] for some in (names[:2], names[2:]))
    lines, verdicts = [], []
    for measure in MEASURES:
        sign = 1 if measure == "loss" else -1
        gaps = [sign * (b.last(measure) - a.last(measure)) for a, b in (with_, without)]
        told = [_text(measure, float(gap.mean())) for gap in gaps]
        lines.append(f"{measure}: gap {told[0]} with l1, {told[1]} without")
        verdicts.append("yes" if order(*gaps) < 0 else "no")
    yield Claim("Fig. 2", f"{kind}: that is thanks to l1", "<br>".join(lines), overall(verdicts))


def _sparse(curves: Curves, kind: str) -> Iterator[Claim]:
    names = [label(kind, "fedpdm", level, change) for level in COMPARED for change in ("", "no-l1")]
    here = [curves[name] for name in names if name in curves]
    if not here:
        return
    told = ", ".join(f"{curve.name} {curve.zeros.mean():.1%}" for curve in here)
    sparse = ["yes" if curve.zeros.mean() > 0.1 else "no" for curve in here if not curve.name.endswith("no-l1")]
    yield Claim("Section V-A", f"{kind}: l1 gives a sparse model", f"zeros: {told}", overall(sparse))


def _promised(truths: Sequence[Truth]) -> Iterator[Claim]:
    if truths:
        lines = [
            f"claimed {one.claimed:g}: {_size(one.public)} (lambda public), {_size(one.hidden)} (lambda hidden); "
            f"with q^2 as printed {_size(one.public_printed)} and {_size(one.hidden_printed)}"
            for one in truths
        ]
        kept = all(one.public <= one.claimed for one in truths)
        says = "the total privacy loss is at most what (20) gives"
        yield Claim("Fig. 1, 2, Theorem 2", says, "<br>".join(lines), "yes" if kept else "no")


def _size(epsilon: float) -> str:
    return f"{epsilon:,.0f}"


def _text(measure: str, value: float) -> str:
    return f"{value:.3f}" if measure == "loss" else f"{100 * value:.1f} %"
