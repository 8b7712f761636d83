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
    ranges: list[list[str]] = []
    following = None  # what goes on with the last range
    for point in points:
        sweep, _, name = point.name.rpartition("/")
        number = int(name.removeprefix("point-")) if re.fullmatch(r"point-\d+", name) else None
        if number is not None and following == (sweep, number):
            ranges[-1] = [ranges[-1][0], name]
        else:
            ranges.append([point.name])
        following = None if number is None else (sweep, number + 1)
    return ", ".join(" to ".join(ends) for ends in ranges)
