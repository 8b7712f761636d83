"""The table of rivals, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

HEADINGS = (
    "case", "variant", "ms/round", "rounds/s", "CPU ms", "MiB", "MiB all", "start-up s", "x exact", "same work",
)  # fmt: skip
CAPTION = (
    "Medians over the repetitions. CPU: of all processes, a round; MiB: of the largest process, and of all, shared "
    "pages counted in each; start-up: from launch to the first round; x: median over the repetitions of the time of a "
    "round over that of mpifed; same work: rows and steps were counted and are those of the case."
)
COUNTED = {True: "yes", False: "NO", None: "own tests"}


def grouped(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The repetitions of each variant of each case, in the order of the first repetition; without those that failed."""
    cases: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for one in results:
        if "error" not in one:
            cases.setdefault(one["case"], {}).setdefault(one["variant"], []).append(one)
    return cases


def ratio(runs: Sequence[dict[str, Any]], ours: Sequence[dict[str, Any]]) -> float | None:
    """The median of the ratios of times within the repetitions that both have."""
    against = {one["repetition"]: one["seconds_per_round"] for one in ours}
    found = [
        one["seconds_per_round"] / against[one["repetition"]] for one in runs if one["repetition"] in against
    ]  # fmt: skip
    return median(found) if found else None


def rows(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    found = []
    for case, variants in grouped(results).items():
        for name, runs in variants.items():
            seconds = median(one["seconds_per_round"] for one in runs)
            times = ratio(runs, variants.get("mpifed exact", ()))
            startup = [one["startup_s"] for one in runs if one["startup_s"] is not None]
            found.append([
                case,
                name,
                f"{1e3 * seconds:.2f}",
                f"{1 / seconds:.1f}",
                f"{1e3 * median(one['cpu_s_per_round'] for one in runs):.2f}",
                f"{median(one['peak_rss_bytes'] for one in runs) / 2**20:.0f}",
                f"{median(one['total_rss_bytes'] for one in runs) / 2**20:.0f}",
                f"{median(startup):.1f}" if startup else "",
                "" if times is None else f"{times:.2f}",
                COUNTED[runs[0].get("counted")],
            ])  # fmt: skip
    return found


def failures(results: Sequence[dict[str, Any]]) -> list[str]:
    """What did not run, and the end of what it said."""
    return [
        f"case {one['case']}, {one['variant']} did not run: {one['error'].strip().splitlines()[-1]}"
        for one in results
        if "error" in one
    ]


def versions(results: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Of all packages that the adapters named."""
    found: dict[str, str] = {}
    for one in results:
        found |= one.get("versions", {})
    return dict(sorted(found.items()))


def text(results: Sequence[dict[str, Any]]) -> str:
    table = [list(HEADINGS), *rows(results)]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines = [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in
                  enumerate(zip(row, widths, strict=True))).rstrip()
        for row in table
    ]  # fmt: skip
    said = ", ".join(f"{name} {number}" for name, number in versions(results).items())
    return "\n".join([*lines, CAPTION, f"versions: {said}", *failures(results)])


def markdown(results: Sequence[dict[str, Any]], about: dict[str, Any]) -> str:
    """The table for README.md, with date and machine."""
    machine = about["machine"]
    lines = [
        f"{about['started'][:10]}, {machine['cores']} cores of {machine['cpu'] or machine['architecture']}. {CAPTION}",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"| --- | --- |{' ---: |' * (len(HEADINGS) - 3)} --- |",
        *(f"| {' | '.join(row)} |" for row in rows(results)),
        "",
        f"Versions: {', '.join(f'{name} {number}' for name, number in versions(results).items())}.",
        *(f"\n{one}." for one in failures(results)),
    ]
    return "\n".join(lines) + "\n"
