"""Markdown tables: statements of a paper beside what is measured, and the measured numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jobs.reproduction.results import Spread
from mpifed.results.text import toml_text

LEGEND = "`ahead`, `behind`: the means differ by more than two standard errors of their difference."


class Claim(NamedTuple):
    """One statement of the paper."""

    where: str
    says: str
    measured: str
    verdict: str  # yes | in part | no


def claims_table(found: Sequence[Claim]) -> Iterator[str]:
    yield from head("", "where", "paper says", "we measure", "reproduces?")
    for i, claim in enumerate(found, 1):
        yield row((str(i), *claim[:3], f"**{claim.verdict}**"))


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def head(*cells: str) -> Iterator[str]:
    """The first row of a table, and the rule under it."""
    yield row(cells)
    yield row(["---"] * len(cells))


def settings_text(settings: Mapping[str, Any]) -> str:
    """Keys without their tables, and their values."""
    return ", ".join(f"{key.rpartition('.')[2]} = {toml_text(value)}" for key, value in settings.items())


def number(one: Spread, digits: str) -> str:
    """Mean +- standard deviation."""
    return f"{one.mean:{digits}} +- {one.deviation:{digits.lstrip('+')}}"


def percent(one: Spread) -> str:
    """The same of a share."""
    return f"{100 * one.mean:.2f} +- {100 * one.deviation:.2f} %"


def seeds_text(counts: set[int]) -> str:
    """How many seeds the curves have, in words."""
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) + (" seed" if max(counts) == 1 else " seeds")


def rounds_upto(at: Sequence[int], rounds: int) -> list[int]:
    """Those of `at` that were played, and the last."""
    return [t for t in at if t < rounds] + [rounds]
