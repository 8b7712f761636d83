"""What became slower since earlier results: ratios to the floor of each case, each taken within one run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from report import Grouped, grouped, ratios
from rich import box
from rich.table import Table

# what a case is measured against, the first that it has: loop by hand, bare products, few clients, the plain sum
FLOORS = ("hand", "products", "few", "exact")
NO_PRODUCT = {*FLOORS[:3], "hand-exact", "streams", "streams-sparse"}  # variants that are floors themselves


class Earlier(NamedTuple):
    """Results of an earlier run."""

    machine: Mapping[str, Any] | None  # None where it is not told
    started: str
    results: list[dict[str, Any]]


def read_results(path: Path) -> Earlier:
    """Results of bench.py, whole (.json) or as they are written during a run (.jsonl), whose last line may be cut off.

    Raises
    ------
    ValueError
        where the file holds no such results.
    """
    text = path.read_text(encoding="utf-8")
    try:
        about, results = _lines(text) if path.suffix == ".jsonl" else _whole(text)
        grouped(results)
        for result in results:
            float(result["seconds_per_round"]), int(result["repetition"]), int(result["rounds"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: not results of benchmarks/bench.py ({type(error).__name__}: {error})") from error
    return Earlier(about.get("machine"), about.get("started", ""), results)


def _whole(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    about = json.loads(text)
    return about, about["results"]


def _lines(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    lines = text.splitlines()
    if lines and not text.endswith("\n"):
        lines.pop()
    records = [json.loads(line) for line in lines]
    about = records.pop(0) if records and "case" not in records[0] else {}
    return about, records


def same_kind(machine: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    """Whether both are known to have the same processor and as many cores."""
    return bool(machine and other) and all(machine[name] == other[name] for name in ("cpu", "cores"))


def shown_machine(machine: Mapping[str, Any] | None) -> str:
    return f"{machine['cpu']}, {machine['cores']} cores" if machine else "a machine that it does not tell"


class Compared(NamedTuple):
    """The speed of a variant, as a share of its floor's, within each repetition, then and now."""

    case: str
    ranks: int
    variant: str
    floor: str
    then: list[float]
    now: list[float]

    @property
    def verdict(self) -> str:
        """`slower` or `faster` where the medians are further apart than the spreads (largest - smallest) together."""
        if min(len(self.then), len(self.now)) < 2:
            return "one repetition"
        change = median(self.now) - median(self.then)
        spread = sum(max(shares) - min(shares) for shares in (self.then, self.now))
        if abs(change) <= spread:
            return ""
        return "slower" if change < 0 else "faster"


def floor_of(variants: Iterable[str]) -> str | None:
    """What the variants of a case are measured against; None where the case has nothing of that."""
    present = set(variants)
    return next((floor for floor in FLOORS if floor in present), None)


def compared(now: Grouped, then: Grouped) -> list[Compared]:
    """Each variant that both runs have, with its floor and on the same data."""
    rows = []
    for (case, ranks), variants in now.items():
        before = then.get((case, ranks), {})
        floor = floor_of(variants)
        for variant in variants:
            if floor is None or variant == floor or variant in NO_PRODUCT or _data(variants) != _data(before):
                continue
            shares = [ratios(group, floor, variant) for group in (before, variants)]
            if all(shares):
                rows.append(Compared(case, ranks, variant, floor, *shares))
    return rows


def _data(variants: Mapping[str, list[dict[str, Any]]]) -> set[str]:
    """The kinds of data that were used, such as mnist: clients-1000 and clients-100000 are one kind."""
    return {str(run.get("data", "")).split("-")[0] for runs in variants.values() for run in runs}


def comparison(rows: Iterable[Compared]) -> Table:
    shown = Table(box=box.SIMPLE_HEAD, collapse_padding=True)
    for heading in ("case", "ranks", "variant", "floor", "then", "now", ""):
        shown.add_column(heading, no_wrap=True)
    for row in rows:
        shown.add_row(row.case, str(row.ranks), row.variant, row.floor, _range(row.then), _range(row.now), row.verdict)
    return shown


def _range(shares: list[float]) -> str:
    return f"{median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f})"


def slower_lines(rows: list[Compared]) -> list[str]:
    """What became slower, a line each, and how to look again."""
    if not rows:
        return ["nothing to compare: no variant that both runs have, on as many ranks and the same kind of data"]
    slower = [row for row in rows if row.verdict == "slower"]
    lines = [
        f"slower: case {row.case}, {row.ranks} ranks, {row.variant}: {median(row.now):.2f} of the speed of "
        f"{row.floor}, before {median(row.then):.2f}"
        for row in slower
    ]
    lines.append(f"{len(slower)} of {len(rows)} compared are slower, beyond the spread of both runs")
    if slower:
        again = " ".join(dict.fromkeys(row.case for row in slower))
        lines.append("by chance about 6 of 100 seem so with 2 repetitions, and 1 with 3; to measure them again:")
        lines.append(f"make bench CASES='{again}'")
    return lines
