"""What a study has found: medians and spread, speed-up and efficiency, what a round is spent on, the serial part."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from mpifed.run.history import read_json
from mpifed.scaling.plan import STRONG, Point
from mpifed.scaling.study import Study

PARTS = {  # of a round: the sum of all is the mean round
    "answer_s": "computing the uploads",
    "reduce_s": "sum over the ranks",
    "wait_s": "waiting for the slowest rank",
    "tell_s": "broadcast",
    "server_s": "server",
    "other_s": "opening sums, and all else",
}


class Measured(NamedTuple):
    """One point."""

    point: Point
    seconds: tuple[float, ...]  # the median round of each run
    parts: dict[str, float]  # seconds of the mean round by `PARTS`; medians over the runs
    crowded: bool = False  # had more ranks than cores

    @property
    def median_s(self) -> float:
        """Of a round."""
        return median(self.seconds)

    @property
    def spread(self) -> float:
        """(most - least) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median_s


class Series(NamedTuple):
    """Points of one line, by ranks."""

    kind: str
    label: str
    points: tuple[Measured, ...]

    @property
    def first(self) -> Measured:
        """What the others are compared with: the least ranks."""
        return self.points[0]

    def speed_up(self, one: Measured) -> float:
        """Against the first; of a weak series, in work done a second."""
        more = one.point.ranks / self.first.point.ranks if self.kind != STRONG else 1.0
        return more * self.first.median_s / one.median_s

    def efficiency(self, one: Measured) -> float:
        """1 is ideal."""
        return self.speed_up(one) * self.first.point.ranks / one.point.ranks

    @property
    def serial(self) -> float | None:
        """The serial fraction by least squares: strong, of Amdahl's law; weak, of Gustafson's. Within [0, 1].

        From the points whose ranks had a core each.
        """
        scaled = [(one.point.ranks / self.first.point.ranks, one) for one in self.points[1:] if not one.crowded]
        if not scaled:
            return None
        if self.kind == STRONG:  # T(P) / T(1) = s + (1 - s) / P
            pairs = [(1 - 1 / p, one.median_s / self.first.median_s - 1 / p) for p, one in scaled]
        else:  # the speed-up is P - s (P - 1)
            pairs = [(p - 1, p - self.speed_up(one)) for p, one in scaled]
        fitted = sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)
        return min(max(fitted, 0.0), 1.0)


def measured(study: Study, room: int) -> list[Series]:
    """All series, whose points have been run; `room` is how many ranks had a core each."""
    lines: dict[Point, list[Measured]] = {}
    for point in study.points:
        runs = [read_json(study.folder(point, turn) / "run.json") for turn in range(study.repeat)]
        parts = [parts_of(run) for run in runs]
        means = {name: median(one[name] for one in parts) for name in PARTS}
        seconds = tuple(float(run["seconds_per_round"]) for run in runs)
        lines.setdefault(point.series, []).append(Measured(point, seconds, means, point.ranks > room))
    return [
        Series(one.kind, points[0].point.label, tuple(sorted(points, key=lambda found: found.point.ranks)))
        for one, points in lines.items()
    ]


def parts_of(run: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of the mean round, from what run.json says of its exchanges."""
    accounts: Iterable[Mapping[str, float]] = [
        one for name, one in (run["exchanges"] or {}).items() if name != "keys" and one["played"]
    ]
    rounds, total = run["rounds"], run["elapsed_s"] / run["rounds"]

    def of(key: str) -> float:
        return float(sum(one[key] for one in accounts) / rounds)

    found = {  # of the mean rank
        "answer_s": of("work_s") - of("idle_s"),
        "reduce_s": of("sum_s"),
        "wait_s": of("wait_s"),
        "tell_s": of("tell_s"),
        "server_s": of("server_s"),
    }
    return {**found, "other_s": max(total - sum(found.values()), 0.0)}


def rows(series: Sequence[Series], predicted: Mapping[tuple[str, int], float]) -> list[dict[str, Any]]:
    """A row for each point; `predicted` are seconds of the job's own series, by kind and ranks."""
    found = []
    for line in series:
        for one in line.points:
            own = one.point.size is None and (one.point.clients is None or one.point.kind != STRONG)
            found.append(
                {
                    "kind": line.kind,
                    "series": line.label,
                    "ranks": one.point.ranks,
                    "clients": one.point.clients,
                    "model_size": one.point.size,
                    "runs": len(one.seconds),
                    "seconds_per_round": one.median_s,
                    "least_s": min(one.seconds),
                    "most_s": max(one.seconds),
                    "speed_up": line.speed_up(one),
                    "efficiency": line.efficiency(one),
                    "more_ranks_than_cores": one.crowded,
                    **one.parts,
                    "predicted_s": predicted.get((line.kind, one.point.ranks)) if own else None,
                }
            )
    return found


def as_csv(found: Sequence[dict[str, Any]]) -> str:
    """The same as text."""
    file = io.StringIO()
    writer = csv.DictWriter(file, list(found[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return file.getvalue()
