"""Which repetitions bench.py runs, and how long those that remain will take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, NamedTuple

from cases import CASES

WARM_UP = 10  # rounds that a hand-written loop plays before those that are timed


class Planned(NamedTuple):
    """One repetition of one variant."""

    case: str
    ranks: int
    rounds: int
    variant: str
    repetition: int


def planned(cases: Iterable[str], ranks: Sequence[int], share: float) -> list[Planned]:
    """Every repetition of every variant, those that are compared one right after the other; 2 of a share of rounds."""
    return [
        Planned(case, size, max(int(CASES[case].rounds * share), 1), variant, number)
        for case in cases
        for size in CASES[case].ranks or ranks
        for number in range(CASES[case].repetitions if share == 1 else 2)
        for variant in CASES[case].variants
    ]


class Forecast:
    """Seconds of repetitions, from earlier results and from those that are done.

    A repetition takes its rounds, at the seconds a round that its case, ranks and variant had last, and all else: its
    launch, imports and data, at the median over what has been run of its case, otherwise over all. What has been done
    of this run tells how much slower or faster the machine is today.
    """

    def __init__(self, earlier: Iterable[dict[str, Any]]) -> None:
        self.per_round: dict[tuple[str, int, str], list[float]] = {}
        self.else_s: dict[str, list[float]] = {}
        self.expected_s, self.taken_s = 0.0, 0.0  # of what was forecast and is done
        for result in earlier:
            self._learn(result)

    def done(self, result: dict[str, Any]) -> None:
        """Take account of a repetition of this run, which has `took_s`, the seconds it took in all."""
        planned = Planned(*(result[name] for name in Planned._fields))
        seconds = self.seconds(planned)
        if seconds is not None:
            self.expected_s += seconds
            self.taken_s += result["took_s"]
        self._learn(result)

    def seconds(self, planned: Planned) -> float | None:
        """Those of one repetition, on a machine as it was; None where nothing is known of it."""
        else_s = self.else_s.get(planned.case) or [seconds for several in self.else_s.values() for seconds in several]
        if not else_s:
            return None
        same_case = [
            seconds for (case, *_), several in self.per_round.items() if case == planned.case for seconds in several
        ]
        per_round = self.per_round.get((planned.case, planned.ranks, planned.variant)) or same_case or [0.0]
        return median(else_s) + median(per_round) * (planned.rounds + WARM_UP)

    def left_s(self, left: Iterable[Planned]) -> float | None:
        """Seconds of what remains; None where nothing is known of some of it."""
        seconds = [self.seconds(planned) for planned in left]
        if None in seconds:
            return None
        pace = self.taken_s / self.expected_s if self.expected_s else 1.0
        return pace * sum(one for one in seconds if one is not None)

    def _learn(self, result: dict[str, Any]) -> None:
        key, per_round = (result["case"], result["ranks"], result["variant"]), result["seconds_per_round"]
        self.per_round.setdefault(key, []).append(per_round)
        if "took_s" in result:  # results of earlier versions do not tell
            rest = result["took_s"] - per_round * (result["rounds"] + WARM_UP)
            self.else_s.setdefault(result["case"], []).append(max(rest, 0.0))


def shown_left(seconds: float | None) -> str:
    """How long it will still take, in words."""
    if seconds is None:
        return "time left: not known yet"
    return "less than a minute left" if seconds < 60 else f"about {seconds / 60:.0f} min left"
