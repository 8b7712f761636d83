"""The results of a study: medians and spread, speed-up and efficiency, the parts of a round, the serial fraction."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from mpifed.core.tables import ReadOnlyTable, Table
from mpifed.files.json_file import read_json
from mpifed.scaling.study import STRONG, ScalingPoint, Study

PARTS = {  # parts of a round, which add up to the mean round
    "answer_s": "computing the uploads",
    "reduce_s": "sum over the ranks",
    "wait_s": "waiting for the slowest rank",
    "tell_s": "broadcast",
    "server_s": "server",
    "other_s": "opening sums, and everything else",
}


class Measured(NamedTuple):
    """The measurements of one point."""

    point: ScalingPoint
    seconds: tuple[float, ...]  # median time per round of each run
    parts: dict[str, float]  # seconds of the mean round by `PARTS`; medians over the runs
    crowded: bool = False  # more ranks than cores

    @property
    def median_s(self) -> float:
        """Seconds per round."""
        return median(self.seconds)


class Series(NamedTuple):
    """The points of one line of a figure, by number of ranks."""

    kind: str
    label: str
    points: tuple[Measured, ...]

    @property
    def first(self) -> Measured:
        """The point with the fewest ranks, with which the others are compared."""
        return self.points[0]

    def speed_up(self, measured: Measured) -> float:
        """Speed-up over the first point; in a weak series, of the work done per second."""
        more = measured.point.ranks / self.first.point.ranks if self.kind != STRONG else 1.0
        return more * self.first.median_s / measured.median_s

    def efficiency(self, measured: Measured) -> float:
        """Speed-up divided by the ratio of the numbers of ranks; 1 is ideal."""
        return self.speed_up(measured) * self.first.point.ranks / measured.point.ranks

    @property
    def serial(self) -> float | None:
        """The serial fraction in [0, 1]: the least-squares fit of Amdahl's law (strong) or Gustafson's (weak).

        It uses the points whose ranks had a core each; None if there is only the first.
        """
        scaled = [
            (measured.point.ranks / self.first.point.ranks, measured)
            for measured in self.points[1:]
            if not measured.crowded
        ]
        if not scaled:
            return None
        if self.kind == STRONG:  # T(P) / T(1) = s + (1 - s) / P
            pairs = [(1 - 1 / p, measured.median_s / self.first.median_s - 1 / p) for p, measured in scaled]
        else:  # the speed-up is P - s (P - 1)
            pairs = [(p - 1, p - self.speed_up(measured)) for p, measured in scaled]
        fitted = sum(x * y for x, y in pairs) / sum(x * x for x, _ in pairs)
        return min(max(fitted, 0.0), 1.0)


def read_series(study: Study, core_count: int) -> list[Series]:
    """All series of a study whose runs are complete; points with more than `core_count` ranks are crowded."""
    lines: dict[ScalingPoint, list[Measured]] = {}
    for point in study.points:
        runs = [read_json(study.folder(point, turn) / "run.json") for turn in range(study.repeat)]
        parts = [parts_of(run) for run in runs]
        means = {name: median(run_parts[name] for run_parts in parts) for name in PARTS}
        seconds = tuple(float(run["seconds_per_round"]) for run in runs)
        lines.setdefault(point.series, []).append(Measured(point, seconds, means, point.ranks > core_count))
    return [
        Series(series.kind, points[0].point.label, tuple(sorted(points, key=lambda measured: measured.point.ranks)))
        for series, points in lines.items()
    ]


def parts_of(run: ReadOnlyTable) -> dict[str, float]:
    """Seconds of the mean round by `PARTS`, from the times of the exchanges in run.json."""
    accounts: Iterable[Mapping[str, float]] = [
        account for name, account in (run["exchanges"] or {}).items() if name != "keys" and account["played"]
    ]
    rounds, total = run["rounds"], run["elapsed_s"] / run["rounds"]

    def of(key: str) -> float:
        return float(sum(account[key] for account in accounts) / rounds)

    parts = {  # means over the ranks
        "answer_s": of("work_s") - of("idle_s"),
        "reduce_s": of("sum_s"),
        "wait_s": of("wait_s"),
        "tell_s": of("tell_s"),
        "server_s": of("server_s"),
    }
    return {**parts, "other_s": max(total - sum(parts.values()), 0.0)}


def rows(series: Sequence[Series], predicted: Mapping[tuple[str, int], float]) -> list[Table]:
    """A row for each point; `predicted` has seconds per round of the job's own series, by kind and ranks."""
    table_rows = []
    for line in series:
        for measured in line.points:
            own_model = measured.point.size is None and (
                measured.point.clients is None or measured.point.kind != STRONG
            )
            is_predicted = own_model and not measured.crowded  # predictions give a core to every rank
            table_rows.append(
                {
                    "kind": line.kind,
                    "series": line.label,
                    "ranks": measured.point.ranks,
                    "clients": measured.point.clients,
                    "model_size": measured.point.size,
                    "runs": len(measured.seconds),
                    "seconds_per_round": measured.median_s,
                    "least_s": min(measured.seconds),
                    "most_s": max(measured.seconds),
                    "speed_up": line.speed_up(measured),
                    "efficiency": line.efficiency(measured),
                    "more_ranks_than_cores": measured.crowded,
                    **measured.parts,
                    "predicted_s": predicted.get((line.kind, measured.point.ranks)) if is_predicted else None,
                }
            )
    return table_rows


def as_csv(rows: Sequence[Table]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()
