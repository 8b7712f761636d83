"""What bench.py says of its repetitions: medians and ratios of each case, and what is slower than base."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, TypeAlias

from pandas import DataFrame

FLOORS = ("hand", "few", "exact")  # what a case is measured against, the first that it has
BASE = "base_seconds_per_round"  # of the commit that `base` names, in the results of a variant that is a run of mpifed
LEAST_SPEED = 0.90  # of base's
Grouped: TypeAlias = dict[tuple[str, int], dict[str, list[dict[str, Any]]]]  # by case and ranks, by variant


def grouped(results: Iterable[dict[str, Any]]) -> Grouped:
    """The repetitions, in order."""
    groups: Grouped = defaultdict(lambda: defaultdict(list))
    for result in results:
        groups[result["case"], result["ranks"]][result["variant"]].append(result)
    return groups


def speeds(runs: Iterable[dict[str, Any]]) -> list[float]:
    """Time of base / time now, of each repetition; none of what is no run of mpifed."""
    return [run[BASE] / run["seconds_per_round"] for run in runs if BASE in run]


def slower_in_two(found: Sequence[float]) -> bool:
    """Whether two repetitions say that this state is slower than base."""
    return sum(speed < LEAST_SPEED for speed in found) >= 2


def slower(groups: Grouped) -> list[str]:
    """The variants that are slower than base, a line each, and how to look again."""
    lines, cases = [], []
    for (case, ranks), variants in groups.items():
        for variant, runs in variants.items():
            if slower_in_two(found := speeds(runs)):
                shown = ", ".join(f"{speed:.2f}" for speed in found)
                lines.append(
                    f"slower: case {case}, {ranks} ranks, {variant}: {shown} of base's speed; at least {LEAST_SPEED} "
                    "in two of three"
                )
                cases.append(case)
    if lines:
        lines.append(f"to measure them again: make bench CASES='{' '.join(dict.fromkeys(cases))}'")
    return lines


def table(groups: Grouped) -> DataFrame:
    """Medians over the repetitions; ratios, time of the floor / time, are taken within each."""
    rows = []
    for (case, ranks), variants in groups.items():
        floor = next((name for name in FLOORS if name in variants), "")
        for variant, runs in variants.items():
            row = {"case": case, "ranks": ranks, "variant": variant}
            for name, key, unit in (
                ("ms", "seconds_per_round", 1e3),
                ("cpu_ms", "cpu_s_per_round", 1e3),
                ("mib", "peak_rss_bytes", 2**-20),
            ):
                row[name] = round(unit * median(run[key] for run in runs), 2)
            if floor and variant != floor:
                pairs = zip(variants[floor], runs, strict=True)
                ratios = [one["seconds_per_round"] / two["seconds_per_round"] for one, two in pairs]
                row |= {"floor": floor, "ratio": median(ratios), "least": min(ratios), "most": max(ratios)}
            if of_base := speeds(runs):
                row["of_base"] = median(of_base)
            rows.append(row)
    return DataFrame(rows).round(2)
