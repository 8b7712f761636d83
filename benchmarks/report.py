"""What bench.py prints of its results: medians and ratios of each case, what is slower, and ratios with a bound."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any, TypeAlias

from cases import BY_ROWS
from pandas import DataFrame

# what a case is measured against, the first that it has: loop by hand, bare products, few clients, the plain sum
FLOORS = ("hand", "products", "few", "exact")
BASE = "base_seconds_per_round"  # of the commit that `base` names, in the results of a variant that is a run of mpifed
LEAST_SPEED = 0.90  # of base's
Grouped: TypeAlias = dict[tuple[str, int], dict[str, list[dict[str, Any]]]]  # by case and ranks, by variant


def grouped(results: Iterable[dict[str, Any]]) -> Grouped:
    """The repetitions, in order."""
    groups: Grouped = defaultdict(lambda: defaultdict(list))
    for result in results:
        groups[result["case"], result["ranks"]][result["variant"]].append(result)
    return groups


def ratios(variants: dict[str, list[dict[str, Any]]], above: str, below: str) -> list[float]:
    """The ratios of times taken within each repetition; of a run that was cut off, those that have both."""
    times = ({run["repetition"]: run["seconds_per_round"] for run in variants.get(name, [])} for name in (above, below))
    first, second = times
    return [first[number] / second[number] for number in first if number in second]


def ratio(variants: dict[str, list[dict[str, Any]]], above: str, below: str) -> float | None:
    """The median of the ratios of times taken within each repetition; None where one of the two was not run."""
    return median(several) if (several := ratios(variants, above, below)) else None


def floor_of(variants: Iterable[str]) -> str | None:
    """What the variants of a case are measured against; None where the case has nothing of that."""
    present = set(variants)
    return next((floor for floor in FLOORS if floor in present), None)


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


def beyond(variants: dict[str, list[dict[str, Any]]]) -> float | None:
    """What a masked round takes beyond the exact plain one, in key streams; the median within each repetition."""
    if "masked" not in variants:
        return None
    times = ([one["seconds_per_round"] for one in variants[name]] for name in ("masked", "exact", "streams"))
    return median((masked - exact) / bare for masked, exact, bare in zip(*times, strict=True))


def table(groups: Grouped) -> str:
    """Medians over the repetitions."""
    rows = []
    for (case, ranks), variants in groups.items():
        for variant, runs in variants.items():
            taken = [one["seconds_per_round"] for one in runs]
            of_base = speeds(runs)
            shares = {"base": median(of_base) if of_base else None}
            for name, floor in (("hand", "hand"), ("exact", "hand-exact"), ("floor", "products")):
                shares[name] = ratio(variants, floor, variant)
            rows.append({
                "case": case,
                "ranks": ranks,
                "variant": variant,
                "ms/round": f"{1e3 * median(taken):.2f}",
                "spread": f"{(max(taken) - min(taken)) / median(taken):.0%}",
                "CPU ms": f"{1e3 * median(one['cpu_s_per_round'] for one in runs):.2f}",
                "MiB": f"{median(one['peak_rss_bytes'] for one in runs) / 2**20:.0f}",
                **{name: "" if share is None else f"{share:.2f}" for name, share in shares.items()},
            })  # fmt: skip
    return DataFrame(rows).to_string(index=False)


BY_HAND_AT_LEAST = {  # share of the hand-written loop's speed, on 1 and 2 ranks, by case and variant
    ("1", "exact"): (0.85, 0.8),
    ("2", "exact"): (0.9, 0.9),
    ("3", "exact"): (0.6, 0.6),
    ("newcomer", "exact"): (1.0,),
    ("3", "blocks"): (0.95, 0.95),
    ("alg3-b1000", "exact"): (0.75, 0.75),
    ("alg4-b1000", "exact"): (0.75, 0.75),
    ("fedpdm", "exact"): (0.9, 0.9),
    ("torch-cnn", "exact"): (0.95,),
    ("torch-2nn", "exact"): (0.9,),
}


def accepted(groups: Grouped) -> list[str]:
    """The ratios that have a bound, one line each."""
    lines = []
    for case in ("1", "alg2"):
        if (found := ratio(groups[case, 1], "products", "exact")) is not None:
            lines.append(f"{case}, 1 rank: {found:.2f} of the speed of its bare products; at least 0.7")
    for (case, variant), least in BY_HAND_AT_LEAST.items():
        for ranks, bound in zip((1, 2), least, strict=False):
            if (found := ratio(groups[case, ranks], "hand", variant)) is not None:
                on = "1 rank" if ranks == 1 else f"{ranks} ranks"
                lines.append(f"{case}, {on}, {variant}: {found:.2f} of the speed of the loop by hand; at least {bound}")
    for ranks in (1, 2):
        if (found := beyond(groups["channels", ranks])) is not None:
            lines.append(
                f"channels, {ranks} ranks, masked: the exact plain round and {found:.2f} times the bare key streams; "
                "at most 1.5"
            )
    for case in ("hyfdca", "hyfdca-text"):
        if (found := ratio(groups[case, 1], "exact", "products")) is not None:
            lines.append(f"{case}, 1 rank: {found:.2f} times its bare products; at most 2")
    if encrypted := groups["hyfdca", 1].get("encrypted"):
        taken = median(one["seconds_per_round"] for one in encrypted)
        lines.append(f"hyfdca, 1 rank, encrypted: {taken:.2f} s an iteration; under 2 s")
    for case, what in {"clients": "no state", "clients-states": "states"}.items():
        for ranks in (1, 2):
            if (found := ratio(groups[case, ranks], "many", "few")) is not None:
                lines.append(
                    f"clients, {what}, {ranks} ranks: 100 of 100,000 take {found:.2f} times as long as 100 of 1,000; "
                    "under 2"
                )
    for case, rows in BY_ROWS.items():
        if (found := ratio(groups[case, 2], "exact", "rows")) is not None:
            lines.append(f"{case}, 2 ranks: {found:.2f} times the time of {rows} by rows; at most 2")
    return lines
