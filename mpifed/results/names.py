"""The names of settings: their labels, or their runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from mpifed.results.points import Ran, Setting


def names_of(settings: Sequence[Setting]) -> list[str]:
    """The label of each setting, where it alone has it; else with its runs, or these alone."""
    count = Counter(setting.label for setting in settings)
    return [
        setting.label
        if setting.label and count[setting.label] == 1
        else f"{setting.label}: {names(setting.points)}".removeprefix(": ")
        for setting in settings
    ]


def names(points: Sequence[Ran]) -> str:
    """The names of points, with ranges, as point-0000 to point-0002, point-0007; other runs by their folders."""
    runs: list[list[str]] = []
    before = None
    for point in points:
        number = int(point.name.rpartition("-")[2]) if re.fullmatch(r"point-\d+", point.name) else None
        if before is not None and number == before + 1:
            runs[-1] = [runs[-1][0], point.name]
        else:
            runs.append([point.name])
        before = number
    return ", ".join(" to ".join(run) for run in runs)
